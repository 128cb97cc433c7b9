"""What processes send is read back: numbers, idents and samples, each once, and hostile texts as they were."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_throttle.console.recording import RecordFlusher, own_records, redis_keys
from django_throttle.console.recording.cells import percentile
from django_throttle.console.recording.heavy_hitters import MAX_MONTH_IDENTS
from django_throttle.console.recording.read import most_refused, recent, recorded_rules, sample
from django_throttle.console.recording.recorder import recorder
from django_throttle.console.recording.redis_keys import RANKING_TTL_MS
from django_throttle.core import Rule
from django_throttle.exceptions import StoreError
from django_throttle.identity.call import Call
from django_throttle.observe.reports import ident_for_logs
from django_throttle.stores import AnyStore, MemoryStore, RedisStore
from tests.console.conftest import By, call, recorded
from tests.console.test_recorder import refusal
from tests.servers import RedisServer

LIMITED = Rule("api", "3/hour", algorithm="sliding_log")
WATCHED = Rule("watched", "1/hour", action="shadow")

Flush = Callable[[], object]


@pytest.fixture(params=["redis", "memory"])
def both(request: Any, redis_url: str) -> tuple[AnyStore, Flush]:
    if request.param == "memory":
        return MemoryStore(), int
    store = RedisStore(redis_url, deadline=5.0)
    return store, RecordFlusher(store)


def test_calls_are_counted_by_what_was_said_of_them(both: tuple[AnyStore, Flush]) -> None:
    store, flush = both
    assert call(store, [LIMITED, WATCHED], "user:1", 5) == 3
    assert call(store, [LIMITED], "user:2", 2, cost=7) == 0
    flush()
    assert call(store, [LIMITED], "user:3", cost=2) == 1
    flush()
    for by_hour in (False, True):
        api, watched = recorded(store, "api", by_hour=by_hour), recorded(store, "watched", by_hour=by_hour)
        assert (api.allowed, api.refused, api.cost) == (4, {"exceeded": 2, "too_costly": 2}, 5)
        assert sum(api.times.values()) == api.calls == 8
        assert 0 < percentile(api.times, 0.99) < 5
        assert (watched.shadowed, watched.allowed, watched.refused) == (4, 5, {})
    assert recorded_rules(store, timezone.now() - timedelta(hours=1)) == ["api", "watched"]


def test_the_most_refused_by_tag(both: tuple[AnyStore, Flush], monkeypatch: pytest.MonkeyPatch) -> None:
    store, flush = both
    for ident, refused in (("user:1", 9), ("user:2", 4), ("ip:192.0.2.1", 6)):
        call(store, [LIMITED], ident, 3 + refused)
        flush()
    found = most_refused(store, "api")
    assert [(count, error) for _, count, error in found] == [(9, 0), (6, 0), (4, 0)]
    assert [tag[:8] for tag, _, _ in found] == [ident_for_logs(one) for one in ("user:1", "ip:192.0.2.1", "user:2")]
    assert most_refused(store, "no such rule", hours=3) == []
    tomorrow = timezone.now() + timedelta(days=1, hours=2)
    monkeypatch.setattr(timezone, "now", lambda: tomorrow)
    assert own_records.current().cells == {}, "a store in memory keeps a day"


def test_the_most_refused_of_an_hour_that_is_long_over(redis_url: str, redis_server: RedisServer) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    flush, many = RecordFlusher(store), MAX_MONTH_IDENTS + 3
    for _ in range(2):
        for number in range(many):
            call(store, [LIMITED], f"user:{number}", 3 + number)
        flush()
    whole = most_refused(store, "api")
    assert len(whole) == many
    with redis_server.client() as client:
        for key in client.keys("*rec:t:*"):
            assert 0 < client.pttl(key) <= RANKING_TTL_MS
            client.delete(key)
    assert most_refused(store, "api") == [
        (tag, count, whole[MAX_MONTH_IDENTS][1]) for tag, count, _ in whole[:MAX_MONTH_IDENTS]
    ]
    call(store, [LIMITED], "user:0", 3)
    flush()  # late: what was left goes on
    tags = [tag for tag, _, _ in most_refused(store, "api")]
    assert tags == [*[tag for tag, _, _ in whole[:MAX_MONTH_IDENTS]], redis_keys.ranking_tag("user:0")]


def test_what_an_ident_was_refused_lately(both: tuple[AnyStore, Flush]) -> None:
    store, flush = both
    call(store, [LIMITED, WATCHED], "user:1", 5, method="POST")
    call(store, [LIMITED], "user:2", 4)
    flush()
    found = recent(store, "user:1")
    assert [(one.rule, one.reason, one.outcome) for one in found] == [
        ("api", "exceeded", "refused"), ("api", "exceeded", "refused"),
        ("watched", "exceeded", "shadowed"), ("watched", "exceeded", "shadowed"),
    ]  # fmt: skip
    assert {(one.scope, one.method, one.event, one.cost) for one in found} == {("search", "POST", "request", 1)}
    assert found == recent(store, found[0].tag) == recent(store, ident_for_logs("user:1"))
    assert len(recent(store, "user:1", limit=1)) == 1
    assert recent(store, "user:9") == []


def test_foreign_values_under_the_keys_are_replaced(redis_url: str, redis_server: RedisServer) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    flush = RecordFlusher(store)
    call(store, [LIMITED], "user:1", 4)
    flush()
    with redis_server.client() as client:
        keys = list(client.keys("*rec:*"))
        for foreign in ("set", "rpush"):
            for key in keys:
                client.delete(key)
                client.set(key, "foreign", ex=90) if foreign == "set" else client.rpush(key, "foreign")
                client.expire(key, 90)
            assert most_refused(store, "api") == []
            assert recent(store, "user:1") == []
            call(store, [LIMITED], "user:1", 1)
            flush()
            assert recorded(store, "api").refused == {"exceeded": 1}


@pytest.mark.parametrize("failure", ["no answer", "in part"])
def test_what_was_sent_in_vain_counts_once(redis_url: str, monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    flush, pipeline = RecordFlusher(store), store.pipeline
    call(store, [LIMITED, Rule("other", "5/hour")], "user:1", 5)

    def fails(calls: Any) -> Any:
        if failure == "in part":
            return [OSError("full"), *pipeline(calls[1:])]
        pipeline(calls)
        raise StoreError(None, "the answer is lost")  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(store, "pipeline", fails)
        with pytest.raises(StoreError):
            flush()
    call(store, [LIMITED], "user:1", 2)
    flush()
    flush()
    found = recorded(store, "api")
    assert (found.allowed, found.refused, recorded(store, "other").calls) == (3, {"exceeded": 4}, 5)
    assert [count for _, count, _ in most_refused(store, "api")] == [4]
    assert len(recent(store, "user:1")) == 4


@pytest.mark.parametrize("text", ["\x00\n", "\ud800", "<b>{p}</b>", "x" * 1000, "{a}:rec:*"])
def test_hostile_texts_come_back_as_they_were(redis_url: str, text: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RECORD_IDENTS": True}
    store = RedisStore(redis_url, deadline=5.0)
    recorder.record(Call(text, ("request",), By(text), method=text), refusal(text, text), 0.001)
    RecordFlusher(store)()
    assert recorded_rules(store, timezone.now() - timedelta(hours=1)) == [text]
    assert most_refused(store, text) == [(text, 1, 0)]
    (one,) = recent(store, text)
    assert (one.scope, one.method, one.rule) == (text[:100],) * 3
    now = timezone.now()
    assert len(sample(store, now - timedelta(hours=1), now + timedelta(seconds=1)).refused) == 1

"""Which rules processes have in force: those that lag, are silent, or end."""

import io
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from socket import gethostname
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from django_throttle import rulebook
from django_throttle.console.recording import RecordFlusher
from django_throttle.console.recording.cells import Minute
from django_throttle.console.recording.hints import STRICT_IDENTS, Hints, refused_idents
from django_throttle.console.recording.overview import overview
from django_throttle.console.recording.process_rules import RulesReporter, process_rules
from django_throttle.console.recording.read import Recorded, Sample, sample
from django_throttle.console.recording.recorder import recorder
from django_throttle.console.recording.redis_keys import hashed
from django_throttle.core import Rule
from django_throttle.core.commands import Charge
from django_throttle.core.decision import Outcome, Reason, combine_outcomes
from django_throttle.identity.call import Call
from django_throttle.local.limits import flush
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.current_rules import EffectiveSince
from django_throttle.stores import MemoryStore, RedisStore
from tests import doors
from tests.console.conftest import By, call

IDENT = "tenant:\x1b[2J"  # which would clear a terminal


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a snapshot in force so many seconds ago, so many after its edit."""

    def hold(snapshot: Snapshot, after: float | None = None, *, ago: float = 0.0) -> None:
        put = EffectiveSince(timezone.now().timestamp() - ago, after)
        monkeypatch.setattr(rulebook, "loaded", lambda: snapshot)
        monkeypatch.setattr(rulebook, "effective_since", lambda: put)

    return hold


def test_who_lags_or_is_silent_is_named(redis_url: str, monkeypatch: Any, held: Callable[..., None]) -> None:
    store, now = RedisStore(redis_url, deadline=5.0), timezone.now()
    one, other, stopped = (RulesReporter(store, uid) for uid in ("one", "other", "stopped"))
    old, new = Snapshot([]), Snapshot([Rule("api", "5/min")])
    held(old)
    for each in (one, other, stopped):
        each()
    assert [process.state for process in process_rules(store)] == ["live"] * 3
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(seconds=14))
    held(old, ago=14)
    other()
    held(new, ago=4)
    one()
    assert {process.uid: process.state for process in process_rules(store)} == {
        "one": "live", "other": "lags", "stopped": "silent",
    }  # fmt: skip
    process = f"process {os.getpid()} on {gethostname()}"
    assert sorted(overview(store, []).in_words.split("; ")) == [
        f"1 of 3 processes have version {new.version[:8]} of the rules in force",
        f"{process} has other rules in force",
        f"{process} is silent: it has stopped or died",
    ]
    one.end()
    assert {process.uid for process in process_rules(store)} == {"other", "stopped"}
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(seconds=125))
    assert {process.uid for process in process_rules(store)} == {"other"}
    assert process_rules(MemoryStore()) == []


def test_how_long_after_the_edit_the_slowest_had_it(redis_url: str, held: Callable[..., None]) -> None:
    store, old, new = RedisStore(redis_url, deadline=5.0), Snapshot([]), Snapshot([Rule("api", "5/min")])
    for uid, snapshot, after in (("late", old, 9.0), ("quick", new, 0.05), ("slow", new, 0.31), ("fresh", new, None)):
        held(snapshot, after)
        RulesReporter(store, uid)()
    found = overview(store, [])
    assert found.in_words == (
        f"3 of 4 processes have version {new.version[:8]} of the rules in force, the slowest 0.3 s after the edit"
    ), "the fourth has three seconds"
    assert (found.as_json()["version"], found.as_json()["slowest_seconds"]) == (new.version[:12], 0.31)


def test_how_redis_was_lately(redis_url: str, held: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = RedisStore(redis_url, deadline=5.0), timezone.now()
    flushers = [RecordFlusher(store) for _ in range(2)]
    minute = int(now.timestamp()) // 60 * 60
    held(Snapshot([]))
    assert (
        overview(store, []).store_in_words
        == "No circuit breaker is open. No decision of the last five minutes has been reported."
    )
    for flusher, failed in zip(flushers, (0, 4), strict=True):
        assert call(store, [Rule("api", "3/hour", algorithm="sliding_log")], f"user:{failed}", 4) == 3
        for reason in (Reason.WITHIN, Reason.STORE_FAILED):
            decision = combine_outcomes((Outcome("api", "ip:1", reason is Reason.WITHIN, 1, 0, 0.0, 0.0, reason),))
            for _ in range(failed):
                recorder.record(Call("search", ("request",), By("ip:1")), decision._replace(degraded=True), 0.2)
        flusher()
        flusher()  # it tells what it knew when it last sent
    while not store.breaker.failed():
        pass
    flusher()
    found = overview(store, [])
    assert found.store_in_words.startswith("1 circuit breaker is open. 16 decisions in the last five minutes: 50.0%")
    assert found.as_json()["store"]["p99_ms"] == pytest.approx(200, rel=0.5)
    assert found.as_json()["store"]["without_store"] == 8
    monkeypatch.setattr(timezone, "now", lambda: datetime.fromtimestamp(minute + 361, UTC))
    for flusher in flushers:
        flusher()
    assert overview(store, []).recent.calls == 0


@pytest.mark.django_db
def test_whom_dampers_suppress_in_all_processes(
    redis_url: str, settings: Any, held: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    held(Snapshot([]))
    damper, stores = Rule("<b>account", "10/s", algorithm="damper"), [RedisStore(redis_url) for _ in range(2)]
    reporters = [RulesReporter(store, f"{number}") for number, store in enumerate(stores)]
    for store in stores * 2:
        for _ in range(500):
            store.local_limits.decide_damper(Charge(damper, IDENT, 1))
        store.local_limits.decide_damper(Charge(damper, "tenant:8", 1))
        flush(store.local_limits, store.aggregator)
    for reporter in reporters:
        reporter()
    (one,) = overview(stores[0], []).dampers
    assert (one.rule, one.tag, one.processes) == ("<b>account", hashed(IDENT), 2)
    assert one.factor > 0.9
    assert overview(stores[0], []).as_json()["dampers"] == [one._asdict()]
    assert "dampers" not in overview(stores[0], []).as_json()["processes"][0]
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RECORD_IDENTS": True}
    reporters[0]()
    assert {each.tag for each in overview(stores[0], []).dampers} == {IDENT, hashed(IDENT)}

    doors.count_in(stores[0], monkeypatch)
    call_command("throttle_overview", stdout=(out := io.StringIO()))
    assert "tenant:\\x1b[2J" in out.getvalue() and "\x1b" not in out.getvalue()


LIMITED = Rule("api", "3/hour", algorithm="sliding_log")


@pytest.mark.parametrize("has_zones", [True, False])
def test_what_a_rule_did(settings: Any, has_zones: bool) -> None:
    settings.USE_TZ = has_zones
    store = MemoryStore()
    call(store, [LIMITED], "user:1", 4)
    found = overview(store, ["api", "idle"])
    api, idle = found.rules
    assert (api.hour_points[-1], api.day_points[-1]) == ((3, 1), (3, 1))
    assert (api.refused_share, api.hints) == (0.25, [])
    assert idle.hints == [], "nothing was recorded for a day"
    assert found.store_in_words.startswith(
        "No circuit breaker is open. 4 decisions in the last five minutes: 0.0% without"
    )
    assert json.loads(json.dumps(found.as_json()))["rules"][0]["day"]["refused"] == {"exceeded": 1}
    now = timezone.now()
    assert len(sample(store, now - timedelta(hours=1), now + timedelta(hours=1)).whole) == 4


AT = timezone.now()
DAY, MONTH = timedelta(days=1), timedelta(days=30)
IDLE, BUSY, STRICT = Minute(AT), Minute(AT, allowed=5), Minute(AT, allowed=5, refused={"exceeded": 1})
API = Rule("api", "5/min", scopes=["search"])


def seen(tags: dict[str, str], outcome: str = "allowed", scope: str = "search") -> Recorded:
    rule = "api" if outcome == "refused" else ""
    return Recorded(AT, scope, "GET", "request", rule, "", outcome, tags, 1.0, next(iter(tags.values()), ""), 1)


def said(recorded: Minute, known: timedelta, *rules: Rule, calls: list[Recorded] | None = None) -> list[str]:
    """Of the first rule, where the site has the scopes "search" and "chat"."""
    sampled = Sample(calls or [], [], {"whole": 1.0, "refused": 1.0})
    given = rules or (API,)
    return Hints(Snapshot(given), known, sampled, frozenset(["search", "chat"])).for_rule(given[0], recorded)


def test_hints_need_time() -> None:
    assert said(IDLE, timedelta(hours=23)) == said(BUSY, 28 * DAY) == said(STRICT, MONTH) == []
    assert said(IDLE, DAY) == ["It has decided nothing in 1 day: its scope or key matches nobody."]
    assert said(BUSY, MONTH) == ["It has refused nothing in 30 days."]
    assert said(IDLE, MONTH, Rule("api", "5/min", enabled=False)) == []


def test_calls_in_the_scope_that_its_key_does_not_match() -> None:
    (hint,) = said(IDLE, DAY, calls=[seen({"other": "ip:1"})])
    assert hint == (
        "It has decided nothing in 1 day: there were calls in its scope, and none matched its key (user_or_ip), "
        "methods or audience."
    )
    assert "matches nobody" in said(IDLE, DAY, calls=[seen({"other": "ip:1"}, scope="chat")])[0]


def test_a_scope_that_nothing_has() -> None:
    typo = Rule("api", "5/min", scopes=["serach", "ch[x]*"])
    assert said(IDLE, timedelta(0), typo) == ["No route or consumer that was found has its scope (serach, ch[x]*)."]
    assert said(BUSY, timedelta(0), typo) == [], "somebody calls it all the same, such as by @throttle"
    assert said(IDLE, timedelta(0), Rule("api", "5/min", scopes=["s*h"])) == []
    assert said(IDLE, timedelta(0), Rule("api", "5/min", scopes=["mail"], events=["task"])) == []


def test_a_stricter_rule_beside_it() -> None:
    (hint,) = said(BUSY, MONTH, API, Rule("all", "4/min"))
    assert hint == "It never refuses first: rule 'all' counts the same calls, and is as strict or stricter."


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_many_callers_that_are_refused_much(share: float) -> None:
    many = round((STRICT_IDENTS + 2) * share) + 1
    calls = [seen({"api": f"{number}"}, outcome) for number in range(many) for outcome in ("allowed", "refused")]
    calls += [seen({"api": "content"}) for _ in range(100)] + [seen({"api": "content"}, "refused")]
    calls += [seen({"api": "0", "other": "0"})]
    sampled = Sample(calls, [], {"whole": share, "refused": 1.0})
    assert refused_idents(sampled, "api") == round(many / share)
    assert refused_idents(sampled, "other") == 0
    hints = Hints(Snapshot([API]), DAY, sampled, frozenset())
    assert hints.for_rule(API, STRICT) == [
        f"In the last day it refused more than 10% of the calls of about {round(many / share)} callers."
    ]
    assert Hints(Snapshot([API]), DAY / 2, sampled, frozenset()).for_rule(API, STRICT) == []

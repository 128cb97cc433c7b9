"""What processes send counts once, whatever happens to Redis, and hostile texts do no harm on the way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_throttle.call_facts import Facts
from django_throttle.core import Rule
from django_throttle.exceptions import StoreError
from django_throttle.recording import RecordFlusher
from django_throttle.recording.read import most_refused, recent, recorded_rules, sample
from django_throttle.recording.recorder import recorder
from django_throttle.stores import RedisStore
from tests.recording.calls import By, call, recorded
from tests.recording.test_recorder import refusal

LIMITED = Rule("api", "3/hour", algorithm="sliding_log")


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
    recorder.happened(Facts(text, ("request",), By(text), method=text), refusal(text, text), 0.001)
    RecordFlusher(store)()
    assert recorded_rules(store, timezone.now() - timedelta(hours=1)) == [text]
    assert most_refused(store, text) == [(text, 1, 0)]
    (one,) = recent(store, text)
    assert (one.scope, one.method, one.rule) == (text[:100],) * 3
    now = timezone.now()
    assert len(sample(store, now - timedelta(hours=1), now + timedelta(seconds=1)).refused) == 1

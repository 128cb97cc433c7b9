"""The comparison of a live rule and its candidate counts what both decided of the same calls."""

from __future__ import annotations

import json
from datetime import timedelta

from django.utils import timezone

from django_throttle.call_facts import Facts
from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.key import secret_bytes
from django_throttle.core.overrides import Candidate, is_in_share
from django_throttle.limiter import ask, begin
from django_throttle.recording.read import compared
from django_throttle.rulebook import Snapshot
from django_throttle.stores import MemoryStore
from tests.recording.calls import By


def test_the_halves_are_told_apart_with_their_calls() -> None:
    """Calls that pass, which are counted at once, and others."""
    store, share = MemoryStore(), 0.5
    candidate = Candidate.of("api", Rule("api", "3/h", algorithm="sliding_log"), share)
    snapshot = Snapshot([Rule("api", "5/h", algorithm="sliding_log")], candidates=[candidate])
    within = 0
    for number in range(20):
        ident = f"user:{number}"
        facts = Facts("search", ("request",), By(ident), ident=ident)
        within += is_in_share(ident, share, secret_bytes(conf().KEY_SECRET))
        for _ in range(7):
            ask(begin(snapshot, facts, store, True), store, facts)
    now = timezone.now()
    found = compared(store, "api", now - timedelta(minutes=5), now + timedelta(minutes=5))
    without = 20 - within
    assert 0 < within < 20
    assert found.of_candidate == (7 * within, 4 * within)
    assert found.of_live == (7 * without, 2 * without)
    assert dict(found.rows())["Refused where the candidate holds"] == f"{4 * within} of {7 * within}, 57.1%"
    assert json.loads(json.dumps(found.as_json()))["live_holds"] == {"calls": 7 * without, "refused": 2 * without}

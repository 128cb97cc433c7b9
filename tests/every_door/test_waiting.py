"""A rule of action "delay": the doors' entrance waits for the call's turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle import rulebook
from django_throttle.call_facts import Facts
from django_throttle.limiter import adecide, decide
from django_throttle.stores import MemoryStore, get_store
from tests.clock import FrozenClock
from tests.inside import count_in

QUEUE = {"rate": "20/s", "burst": 3, "algorithm": "leaky_bucket", "action": "delay", "max_delay": 1, "key": "everyone"}
SLOW = {"rate": "1/30s", "max_delay": 60}
CAP = {"limit": 5, "algorithm": "concurrency", "key": "everyone"}


class Somebody:
    def ident(self, key: str) -> str:
        return "somebody"


@pytest.fixture(autouse=True)
def rules(settings: Any, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock) -> Callable[..., None]:
    """Rules in force on a clock that stands still; what they delay takes the time that it takes."""

    def enforce(**options: Any) -> None:
        queue = {**QUEUE, "events": ["request", "connect"], **options}
        settings.DJANGO_THROTTLE = {"RULES": {"queue": queue, "cap": CAP}, "AGENT": False, "DATABASE_RULES": False}
        count_in(MemoryStore(clock), monkeypatch)

    enforce()
    return enforce


def test_a_synchronous_call_waits_for_its_turn_and_a_full_queue_refuses() -> None:
    started = time.monotonic()
    decisions = [decide(Facts("any", ("request",), Somebody())) for _ in range(3)]
    assert all(decision.allowed for decision in decisions)
    assert time.monotonic() - started >= sum(decision.delay for decision in decisions) > 0
    assert not decide(Facts("any", ("request",), Somebody())).allowed


async def test_asynchronous_calls_wait_side_by_side() -> None:
    await rulebook.acurrent()  # the first reading would shuffle them
    started = time.monotonic()
    decisions = await asyncio.gather(*(adecide(Facts("any", ("request",), Somebody())) for _ in range(5)))
    assert [decision.allowed for decision in decisions] == [True, True, True, False, False]
    assert [round(decision.delay, 2) for decision in decisions[:3]] == [0.0, 0.05, 0.1]
    assert time.monotonic() - started >= decisions[2].delay


async def test_asking_only_does_not_wait(rules: Callable[..., None]) -> None:
    rules(**SLOW)
    await adecide(Facts("any", ("request",), Somebody()))
    decision = await asyncio.wait_for(adecide(Facts("any", ("request",), Somebody()), commit=False), 10)
    assert decision.delay == 30


@pytest.mark.parametrize("at", ["time.sleep", "django_throttle.observe.reports.tell"])
def test_who_is_ended_while_waiting_holds_nothing(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker does that has taken too long."""

    def end(*_: object) -> None:
        raise SystemExit

    facts = Facts("any", ("connect", "connection"), Somebody())
    first = decide(facts)
    monkeypatch.setattr(at, end)
    with pytest.raises(SystemExit):
        decide(facts)
    assert first.lease is not None
    assert len(get_store().leases) == 1


async def test_who_gives_up_waiting_holds_nothing(rules: Callable[..., None]) -> None:
    rules(**SLOW)
    facts = Facts("any", ("connect", "connection"), Somebody())
    await adecide(facts)
    assert len(get_store().leases) == 1
    waiting = asyncio.create_task(adecide(facts))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(get_store().leases) == 2
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(get_store().leases) == 1

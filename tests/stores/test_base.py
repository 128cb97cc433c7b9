"""Flows on a store: answers and errors go in, with and without an event loop, and what was taken in vain goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import charge
from django_throttle.core.decide import Flow
from django_throttle.limiter import Limiter, decide_flow
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import Step, arun, drive, run

Steps = Generator[Any, Any, Any]
RULES = [Rule("rate", "3/min", algorithm="fixed_window"), Rule("cap", limit=2, algorithm="concurrency")]


@pytest.mark.parametrize("prefix", ["", "a"])
def test_what_a_flow_took_that_did_not_come_to_its_end_goes_back(prefix: str) -> None:
    """As when it is cancelled while it gives back what an earlier door has charged in error."""
    limiter = Limiter(RULES, MemoryStore())
    charges = tuple(charge(rule, "user:1", 1) for rule in RULES)

    def interrupted() -> Flow[Decision]:
        yield from decide_flow(charges, limiter.store)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(arun(interrupted(), limiter.store)) if prefix else run(interrupted(), limiter.store)
    assert limiter.peek("user:1").outcomes[1].remaining == 2


def test_a_step_s_own_stop_iteration_stays_one() -> None:
    def stops() -> None:
        raise StopIteration("its own")

    async def never() -> None: ...

    def steps() -> Steps:
        yield Step(stops, never)

    with pytest.raises(StopIteration, match="its own"):
        drive(steps(), pytest.fail)

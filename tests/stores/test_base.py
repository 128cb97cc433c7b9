"""Flows on a store: answers and errors go in, with and without an event loop, and what was taken in vain goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import charge
from django_throttle.core.decide import Flow
from django_throttle.limiter import Limiter, decide_flow
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import Step, adrive, arun, drive, run
from tests.clock import FrozenClock

RULES = [Rule("rate", "3/min", algorithm="fixed_window"), Rule("cap", limit=2, algorithm="concurrency")]


@pytest.mark.parametrize("prefix", ["", "a"])
def test_what_a_flow_took_that_did_not_come_to_its_end_goes_back(clock: FrozenClock, prefix: str) -> None:
    """As when it is cancelled while it gives back what an earlier door has charged in error."""
    limiter = Limiter(RULES, MemoryStore(clock=clock))
    charges = tuple(charge(rule, "user:1", 1) for rule in RULES)

    def interrupted() -> Flow[Decision]:
        yield from decide_flow(charges, limiter.store)
        raise KeyboardInterrupt

    def drive() -> None:
        _ = asyncio.run(arun(interrupted(), limiter.store)) if prefix else run(interrupted(), limiter.store)

    with pytest.raises(KeyboardInterrupt):
        drive()
    assert limiter.peek("user:1").outcomes[1].remaining == 2


Steps = Generator[Any, Any, Any]


def plain(steps: Steps, ask: Callable[[Any], Any], abandon: Any = None) -> Any:
    return drive(steps, ask, abandon)


def awaited(steps: Steps, ask: Callable[[Any], Any], abandon: Any = None) -> Any:
    async def aask(asked: Any) -> Any:
        await asyncio.sleep(0)
        return ask(asked)

    return asyncio.run(adrive(steps, aask, abandon))


BOTH = pytest.mark.parametrize("run", [plain, awaited])


def double(asked: int) -> int:
    return 10 // asked


@BOTH
def test_it_is_sent_each_answer_and_its_value_comes_back(run: Callable[..., Any]) -> None:
    def steps() -> Steps:
        return (yield 1), (yield 2)

    assert run(steps(), double) == (10, 5)


@BOTH
def test_an_error_is_thrown_in_and_may_be_answered(run: Callable[..., Any]) -> None:
    def steps() -> Steps:
        try:
            yield 0
        except ZeroDivisionError:
            return (yield 5)

    assert run(steps(), double) == 2


@BOTH
def test_what_was_asked_is_abandoned_when_it_raises_and_not_before(run: Callable[..., Any]) -> None:
    abandoned: list[Any] = []

    def steps(last: int) -> Steps:
        yield 1
        yield last

    run(steps(2), double, abandoned.append)
    assert abandoned == []
    with pytest.raises(ZeroDivisionError):
        run(steps(0), double, abandoned.append)
    assert abandoned == [(1, 0)]


@BOTH
def test_a_step_is_done_and_nobody_is_asked(run: Callable[..., Any]) -> None:
    async def there() -> str:
        return "awaited"

    def steps() -> Steps:
        return (yield Step(lambda: "plain", there))

    assert run(steps(), pytest.fail) == run.__name__


def test_a_step_s_own_stop_iteration_stays_one() -> None:
    def stops() -> None:
        raise StopIteration("its own")

    async def never() -> None: ...

    def steps() -> Steps:
        yield Step(stops, never)

    with pytest.raises(StopIteration, match="its own"):
        drive(steps(), pytest.fail)

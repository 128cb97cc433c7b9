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


def awaited(steps: Steps, ask: Callable[[Any], Any], abandon: Any) -> Any:
    async def aask(asked: Any) -> Any:
        await asyncio.sleep(0)
        return ask(asked)

    return asyncio.run(adrive(steps, aask, abandon))


@pytest.mark.parametrize("run", [drive, awaited])
def test_answers_and_errors_go_in_and_what_raises_is_abandoned(run: Callable[..., Any]) -> None:
    abandoned: list[Any] = []

    async def there() -> str:
        return "awaited"

    def steps(last: int) -> Steps:
        answers = [(yield 1), (yield Step(lambda: "drive", there))]
        try:
            yield 0
        except ZeroDivisionError:
            answers.append((yield last))
        return answers

    assert run(steps(5), lambda asked: 10 // asked, abandoned.append) == [10, run.__name__, 2]
    assert abandoned == []
    with pytest.raises(ZeroDivisionError):
        run(steps(0), lambda asked: 10 // asked, abandoned.append)
    ((first, _, *rest),) = abandoned
    assert (first, rest) == (1, [0, 0])


def test_a_step_s_own_stop_iteration_stays_one() -> None:
    def stops() -> None:
        raise StopIteration("its own")

    async def never() -> None: ...

    def steps() -> Steps:
        yield Step(stops, never)

    with pytest.raises(StopIteration, match="its own"):
        drive(steps(), pytest.fail)

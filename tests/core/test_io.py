"""The driver of coroutines without an event loop, and what an interrupted decision leaves behind."""

import asyncio
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Correct, charge
from django_throttle.core.decide import decide_and_correct
from django_throttle.core.io import run
from django_throttle.core.ledger import Ledger
from django_throttle.limiter import Limiter, decide_fully
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import BlockingIo, LoopIo
from tests.clock import FrozenClock

RULES = [Rule("rate", "3/min", algorithm="fixed_window"), Rule("cap", limit=2, algorithm="concurrency")]


def test_a_coroutine_that_awaits_an_event_loop_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="without an event loop"):
        run(LoopIo(MemoryStore()).sleep(0))  # type: ignore[arg-type]


def test_a_stop_iteration_of_a_called_function_stays_one() -> None:
    def stops() -> None:
        raise StopIteration("its own")

    async def calls() -> None:
        await BlockingIo(MemoryStore()).call(stops, None)

    with pytest.raises(StopIteration, match="its own"):
        run(calls())


class Interrupted(BaseException):
    """As when the client goes, or a worker's own timeout ends it."""


@pytest.mark.parametrize("io", [BlockingIo, LoopIo])
def test_a_slot_goes_back_if_its_call_is_interrupted(clock: FrozenClock, io: Any) -> None:
    """While what an earlier entry point charged in error is given back."""
    limiter = Limiter(RULES, MemoryStore(clock=clock))
    charges = tuple(charge(rule, "user:1", 1) for rule in RULES)
    earlier = run(decide_fully(BlockingIo(limiter.store), (charge(RULES[0], "user:2", 1),)))
    execute = limiter.store.execute

    def interrupt(command: Any) -> Any:
        if isinstance(command, Correct):
            raise Interrupted
        return execute(command)

    async def decide() -> Any:
        return await decide_fully(io(limiter.store), charges)

    charged = Ledger()
    charged.note(earlier)
    limiter.store.execute = interrupt  # type: ignore[method-assign]
    work = decide_and_correct(io(limiter.store), decide, charged, (), {rule.name: rule for rule in RULES}.get)
    with pytest.raises(Interrupted):
        run(work) if io is BlockingIo else asyncio.run(work)
    del limiter.store.execute
    assert limiter.peek("user:1").outcomes[1].remaining == 2


def test_an_error_of_its_own_comes_through() -> None:
    async def fails() -> None:
        raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        run(fails())

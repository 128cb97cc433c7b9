"""The facade: what it refuses at the door, that its twins are twins, and what an interrupted decision leaves."""

import asyncio
import inspect
from contextlib import AsyncExitStack, nullcontext
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Correct, charge
from django_throttle.core.decide import decide_and_correct
from django_throttle.core.io import run
from django_throttle.core.ledger import Ledger
from django_throttle.exceptions import InvalidCost, InvalidIdent, InvalidRule, Refused
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter, decide, decide_fully
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import BlockingIo, LoopIo
from tests.callers import ANNA
from tests.clock import FrozenClock

RATE = Rule("rate", "3/min", algorithm="fixed_window")
CAP = Rule("cap", limit=2, algorithm="concurrency")


@pytest.fixture
def limiter(clock: FrozenClock) -> Limiter:
    return Limiter([RATE, CAP], MemoryStore(clock=clock))


def call(limiter: Limiter, name: str, *arguments: Any) -> Any:
    """Call a method, and await what it returns if it is the async twin."""
    found = getattr(limiter, name)(*arguments)
    return asyncio.run(found) if inspect.isawaitable(found) else found


@pytest.mark.parametrize("verb", ["acquire", "peek", "reset", "aacquire", "apeek", "areset"])
@pytest.mark.parametrize("ident", ["", None, 5, b"user:1", "a" * 1025])
def test_an_ident_that_is_none_is_refused_at_once(limiter: Limiter, verb: str, ident: Any) -> None:
    with pytest.raises(InvalidIdent):
        call(limiter, verb, ident)


@pytest.mark.parametrize("verb", ["acquire", "peek", "aacquire", "apeek"])
@pytest.mark.parametrize("cost", [-1, 0.5, "1", True, None, float("nan"), float("inf")])
def test_a_cost_that_is_none_is_refused_and_charges_nothing(limiter: Limiter, verb: str, cost: Any) -> None:
    with pytest.raises(InvalidCost):
        call(limiter, verb, "user:1", cost)
    assert limiter.peek("user:1").outcomes[0].remaining == 3
    hot = Limiter([Rule("hot", "9/min", prepaid=True)], MemoryStore())
    with pytest.raises(InvalidCost):
        call(hot, verb, "user:1", cost)
    with pytest.raises(InvalidCost):
        decide(Call("chat", ("request",), ANNA, cost))


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidRule, match="share a name"):
        Limiter([RATE, Rule("rate", "5/h")], MemoryStore())


def open_slots(limiter: Limiter) -> int:
    return 2 - limiter.peek("user:1").outcomes[1].remaining


async def test_a_slot_comes_back_from_a_block_that_is_cancelled(limiter: Limiter) -> None:
    async def block() -> None:
        async with limiter.alease("user:1"):
            assert open_slots(limiter) == 1
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await block()
    assert open_slots(limiter) == 0


@pytest.mark.parametrize("name", ["lease", "alease"])
async def test_a_slot_is_held_inside_the_block_and_a_refused_block_never_entered(limiter: Limiter, name: str) -> None:
    async with AsyncExitStack() as stack:
        for number in range(1, 4):
            block = getattr(limiter, name)("user:1")
            with pytest.raises(Refused) if number == 3 else nullcontext() as caught:
                await stack.enter_async_context(block) if name == "alease" else stack.enter_context(block)
            assert open_slots(limiter) == min(number, 2)
        assert caught is not None and caught.value.decision.rule == "cap" and caught.value.decision.lease is None
    assert open_slots(limiter) == 0
    assert limiter.peek("user:1").outcomes[0].remaining == 1, "a refused call is charged nothing"


@pytest.mark.parametrize("error", [StopIteration, RuntimeError])
def test_an_error_of_a_called_function_stays_what_it_is(error: type[Exception]) -> None:
    def fails() -> None:
        raise error("its own")

    async def calls() -> None:
        await BlockingIo(MemoryStore()).call(fails, None)

    with pytest.raises(error, match="its own"):
        run(calls())


class Interrupted(BaseException):
    """As when the client goes, or a worker's own timeout ends it."""


@pytest.mark.parametrize("io", [BlockingIo, LoopIo])
def test_a_slot_goes_back_if_its_call_is_interrupted(clock: FrozenClock, io: Any) -> None:
    limiter = Limiter([RATE, CAP], MemoryStore(clock=clock))
    charges = tuple(charge(rule, "user:1", 1) for rule in (RATE, CAP))
    earlier = run(decide_fully(BlockingIo(limiter.store), (charge(RATE, "user:2", 1),)))
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
    work = decide_and_correct(io(limiter.store), decide, charged, (), {rule.name: rule for rule in (RATE, CAP)}.get)
    with pytest.raises(Interrupted):
        run(work) if io is BlockingIo else asyncio.run(work)
    del limiter.store.execute
    assert limiter.peek("user:1").outcomes[1].remaining == 2

"""What was bought in advance is spent once or given back once, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle import rulebook
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.core import Rule
from django_throttle.core.commands import Charge, Decide, Refund
from django_throttle.core.decision import Decision
from django_throttle.limiter import Limiter
from django_throttle.sockets import prepaid as lots
from django_throttle.sockets.error_frames import Close
from django_throttle.sockets.prepaid import MAX_CALLS as MOST
from django_throttle.sockets.prepaid import PrepaidFrames, StoreCallLimit
from django_throttle.stores import RedisStore
from tests.inside import buys
from tests.sockets.guarded import Line, Live, becomes, live_enforcer, texts

enforce = pytest.fixture(live_enforcer)
IDENT = "ip:203.0.113.9"
CHAT = {"rate": "1000/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
OTHERS = 500
LOT = 64


def rule(rate: str = "1000/h") -> Rule:
    return Rule("chat", rate, events=("message",), key="ip", algorithm="fixed_window")


def charges(one: Rule | None = None) -> tuple[Charge, ...]:
    return (Charge(one or rulebook.current().rules[0], IDENT, 1),)


def used(store: RedisStore) -> int:
    decision = Limiter([rulebook.current().rules[0]], store).peek(IDENT)
    assert decision.limit is not None and decision.remaining is not None
    return decision.limit - decision.remaining


def parts_of(prepaid: Any) -> tuple[Any, Any, Any]:
    """What it has bought, whom it asks, and what it was refused."""
    return prepaid._balance, prepaid._asking, prepaid._refusal


class Held:
    """Holds back what the store answers to questions, until it is let go; counts what is given back."""

    def __init__(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.back = 0, 0
        self._ask = store.aexecute
        self.go = asyncio.Event()
        monkeypatch.setattr(store, "aexecute", self)

    async def __call__(self, command: Any) -> Any:
        answer = await self._ask(command)
        if type(command) is Decide:
            self.asked += 1
            await self.go.wait()
        if type(command) is Refund:
            self.back += sum(one.charge.cost for one in command.paid)
        return answer

    async def asks(self, times: int = 1) -> None:
        await becomes(lambda: self.asked == times)


@pytest.fixture
def held(enforce: Live, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RedisStore, Held]]:
    """Rules in force of which others have used some already; each question buys 64 frames."""

    def made(**given: Any) -> tuple[RedisStore, Held]:
        store = enforce(chat=CHAT, **given)
        Limiter([rulebook.current().rules[0]], store).acquire(IDENT, OTHERS)
        buys(LOT, monkeypatch)
        monkeypatch.setattr(lots, "MAX_LIFETIME", 3600.0)
        monkeypatch.setattr(lots, "SHORTEST", 3600.0)  # so that none lapses on a slow machine
        return store, Held(store, monkeypatch)

    return made


Set = Callable[..., tuple[RedisStore, Held]]


async def taken(*tasks: asyncio.Task[tuple[Decision, float]]) -> list[bool]:
    return [decision.allowed for decision, _ in await asyncio.wait_for(asyncio.gather(*tasks), 10)]


async def test_a_lot_given_back_can_neither_be_spent_nor_given_back_again(held: Set) -> None:
    store, found = held()
    found.go.set()
    allowance = PrepaidFrames(StoreCallLimit())
    await allowance.decide(charges(), (1,))
    lot = parts_of(allowance)[0]
    assert lot is not None
    allowance.refund()
    assert lot.spend((1,), 0.0) is None
    assert lot.refund() is None
    await becomes(lambda: found.back == LOT - 1)
    assert used(store) == OTHERS + 1


async def test_what_arrives_when_the_socket_is_closed_goes_back_once(held: Set) -> None:
    store, found = held()
    allowance = PrepaidFrames(StoreCallLimit())
    taking = [asyncio.ensure_future(allowance.decide(charges(), (1,))) for _ in range(3)]
    await found.asks()
    allowance.end()
    found.go.set()
    await taken(*taking)
    await becomes(lambda: found.back >= LOT)
    await asyncio.sleep(0.1)
    assert (found.back, used(store), found.asked) == (LOT, OTHERS, 1)


async def test_who_waits_for_the_next_question_asks_none_once_the_socket_is_closed(held: Set) -> None:
    """Closed in the wait for the pace, which is where a flood spends nearly all its time."""
    store, found = held()
    pace = StoreCallLimit()
    for _ in range(MOST):
        pace.note(asyncio.get_running_loop().time() + 3600)
    allowance = PrepaidFrames(pace)
    taking = asyncio.ensure_future(allowance.decide(charges(), (1,)))
    await asyncio.sleep(0.01)
    allowance.end()
    await taken(taking)
    assert (found.asked, used(store)) == (0, OTHERS)


async def test_a_question_that_nobody_waits_for_is_over_when_it_is_answered(held: Set) -> None:
    """Its lot lapses; a later frame asks anew and does not find that lot again."""
    store, found = held()
    allowance, frame = PrepaidFrames(StoreCallLimit()), charges()
    taking = asyncio.ensure_future(allowance.decide(frame, (1,)))
    await found.asks()
    taking.cancel()
    await asyncio.wait([taking])
    found.go.set()
    await becomes(lambda: parts_of(allowance)[0] is not None)
    allowance.refund()
    await becomes(lambda: found.back == LOT)
    assert await taken(asyncio.ensure_future(allowance.decide(frame, (1,)))) == [True]
    assert found.asked == 2
    allowance.end()
    await becomes(lambda: found.back == LOT + LOT - 1)
    assert used(store) == OTHERS + 1


async def test_an_old_refusal_is_not_said_to_who_asks_later(held: Set) -> None:
    """The question had its answer when a budget had been given back already."""
    _, found = held()
    allowance, frame = PrepaidFrames(StoreCallLimit()), charges()
    large = asyncio.ensure_future(allowance.decide(frame, (900,)))
    await found.asks()
    allowance.forget()
    large.cancel()
    found.go.set()
    await asyncio.wait([large])
    await becomes(lambda: parts_of(allowance)[1] is None)
    assert parts_of(allowance)[2] is None
    assert await taken(asyncio.ensure_future(allowance.decide(frame, (1,)))) == [True]


async def test_two_frames_that_wait_for_one_question_while_rules_change(held: Set) -> None:
    """Both are paid for, one by what was bought; the rest goes back once."""
    store, found = held()
    old, new = charges(), charges(rule("900/h"))
    allowance = PrepaidFrames(StoreCallLimit())
    waiting = [asyncio.ensure_future(allowance.decide(old, (1,))) for _ in range(2)]
    await found.asks()
    other = asyncio.ensure_future(allowance.decide(new, (1,)))
    await asyncio.sleep(0)
    found.go.set()
    assert await taken(*waiting, other) == [True] * 3
    allowance.end()
    await becomes(lambda: used(store) == OTHERS + 3)
    await asyncio.sleep(0.1)
    assert used(store) == OTHERS + 3


async def test_who_waits_for_what_a_larger_frame_is_refused_asks_by_itself(
    held: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = held()
    buys(1, monkeypatch)
    allowance, frame = PrepaidFrames(StoreCallLimit()), charges()
    large = asyncio.ensure_future(allowance.decide(frame, (501,)))
    await found.asks()
    small = asyncio.ensure_future(allowance.decide(frame, (1,)))
    found.go.set()
    assert await taken(large, small) == [False, True]


async def test_what_is_left_goes_back_with_the_socket(held: Set) -> None:
    """At once: here no lot ever lapses."""
    store, found = held()
    found.go.set()
    line = await Line().open()
    line.send("1", "2", "3")
    await line.until(lambda: len(texts(line)) == 3)
    assert used(store) == OTHERS + LOT
    await line.close()
    await becomes(lambda: used(store) == OTHERS + 3)


async def test_a_reset_takes_what_was_bought_before_with_it(held: Set) -> None:
    """Nobody is charged for it any more: given back, it would be what others have used since."""
    store, found = held()
    found.go.set()
    line = await Line().open()
    line.send("1")
    await line.until(lambda: texts(line))
    limiter = Limiter([rulebook.current().rules[0]], store)
    limiter.reset(IDENT)
    limiter.acquire(IDENT, OTHERS)
    (socket,) = open_sockets.everyone()
    socket.reset()
    line.send("2")
    await line.until(lambda: len(texts(line)) == 2)
    assert (found.back, used(store)) == (0, OTHERS + LOT)
    await line.close()
    await becomes(lambda: used(store) == OTHERS + 1)


async def test_a_frame_whose_socket_is_closed_meanwhile_reaches_nobody_and_costs_nothing(held: Set) -> None:
    store, found = held()
    line = await Line().open()
    line.send("1", "2", "3")
    await found.asks()
    (socket,) = open_sockets.everyone()
    socket.start_close(Close(4430, "evicted"))
    await line.until(lambda: line.closed)
    found.go.set()
    await line.until(lambda: line.task is not None and line.task.done())
    assert texts(line) == []
    await becomes(lambda: found.back >= LOT)
    assert used(store) == OTHERS


async def test_what_goes_back_waits_for_its_turn_unless_the_socket_is_closed(held: Set) -> None:
    store, found = held()
    found.go.set()
    pace, frame = StoreCallLimit(), charges()
    allowance = PrepaidFrames(pace)
    await allowance.decide(frame, (1,))
    for _ in range(MOST):
        pace.note(asyncio.get_running_loop().time() + 3600)
    allowance.refund()
    await asyncio.sleep(0.05)
    assert found.back == 0
    allowance.end()
    await becomes(lambda: found.back == LOT - 1)
    assert used(store) == OTHERS + 1

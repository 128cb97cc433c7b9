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
from django_throttle.core.prepaid import MOST_ASKED, Claim
from django_throttle.limiter import Limiter
from django_throttle.prepaid import decide_bought, give_back, release_bought
from django_throttle.sockets.error_frames import Close
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import arun
from tests.inside import buys
from tests.sockets.guarded import Line, Live, becomes, live_enforcer, texts

enforce = pytest.fixture(live_enforcer)
IDENT = "ip:203.0.113.9"
CHAT = {"rate": "1000/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
OTHERS = 500
LOT = 64


def rule(rate: str = "1000/h") -> Rule:
    return Rule("chat", rate, events=("message",), key="ip", algorithm="fixed_window")


def claim(cost: int = 1, one: Rule | None = None) -> Claim:
    """What a frame is charged."""
    return Claim((Charge(one or rulebook.current().rules[0], IDENT, cost),), waits=True)


def used(store: RedisStore) -> int:
    decision = Limiter([rulebook.current().rules[0]], store).peek(IDENT)
    assert decision.limit is not None and decision.remaining is not None
    return decision.limit - decision.remaining


class Held:
    """Holds back what the store answers to questions, until it is let go; counts what is given back."""

    def __init__(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.asked, self.back = store, 0, 0
        self._execute, self._ask = store.execute, store.aexecute
        self.go = asyncio.Event()
        monkeypatch.setattr(store, "execute", self.execute)
        monkeypatch.setattr(store, "aexecute", self.aexecute)

    def execute(self, command: Any) -> Any:
        self._note(command)
        return self._execute(command)

    async def aexecute(self, command: Any) -> Any:
        answer = await self._ask(command)
        self._note(command)
        if type(command) is Decide:
            self.asked += 1
            await self.go.wait()
        return answer

    def _note(self, command: Any) -> None:
        if type(command) is Refund:
            self.back += sum(one.charge.cost for one in command.paid)

    async def asks(self, times: int = 1) -> None:
        await becomes(lambda: self.asked == times)

    def decides(self, one: Claim) -> asyncio.Task[Decision]:
        return asyncio.ensure_future(arun(decide_bought(one, self.store), self.store))


@pytest.fixture
def held(enforce: Live, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RedisStore, Held]]:
    """Rules in force of which others have used some already; each question buys 64 frames, which stay good."""

    def made(**given: Any) -> tuple[RedisStore, Held]:
        store = enforce(chat=CHAT, **given)
        Limiter([rulebook.current().rules[0]], store).acquire(IDENT, OTHERS)
        buys(LOT, monkeypatch)
        clock = store.local_limits.prepaid.clock()
        monkeypatch.setattr(store.local_limits.prepaid, "clock", lambda: clock)
        return store, Held(store, monkeypatch)

    return made


Set = Callable[..., tuple[RedisStore, Held]]


async def taken(*tasks: asyncio.Task[Decision]) -> list[bool]:
    return [decision.allowed for decision in await asyncio.wait_for(asyncio.gather(*tasks), 10)]


async def test_what_is_given_back_can_neither_be_spent_nor_given_back_again(held: Set) -> None:
    store, found = held()
    found.go.set()
    assert await taken(found.decides(claim())) == [True]
    give_back(store, everything=True)
    give_back(store, everything=True)
    assert not store.local_limits.prepaid.spend_all(claim().charges)
    assert (found.back, used(store)) == (LOT - 1, OTHERS + 1)


async def test_a_frame_that_is_not_passed_on_leaves_its_unit_to_others(held: Set) -> None:
    store, found = held()
    found.go.set()
    one = claim()
    assert await taken(found.decides(one)) == [True]
    await arun(release_bought(one, store), store)
    await arun(release_bought(one, store), store)
    give_back(store, everything=True)
    assert (found.back, used(store)) == (LOT, OTHERS)


async def test_what_a_frame_was_charged_without_a_purchase_goes_back_by_itself() -> None:
    store, one = MemoryStore(), claim(one=rule())
    assert (await arun(decide_bought(one, store), store)).remaining == 999
    await arun(release_bought(one, store), store)
    await arun(release_bought(one, store), store)
    assert Limiter([rule()], store).peek(IDENT).remaining == 1000


async def test_a_question_that_nobody_waits_for_buys_for_others(held: Set) -> None:
    store, found = held()
    taking = found.decides(claim())
    await found.asks()
    taking.cancel()
    await asyncio.wait([taking])
    found.go.set()
    assert await taken(found.decides(claim())) == [True]
    assert found.asked == 1
    give_back(store, everything=True)
    assert used(store) == OTHERS + 1


async def test_an_old_refusal_is_not_said_to_who_asks_later(held: Set) -> None:
    """The question had its answer when a budget had been given back already."""
    store, found = held()
    large = found.decides(claim(900))
    await found.asks()
    store.local_limits.prepaid.forget(lambda budget: True)
    found.go.set()
    assert await taken(large, found.decides(claim())) == [False, True]


async def test_two_frames_that_wait_for_one_question_while_rules_change(held: Set) -> None:
    """Both are paid for; what was bought under the old rule goes back once."""
    store, found = held()
    waiting = [found.decides(claim()) for _ in range(2)]
    await found.asks()
    other = found.decides(claim(one=rule("900/h")))
    await asyncio.sleep(0)
    found.go.set()
    assert await taken(*waiting, other) == [True] * 3
    give_back(store, everything=True)
    give_back(store, everything=True)
    assert used(store) == OTHERS + 3


async def test_who_waits_for_what_a_larger_frame_is_refused_asks_by_itself(
    held: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = held()
    buys(1, monkeypatch)
    large = found.decides(claim(501))
    await found.asks()
    small = found.decides(claim())
    found.go.set()
    assert await taken(large, small) == [False, True]


async def test_who_has_asked_as_often_as_it_may_waits_and_is_not_refused(enforce: Live) -> None:
    """One unit is left at a time: whoever is charged elsewhere is refused meanwhile."""
    store = enforce(chat={**CHAT, "rate": "1000/s", "algorithm": "gcra"})
    hot = rulebook.current().rules[0]
    Limiter([hot], store).acquire(IDENT, hot.plan.limit)
    decisions = []
    for _ in range(3 * MOST_ASKED):
        await asyncio.sleep(0.002)
        decisions.append(await arun(decide_bought(claim(), store), store))
    assert sum(decision.allowed for decision in decisions) > MOST_ASKED


async def test_other_sockets_have_what_one_has_left(held: Set) -> None:
    store, found = held()
    found.go.set()
    lines = [await Line().open() for _ in range(2)]
    for line in lines:
        line.send("1", "2", "3")
        await line.until(lambda line=line: len(texts(line)) == 3)  # type: ignore[misc]
        await line.close()
    assert (found.asked, used(store)) == (1, OTHERS + LOT)
    give_back(store, everything=True)
    assert used(store) == OTHERS + 6


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
    line.send("2")
    await line.until(lambda: len(texts(line)) == 2)
    assert (found.back, used(store)) == (0, OTHERS + LOT)
    await line.close()
    give_back(store, everything=True)
    assert used(store) == OTHERS + 1


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
    give_back(store, everything=True)
    assert (found.back, used(store), found.asked) == (LOT, OTHERS, 1)


async def test_a_socket_that_is_closed_as_a_frame_waits_for_a_question_sees_it_soon(enforce: Live) -> None:
    store = enforce(chat={**CHAT, "rate": "20/h", "count_denied": False})
    line = await Line().open()
    line.send(*["x"] * 15)
    await line.until(lambda: len(texts(line)) >= 11)
    (socket,) = open_sockets.everyone()
    socket.start_close(Close(4430, "evicted"))
    await line.until(lambda: line.task is not None and line.task.done())
    passed = len(texts(line))
    give_back(store, everything=True)
    assert used(store) == passed

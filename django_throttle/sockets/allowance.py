"""Rules that a socket shares with others: asked of the store rarely, by buying a lot of frames in advance.

Nothing passes that has not been charged before, so the cap is kept to the frame. What a socket does not spend goes
back when it rests, when rules change and when it ends.
"""

from __future__ import annotations

import asyncio
from math import ceil
from time import monotonic
from typing import Final

from django_throttle import agent
from django_throttle.core import flow, quota
from django_throttle.core.command import Charge, Refund
from django_throttle.core.decision import Decision
from django_throttle.limiter import decide_flow
from django_throttle.sockets.answers import Bought, Denial, frames_left, too_late
from django_throttle.sockets.background import spawn
from django_throttle.sockets.counters import MAX_DELAY
from django_throttle.sockets.lot import SHORTEST, Lot
from django_throttle.sockets.pace import PERIOD, Pace
from django_throttle.stores import get_store
from django_throttle.stores.drive import arun

# Of what a rule has left, the share that one socket takes at once; the time that a lot is to last, in seconds.
PART: Final = 4
AHEAD: Final = 0.25
GROWTH: Final = 8
MOST: Final = 10_000


class Allowance:
    """What one socket may spend, one way, of the rules that it shares. Used on its event loop alone."""

    __slots__ = (
        "_age", "_asked", "_asking", "_charges", "_denial", "_ended", "_known", "_lot", "_pace", "_size", "_spent",
        "_timer",
    )  # fmt: skip

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._charges: tuple[Charge, ...] = ()
        self._lot: Lot | None = None
        self._denial: Denial | None = None
        self._asking: asyncio.Task[Bought] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._known = 0  # frames like the last that the rules had left
        self._size, self._spent, self._asked = 1, 0, 0.0
        self._age = 0  # how often rules or budgets have become others
        self._ended = False

    async def take(self, charges: tuple[Charge, ...], costs: tuple[int, ...]) -> tuple[Decision, float]:
        """Decide a frame of these costs; returns the decision and for how many seconds the frame is to wait.

        Once the socket is closed nothing is charged, and nothing said: whoever waits for it drops the frame.
        """
        self._spent += 1
        alone = False
        while not self._ended:
            found = self._at_once(charges, costs)
            if found is not None:
                return found
            bought = await self._buy(charges, costs, alone)
            if bought is None or self._ended:  # it was not yet time to ask, or is too late
                continue
            if bought.lot is not None and bought.pays(charges, costs):
                return bought.decision, bought.lot.spend(costs, monotonic())
            if bought.refuses(charges, costs):
                return bought.decision, 0.0
            alone = alone or bought.lot is None
        return Decision(), 0.0

    def give_back(self) -> None:
        """Return what is left, in the background."""
        lot, self._lot = self._lot, None
        self._return(lot)

    def forget(self, *, charged: bool = True) -> None:
        """Return what is left, where anybody is still charged for it, and let nothing from before hold a frame up."""
        self._lot = self._lot if charged else None
        self._drop()
        self._pace.clear()

    def end(self) -> None:
        """The socket is closed: what a question on its way will buy goes back too."""
        self._ended = True
        self.give_back()
        self._pace.wake()
        if self._timer is not None:
            self._timer.cancel()

    def _drop(self) -> None:
        """Return what is left, and remember no refusal, nor one that is on its way."""
        self._age += 1
        self.give_back()
        self._denial = None

    def _at_once(self, charges: tuple[Charge, ...], costs: tuple[int, ...]) -> tuple[Decision, float] | None:
        """What needs no question; None where one must be asked."""
        if charges is not self._charges:
            if charges != self._charges:
                self._drop()
                self._known = 0
            self._charges = charges
        now = monotonic()
        if self._lot is not None:
            if now < self._lot.until and self._lot.covers(costs):
                return self._lot.decision, self._lot.spend(costs, now)
            self.give_back()
        denial = self._denial
        if denial is None or any(map(int.__lt__, costs, denial.costs)):
            return None
        if now < denial.until or (now < denial.ends and self._pace.wait(now)):
            return denial.decision.later(now - denial.at), 0.0
        return None

    async def _buy(self, charges: tuple[Charge, ...], costs: tuple[int, ...], alone: bool) -> Bought | None:
        now = monotonic()
        if get_store().denials is None:  # it is cheap: it answers at once, for each frame by itself
            return await self._ask(charges, costs, 1, now)
        if self._asking is None:
            if wait := self._pace.wait(now):
                await self._pace.pause(wait)
                return None
            self._pace.note(now)
            self._asking = spawn(self._question(charges, costs, 1 if alone else self._next(now), now))
        asking = self._asking
        # Whoever stops waiting leaves the question alone: the frame will be decided again, by what it has bought.
        await asyncio.wait({asking})
        return asking.result()

    async def _question(self, charges: tuple[Charge, ...], costs: tuple[int, ...], size: int, now: float) -> Bought:
        try:
            return await self._ask(charges, costs, size, now)
        finally:  # also where nobody waits any more: the next frame asks its own
            self._asking = None

    def _next(self, now: float) -> int:
        """How many frames to buy at once: as many as came of late in a quarter of a second."""
        since, spent = now - self._asked, self._spent
        self._asked, self._spent = now, 0
        if since > PERIOD:
            return 1
        wanted = ceil(spent / max(since, 0.001) * AHEAD)
        return max(1, min(wanted, GROWTH * self._size, self._known // PART + 1, MOST))

    async def _ask(self, charges: tuple[Charge, ...], costs: tuple[int, ...], size: int, now: float) -> Bought:
        store, age = get_store(), self._age
        agent.ensure(store, rules=True)
        wanted = tuple([charge._replace(cost=cost * size) for charge, cost in zip(charges, costs, strict=True)])
        whole = store.denials is not None or any(charge.rule.action == "delay" for charge in charges)
        decision = await arun(decide_flow(wanted, store, whole=whole), store)
        if decision.crossed:
            decision = await arun(quota.first_told(decision), store)
        lot = Lot(charges, [charge.cost for charge in wanted], decision, now) if decision.allowed else None
        if lot is not None and decision.delay > MAX_DELAY:
            self._return(lot)
            decision, lot = too_late(decision), None
        self._size, self._known = size, frames_left(decision, costs)
        if lot is not None:
            self._deposit(lot, charges, now)
        elif store.denials is not None and age == self._age:
            self._denial = Denial.of(decision, costs, now, lasts=not any(one.rule.count_denied for one in charges))
        return Bought(decision, charges, costs, lot, size == 1)

    def _deposit(self, lot: Lot, charges: tuple[Charge, ...], now: float) -> None:
        """Keep it for the frames to come; where it is for none, it goes back from here and from nowhere else."""
        loop = asyncio.get_running_loop()
        if self._ended:
            self._return(lot)
        elif charges != self._charges:  # rules have changed meanwhile: it still pays for who waits for it
            loop.call_later(SHORTEST, self._return, lot)
        else:
            self._lot, self._denial = lot, None
            if self._size > 1 and self._timer is None:
                self._timer = loop.call_later(lot.until - now, self._lapse)

    def _lapse(self) -> None:
        self._timer = None
        if self._lot is None:
            return
        left = self._lot.until - monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._lapse)
        else:
            self.give_back()

    def _return(self, lot: Lot | None) -> None:
        if lot is not None and (rest := lot.rest()):
            spawn(self._refund(rest))

    async def _refund(self, rest: Refund) -> None:
        store = get_store()
        if store.denials is not None:
            while not self._ended and (wait := self._pace.wait(monotonic())):
                await self._pace.pause(wait)
            self._pace.note(monotonic())
        await arun(flow.refund(rest), store)

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
from django_throttle.sockets.answers import Bought, Denial, fits, too_late
from django_throttle.sockets.background import spawn
from django_throttle.sockets.counters import MAX_DELAY
from django_throttle.sockets.lot import Lot
from django_throttle.sockets.pace import PERIOD, Pace
from django_throttle.stores import get_store
from django_throttle.stores.base import Store
from django_throttle.stores.drive import arun

# Of what a rule has left, the share that one socket takes at once; the time that a lot is to last, in seconds.
PART: Final = 8
AHEAD: Final = 0.25
GROWTH: Final = 8
MOST: Final = 10_000


class Allowance:
    """What one socket may spend, one way, of the rules that it shares. Used on its event loop alone."""

    __slots__ = (
        "_asked",
        "_asking",
        "_charges",
        "_denial",
        "_ended",
        "_known",
        "_lot",
        "_pace",
        "_size",
        "_spent",
        "_timer",
    )

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._charges: tuple[Charge, ...] = ()
        self._lot: Lot | None = None
        self._denial: Denial | None = None
        self._asking: asyncio.Task[Bought] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._known: int | None = None  # frames like the last that the rules had left
        self._size, self._spent, self._asked = 1, 0, 0.0
        self._ended = False

    async def take(self, charges: tuple[Charge, ...], costs: tuple[int, ...]) -> tuple[Decision, float]:
        """Decide a frame of these costs; returns the decision and for how many seconds the frame is to wait."""
        self._spent += 1
        alone = False
        while True:
            now = monotonic()
            if charges != self._charges:
                self.forget()
                self._charges, self._known = charges, None
            if self._lot is not None:
                if now < self._lot.until and self._lot.covers(costs):
                    return self._lot.decision, self._lot.spend(costs, now)
                self.give_back()
            if said := self._remembered(costs, now):
                return said, 0.0
            if self._asking is None:
                if wait := self._wait(now):
                    await asyncio.sleep(wait)
                    continue
                if not _is_dear(get_store()):  # it answers at once, for each frame by itself
                    found = await self._ask(costs, 1, now)
                else:
                    self._asking = spawn(self._ask(costs, 1 if alone else self._next(now), now))
            if self._asking is not None:
                found = await self._answer(self._asking)
            if found.lot is None:
                if found.alone or not fits(found.decision, costs):
                    return found.decision, 0.0
                alone = True
            elif found.lot.covers(costs):
                return found.decision, found.lot.spend(costs, monotonic())

    def give_back(self) -> None:
        """Return what is left, in the background."""
        lot, self._lot = self._lot, None
        if lot is not None and (rest := lot.rest()):
            spawn(self._refund(rest))

    def forget(self) -> None:
        """Return what is left, and remember no refusal: rules or budgets are others now."""
        self.give_back()
        self._denial = None

    def end(self) -> None:
        """The socket is closed: what a question on its way will buy goes back too."""
        self._ended = True
        self.give_back()
        if self._timer is not None:
            self._timer.cancel()

    def _remembered(self, costs: tuple[int, ...], now: float) -> Decision | None:
        """A refusal that still holds for a frame of these costs; for longer, while no question may be asked."""
        denial = self._denial
        if denial is None or any(map(int.__lt__, costs, denial.costs)):
            return None
        if now < denial.until or (now < denial.ends and self._wait(now)):
            return denial.decision.later(now - denial.at)
        return None

    def _wait(self, now: float) -> float:
        return self._pace.wait(now) if _is_dear(get_store()) else 0.0

    def _next(self, now: float) -> int:
        """How many frames to buy at once: as many as came of late in a quarter of a second."""
        since, spent = now - self._asked, self._spent
        self._asked, self._spent = now, 0
        if since > PERIOD or self._known is None:
            return 1
        wanted = ceil(spent / max(since, 0.001) * AHEAD)
        return max(1, min(wanted, GROWTH * self._size, self._known // PART + 1, MOST))

    async def _answer(self, asking: asyncio.Task[Bought]) -> Bought:
        # Whoever stops waiting leaves the question alone: the frame will be decided again, by what it has bought.
        await asyncio.wait({asking})
        if self._asking is asking:
            self._asking = None
        return asking.result()

    async def _ask(self, costs: tuple[int, ...], size: int, now: float) -> Bought:
        store, charges = get_store(), self._charges
        agent.ensure(store, rules=True)
        size = size if _is_dear(store) else 1
        self._pace.note(now)
        wanted = tuple([charge._replace(cost=cost * size) for charge, cost in zip(charges, costs, strict=True)])
        decision = await arun(decide_flow(wanted, store, whole=True), store)
        if decision.crossed:
            decision = await arun(quota.first_told(decision), store)
        self._size = size
        lot = Lot(charges, [charge.cost for charge in wanted], decision, now) if decision.allowed else None
        if lot is not None and decision.delay > MAX_DELAY:
            decision, rest, lot = too_late(decision), lot.rest(), None
            spawn(self._refund(rest))
        self._learn(costs, decision, lot, now)
        return Bought(decision, lot, size == 1)

    def _learn(self, costs: tuple[int, ...], decision: Decision, lot: Lot | None, now: float) -> None:
        left = [
            one.remaining // cost for one, cost in zip(decision.outcomes, costs, strict=False) if cost and one.allowed
        ]
        self._known = min(left, default=0)
        self._denial = None
        if lot is None:
            wait = decision.retry_after
            counts = any([charge.rule.count_denied for charge in self._charges])
            until = (
                now if counts or not _is_dear(get_store()) else now + (PERIOD if wait is None else min(wait, PERIOD))
            )
            self._denial = Denial(decision, costs, now, until, now + (wait or 0.0))
            return
        self._lot = lot
        if self._ended:
            self.give_back()
        elif self._size > 1 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(lot.until - now, self._lapse)

    def _lapse(self) -> None:
        self._timer = None
        if self._lot is None:
            return
        left = self._lot.until - monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._lapse)
        else:
            self.give_back()

    async def _refund(self, rest: Refund | None) -> None:
        store = get_store()
        while not self._ended and (wait := self._wait(monotonic())):
            await asyncio.sleep(wait)
        self._pace.note(monotonic())
        await arun(flow.refund(rest), store)


def _is_dear(store: Store) -> bool:
    return store.denials is not None

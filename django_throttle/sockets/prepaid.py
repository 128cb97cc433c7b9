"""Prepaid frames: shared rules are asked rarely, by buying a number of frames in advance."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from time import monotonic
from typing import Final, NamedTuple

from django_throttle import agent
from django_throttle.core import flow, quota_warnings
from django_throttle.core.commands import Charge, Refund
from django_throttle.core.decision import Decision, Outcome, Reason, conclude
from django_throttle.limiter import decide_flow
from django_throttle.sockets.counters import MAX_DELAY
from django_throttle.sockets.timers import spawn
from django_throttle.stores import get_store
from django_throttle.stores.base import arun
from django_throttle.stores.denials import LONGEST

# A lot lasts for a tenth of the shortest window, within these bounds in seconds: what is spent is spent nearly when it
# was charged. Where windows begin afresh it ends with the window.
SHORTEST: Final = 0.25
MAX_LIFETIME: Final = 1.0
SHARE: Final = 0.1
AFRESH: Final = ("fixed_window", "calendar_window")


class Lot:
    """Bought at a moment by a decision; ``costs`` are what was charged for each of ``charges``.

    What only records is charged for but never lacking. Where a rule delays, each frame has its turn.
    """

    __slots__ = ("_charges", "_left", "_real", "_turns", "decision", "until")

    def __init__(self, charges: Sequence[Charge], costs: Sequence[int], decision: Decision, now: float) -> None:
        self.decision = decision._replace(crossed=())
        self.until = now + lifetime(charges, decision)
        self._charges = charges
        self._left = list(costs)
        self._real = [place for place, charge in enumerate(charges) if not charge.rule.is_shadow]
        told = zip(charges, decision.outcomes, strict=False)
        self._turns = {
            place: now + outcome.delay for place, (charge, outcome) in enumerate(told) if charge.rule.action == "delay"
        }

    def covers(self, costs: Sequence[int]) -> bool:
        """Whether a frame of these costs can be paid for by it."""
        return all([self._left[place] >= costs[place] for place in self._real])  # noqa: C419 - on the hot path

    def spend(self, costs: Sequence[int], now: float) -> float:
        """Pay for a frame; returns for how many seconds it is to wait for its turn."""
        self._left = [max(0, left - cost) for left, cost in zip(self._left, costs, strict=True)]
        wait = 0.0
        for place, turn in self._turns.items():
            plan = self._charges[place].rule.plan
            wait = max(wait, turn - now)
            self._turns[place] = turn + costs[place] * plan.a / plan.c / 1_000_000
        return wait

    def rest(self) -> Refund | None:
        """What goes back of it, once: nothing is left to be spent afterwards, or to go back again."""
        receipt = self.decision.receipt
        left = {(charge.rule.id, charge.ident): n for charge, n in zip(self._charges, self._left, strict=True)}
        self._left = [0] * len(self._left)
        if receipt is None:
            return None
        paid = [
            one._replace(charge=one.charge._replace(cost=n))
            for one in receipt.paid
            if (n := min(one.charge.cost, left.get((one.charge.rule.id, one.charge.ident), 0)))
        ]
        return Refund(tuple(paid), receipt.locally) if paid else None


def lifetime(charges: Sequence[Charge], decision: Decision) -> float:
    """For how many seconds a lot can be spent."""
    windows = [charge.rule.window for charge in charges if charge.rule.window is not None]
    longest = min(MAX_LIFETIME, max(SHORTEST, SHARE * min(windows, default=MAX_LIFETIME)))
    told = zip(charges, decision.outcomes, strict=False)
    return min([longest, *(one.reset_after for charge, one in told if charge.rule.plan.algorithm in AFRESH)])


MAX_QUESTIONS: Final = 10
PERIOD: Final = 1.0


class Pace:
    """The times of the latest questions; seconds on the monotonic clock. Used on the event loop of its socket alone."""

    __slots__ = ("_asked", "_woken")

    def __init__(self) -> None:
        self._asked: list[float] = []
        self._woken: asyncio.Event | None = None

    def wait(self, now: float) -> float:
        """For how long the next question has to wait; 0.0 when it may go."""
        return max(0.0, self._asked[0] + PERIOD - now) if len(self._asked) >= MAX_QUESTIONS else 0.0

    def note(self, now: float) -> None:
        """A question goes out."""
        self._asked.append(now)
        del self._asked[:-MAX_QUESTIONS]

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until something has changed: whoever waited looks again."""
        self._woken = woken = self._woken or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await woken.wait()

    def wake(self) -> None:
        """Something has changed."""
        if self._woken is not None:
            self._woken.set()
            self._woken = None

    def clear(self) -> None:
        """Budgets are others now: what was asked before holds nobody up."""
        self._asked.clear()
        self.wake()


class Denial(NamedTuple):
    """A refusal, when it was said, and until when it is said again without asking: seconds on the monotonic clock.

    ``ends`` is until when it can be said while no question may be asked.
    """

    decision: Decision
    costs: tuple[int, ...]
    at: float
    until: float
    ends: float

    @classmethod
    def of(cls, decision: Decision, costs: tuple[int, ...], now: float, *, lasts: bool) -> Denial:
        """A refusal of now; one that does not last is asked for again, so that it is counted again."""
        wait = LONGEST if decision.retry_after is None else decision.retry_after
        return cls(decision, costs, now, now + (min(wait, LONGEST) if lasts else 0.0), now + wait)


class Bought(NamedTuple):
    """What came of a question about frames of these costs; ``lot`` is None when it was refused."""

    decision: Decision
    charges: tuple[Charge, ...]
    costs: tuple[int, ...]
    lot: Lot | None
    alone: bool  # for one frame, and no other

    def pays(self, charges: tuple[Charge, ...], costs: tuple[int, ...]) -> bool:
        """Whether a frame can be paid for by it."""
        return self.lot is not None and charges == self.charges and self.lot.covers(costs)

    def refuses(self, charges: tuple[Charge, ...], costs: tuple[int, ...]) -> bool:
        """Whether it says of this frame, too, that it may not pass."""
        if self.lot is not None or charges != self.charges or any(map(int.__lt__, costs, self.costs)):
            return False
        return self.alone or not fits(self.decision, costs)


def fits(decision: Decision, costs: Sequence[int]) -> bool:
    """Whether a frame alone would have passed, where several were asked for."""
    told = zip(decision.outcomes, costs, strict=False)
    return not decision.unavailable and all(one.allowed or one.shadow or one.remaining >= cost for one, cost in told)


def frames_left(decision: Decision, costs: Sequence[int]) -> int:
    """For how many frames like this one the rules had room left."""
    told = zip(decision.outcomes, costs, strict=False)
    return min([one.remaining // cost for one, cost in told if cost], default=0)


def too_late(decision: Decision) -> Decision:
    """A refusal of what would have to wait for longer than a socket lets anything wait."""
    refused = conclude(tuple(map(_refused, decision.outcomes)), degraded=decision.degraded)
    return refused._replace(cause=decision.cause)


def _refused(outcome: Outcome) -> Outcome:
    if outcome.delay <= MAX_DELAY:
        return outcome
    wait = outcome.delay - MAX_DELAY
    return outcome._replace(allowed=False, retry_after=wait, delay=0.0, reason=Reason.EXCEEDED)


# Of what a rule has left, the share that one socket takes at once; the time that a lot is to last, in seconds.
PART: Final = 4
AHEAD: Final = 0.25
GROWTH: Final = 8
LINGER: Final = 0.25  # for which a lot of former rules stays, for who waits for it
MAX_FRAMES: Final = 10_000


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
        return max(1, min(wanted, GROWTH * self._size, self._known // PART + 1, MAX_FRAMES))

    async def _ask(self, charges: tuple[Charge, ...], costs: tuple[int, ...], size: int, now: float) -> Bought:
        store, age = get_store(), self._age
        agent.ensure(store, rules=True)
        wanted = tuple([charge._replace(cost=cost * size) for charge, cost in zip(charges, costs, strict=True)])
        whole = store.denials is not None or any(charge.rule.action == "delay" for charge in charges)
        decision = await arun(decide_flow(wanted, store, whole=whole), store)
        if decision.crossed:
            decision = await arun(quota_warnings.first_told(decision), store)
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
            loop.call_later(LINGER, self._return, lot)
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

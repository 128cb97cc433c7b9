"""What one socket counts by itself: its own rules, and frames of shared rules that it has paid in advance.

Its own rules are counted by the core's algorithms over a dictionary, on the monotonic clock. Shared rules are asked
rarely, by paying for a number of frames in advance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import ceil
from time import monotonic
from typing import Final, NamedTuple

from django_throttle import agent
from django_throttle.core.algorithms import State, StepResult
from django_throttle.core.commands import Answer, Charge, Decide, Refund
from django_throttle.core.decide import drop_reported, outcomes_of, refund_charges
from django_throttle.core.decision import Decision, Reason, conclude
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule
from django_throttle.lifecycle import spawn
from django_throttle.limiter import decide_flow
from django_throttle.stores import AnyStore, get_store
from django_throttle.stores.base import arun
from django_throttle.stores.denials import LONGEST, Denial

Charges = tuple[Charge, ...]

# Seconds. A frame that waits delays all that its client sends after it, which some servers keep in memory.
MAX_DELAY: Final = 2.0


class CounterResult(NamedTuple):
    """The result of charging all or none; ``steps`` has one for each charge."""

    allowed: bool
    steps: list[StepResult]

    @property
    def is_ordinary(self) -> bool:
        """True when every charge fits, those included that only record."""
        return all([step.retry == 0 for step in self.steps])  # noqa: C419 - on the hot path


class SocketCounters:
    """The counters of one socket, by rule; they end with it."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[str, State] = {}

    def peek(self, charges: Charges, now: float) -> CounterResult:
        at, states = round(now * 1_000_000), self._states
        steps, allowed = [], True
        for rule, _, cost in charges:
            step = rule.plan.step(states.get(rule.id), at, cost, rule.count_denied)
            allowed = allowed and (step.retry == 0 or rule.is_shadow)
            steps.append(step)
        return CounterResult(allowed, steps)

    def charge(self, charges: Charges, now: float) -> CounterResult:
        """Charge all of them or none, ``now`` in seconds; refused ones are charged where the rule says so."""
        result = self.peek(charges, now)
        for (rule, _, cost), step in zip(charges, result.steps, strict=True):
            # As in a store: a refused call leaves the state as it was, or as its rule counts refused calls.
            made = step.charged_state is not None and (result.allowed or rule.count_denied)
            if cost and (state := step.charged_state if made else step.refused_state) is not None:
                self._states[rule.id] = state
        return result

    def clear(self) -> None:
        self._states.clear()


def decision_of(charges: Charges, result: CounterResult) -> Decision:
    answers = []
    for (rule, _, cost), step in zip(charges, result.steps, strict=True):
        made = cost and step.charged_state is not None and (result.allowed or rule.count_denied)
        left, reset = step[3:5] if made else step[1:3]
        answers.append(Answer(step.retry, left, reset))
    return conclude(outcomes_of(Decide(charges), tuple(answers)))


@lru_cache(maxsize=1024)
def with_capped_delay(rule: Rule) -> Rule:
    """The rule as a socket keeps it by itself: what would wait for more than two seconds is refused."""
    if rule.action != "delay" or (rule.max_delay is not None and rule.max_delay <= MAX_DELAY):
        return rule
    try:
        return replace(rule, max_delay=MAX_DELAY)
    except InvalidRule:  # a single call takes longer than that
        return rule


Costs = tuple[int, ...]  # of one frame, for each charge

# Prepaid frames last for a tenth of the shortest window, within these bounds in seconds: what is spent is spent nearly
# when it was charged. Where windows begin afresh they end with the window.
SHORTEST: Final = 0.25
MAX_LIFETIME: Final = 1.0
SHARE: Final = 0.1


class Balance:
    """What one decision has paid for in advance; ``costs`` are what was charged for each of ``charges``.

    A rule that only records is charged, and never lacks anything. Where a rule delays, each frame has its turn.
    """

    __slots__ = ("_charges", "_left", "_turns", "decision", "until")

    def __init__(self, charges: Charges, costs: Sequence[int], decision: Decision, now: float) -> None:
        self.decision = decision._replace(crossed=())
        self.until = now + balance_seconds(charges, decision)
        self._charges = charges
        self._left = list(costs)
        pairs = enumerate(zip(charges, decision.outcomes, strict=False))
        self._turns = {n: now + one.delay for n, (charge, one) in pairs if charge.rule.action == "delay"}

    def spend(self, costs: Costs, now: float) -> float | None:
        """Spend the costs of a frame; returns in how many seconds it has its turn, None where too little is left."""
        left, wait = self._left, 0.0
        for place, cost in enumerate(costs):
            if left[place] < cost and not self._charges[place].rule.is_shadow:
                return None
        for place, cost in enumerate(costs):
            left[place] = max(0, left[place] - cost)
        for place, turn in self._turns.items():
            plan = self._charges[place].rule.plan
            wait = max(wait, turn - now)
            self._turns[place] = turn + plan.drain_us(costs[place]) / 1_000_000
        return wait

    def refund(self) -> Refund | None:
        """The refund of what is left, once: nothing can be spent or refunded afterwards."""
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


def balance_seconds(charges: Charges, decision: Decision) -> float:
    windows = [charge.rule.window for charge in charges if charge.rule.window is not None]
    longest = min(MAX_LIFETIME, max(SHORTEST, SHARE * min(windows, default=MAX_LIFETIME)))
    pairs = zip(charges, decision.outcomes, strict=False)
    return min([longest, *(one.reset_after for charge, one in pairs if charge.rule.plan.begins_afresh)])


MAX_CALLS: Final = 10
PERIOD: Final = 1.0


class StoreCallLimit:
    """At most ``MAX_CALLS`` calls of the store in ``PERIOD`` seconds, for both directions of one socket.

    Used on its event loop alone; times are on the monotonic clock.
    """

    __slots__ = ("_changed", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._changed: asyncio.Event | None = None

    def wait(self, now: float) -> float:
        """For how long the next call has to wait; 0.0 when it may go."""
        return max(0.0, self._times[0] + PERIOD - now) if len(self._times) >= MAX_CALLS else 0.0

    def note(self, now: float) -> None:
        self._times.append(now)
        del self._times[:-MAX_CALLS]

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until ``wake``: whoever waited looks again."""
        self._changed = changed = self._changed or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()

    def wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def clear(self) -> None:
        """Budgets were given back, or rules have changed: earlier calls delay nobody."""
        self._times.clear()
        self.wake()


class StoreReply(NamedTuple):
    """The store's reply about frames of these costs; ``balance`` is None when it has refused."""

    decision: Decision
    charges: Charges
    costs: Costs
    balance: Balance | None
    is_for_one: bool  # frame, and no other

    def refuses(self, charges: Charges, costs: Costs) -> bool:
        if self.balance is not None or charges != self.charges or any(map(int.__lt__, costs, self.costs)):
            return False
        return self.is_for_one or not would_fit_alone(self.decision, costs)


def would_fit_alone(decision: Decision, costs: Costs) -> bool:
    """Whether a frame alone would have passed, where several were asked for."""
    pairs = zip(decision.outcomes, costs, strict=False)
    return not decision.unavailable and all(one.allowed or one.shadow or one.remaining >= cost for one, cost in pairs)


def frames_left(decision: Decision, costs: Costs) -> int:
    pairs = zip(decision.outcomes, costs, strict=False)
    return min([one.remaining // cost for one, cost in pairs if cost], default=0)


def refused_for_delay(decision: Decision) -> Decision:
    """A refusal, by the rules that would have a frame wait for longer than a socket lets one wait."""
    outcomes = [
        one
        if one.delay <= MAX_DELAY
        else one._replace(allowed=False, retry_after=one.delay - MAX_DELAY, delay=0.0, reason=Reason.EXCEEDED)
        for one in decision.outcomes
    ]
    return conclude(tuple(outcomes), degraded=decision.degraded)._replace(cause=decision.cause)


# How many frames are paid for at once: what comes in AHEAD seconds, at most GROWTH times as many as the last time and
# one PART of what the rules had left.
PART: Final = 4
AHEAD: Final = 0.25
GROWTH: Final = 8
MAX_FRAMES: Final = 10_000
LINGER: Final = 0.25  # seconds that a balance under former rules stays, for the frames that wait for it


class PrepaidFrames:
    """What one socket may spend in one direction of the rules that it shares. Used on its event loop alone."""

    __slots__ = (
        "_asked_at", "_asking", "_asks_again_at", "_calls", "_charges", "_ended", "_generation", "_known_left",
        "_balance", "_refusal", "_size", "_spent", "_timer",
    )  # fmt: skip

    def __init__(self, calls: StoreCallLimit) -> None:
        self._calls = calls
        self._charges: Charges = ()
        self._balance: Balance | None = None
        self._refusal: Denial | None = None
        self._asks_again_at = 0.0
        self._asking: asyncio.Task[StoreReply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._known_left = 0  # frames like the last that the rules had left
        self._size, self._spent, self._asked_at = 1, 0, 0.0
        self._generation = 0  # how often rules or budgets have changed
        self._ended = False

    async def decide(self, charges: Charges, costs: Costs) -> tuple[Decision, float]:
        """Decide a frame of these costs; returns the decision and for how many seconds the frame is to wait.

        Once the socket has ended nothing is charged and every frame passes: its caller drops the frame.
        """
        self._spent += 1
        alone = False
        while not self._ended:
            if (known := self._at_once(charges, costs)) is not None:
                return known
            reply = await self._ask(charges, costs, alone)
            if reply is None or self._ended:  # it was not yet time to ask, or is too late
                continue
            if reply.balance is not None and charges == reply.charges:
                wait = reply.balance.spend(costs, monotonic())
                if wait is not None:
                    return reply.decision, wait
            if reply.refuses(charges, costs):
                return reply.decision, 0.0
            alone = alone or reply.balance is None
        return Decision(), 0.0

    def refund(self) -> None:
        balance, self._balance = self._balance, None
        self._refund(balance)

    def forget(self, *, charged: bool = True) -> None:
        """Refund what is left, unless budgets were reset and nobody is ``charged`` for it; remember no refusal."""
        self._balance = self._balance if charged else None
        self._drop()
        self._calls.clear()

    def end(self) -> None:
        """The socket has ended: what a call under way will pay for is refunded too."""
        self._ended = True
        self.refund()
        self._calls.wake()
        if self._timer is not None:
            self._timer.cancel()

    def _drop(self) -> None:
        self._generation += 1
        self.refund()
        self._refusal = None

    def _at_once(self, charges: Charges, costs: Costs) -> tuple[Decision, float] | None:
        """The decision of a frame that needs no call of the store; else None."""
        if charges is not self._charges:
            if charges != self._charges and self._charges:
                self._drop()
                self._known_left = 0
            self._charges = charges
        now, balance = monotonic(), self._balance
        if balance is not None:
            if now < balance.until and (wait := balance.spend(costs, now)) is not None:
                return balance.decision, wait
            self.refund()
        refusal = self._refusal
        if refusal is None or (now >= self._asks_again_at and not self._calls.wait(now)):
            return None
        again = refusal.again(costs, now)
        return None if again is None else (again, 0.0)

    async def _ask(self, charges: Charges, costs: Costs, alone: bool) -> StoreReply | None:
        """The store's reply; None where that call had to wait. A frame that is ``alone`` is asked for by itself."""
        now, store = monotonic(), get_store()
        if not store.is_costly:  # it answers at once, for each frame by itself
            return await self._call(store, charges, costs, 1, now)
        if self._asking is None:
            if wait := self._calls.wait(now):
                await self._calls.pause(wait)
                return None
            self._calls.note(now)
            self._asking = spawn(self._call(store, charges, costs, 1 if alone else self._next_size(now), now))
        asking = self._asking
        # Whoever stops waiting leaves the call alone: the frame is decided again, by what that has paid for.
        await asyncio.wait({asking})
        return asking.result()

    def _next_size(self, now: float) -> int:
        """How many frames to pay for at once: as many as came lately in AHEAD seconds, within those bounds."""
        since, spent = now - self._asked_at, self._spent
        self._asked_at, self._spent = now, 0
        if since > PERIOD:
            return 1
        wanted = ceil(spent / max(since, 0.001) * AHEAD)
        return max(1, min(wanted, GROWTH * self._size, self._known_left // PART + 1, MAX_FRAMES))

    async def _call(self, store: AnyStore, charges: Charges, costs: Costs, size: int, now: float) -> StoreReply:
        generation = self._generation
        agent.ensure(store, rules=True)
        wanted = tuple([charge._replace(cost=cost * size) for charge, cost in zip(charges, costs, strict=True)])
        whole = store.is_costly or any(charge.rule.action == "delay" for charge in charges)
        try:
            decision = await arun(decide_flow(wanted, store, whole=whole), store)
            if decision.crossed:
                decision = await arun(drop_reported(decision), store)
        finally:  # also where nobody waits any more: the next frame makes a call of its own
            self._asking = None
        balance = Balance(charges, [charge.cost for charge in wanted], decision, now) if decision.allowed else None
        if balance is not None and decision.delay > MAX_DELAY:
            self._refund(balance)
            decision, balance = refused_for_delay(decision), None
        self._size, self._known_left = size, frames_left(decision, costs)
        if balance is not None:
            self._keep(balance, charges, now)
        elif store.is_costly and generation == self._generation:
            wait = LONGEST if decision.retry_after is None else decision.retry_after
            self._refusal = Denial(decision, now, now + wait, costs)
            counts = any(charge.rule.count_denied for charge in charges)  # then each refused frame is to be counted
            self._asks_again_at = now + (0.0 if counts else min(wait, LONGEST))
        return StoreReply(decision, charges, costs, balance, size == 1)

    def _keep(self, balance: Balance, charges: Charges, now: float) -> None:
        """Keep it for the frames to come; where it is for none, it is refunded from here and from nowhere else."""
        loop = asyncio.get_running_loop()
        if self._ended:
            self._refund(balance)
        elif charges != self._charges:  # rules have changed meanwhile: it still pays for the frames that wait for it
            loop.call_later(LINGER, self._refund, balance)
        else:
            self._balance, self._refusal = balance, None
            if self._size > 1 and self._timer is None:
                self._timer = loop.call_later(balance.until - now, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._balance is None:
            return
        left = self._balance.until - monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._expire)
        else:
            self.refund()

    def _refund(self, balance: Balance | None) -> None:
        if balance is not None and (refund := balance.refund()):
            spawn(self._send_refund(refund))

    async def _send_refund(self, refund: Refund) -> None:
        store = get_store()
        if store.is_costly:
            while not self._ended and (wait := self._calls.wait(monotonic())):
                await self._calls.pause(wait)
            self._calls.note(monotonic())
        await arun(refund_charges(refund), store)

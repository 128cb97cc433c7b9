"""Decides frames of one socket: by its own rules first, then by those that it shares."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic, perf_counter
from typing import Final, NamedTuple

from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import agent, observe, rulebook
from django_throttle.core import quota_warnings
from django_throttle.core.commands import Charge
from django_throttle.core.decision import Decision, Outcome, conclude
from django_throttle.core.refunds import Pair
from django_throttle.facts import Facts
from django_throttle.identity import ScopeWho
from django_throttle.lifecycle import in_thread
from django_throttle.observe import hooks
from django_throttle.sockets.counters import Counters, capped, decided
from django_throttle.sockets.frames import Event
from django_throttle.sockets.prepaid import Allowance, Pace
from django_throttle.stores import get_store
from django_throttle.stores.base import arun

# A relief that ends, a user who logs in: what no edit of a rule announces.
LASTS: Final = 1.0


class Covering(NamedTuple):
    """The charges for a frame that costs 1 and has one byte.

    ``own`` are of rules that count this socket alone, ``metered`` of those that the process decides by what it has
    metered, ``shared`` are asked of the store. ``blocks`` are an operator's refusals. ``until`` is on the monotonic
    clock. ``delays`` is True when an own rule makes frames wait, ``remembers`` when what own rules refuse need not be
    counted, ``is_empty`` when no rule covers anything.
    """

    snapshot: rulebook.Snapshot
    until: float
    own: tuple[Charge, ...]
    metered: tuple[Charge, ...]
    shared: tuple[Charge, ...]
    blocks: tuple[Outcome, ...]
    delays: bool
    remembers: bool
    is_empty: bool

    @property
    def pairs(self) -> frozenset[Pair]:
        """The rules and idents that are charged."""
        return frozenset([(one.rule.name, one.ident) for one in (*self.own, *self.metered, *self.shared)])

    def without(self, pairs: Collection[Pair]) -> Covering:
        """What another guard of the same socket leaves to this one."""

        def left(charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
            return tuple([one for one in charges if (one.rule.name, one.ident) not in pairs])

        return _made(self.snapshot, left(self.own), left(self.metered), left(self.shared), self.blocks)


async def find(scope: str, events: tuple[str, ...], who: ScopeWho, snapshot: rulebook.Snapshot) -> Covering:
    """What covers these events of this socket; in a thread, where a database or a session has to be asked who it is."""
    try:
        return _find(scope, events, who, snapshot)
    except SynchronousOnlyOperation:
        return await in_thread(_find, scope, events, who, snapshot)


def _find(scope: str, events: tuple[str, ...], who: ScopeWho, snapshot: rulebook.Snapshot) -> Covering:
    facts = Facts(scope, events, who, size=1)
    charges = snapshot.match(facts)
    own = tuple([one._replace(rule=capped(one.rule)) for one in charges if one.rule.key == "connection"])
    others = [one for one in charges if one.rule.key != "connection"]
    metered = tuple([one for one in others if one.rule.is_local])
    shared = tuple([one for one in others if not one.rule.is_local])
    return _made(snapshot, own, metered, shared, snapshot.blocks(facts))


def _made(
    snapshot: rulebook.Snapshot,
    own: tuple[Charge, ...],
    metered: tuple[Charge, ...],
    shared: tuple[Charge, ...],
    blocks: tuple[Outcome, ...],
) -> Covering:
    delays = any(one.rule.action == "delay" for one in own)
    remembers = not any(one.rule.count_denied or one.rule.is_shadow for one in own)
    is_empty = not (own or metered or shared or blocks)
    return Covering(snapshot, monotonic() + LASTS, own, metered, shared, blocks, delays, remembers, is_empty)


def costs_of(charges: tuple[Charge, ...], cost: int, size: int) -> tuple[int, ...]:
    """What a frame costs under each of these."""
    weight = size if cost else 0
    return tuple([one.cost * (weight if one.rule.unit == "bytes" else cost) for one in charges])


NOTHING: Final = Decision()


class Refusal(NamedTuple):
    """What own rules have refused they refuse until there is room again: nobody else has a part in their counts."""

    found: Covering
    cost: int
    size: int
    decision: Decision
    at: float

    def said(self, found: Covering, cost: int, size: int, now: float) -> Decision | None:
        """The refusal of a frame that is no smaller; None when it must be decided anew."""
        wait = self.decision.retry_after
        if found is not self.found or cost < self.cost or size < self.size:
            return None
        return self.decision.later(now - self.at) if wait is None or now < self.at + wait else None


class Gate:
    """One way of one socket. ``outer`` is that of a guard around this one, whose rules are not charged again.

    All gates of a socket have one ``pace``.

    Used on the event loop of its socket alone.
    """

    __slots__ = ("_allowance", "_counters", "_denial", "_events", "_found", "_outer", "_scope", "_who", "pace")

    def __init__(
        self, scope: str, event: str, who: ScopeWho, counters: Counters, pace: Pace, outer: Gate | None = None
    ) -> None:
        self._scope, self._events, self._who, self._outer = scope, (event,), who, outer
        self._counters, self.pace = counters, pace
        self._allowance: Allowance | None = None
        self._found: Covering | None = None
        self._denial: Refusal | None = None

    async def decide(self, frame: Event, cost: int = 1) -> Decision | None:
        """None when the frame passes at once; else a refusal, or for how many seconds it is to wait."""
        found = self._found
        if found is None or found.snapshot is not rulebook.present() or monotonic() >= found.until:
            found = await self.covering()
        if found.is_empty:
            return None
        began = perf_counter()
        size = size_of(frame)
        decision = await self._decide(found, cost, size)
        if decision is None:
            return None
        if hooks.installed() or not _is_ordinary(decision):
            facts = Facts(self._scope, self._events, self._who, cost, size=size)
            await observe.atell(facts, decision, perf_counter() - began)
        return None if decision.allowed and not decision.delay else decision

    async def covering(self) -> Covering:
        """The rules in force for it."""
        found, snapshot = self._found, await rulebook.acurrent()
        if found is not None and found.snapshot is snapshot and monotonic() < found.until:
            return found
        new = await find(self._scope, self._events, self._who, snapshot)
        if self._outer is not None:
            new = new.without((await self._outer.covering()).pairs)
        if found is not None and new.shared == found.shared:
            new = new._replace(shared=found.shared)  # so that what was bought for them is known by its identity
        self._found = new
        return new

    def forget(self, *, charged: bool = True) -> None:
        """Nothing that was found, bought or refused holds any more: rules are others now.

        Or budgets were given back, and nobody is ``charged`` for what was bought before.
        """
        self._found = self._denial = None
        if self._allowance is not None:
            self._allowance.forget(charged=charged)

    def end(self) -> None:
        """The socket is closed."""
        if self._allowance is not None:
            self._allowance.end()

    async def _decide(self, found: Covering, cost: int, size: int) -> Decision | None:
        """None when nobody needs to know more than that it passes."""
        if any(not block.shadow for block in found.blocks):
            return conclude(found.blocks)
        own = _priced(found.own, cost, size)
        if found.shared or found.metered:
            return await self._with_others(found, own, cost, size)
        now = monotonic()
        if self._denial is not None and (said := self._denial.said(found, cost, size, now)):
            return said
        taken = self._counters.take(own, now)
        if taken.is_ordinary and not (found.delays or found.blocks or hooks.installed()):
            return None
        decision = decided(own, taken)
        if not taken.allowed and found.remembers:
            self._denial = Refusal(found, cost, size, decision, now)
        return _together(decision, NOTHING, found.blocks) if found.blocks else decision

    async def _with_others(self, found: Covering, own: tuple[Charge, ...], cost: int, size: int) -> Decision:
        """Its own rules refuse before anyone else is asked, and are charged when all the others have let it pass."""
        now = monotonic()
        if not self._counters.look(own, now).allowed:
            return decided(own, self._counters.take(own, now))
        others = await self._others(found, cost, size)
        if not others.allowed:
            return others
        taken = self._counters.take(own, monotonic())
        if taken.is_ordinary and not (found.delays or found.blocks or hooks.installed()):
            return others
        return _together(decided(own, taken), others, found.blocks)

    async def _others(self, found: Covering, cost: int, size: int) -> Decision:
        """What the rules say that are not this socket's own."""
        metered, store = _priced(found.metered, cost, size), get_store()
        judged: tuple[Outcome, ...] = ()
        if metered:
            agent.ensure(store)
            judged = store.meters.judge(metered)
            if any(not (one.allowed or one.shadow) for one in judged):
                return conclude(judged)
        decision = await self._shared(found, cost, size)
        if metered and decision.allowed and (crossed := store.meters.passed(metered)):
            told = await arun(quota_warnings.first_told(Decision(crossed=crossed)), store)
            decision = decision._replace(crossed=decision.crossed + told.crossed)
        return decision._replace(outcomes=judged + decision.outcomes) if judged else decision

    async def _shared(self, found: Covering, cost: int, size: int) -> Decision:
        costs = costs_of(found.shared, cost, size)
        if not any(costs):  # free, or empty
            return Decision()
        if self._allowance is None:
            self._allowance = Allowance(self.pace)
        decision, wait = await self._allowance.take(found.shared, costs)
        return decision if wait == decision.delay else decision._replace(delay=wait)


def size_of(frame: Event) -> int:
    """How many bytes a frame carries."""
    text = frame.get("text")
    if text is None:
        return len(frame.get("bytes") or b"")
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _priced(charges: tuple[Charge, ...], cost: int, size: int) -> tuple[Charge, ...]:
    if cost == 1 and not any([charge.rule.unit == "bytes" for charge in charges]):  # noqa: C419 - on the hot path
        return charges
    costs = costs_of(charges, cost, size)
    return tuple([charge._replace(cost=price) for charge, price in zip(charges, costs, strict=True)])


def _together(own: Decision, others: Decision, blocks: tuple[Outcome, ...]) -> Decision:
    whole = conclude(own.outcomes + others.outcomes + blocks, degraded=others.degraded)
    delay = max(own.delay, others.delay)
    return whole._replace(delay=delay, crossed=others.crossed, cause=others.cause)


def _is_ordinary(decision: Decision) -> bool:
    if not decision.allowed or decision.degraded or decision.crossed:
        return False
    return all([outcome.allowed for outcome in decision.outcomes])  # noqa: C419 - on the hot path

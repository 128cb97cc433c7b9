"""The limits of frames in one direction of a socket: which rules match, and what they decide."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from time import monotonic, perf_counter
from typing import Final

from django_throttle import agent, rulebook
from django_throttle.call_facts import Facts, Who
from django_throttle.core.commands import Charge
from django_throttle.core.decide import drop_reported
from django_throttle.core.decision import Decision, Outcome, conclude
from django_throttle.lifecycle import at_once_or_in_thread
from django_throttle.observe import reports
from django_throttle.sockets.error_frames import Event
from django_throttle.sockets.prepaid import (
    PrepaidFrames,
    SocketCounters,
    StoreCallLimit,
    decision_of,
    with_capped_delay,
)
from django_throttle.stores import get_store
from django_throttle.stores.base import arun
from django_throttle.stores.denials import Denial

Charges = tuple[Charge, ...]

# Seconds that matched rules hold: an override that ends and a user who logs in are announced by no edit of a rule.
MATCH_LIFETIME: Final = 1.0


@dataclass(slots=True, eq=False)
class MatchedRules:
    """The charges for a frame that costs 1 and has one byte.

    ``own`` are of rules that count this socket alone, ``metered`` of those that the process decides by what it has
    metered, ``shared`` are decided by the store. ``blocks`` are an operator's refusals. ``until`` is on the monotonic
    clock. ``sized``: a rule counts bytes. ``delays``: an own rule makes frames wait. ``remembers``: what own rules
    refuse need not be counted. ``is_blocked``: a block refuses every frame. The last three name what there is.
    """

    snapshot: rulebook.Snapshot
    own: Charges
    metered: Charges
    shared: Charges
    blocks: tuple[Outcome, ...]
    until: float = field(init=False)
    sized: bool = field(init=False)
    delays: bool = field(init=False)
    remembers: bool = field(init=False)
    is_blocked: bool = field(init=False)
    is_empty: bool = field(init=False)
    is_own_only: bool = field(init=False)
    is_shared_only: bool = field(init=False)

    def __post_init__(self) -> None:
        own, metered, shared = self.own, self.metered, self.shared
        self.until = monotonic() + MATCH_LIFETIME
        self.sized = any(one.rule.unit == "bytes" for one in (*own, *metered, *shared))
        self.delays = any(one.rule.action == "delay" for one in own)
        self.remembers = not any(one.rule.count_denied or one.rule.is_shadow for one in own)
        self.is_blocked = not all(one.shadow for one in self.blocks)
        self.is_empty = not (own or metered or shared or self.blocks)
        self.is_own_only = not (metered or shared or self.is_blocked)
        self.is_shared_only = bool(shared) and not (own or metered or self.blocks)

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The names of rules, and idents, that are charged."""
        return frozenset([(one.rule.name, one.ident) for one in (*self.own, *self.metered, *self.shared)])

    def without(self, pairs: Collection[tuple[str, str]]) -> MatchedRules:
        """What an outer connection of the same socket, which charges those pairs, leaves to this one."""

        def left(charges: Charges) -> Charges:
            return tuple([one for one in charges if (one.rule.name, one.ident) not in pairs])

        return MatchedRules(self.snapshot, left(self.own), left(self.metered), left(self.shared), self.blocks)

    def priced(self, charges: Charges, cost: int, size: int) -> Charges:
        if cost == 1 and not self.sized:
            return charges
        bytes_cost = size if cost else 0
        return tuple(
            [one._replace(cost=one.cost * (bytes_cost if one.rule.unit == "bytes" else cost)) for one in charges]
        )


async def match(scope: str, events: tuple[str, ...], who: Who, snapshot: rulebook.Snapshot) -> MatchedRules:
    """The rules that match these events of a socket; in a thread, where a database or session is asked who it is."""
    facts = Facts(scope, events, who, size=1)
    charges, blocks = await at_once_or_in_thread(lambda: (snapshot.match(facts), snapshot.blocks(facts)))
    own: list[Charge] = []
    metered: list[Charge] = []
    shared: list[Charge] = []
    for charge in charges:
        if charge.rule.key == "connection":
            own.append(charge._replace(rule=with_capped_delay(charge.rule)))
        else:
            (metered if charge.rule.is_local else shared).append(charge)
    return MatchedRules(snapshot, tuple(own), tuple(metered), tuple(shared), blocks)


class FrameLimits:
    """The limits of frames of one ``event``: "message" for those that come in, "send" for those that go out.

    ``outer`` are those of a connection around this one, whose rules are not charged again. All limits of a socket have
    one ``calls``. Used on the event loop of the socket alone.
    """

    __slots__ = ("_counters", "_events", "_matched", "_outer", "_own_refusal", "_prepaid", "_scope", "_who", "calls")

    def __init__(
        self,
        scope: str,
        event: str,
        who: Who,
        counters: SocketCounters,
        calls: StoreCallLimit,
        outer: FrameLimits | None,
    ) -> None:
        self._scope, self._events, self._who, self._outer = scope, (event,), who, outer
        self._counters, self.calls = counters, calls
        self._prepaid: PrepaidFrames | None = None  # most sockets have no shared rules in both directions
        self._matched: MatchedRules | None = None
        # It holds until there is room again: nobody else charges the counters of own rules.
        self._own_refusal: tuple[MatchedRules, Denial] | None = None

    async def admit(self, frame: Event, cost: int = 1) -> Decision | None:
        """None when the frame passes at once; else a refusal, or for how many seconds it is to wait."""
        matched = self._matched
        if matched is None or matched.snapshot is not rulebook.present() or monotonic() >= matched.until:
            matched = await self.matched()
        if matched.is_empty:
            return None
        began, size = perf_counter(), size_of(frame) if matched.sized else 0
        if matched.is_own_only:
            own = self._by_own(matched, cost, size)
            if own is None:
                return None
            decision = own
        else:
            decide = self._by_shared if matched.is_shared_only else self._by_all
            decision = await decide(matched, cost, size)
        if reports.installed_hooks() or not _is_ordinary(decision):
            facts = Facts(self._scope, self._events, self._who, cost, size=size_of(frame))
            await reports.atell(facts, decision, perf_counter() - began)
        return None if decision.allowed and not decision.delay else decision

    async def matched(self) -> MatchedRules:
        before, snapshot = self._matched, rulebook.present() or await rulebook.acurrent()
        if before is not None and before.snapshot is snapshot and monotonic() < before.until:
            return before
        new = await match(self._scope, self._events, self._who, snapshot)
        if self._outer is not None:
            new = new.without((await self._outer.matched()).pairs)
        if before is not None and new.shared == before.shared:
            new.shared = before.shared  # prepaid frames are known by the identity of their charges
        self._matched = new
        return new

    def forget(self, *, charged: bool = True) -> None:
        """Forget what has matched, was refused or paid for: rules have changed.

        Or budgets were reset, and nobody is ``charged`` for what was paid for before.
        """
        self._matched = self._own_refusal = None
        if self._prepaid is not None:
            self._prepaid.forget(charged=charged)

    def end(self) -> None:
        if self._prepaid is not None:
            self._prepaid.end()

    def _by_own(self, matched: MatchedRules, cost: int, size: int) -> Decision | None:
        """None when nobody needs to know more than that it passes."""
        now = monotonic()
        before = self._own_refusal
        if before and before[0] is matched and (known := before[1].again((cost, size), now)):
            return known
        own = matched.priced(matched.own, cost, size)
        result = self._counters.charge(own, now)
        if result.is_ordinary and not (matched.delays or matched.blocks or reports.installed_hooks()):
            return None
        decision = decision_of(own, result)
        if not result.allowed and matched.remembers:
            until = inf if decision.retry_after is None else now + decision.retry_after
            self._own_refusal = matched, Denial(decision, now, until, (cost, size))
        return _together(decision, Decision(), matched.blocks) if matched.blocks else decision

    async def _by_all(self, matched: MatchedRules, cost: int, size: int) -> Decision:
        """Own rules refuse before others are asked, and are charged when all the others have let the frame pass."""
        if matched.is_blocked:
            return conclude(matched.blocks)
        own = matched.priced(matched.own, cost, size)
        if own and not self._counters.peek(own, now := monotonic()).allowed:
            return decision_of(own, self._counters.charge(own, now))
        others = await (self._by_metered if matched.metered else self._by_shared)(matched, cost, size)
        if not (others.allowed and (own or matched.blocks)):
            return others
        result = self._counters.charge(own, monotonic())
        if result.is_ordinary and not (matched.delays or matched.blocks or reports.installed_hooks()):
            return others
        return _together(decision_of(own, result), others, matched.blocks)

    async def _by_metered(self, matched: MatchedRules, cost: int, size: int) -> Decision:
        """Metered rules refuse before the shared ones are asked."""
        metered, store = matched.priced(matched.metered, cost, size), get_store()
        agent.ensure(store)
        judged = store.local_limits.decide_all(metered)
        if not all(one.allowed or one.shadow for one in judged):
            return conclude(judged)
        decision = await self._by_shared(matched, cost, size)
        if decision.allowed and (crossed := store.local_limits.add_passed(metered)):
            first = await arun(drop_reported(Decision(crossed=crossed)), store)
            decision = decision._replace(crossed=decision.crossed + first.crossed)
        return decision._replace(outcomes=judged + decision.outcomes)

    async def _by_shared(self, matched: MatchedRules, cost: int, size: int) -> Decision:
        costs = tuple([charge.cost for charge in matched.priced(matched.shared, cost, size)])
        if not any(costs):  # free, or empty
            return Decision()
        prepaid = self._prepaid
        if prepaid is None:
            prepaid = self._prepaid = PrepaidFrames(self.calls)
        decision, wait = await prepaid.decide(matched.shared, costs)
        return decision if wait == decision.delay else decision._replace(delay=wait)


def size_of(frame: Event) -> int:
    text = frame.get("text")
    if text is None:
        return len(frame.get("bytes") or b"")
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _together(own: Decision, others: Decision, blocks: tuple[Outcome, ...]) -> Decision:
    whole = conclude(own.outcomes + others.outcomes + blocks, degraded=others.degraded)
    delay = max(own.delay, others.delay)
    return whole._replace(delay=delay, crossed=others.crossed, cause=others.cause)


def _is_ordinary(decision: Decision) -> bool:
    """Whether only hooks are told of it."""
    if not decision.allowed or decision.degraded or decision.crossed:
        return False
    return all([outcome.allowed for outcome in decision.outcomes])  # noqa: C419 - on the hot path

"""The limits of frames in one direction of a socket: which rules match, and what they decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from time import monotonic, perf_counter
from typing import Final

from django_throttle import rulebook
from django_throttle.core.commands import Charge, Charges
from django_throttle.core.decide import correct, drop_reported
from django_throttle.core.decision import NO_RULE_DECISION, Decision, Outcome, combine_outcomes
from django_throttle.core.ledger import Ledger
from django_throttle.identity import AsgiCaller
from django_throttle.identity.call import Call
from django_throttle.limiter import aexecute_decision, decide_fully, fast_path_command
from django_throttle.observe import recorders, reports
from django_throttle.runtime import at_once_or_in_thread, spawn
from django_throttle.stores import get_store
from django_throttle.stores.base import LastingIo, LoopIo
from django_throttle.stores.refusal_cache import CachedRefusal
from django_throttle.websockets import counters
from django_throttle.websockets.error_frames import Event
from django_throttle.websockets.frame_throttle import attach_reserved

# Seconds. The end of an override and a login are announced by no edit of a rule, so rules are matched again.
MATCH_LIFETIME: Final = 1.0


@dataclass(slots=True, eq=False)
class MatchedRules:
    """The charges of a frame that costs 1 and has one byte, by where their rules are decided."""

    snapshot: rulebook.Snapshot
    per_connection: tuple[Charge, ...]  #: of rules that count this connection alone
    metered: tuple[Charge, ...]  #: of rules that the process decides by its own meters
    shared: tuple[Charge, ...]  #: of rules that the store decides
    blocks: tuple[Outcome, ...]  #: refusals by overrides
    #: The name of the rule and the ident of each charge by outer connections.
    outer_pairs: frozenset[tuple[str, str]] = frozenset()
    expires_at: float = field(init=False)  #: when the match has to be repeated, on the clock of ``perf_counter``
    counts_bytes: bool = field(init=False)  #: True if a rule counts bytes
    has_measured_rule: bool = field(init=False)  #: True if a rule has a measured unit
    has_delay: bool = field(init=False)  #: True if a rule of ``per_connection`` delays frames
    #: True if the counters of ``per_connection`` do not change when they refuse.
    can_cache_refusals: bool = field(init=False)
    is_blocked: bool = field(init=False)  #: True if a block refuses every frame
    is_empty: bool = field(init=False)  #: True if no rule and no block matches
    #: True if neither the process's meters, nor the store, nor a block can refuse a frame.
    is_per_connection_only: bool = field(init=False)
    is_shared_only: bool = field(init=False)  #: True if the store alone decides
    #: True if the store alone decides, and the charges of ``shared`` need no other cost.
    has_fast_path: bool = field(init=False)
    is_prepaid: bool = field(init=False)  #: True if prepaid units of this process may pay for a frame that costs 1
    all_charges: Charges = field(init=False)  #: charges of ``per_connection``, ``metered`` and ``shared``
    shared_charges: Charges = field(init=False)  #: charges of ``shared``

    def __post_init__(self) -> None:
        own, metered, shared = self.per_connection, self.metered, self.shared
        charges = (*own, *metered, *shared)
        self.expires_at = perf_counter() + MATCH_LIFETIME
        self.counts_bytes = any(charge.rule.unit == "bytes" for charge in charges)
        self.has_measured_rule = any(charge.rule.is_measured for charge in shared)
        self.has_delay = any(charge.rule.action == "delay" for charge in own)
        self.can_cache_refusals = not any(charge.rule.count_denied or charge.rule.is_shadow for charge in own)
        self.is_blocked = not all(block.shadow for block in self.blocks)
        self.is_empty = not (charges or self.blocks)
        self.is_per_connection_only = not (metered or shared or self.is_blocked)
        self.is_shared_only = bool(shared) and not (own or metered or self.blocks)
        self.all_charges = Charges.of(charges)
        self.shared_charges = Charges.of(shared)
        self.has_fast_path = self.is_shared_only and not (self.counts_bytes or self.has_measured_rule)
        self.is_prepaid = self.has_fast_path and self.shared_charges.rules.is_prepaid

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The name of the rule and the ident of each charge, those of outer connections included."""
        charges = (*self.per_connection, *self.metered, *self.shared)
        return self.outer_pairs.union([(charge.rule.name, charge.ident) for charge in charges])

    def without(self, pairs: frozenset[tuple[str, str]]) -> MatchedRules:
        """Return the rules without those that outer connections of the same socket charge."""

        def remaining(charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
            return tuple([charge for charge in charges if (charge.rule.name, charge.ident) not in pairs])

        own, metered, shared = remaining(self.per_connection), remaining(self.metered), remaining(self.shared)
        return MatchedRules(self.snapshot, own, metered, shared, self.blocks, pairs)

    def priced(self, charges: Iterable[Charge], cost: int, size: int) -> tuple[Charge, ...]:
        """Return the charges of a frame of this cost, with ``size`` in bytes."""
        if cost == 1 and not self.counts_bytes:
            return tuple(charges)
        units = {"calls": cost, "bytes": size if cost else 0}
        return tuple(
            [charge._replace(cost=charge.cost * units.get(charge.rule.unit, min(cost, 1))) for charge in charges]
        )


async def match(scope: str, events: tuple[str, ...], caller: AsgiCaller, snapshot: rulebook.Snapshot) -> MatchedRules:
    """Return the rules that match these events of a socket.

    Matching runs in a thread if a database or session has to be asked for the caller.
    """
    call = Call(scope, events, AsgiCaller(caller.subject), size=1)
    charges, blocks = await at_once_or_in_thread(lambda: (snapshot.match(call), snapshot.blocks(call)))
    own: list[Charge] = []
    metered: list[Charge] = []
    shared: list[Charge] = []
    for charge in charges:
        if charge.rule.key == "connection":
            own.append(charge._replace(rule=counters.with_capped_delay(charge.rule)))
        elif charge.rule.is_measured:  # a rule without a reserve is decided too
            shared.append(charge._replace(cost=max(1, charge.cost)))
        else:
            (metered if charge.rule.decided_locally else shared).append(charge)
    return MatchedRules(snapshot, tuple(own), tuple(metered), tuple(shared), blocks)


class FrameLimits:
    """The limits of frames of one ``event``: "message" for incoming frames, "send" for outgoing ones.

    Rules of ``outer``, the limits of the connection around this one, are not charged again. Use it only on the event
    loop of the socket.
    """

    __slots__ = (
        "_cached_refusal", "_caller", "_counters", "_delayed_frames", "_events", "_has_ended", "_matched", "_outer",
        "_scope", "_unclaimed_decision",
    )  # fmt: skip

    def __init__(
        self,
        scope: str,
        event: str,
        caller: AsgiCaller,
        socket_counters: counters.SocketCounters,
        outer: FrameLimits | None,
    ) -> None:
        self._scope, self._events, self._caller, self._outer = scope, (event,), caller, outer
        self._counters = socket_counters
        #: A frame whose decision the application has stopped waiting for, and the decision.
        self._unclaimed_decision: tuple[Event, Decision] | None = None
        #: The ledgers of delayed frames, and the times on the monotonic clock when they pass.
        self._delayed_frames: list[tuple[Ledger, float]] = []
        self._has_ended = False
        self._matched: MatchedRules | None = None
        #: The last refusal by ``per_connection``. It stays true until there is room: only this object charges them.
        self._cached_refusal: tuple[MatchedRules, CachedRefusal[Decision]] | None = None

    def try_admit(self) -> bool:
        """Charge a frame that costs 1 and return True if it passes at once without a call of the store.

        Return False if ``check_frame`` has to decide; nothing is charged then.
        """
        matched, began = self._matched, perf_counter()
        if matched is None or not (matched.is_empty or matched.is_prepaid) or self._fresh_match(began) is None:
            return False
        if matched.is_empty:
            return True
        if not self._try_spend_prepaid(matched.shared_charges):
            return False
        if (recorder := recorders.current) is not None:
            recorder.record_allowed(matched.all_charges, self._scope, "", self._events, began)
        return True

    async def check_frame(self, frame: Event, cost: int = 1) -> Decision | None:
        """Decide a frame. Return None if it passes at once, else the refusal or a decision with a delay."""
        began = perf_counter()
        matched = self._fresh_match(began) or await self.matched()
        if matched.is_empty:
            return None
        if matched.has_fast_path and cost == 1 and not reports.installed_hooks():
            decision = await self._decide_by_store(frame, matched, 1, 0)
            if decision.is_ordinary:
                if (recorder := recorders.current) is not None:
                    recorder.record_allowed(matched.all_charges, self._scope, "", self._events, began)
                return None
            return await self._report(frame, decision, cost, began)
        size = size_of(frame) if matched.counts_bytes else 0
        if matched.is_per_connection_only:
            own_decision = self._decide_per_connection(matched, cost, size)
            if own_decision is None:
                self._record(matched, cost, size, began)
                return None
            decision = own_decision
        else:
            decide = self._decide_by_store if matched.is_shared_only else self._decide_shared
            decision = await decide(frame, matched, cost, size)
            if matched.has_measured_rule and decision.allowed:
                call = Call(self._scope, self._events, self._caller, cost, size=size)
                attach_reserved(frame, call, decision.ledger)
        if decision.is_ordinary:
            self._record(matched, cost, size, began)
        if reports.installed_hooks() or not decision.is_ordinary:
            return await self._report(frame, decision, cost, began)
        return None if decision.allowed and not decision.delay else decision

    async def _report(self, frame: Event, decision: Decision, cost: int, began: float) -> Decision | None:
        """Report a decision to hooks, log and signals. Return None if the frame passes at once."""
        call = Call(self._scope, self._events, self._caller, cost, size=size_of(frame))
        await reports.areport(call, decision, perf_counter() - began)
        return None if decision.allowed and not decision.delay else decision

    def _record(self, matched: MatchedRules, cost: int, size: int, began: float) -> None:
        """Record a frame that passed at once."""
        if (recorder := recorders.current) is None:
            return
        has_unit_cost = cost == 1 and not matched.counts_bytes
        charges = matched.all_charges if has_unit_cost else Charges.of(matched.priced(matched.all_charges, cost, size))
        recorder.record_allowed(charges, self._scope, "", self._events, began)

    def _fresh_match(self, now: float) -> MatchedRules | None:
        """Return the matched rules if they have not expired."""
        matched = self._matched
        if matched is None or matched.snapshot is not rulebook.loaded() or now >= matched.expires_at:
            return None
        return matched

    async def matched(self) -> MatchedRules:
        """Return the rules that match now, without those of the outer connection."""
        snapshot = rulebook.loaded() or await rulebook.acurrent()
        if cached := self._fresh_match(perf_counter()):
            return cached
        matched = await match(self._scope, self._events, self._caller, snapshot)
        if self._outer is not None:
            matched = matched.without((await self._outer.matched()).pairs)
        self._matched = matched
        return matched

    def forget(self) -> None:
        """Drop the cached match and refusal, as rules have changed or budgets were reset."""
        self._matched = self._cached_refusal = None

    def end(self) -> None:
        """End the limits with their socket. Frames that have not passed yet are refunded."""
        self._has_ended = True
        for ledger, passes_at in self._delayed_frames:
            if passes_at > monotonic():
                spawn(correct(LoopIo(get_store()), ledger.refund()))
        if self._unclaimed_decision is not None:
            spawn(correct(LoopIo(get_store()), self._unclaimed_decision[1].ledger.refund()))

    def _decide_per_connection(self, matched: MatchedRules, cost: int, size: int) -> Decision | None:
        """Decide by the rules of this connection alone. Return None if the frame passes and needs no report."""
        now = monotonic()
        cached = self._cached_refusal
        if cached and cached[0] is matched and (refusal := cached[1].decision_for((cost, size), now)):
            return refusal
        own = matched.priced(matched.per_connection, cost, size)
        result = self._counters.charge(own, now)
        if result.is_ordinary and not (matched.has_delay or matched.blocks or reports.installed_hooks()):
            return None
        decision = counters.decision_of(own, result)
        if not result.allowed and matched.can_cache_refusals:
            expires_at = inf if decision.retry_after is None else now + decision.retry_after
            self._cached_refusal = matched, CachedRefusal(decision, now, expires_at, (cost, size))
        return _merge_decisions(decision, Decision(), matched.blocks) if matched.blocks else decision

    async def _decide_shared(self, frame: Event, matched: MatchedRules, cost: int, size: int) -> Decision:
        """Decide by all rules. Those of this connection refuse first, and are charged last if the others allow."""
        if matched.is_blocked:
            return combine_outcomes(matched.blocks)
        own = matched.priced(matched.per_connection, cost, size)
        if own and not self._counters.peek(own, now := monotonic()).allowed:
            return counters.decision_of(own, self._counters.charge(own, now))
        others = await (self._decide_metered if matched.metered else self._decide_by_store)(frame, matched, cost, size)
        if not (others.allowed and (own or matched.blocks)):
            return others
        result = self._counters.charge(own, monotonic())
        if result.is_ordinary and not (matched.has_delay or matched.blocks or reports.installed_hooks()):
            return others
        return _merge_decisions(counters.decision_of(own, result), others, matched.blocks)

    async def _decide_metered(self, frame: Event, matched: MatchedRules, cost: int, size: int) -> Decision:
        """Decide by metered rules, then by the store if they allow the frame."""
        outcomes = get_store().local_limits.decide_all(matched.priced(matched.metered, cost, size))
        if not all(outcome.allowed or outcome.shadow for outcome in outcomes):
            return combine_outcomes(outcomes)
        decision = await self._decide_by_store(frame, matched, cost, size)
        return decision._replace(outcomes=outcomes + decision.outcomes)

    def _try_spend_prepaid(self, charges: Charges) -> bool:
        """Charge prepaid units of this process. Return False if it has not enough or the call must be reported."""
        if self._has_ended or reports.installed_hooks():
            return False
        return get_store().local_limits.prepaid.spend_all(tuple(charges))

    async def _decide_by_store(self, frame: Event, matched: MatchedRules, cost: int, size: int) -> Decision:
        has_unit_cost = cost == 1 and not matched.counts_bytes
        charges = matched.shared_charges if has_unit_cost else Charges.of(matched.priced(matched.shared, cost, size))
        if self._has_ended or not any(charges.costs):
            return NO_RULE_DECISION
        if charges.rules.is_prepaid and not matched.has_measured_rule and self._try_spend_prepaid(charges):
            return NO_RULE_DECISION
        decision = await self._execute_once(frame, charges)
        if not (self._has_ended or decision.delay):
            return decision
        if self._has_ended or decision.delay > counters.MAX_DELAY:
            await correct(LoopIo(get_store()), decision.ledger.refund())
            return NO_RULE_DECISION if self._has_ended else counters.refused_for_delay(decision)
        now = monotonic()
        self._delayed_frames = [(ledger, passes_at) for ledger, passes_at in self._delayed_frames if passes_at > now]
        self._delayed_frames.append((decision.ledger, now + decision.delay))
        return decision

    async def _execute_once(self, frame: Event, charges: Charges) -> Decision:
        """Decide a frame once, even if the application stops waiting and receives the same frame later.

        If it stops waiting for an outgoing frame, the charge is refunded and CancelledError raised.
        """
        if (unclaimed := self._unclaimed_decision) is not None:
            self._unclaimed_decision = None
            if unclaimed[0] is frame:
                return unclaimed[1]
        io = LastingIo(get_store())
        decision = await aexecute_decision(
            io, fast_path_command(charges, io.store) or decide_fully(io, charges, keeps_ledger=True)
        )
        if decision.crossed:
            decision = await drop_reported(io, decision)
        if io.cancelled is None:
            return decision
        if self._events == ("message",) and not self._has_ended:
            self._unclaimed_decision = frame, decision
        else:
            spawn(correct(LoopIo(io.store), decision.ledger.refund()))
        raise io.cancelled


def size_of(frame: Event) -> int:
    """Return the size of a frame's content in bytes."""
    text = frame.get("text")
    if text is None:
        return len(frame.get("bytes") or b"")
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _merge_decisions(own: Decision, others: Decision, blocks: tuple[Outcome, ...]) -> Decision:
    merged = combine_outcomes(own.outcomes + others.outcomes + blocks, degraded=others.degraded)
    delay = max(own.delay, others.delay)
    return merged._replace(delay=delay, crossed=others.crossed, ledger=others.ledger, cause=others.cause)

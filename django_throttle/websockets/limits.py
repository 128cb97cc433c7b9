"""The limits of frames in one direction of a socket: which rules match, and what they decide."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
from django_throttle.websockets.frame_throttle import reserve

# Seconds that matched rules hold: an override that ends and a user who logs in are announced by no edit of a rule.
MATCH_LIFETIME: Final = 1.0


@dataclass(slots=True, eq=False)
class MatchedRules:
    """The charges for a frame that costs 1 and has one byte.

    ``own`` are of rules that count this socket alone, ``metered`` of those that the process decides by what it has
    metered, ``shared`` are decided by the store. ``blocks`` are an operator's refusals. ``until`` is on perf_counter's
    clock. ``sized``: a rule counts bytes. ``measures``: one is of a measured unit. ``delays``: an own rule makes frames
    wait. ``remembers``: what own rules refuse need not be counted. ``is_blocked``: a block refuses every frame. The
    next three name what there is. ``all`` is of own, metered and shared rules, ``shared_charges`` of shared ones.
    ``is_quick``: a frame that costs 1 is charged ``shared`` as it is, and no more.
    """

    snapshot: rulebook.Snapshot
    own: tuple[Charge, ...]
    metered: tuple[Charge, ...]
    shared: tuple[Charge, ...]
    blocks: tuple[Outcome, ...]
    until: float = field(init=False)
    sized: bool = field(init=False)
    measures: bool = field(init=False)
    delays: bool = field(init=False)
    remembers: bool = field(init=False)
    is_blocked: bool = field(init=False)
    is_empty: bool = field(init=False)
    is_own_only: bool = field(init=False)
    is_shared_only: bool = field(init=False)
    is_quick: bool = field(init=False)
    all: Charges = field(init=False)
    shared_charges: Charges = field(init=False)

    def __post_init__(self) -> None:
        own, metered, shared = self.own, self.metered, self.shared
        self.until = perf_counter() + MATCH_LIFETIME
        self.sized = any(one.rule.unit == "bytes" for one in (*own, *metered, *shared))
        self.measures = any(one.rule.is_measured for one in shared)
        self.delays = any(one.rule.action == "delay" for one in own)
        self.remembers = not any(one.rule.count_denied or one.rule.is_shadow for one in own)
        self.is_blocked = not all(one.shadow for one in self.blocks)
        self.is_empty = not (own or metered or shared or self.blocks)
        self.is_own_only = not (metered or shared or self.is_blocked)
        self.is_shared_only = bool(shared) and not (own or metered or self.blocks)
        self.all = Charges.of((*own, *metered, *shared))
        self.shared_charges = Charges.of(shared)
        self.is_quick = self.is_shared_only and not (self.sized or self.measures)

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The names of rules, and idents, that are charged."""
        return frozenset([(one.rule.name, one.ident) for one in (*self.own, *self.metered, *self.shared)])

    def without(self, pairs: Collection[tuple[str, str]]) -> MatchedRules:
        """What an outer connection of the same socket, which charges those pairs, leaves to this one."""

        def left(charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
            return tuple([one for one in charges if (one.rule.name, one.ident) not in pairs])

        return MatchedRules(self.snapshot, left(self.own), left(self.metered), left(self.shared), self.blocks)

    def priced(self, charges: Iterable[Charge], cost: int, size: int) -> tuple[Charge, ...]:
        if cost == 1 and not self.sized:
            return tuple(charges)
        counts = {"calls": cost, "bytes": size if cost else 0}
        return tuple([one._replace(cost=one.cost * counts.get(one.rule.unit, min(cost, 1))) for one in charges])


async def match(scope: str, events: tuple[str, ...], caller: AsgiCaller, snapshot: rulebook.Snapshot) -> MatchedRules:
    """The rules that match these events of a socket; in a thread, where a database or session is asked who it is."""
    call = Call(scope, events, AsgiCaller(caller.subject), size=1)
    charges, blocks = await at_once_or_in_thread(lambda: (snapshot.match(call), snapshot.blocks(call)))
    own: list[Charge] = []
    metered: list[Charge] = []
    shared: list[Charge] = []
    for charge in charges:
        if charge.rule.key == "connection":
            own.append(charge._replace(rule=counters.with_capped_delay(charge.rule)))
        elif charge.rule.is_measured:  # what reserves nothing asks too
            shared.append(charge._replace(cost=max(1, charge.cost)))
        else:
            (metered if charge.rule.decided_locally else shared).append(charge)
    return MatchedRules(snapshot, tuple(own), tuple(metered), tuple(shared), blocks)


class FrameLimits:
    """The limits of frames of one ``event``: "message" for those that come in, "send" for those that go out.

    ``outer`` are those of a connection around this one, whose rules are not charged again. Used on the event loop of
    the socket alone.
    """

    __slots__ = (
        "_counters", "_decided_before", "_events", "_has_ended", "_matched", "_outer", "_own_refusal", "_scope",
        "_waiting", "_who",
    )  # fmt: skip

    def __init__(
        self, scope: str, event: str, caller: AsgiCaller, own: counters.SocketCounters, outer: FrameLimits | None
    ) -> None:
        self._scope, self._events, self._who, self._outer = scope, (event,), caller, outer
        self._counters = own
        # A frame whose decision nobody waited for in the end, and the decision.
        self._decided_before: tuple[Event, Decision] | None = None
        # What frames that wait for their turn were charged, and when that is, on the monotonic clock.
        self._waiting: list[tuple[Ledger, float]] = []
        self._has_ended = False
        self._matched: MatchedRules | None = None
        # It holds until there is room again: nobody else charges the counters of own rules.
        self._own_refusal: tuple[MatchedRules, CachedRefusal[Decision]] | None = None

    def passes(self) -> bool:
        """Whether a frame that costs 1 passes without a wait, and nobody needs to know more; if so, it is charged."""
        began = perf_counter()
        if (matched := self._known(began)) is None:
            return False
        if matched.is_empty:
            return True
        if not matched.is_quick or not self._try_spend_prepaid(matched.shared_charges):
            return False
        if (recorder := recorders.current) is not None:
            recorder.record_allowed(matched.all, self._scope, "", self._events, began)
        return True

    async def admit(self, frame: Event, cost: int = 1) -> Decision | None:
        """None when the frame passes at once; else a refusal, or for how many seconds it is to wait."""
        began = perf_counter()
        matched = self._known(began) or await self.matched()
        if matched.is_empty:
            return None
        if matched.is_quick and cost == 1 and not reports.installed_hooks():
            decision = await self._by_shared(frame, matched, 1, 0)
            if decision.is_ordinary:
                if (recorder := recorders.current) is not None:
                    recorder.record_allowed(matched.all, self._scope, "", self._events, began)
                return None
            return await self._told(frame, decision, cost, began)
        size = size_of(frame) if matched.sized else 0
        if matched.is_own_only:
            own = self._by_own(matched, cost, size)
            if own is None:
                self._record(matched, cost, size, began)
                return None
            decision = own
        else:
            decide = self._by_shared if matched.is_shared_only else self._by_all
            decision = await decide(frame, matched, cost, size)
            if matched.measures and decision.allowed:
                call = Call(self._scope, self._events, self._who, cost, size=size)
                reserve(frame, call, decision.ledger)
        if decision.is_ordinary:
            self._record(matched, cost, size, began)
        if reports.installed_hooks() or not decision.is_ordinary:
            return await self._told(frame, decision, cost, began)
        return None if decision.allowed and not decision.delay else decision

    async def _told(self, frame: Event, decision: Decision, cost: int, began: float) -> Decision | None:
        """Report a decision to hooks, log and signals; None where the frame passes at once."""
        call = Call(self._scope, self._events, self._who, cost, size=size_of(frame))
        await reports.areport(call, decision, perf_counter() - began)
        return None if decision.allowed and not decision.delay else decision

    def _record(self, matched: MatchedRules, cost: int, size: int, began: float) -> None:
        """Record a frame that passed at once."""
        if (recorder := recorders.current) is None:
            return
        as_it_is = cost == 1 and not matched.sized
        charges = matched.all if as_it_is else Charges.of(matched.priced(matched.all, cost, size))
        recorder.record_allowed(charges, self._scope, "", self._events, began)

    def _known(self, now: float) -> MatchedRules | None:
        """Return what has matched, as long as it holds."""
        matched = self._matched
        if matched is None or matched.snapshot is not rulebook.loaded() or now >= matched.until:
            return None
        return matched

    async def matched(self) -> MatchedRules:
        snapshot = rulebook.loaded() or await rulebook.acurrent()
        if known := self._known(perf_counter()):
            return known
        new = await match(self._scope, self._events, self._who, snapshot)
        if self._outer is not None:
            new = new.without((await self._outer.matched()).pairs)
        self._matched = new
        return new

    def forget(self) -> None:
        """Forget what has matched and was refused: rules have changed, or budgets were reset."""
        self._matched = self._own_refusal = None

    def end(self) -> None:
        """The socket has ended: frames that are decided, or wait for their turn, are charged nothing."""
        self._has_ended = True
        for ledger, turn in self._waiting:
            if turn > monotonic():
                spawn(correct(LoopIo(get_store()), ledger.refund()))
        if self._decided_before is not None:
            spawn(correct(LoopIo(get_store()), self._decided_before[1].ledger.refund()))

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
        decision = counters.decision_of(own, result)
        if not result.allowed and matched.remembers:
            until = inf if decision.retry_after is None else now + decision.retry_after
            self._own_refusal = matched, CachedRefusal(decision, now, until, (cost, size))
        return _together(decision, Decision(), matched.blocks) if matched.blocks else decision

    async def _by_all(self, frame: Event, matched: MatchedRules, cost: int, size: int) -> Decision:
        """Own rules refuse before others are asked, and are charged when all the others have let the frame pass."""
        if matched.is_blocked:
            return combine_outcomes(matched.blocks)
        own = matched.priced(matched.own, cost, size)
        if own and not self._counters.peek(own, now := monotonic()).allowed:
            return counters.decision_of(own, self._counters.charge(own, now))
        others = await (self._by_metered if matched.metered else self._by_shared)(frame, matched, cost, size)
        if not (others.allowed and (own or matched.blocks)):
            return others
        result = self._counters.charge(own, monotonic())
        if result.is_ordinary and not (matched.delays or matched.blocks or reports.installed_hooks()):
            return others
        return _together(counters.decision_of(own, result), others, matched.blocks)

    async def _by_metered(self, frame: Event, matched: MatchedRules, cost: int, size: int) -> Decision:
        """Metered rules refuse before the shared ones are asked."""
        judged = get_store().local_limits.decide_all(matched.priced(matched.metered, cost, size))
        if not all(one.allowed or one.shadow for one in judged):
            return combine_outcomes(judged)
        decision = await self._by_shared(frame, matched, cost, size)
        return decision._replace(outcomes=judged + decision.outcomes)

    def _try_spend_prepaid(self, charges: Charges) -> bool:
        """Whether this process held what a frame is charged, which it has now taken; and nobody is told more of it."""
        if self._has_ended or reports.installed_hooks():
            return False
        return charges.rules.is_prepaid and get_store().local_limits.prepaid.spend_all(tuple(charges))

    async def _by_shared(self, frame: Event, matched: MatchedRules, cost: int, size: int) -> Decision:
        as_it_is = cost == 1 and not matched.sized
        charges = matched.shared_charges if as_it_is else Charges.of(matched.priced(matched.shared, cost, size))
        if self._has_ended or not any(charges.costs):
            return NO_RULE_DECISION
        if not matched.measures and self._try_spend_prepaid(charges):
            return NO_RULE_DECISION
        decision = await self._decided(frame, charges)
        if not (self._has_ended or decision.delay):
            return decision
        if self._has_ended or decision.delay > counters.MAX_DELAY:
            await correct(LoopIo(get_store()), decision.ledger.refund())
            return NO_RULE_DECISION if self._has_ended else counters.refused_for_delay(decision)
        now = monotonic()
        self._waiting = [one for one in self._waiting if one[1] > now]
        self._waiting.append((decision.ledger, now + decision.delay))
        return decision

    async def _decided(self, frame: Event, charges: Charges) -> Decision:
        """Decide a frame once: an application that stops waiting for it comes back for the same one.

        What goes out does not come back, so what it was charged is refunded.
        """
        if (known := self._decided_before) is not None:
            self._decided_before = None
            if known[0] is frame:
                return known[1]
        io = LastingIo(get_store())
        decision = await aexecute_decision(
            io, fast_path_command(charges, io.store) or decide_fully(io, charges, keeps_ledger=True)
        )
        if decision.crossed:
            decision = await drop_reported(io, decision)
        if io.cancelled is None:
            return decision
        if self._events == ("message",) and not self._has_ended:
            self._decided_before = frame, decision
        else:
            spawn(correct(LoopIo(io.store), decision.ledger.refund()))
        raise io.cancelled


def size_of(frame: Event) -> int:
    text = frame.get("text")
    if text is None:
        return len(frame.get("bytes") or b"")
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _together(own: Decision, others: Decision, blocks: tuple[Outcome, ...]) -> Decision:
    whole = combine_outcomes(own.outcomes + others.outcomes + blocks, degraded=others.degraded)
    delay = max(own.delay, others.delay)
    return whole._replace(delay=delay, crossed=others.crossed, ledger=others.ledger, cause=others.cause)

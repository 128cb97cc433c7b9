"""Decisions, refunds and releases: coroutines that ask the store by the ``io`` that they are handed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from django_throttle.core.commands import (
    Answer,
    Answers,
    Charge,
    Charges,
    Correct,
    Decide,
    DecideLocally,
    DedupKey,
    Evict,
    Release,
    Reset,
    SendControl,
    SetDedupKeys,
)
from django_throttle.core.control_messages import RESET, ControlMessage
from django_throttle.core.decision import (
    PASSED,
    Decision,
    Lease,
    Outcome,
    Reason,
    ThresholdReached,
    combine_outcomes,
    decided,
    outcomes_of,
    plain_decision,
)
from django_throttle.core.exceptions import RepeatCommand, StoreError
from django_throttle.core.io import Io
from django_throttle.core.ledger import Ledger, NameAndIdent
from django_throttle.core.rule import Rule


def _by_policy(charge: Charge, error: StoreError) -> Outcome | None:
    """The outcome by the rule's failure policy, as the store has failed; None where this process is to count."""
    rule = charge.rule
    if rule.on_store_failure == "local":
        return None
    allowed, limit = rule.on_store_failure == "allow", rule.params.limit - rule.tolerance
    wait = 0.0 if allowed else error.retry_after
    return Outcome(
        rule=rule.name,
        ident=charge.ident,
        allowed=allowed,
        limit=limit,
        remaining=limit if allowed else 0,
        retry_after=wait,
        reset_after=wait,
        reason=Reason.STORE_FAILED,
        shadow=rule.is_shadow,
        window=rule.window,
    )


class LocalCounts(Protocol):
    """The counts by which a process decides dampers: ``decide_all`` counts, whatever becomes of the call."""

    def decide_damper(self, charge: Charge, *, commit: bool = True) -> Decision: ...

    def decide_all(self, charges: Sequence[Charge], *, commit: bool = True) -> tuple[Outcome, ...]: ...


async def decide_with_local(
    charges: Sequence[Charge],
    commit: bool,
    local_limits: LocalCounts,
    decide_rest: Callable[[tuple[Charge, ...]], Awaitable[Decision]],
) -> Decision:
    """Decide all charges as one: if a damper refuses the call, the store is not asked and nothing is charged."""
    if len(charges) == 1:
        return local_limits.decide_damper(charges[0], commit=commit)
    exact = tuple([charge for charge in charges if not charge.rule.decided_locally])
    judged = local_limits.decide_all([charge for charge in charges if charge.rule.decided_locally], commit=commit)
    decision = combine_outcomes(judged)
    if not exact or not decision.allowed:
        return decision
    rest = await decide_rest(exact)
    ours, theirs = iter(judged), iter(rest.outcomes)
    outcomes = tuple([next(ours if charge.rule.decided_locally else theirs) for charge in charges])
    decision = combine_outcomes(outcomes, rest.lease, degraded=rest.degraded)
    return decision._replace(crossed=rest.crossed, ledger=rest.ledger, cause=rest.cause)


class RefusalCacheLike(Protocol):
    """A cache of recent refusals, for stores that are slow to ask."""

    @property
    def epoch(self) -> int: ...

    @property
    def refusals(self) -> Collection[object]: ...

    def find(self, charges: Charges) -> Decision | None: ...

    def note(self, charges: Charges, decision: Decision, epoch: int) -> None: ...


async def decide_charges(
    io: Io,
    charges: Sequence[Charge],
    *,
    commit: bool = True,
    lease: str | None = None,
    refusal_cache: RefusalCacheLike | None = None,
    local_limits: LocalCounts | None = None,
) -> Decision:
    """Decide all charges as one; without the store, each rule's failure policy decides."""
    if not isinstance(charges, Charges):
        charges = Charges.of(charges)
    if not charges.idents:
        return PASSED
    if local_limits is not None and charges.rules.has_local:
        rest = partial(decide_charges, io, commit=commit, lease=lease, refusal_cache=refusal_cache)
        return await decide_with_local(charges, commit, local_limits, rest)
    remembered = refusal_cache if commit else None
    if remembered is not None and remembered.refusals and (known := remembered.find(charges)) is not None:
        return known
    command, epoch = Decide(charges, commit, lease), 0 if remembered is None else remembered.epoch
    try:
        try:
            answers = await io.execute(command)
        except RepeatCommand:
            answers = await io.execute(command)
    except StoreError as error:
        return await decide_without_store(io, command, error)
    return decision_from_answers(command, answers, remembered, epoch)


def decision_from_answers(
    command: Decide, answers: Sequence[Answer], remembered: RefusalCacheLike | None, epoch: int
) -> Decision:
    """What the store's answers come to; a refusal is ``remembered``, see ``RefusalCacheLike.note``."""
    charges = command.charges
    decision = decided(command, answers, _lease(command) if command.lease else None)
    if decision.allowed:
        crossed = (
            thresholds_reached(charges, answers, decision.outcomes) if command.commit and charges.rules.warns else ()
        )
        return decision._replace(crossed=crossed) if crossed else decision
    if remembered is not None:
        remembered.note(charges, decision, epoch)
    return decision


def plain_decision_or_none(command: Decide, answers: object) -> Decision | None:
    """Return the decision of a call that fits all of its plain rules; None if it does not, or the store failed."""
    return plain_decision(command, answers) if type(answers) is Answers and answers.fits else None


async def reset_charges(io: Io, charges: Sequence[Charge]) -> int:
    """Make the rates of these charges full again; returns how many keys were removed.

    Also has processes forget the refusals that they cache for open sockets of these idents. Raises StoreError.
    """
    if not charges:
        return 0
    removed: int = await io.execute(Reset(charges))
    with suppress(StoreError):  # the control message is sent again later
        idents = {charge.ident for charge in charges}
        await io.execute(SendControl(tuple([ControlMessage(RESET, ident=ident) for ident in idents])))
    return removed


async def release_lease(io: Io, lease: Lease | None) -> None:
    """Give a lease back; if the store fails, the agent does so later."""
    if lease is not None:
        with suppress(StoreError):
            await io.execute(Release(lease.id, lease.holds))


async def correct(io: Io, corrections: Iterable[Correct]) -> bool:
    """Execute these corrections; return False if the store fails, which leaves the charges as they are."""
    is_done = True
    for command in corrections:
        try:
            await io.execute(command)
        except StoreError:
            is_done = False
    return is_done


async def decide_without_store(io: Io, command: Decide, error: StoreError) -> Decision:
    """Decide by the failure policy of each rule, as the store has failed."""
    by_policy = {charge: _by_policy(charge, error) for charge in command.charges}
    local = tuple([charge for charge, outcome in by_policy.items() if outcome is None])
    # As shadows they are never refused here; their leases are written to the store when that is back.
    held = [charge for charge in command.charges if charge.rule.holds_slots and charge.rule.on_store_failure == "allow"]
    leases = tuple([charge._replace(rule=charge.rule.as_shadow()) for charge in held])
    refused = any(outcome and not outcome.allowed and not outcome.shadow for outcome in by_policy.values())
    ledger = None
    if local or leases:
        locally = Decide(Charges.of(local + leases), command.commit and not refused, command.lease)
        answers = await io.execute(DecideLocally(locally))
        by_policy.update(zip(local, outcomes_of(locally.charges, answers, commit=locally.commit), strict=False))
        ledger = Ledger(locally.charges, answers, locally=True) if locally.commit else None
    outcomes = tuple(outcome for charge in command.charges if (outcome := by_policy[charge]) is not None)
    decision = combine_outcomes(outcomes, _lease(command) if command.lease else None, degraded=True, ledger=ledger)
    return decision._replace(cause=error.cause)


def _lease(command: Decide) -> Lease | None:
    holds = command.charges.holds
    return Lease(command.lease or "", holds) if holds and command.commit else None


def thresholds_reached(
    charges: Sequence[Charge], answers: Sequence[Answer], outcomes: tuple[Outcome, ...]
) -> tuple[ThresholdReached, ...]:
    """The shares of ``warn_at`` that a charged call has reached."""
    charged = zip(charges, answers, outcomes, strict=True)
    return tuple([reached for each in charged if each[1].retry == 0 for reached in _reached(*each)])


async def drop_reported(io: Io, decision: Decision) -> Decision:
    """The decision without the thresholds_reached that some process has reported in this window.

    If the store fails, all stay: a share reported twice is better than one that is not reported.
    """
    try:
        is_first = await io.execute(SetDedupKeys(tuple([reached.dedup_key for reached in decision.crossed])))
    except StoreError:
        return decision
    first = tuple([reached for reached, keep in zip(decision.crossed, is_first, strict=True) if keep])
    return decision._replace(crossed=first)


def _reached(charge: Charge, answer: Answer, outcome: Outcome) -> Iterator[ThresholdReached]:
    rule = charge.rule
    used = rule.params.limit - answer.remaining
    for share, reached_at in rule.thresholds:
        if used - charge.cost < reached_at <= used:
            yield ThresholdReached(outcome, share, _dedup_key(charge, answer, share))


def _dedup_key(charge: Charge, answer: Answer, share: float) -> DedupKey:
    """Named after its window, where windows end for all processes at one time."""
    rule, left = charge.rule, charge.rule.params.window_left(answer.reset)
    if left is None:
        return DedupKey(rule.id, charge.ident, str(share), round((rule.window or 0) * 1_000_000))
    return DedupKey(rule.id, charge.ident, f"{share}:{answer.at + left}", left)


TRIES: Final = 3  # evictions for one new socket


async def decide_and_evict(
    io: Io, decide: Callable[[], Awaitable[Decision]], charges: Sequence[Charge], lease: str
) -> Decision:
    """Decide; if only full rules that evict refuse, evict a socket under each, and decide again.

    An eviction gives the slot to the new socket in the same step, so that no other gets it in between. A still newer
    socket may evict the new one in turn, which is then refused. If another rule refuses it, it gives its slots back.
    Where refusals count, the first question charges nothing: the refusal that makes room is none of the client's.
    """
    has_asked = not any(charge.rule.count_denied for charge in charges)
    decision = await (decide() if has_asked else _look(io, charges))
    taken: dict[tuple[str, str], None] = {}
    for _ in range(TRIES):
        full = _full(charges, decision)
        if not full or any((charge.rule.id, charge.ident) in taken for charge in full):
            break
        if not await _evict(io, full, lease, taken):
            break
        decision, has_asked = await decide(), True
    if not has_asked:
        decision = await decide()
    if taken and not decision.allowed:
        await release_lease(io, Lease(lease, tuple(taken)))
    return decision


async def _look(io: Io, charges: Sequence[Charge]) -> Decision:
    """Ask what the store says of these, and charge nothing; a damper would count the attempt."""
    return await decide_charges(io, [charge for charge in charges if not charge.rule.decided_locally], commit=False)


def _full(charges: Sequence[Charge], decision: Decision) -> list[Charge]:
    """The charges that are refused, if the rules of all of them evict; else none."""
    if decision.allowed or decision.degraded:
        return []
    evicting = {(charge.rule.name, charge.ident): charge for charge in charges if charge.rule.at_limit != "reject"}
    refusing = {(one.rule, one.ident) for one in decision.outcomes if not (one.allowed or one.shadow)}
    return [evicting[pair] for pair in evicting if pair in refusing] if refusing <= evicting.keys() else []


async def _evict(io: Io, full: list[Charge], lease: str, taken: dict[tuple[str, str], None]) -> bool:
    """Take a slot under each; False when one could not be had. ``taken`` receives what was."""
    with suppress(StoreError):
        for charge in full:
            if not await io.execute(Evict(charge, lease)):
                return False
            taken[charge.rule.id, charge.ident] = None
        return True
    return False


async def decide_and_correct(
    io: Io,
    decide: Callable[[], Awaitable[Decision]],
    ledger: Ledger,
    leases: Collection[Lease],
    rule_named: Callable[[str], Rule | None],
) -> Decision:
    """Decide a call; then refund earlier charges of it for another scope, or under another ident."""
    decision = await decide()
    try:
        if wrong := _misplaced(ledger, decision.outcomes):
            await correct(io, ledger.refund_pairs(wrong))
            rules = [(rule_named(name), ident) for name, ident in wrong]
            held = {(rule.id, ident) for rule, ident in rules if rule is not None and rule.holds_slots}
            for lease in leases:
                await release_lease(io, Lease(lease.id, tuple(hold for hold in lease.holds if hold in held)))
    except BaseException:
        await release_lease(io, decision.lease)
        raise
    return decision


def _misplaced(ledger: Ledger, outcomes: Iterable[Outcome]) -> frozenset[NameAndIdent]:
    """Return the rules and idents that were charged for another scope, or under another ident than the rule's now."""
    idents: dict[str, set[str]] = {}
    for outcome in outcomes:
        if not (outcome.shadow and outcome.reason is Reason.BLOCKED):  # its ident is an override's subject
            idents.setdefault(outcome.rule, set()).add(outcome.ident)
    others = frozenset(pair for pair in ledger.costs if pair[0] in idents and pair[1] not in idents[pair[0]])
    return others | ledger.misplaced


def apply_refunds(decision: Decision, refunds: Collection[Correct], *, released: bool = False) -> Decision:
    """The decision as it reads when these have been made: what is given back is there again.

    So is its slot, where that is ``released`` although the call is over in no other way.
    """
    freed = released and decision.lease is not None
    if not (refunds or freed):
        return decision
    charges: dict[tuple[str, float | None, str], Charge] = {}
    for (rule, ident, cost), *_ in [entry for refund in refunds for entry in refund.back]:
        key = rule.name, rule.window, ident
        charges[key] = Charge(rule, ident, cost + (charges[key].cost if key in charges else 0))
    outcomes = [_released(one) if freed and one.window is None else one for one in decision.outcomes]
    outcomes = [_without(charges.get((one.rule, one.window, one.ident)), one) for one in outcomes]
    return decision._replace(outcomes=tuple(outcomes))


def _released(outcome: Outcome) -> Outcome:
    return outcome._replace(remaining=min(outcome.limit, outcome.remaining + 1))


def _without(charge: Charge | None, outcome: Outcome) -> Outcome:
    """As if it had not been charged; of what is tolerated beyond the limit nobody is told how much is left."""
    if charge is None or (charge.rule.tolerance and not outcome.remaining):
        return outcome
    remaining = min(outcome.limit, outcome.remaining + charge.cost)
    drained = charge.rule.params.drain_us(charge.cost)
    until_full = max(0, int(round(outcome.reset_after * 1_000_000) - drained))
    is_full = remaining == outcome.limit and not drained  # what drains may be short of full by a part of a unit
    return outcome._replace(remaining=remaining, reset_after=0.0 if is_full else until_full / 1_000_000)


async def settle(io: Io, settlement: Correct | None) -> tuple[int, ...]:
    """Settle a call; return the means, or an empty tuple if the store fails, which leaves the reserve charged."""
    if settlement is None:
        return ()
    try:
        means: tuple[int, ...] = await io.execute(settlement)
    except StoreError:
        return ()
    return means

"""Decisions, refunds and releases: coroutines that send commands to the store through their ``io``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from django_throttle.core.commands import (
    Answer,
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
    NO_RULE_DECISION,
    Decision,
    Lease,
    Outcome,
    Reason,
    ThresholdReached,
    combine_outcomes,
    make_decision,
    outcomes_of,
)
from django_throttle.core.exceptions import RepeatCommand, StoreError
from django_throttle.core.io import Io
from django_throttle.core.ledger import Ledger, NameAndIdent
from django_throttle.core.rule import Rule


def _by_policy(charge: Charge, error: StoreError) -> Outcome | None:
    """Return the outcome by the rule's failure policy; None if this process is to count."""
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
    """The counts by which a process decides dampers. They include calls that another rule refuses."""

    def decide_damper(self, charge: Charge, *, commit: bool = True) -> Decision: ...

    def decide_all(self, charges: Sequence[Charge], *, commit: bool = True) -> tuple[Outcome, ...]: ...


async def decide_with_local(
    charges: Sequence[Charge],
    commit: bool,
    local_limits: LocalCounts,
    decide_rest: Callable[[tuple[Charge, ...]], Awaitable[Decision]],
) -> Decision:
    """Decide all charges together. If a damper refuses the call, the store is not asked and nothing is charged."""
    if len(charges) == 1:
        return local_limits.decide_damper(charges[0], commit=commit)
    store_charges = tuple([charge for charge in charges if not charge.rule.decided_locally])
    local_outcomes = local_limits.decide_all(
        [charge for charge in charges if charge.rule.decided_locally], commit=commit
    )
    decision = combine_outcomes(local_outcomes)
    if not store_charges or not decision.allowed:
        return decision
    rest = await decide_rest(store_charges)
    local_iterator, rest_iterator = iter(local_outcomes), iter(rest.outcomes)
    outcomes = tuple([next(local_iterator if charge.rule.decided_locally else rest_iterator) for charge in charges])
    decision = combine_outcomes(outcomes, rest.lease, degraded=rest.degraded)
    return decision._replace(crossed=rest.crossed, ledger=rest.ledger, cause=rest.cause)


class RefusalCacheLike(Protocol):
    """A cache of recent refusals, which saves commands to the store."""

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
    """Decide all charges together. If the store fails, the failure policy of each rule decides."""
    if not isinstance(charges, Charges):
        charges = Charges.of(charges)
    if not charges.idents:
        return NO_RULE_DECISION
    if local_limits is not None and charges.rules.has_local:
        rest = partial(decide_charges, io, commit=commit, lease=lease, refusal_cache=refusal_cache)
        return await decide_with_local(charges, commit, local_limits, rest)
    cache = refusal_cache if commit else None
    if cache is not None and cache.refusals and (refusal := cache.find(charges)) is not None:
        return refusal
    command, epoch = Decide(charges, commit, lease), 0 if cache is None else cache.epoch
    try:
        try:
            answers = await io.execute(command)
        except RepeatCommand:
            answers = await io.execute(command)
    except StoreError as error:
        return await decide_without_store(io, command, error)
    return decision_from_answers(command, answers, cache, epoch)


def decision_from_answers(
    command: Decide, answers: Sequence[Answer], refusal_cache: RefusalCacheLike | None, epoch: int
) -> Decision:
    """Turn the store's answers into a decision. Add a refusal to the cache unless its epoch has changed."""
    charges = command.charges
    decision = make_decision(command, answers, _lease(command) if command.lease else None)
    if decision.allowed:
        crossed = (
            thresholds_reached(charges, answers, decision.outcomes) if command.commit and charges.rules.warns else ()
        )
        return decision._replace(crossed=crossed) if crossed else decision
    if refusal_cache is not None:
        refusal_cache.note(charges, decision, epoch)
    return decision


async def reset_charges(io: Io, charges: Sequence[Charge]) -> int:
    """Make the budgets of these charges full again, and return the number of removed keys. Raise StoreError.

    A control message clears the refusals that processes cache for open sockets of these idents.
    """
    if not charges:
        return 0
    removed: int = await io.execute(Reset(charges))
    with suppress(StoreError):  # the control message is sent again later
        idents = {charge.ident for charge in charges}
        await io.execute(SendControl(tuple([ControlMessage(RESET, ident=ident) for ident in idents])))
    return removed


async def release_lease(io: Io, lease: Lease | None) -> None:
    """Release a lease. If the store fails, the agent releases it later."""
    if lease is not None:
        with suppress(StoreError):
            await io.execute(Release(lease.id, lease.lease_keys))


async def correct(io: Io, corrections: Iterable[Correct]) -> bool:
    """Execute corrections. Return False if the store fails; the charges then stay as they are."""
    succeeded = True
    for command in corrections:
        try:
            await io.execute(command)
        except StoreError:
            succeeded = False
    return succeeded


async def decide_without_store(io: Io, command: Decide, error: StoreError) -> Decision:
    """Decide by the failure policy of each rule, because the store failed with this error."""
    outcome_of = {charge: _by_policy(charge, error) for charge in command.charges}
    local_charges = tuple([charge for charge, outcome in outcome_of.items() if outcome is None])
    # As shadows they are never refused here. Their leases are written to the store when it is available again.
    lease_charges = tuple(
        [
            charge._replace(rule=charge.rule.as_shadow())
            for charge in command.charges
            if charge.rule.holds_slots and charge.rule.on_store_failure == "allow"
        ]
    )
    is_refused = any(outcome and not outcome.allowed and not outcome.shadow for outcome in outcome_of.values())
    ledger = None
    if local_charges or lease_charges:
        local = Decide(Charges.of(local_charges + lease_charges), command.commit and not is_refused, command.lease)
        answers = await io.execute(DecideLocally(local))
        outcome_of.update(zip(local_charges, outcomes_of(local.charges, answers, commit=local.commit), strict=False))
        ledger = Ledger(local.charges, answers, locally=True) if local.commit else None
    outcomes = tuple(outcome for charge in command.charges if (outcome := outcome_of[charge]) is not None)
    decision = combine_outcomes(outcomes, _lease(command) if command.lease else None, degraded=True, ledger=ledger)
    return decision._replace(cause=error.cause)


def _lease(command: Decide) -> Lease | None:
    lease_keys = command.charges.lease_keys
    return Lease(command.lease or "", lease_keys) if lease_keys and command.commit else None


def thresholds_reached(
    charges: Sequence[Charge], answers: Sequence[Answer], outcomes: tuple[Outcome, ...]
) -> tuple[ThresholdReached, ...]:
    """Return the shares in ``warn_at`` that a charged call has reached."""
    rows = zip(charges, answers, outcomes, strict=True)
    return tuple([reached for row in rows if row[1].retry == 0 for reached in _reached(*row)])


async def drop_reported(io: Io, decision: Decision) -> Decision:
    """Return the decision without the thresholds that a process has already reported in this window.

    If the store fails, all thresholds stay: two reports are better than none.
    """
    try:
        is_new = await io.execute(SetDedupKeys(tuple([reached.dedup_key for reached in decision.crossed])))
    except StoreError:
        return decision
    unreported = tuple([reached for reached, new in zip(decision.crossed, is_new, strict=True) if new])
    return decision._replace(crossed=unreported)


def _reached(charge: Charge, answer: Answer, outcome: Outcome) -> Iterator[ThresholdReached]:
    rule = charge.rule
    used = rule.params.limit - answer.remaining
    for share, reached_at in rule.thresholds:
        if used - charge.cost < reached_at <= used:
            yield ThresholdReached(outcome, share, _dedup_key(charge, answer, share))


def _dedup_key(charge: Charge, answer: Answer, share: float) -> DedupKey:
    """Return the key of a threshold. It names the window if windows end at the same time for all processes."""
    rule, left = charge.rule, charge.rule.params.window_left(answer.reset)
    if left is None:
        return DedupKey(rule.id, charge.ident, str(share), round((rule.window or 0) * 1_000_000))
    return DedupKey(rule.id, charge.ident, f"{share}:{answer.at + left}", left)


MAX_EVICTIONS: Final = 3  # for a new socket


async def decide_and_evict(
    io: Io, decide: Callable[[], Awaitable[Decision]], charges: Sequence[Charge], lease: str
) -> Decision:
    """Decide. If only full rules that evict refuse, evict a socket under each of them and decide again.

    An eviction gives the slot to the new socket in the same command, so that no other takes it in between. A newer
    socket may evict the new one in turn, which is then refused. If another rule refuses the new socket, its slots are
    released. If a rule counts refused calls, the first decision charges nothing, because an eviction may follow it.
    """
    is_charged = not any(charge.rule.count_denied for charge in charges)
    decision = await (decide() if is_charged else _peek(io, charges))
    taken: dict[tuple[str, str], None] = {}
    for _ in range(MAX_EVICTIONS):
        full = _full(charges, decision)
        if not full or any((charge.rule.id, charge.ident) in taken for charge in full):
            break
        if not await _evict(io, full, lease, taken):
            break
        decision, is_charged = await decide(), True
    if not is_charged:
        decision = await decide()
    if taken and not decision.allowed:
        await release_lease(io, Lease(lease, tuple(taken)))
    return decision


async def _peek(io: Io, charges: Sequence[Charge]) -> Decision:
    """Decide without charging. Dampers are left out, because they would count the attempt."""
    return await decide_charges(io, [charge for charge in charges if not charge.rule.decided_locally], commit=False)


def _full(charges: Sequence[Charge], decision: Decision) -> list[Charge]:
    """Return the refused charges if the rules of all of them evict; else an empty list."""
    if decision.allowed or decision.degraded:
        return []
    evicting = {(charge.rule.name, charge.ident): charge for charge in charges if charge.rule.at_limit != "reject"}
    refused = {
        (outcome.rule, outcome.ident) for outcome in decision.outcomes if not (outcome.allowed or outcome.shadow)
    }
    return [evicting[pair] for pair in evicting if pair in refused] if refused <= evicting.keys() else []


async def _evict(io: Io, full: list[Charge], lease: str, taken: dict[tuple[str, str], None]) -> bool:
    """Take a slot under each charge, and add its lease key to ``taken``. Return False if a slot could not be taken."""
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
    """Decide a call, then refund charges that it made before for another scope or under another ident."""
    decision = await decide()
    try:
        if misplaced := _misplaced(ledger, decision.outcomes):
            await correct(io, ledger.refund_pairs(misplaced))
            rules = [(rule_named(name), ident) for name, ident in misplaced]
            released = {(rule.id, ident) for rule, ident in rules if rule is not None and rule.holds_slots}
            for lease in leases:
                await release_lease(io, Lease(lease.id, tuple(key for key in lease.lease_keys if key in released)))
    except BaseException:
        await release_lease(io, decision.lease)
        raise
    return decision


def _misplaced(ledger: Ledger, outcomes: Iterable[Outcome]) -> frozenset[NameAndIdent]:
    """Return the rules and idents that were charged for another scope, or under an ident that has changed since."""
    idents: dict[str, set[str]] = {}
    for outcome in outcomes:
        if not (outcome.shadow and outcome.reason is Reason.BLOCKED):  # its ident is an override's subject
            idents.setdefault(outcome.rule, set()).add(outcome.ident)
    under_other_idents = frozenset(
        pair for pair in ledger.costs if pair[0] in idents and pair[1] not in idents[pair[0]]
    )
    return under_other_idents | ledger.misplaced


def apply_refunds(decision: Decision, refunds: Collection[Correct], *, released: bool = False) -> Decision:
    """Return the decision with the numbers after these refunds, and after the release of its slot if ``released``."""
    has_freed_slot = released and decision.lease is not None
    if not (refunds or has_freed_slot):
        return decision
    charges: dict[tuple[str, float | None, str], Charge] = {}
    for (rule, ident, cost), *_ in [entry for command in refunds for entry in command.refunds]:
        key = rule.name, rule.window, ident
        charges[key] = Charge(rule, ident, cost + (charges[key].cost if key in charges else 0))
    outcomes = [
        _refunded(
            charges.get((outcome.rule, outcome.window, outcome.ident)),
            _released(outcome) if has_freed_slot and outcome.window is None else outcome,
        )
        for outcome in decision.outcomes
    ]
    return decision._replace(outcomes=tuple(outcomes))


def _released(outcome: Outcome) -> Outcome:
    return outcome._replace(remaining=min(outcome.limit, outcome.remaining + 1))


def _refunded(charge: Charge | None, outcome: Outcome) -> Outcome:
    """Return the outcome with the numbers after the refund of a charge."""
    # Within the tolerance beyond the limit, it is unknown how much remains.
    if charge is None or (charge.rule.tolerance and not outcome.remaining):
        return outcome
    remaining = min(outcome.limit, outcome.remaining + charge.cost)
    drain_us = charge.rule.params.drain_us(charge.cost)
    until_full = max(0, int(round(outcome.reset_after * 1_000_000) - drain_us))
    is_full = remaining == outcome.limit and not drain_us  # a bucket that drains may lack a part of a unit
    return outcome._replace(remaining=remaining, reset_after=0.0 if is_full else until_full / 1_000_000)


async def settle(io: Io, settlement: Correct | None) -> tuple[int, ...]:
    """Settle a call and return the means. Return an empty tuple if the store fails; the reserve then stays charged."""
    if settlement is None:
        return ()
    try:
        means: tuple[int, ...] = await io.execute(settlement)
    except StoreError:
        return ()
    return means

"""The decision logic, written once: generators that yield store commands and receive replies.

``stores.drive`` runs them, synchronously or not. A store that fails is thrown into the flow, so what
happens then is written once too.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from django_throttle.core.algorithms import NEVER
from django_throttle.core.command import Answer, Charge, Command, Decide, DecideLocally, Forget, Release, passes
from django_throttle.core.decision import Decision, Lease, Outcome, Reason, conclude
from django_throttle.exceptions import AskAgain, StoreError

T = TypeVar("T")
Flow = Generator[Command, Any, T]


class Denials(Protocol):
    """What was refused a moment ago, for stores that are dear to ask."""

    @property
    def epoch(self) -> int: ...

    def find(self, charges: tuple[Charge, ...]) -> Decision | None: ...

    def note(self, charges: tuple[Charge, ...], decision: Decision, epoch: int) -> None: ...


def decide(
    charges: tuple[Charge, ...], *, commit: bool = True, lease: str | None = None, denials: Denials | None = None
) -> Flow[Decision]:
    """Decide all charges as one; without the store, each rule's failure policy decides."""
    if not charges:
        return Decision()
    if denials is None or not commit:
        return (yield from _decide(Decide(charges, commit, lease)))
    decision = denials.find(charges)
    if decision is None:
        epoch = denials.epoch
        decision = yield from _decide(Decide(charges, commit, lease))
        denials.note(charges, decision, epoch)
    return decision


def _decide(command: Decide) -> Flow[Decision]:
    try:
        answers = yield from _ask(command)
    except StoreError as error:
        return (yield from _without_store(command, error))
    return _decision(command.charges, _outcomes(command, answers), command)


def forget(charges: tuple[Charge, ...]) -> Flow[int]:
    """Make the rates of these charges full again; returns how many keys were removed."""
    return (yield Forget(charges)) if charges else 0


def release(lease: Lease | None) -> Flow[None]:
    """Give a lease back; when the store is away, its own bookkeeping does so later."""
    if lease is None:
        return
    try:
        yield Release(lease.id, lease.holds)
    except StoreError:
        return


def _ask(command: Command) -> Flow[Any]:
    try:
        return (yield command)
    except AskAgain:
        return (yield command)


def _without_store(command: Decide, error: StoreError) -> Flow[Decision]:
    by_policy = {charge: _POLICIES[charge.rule.on_store_failure](charge, error) for charge in command.charges}
    local = tuple(charge for charge, outcome in by_policy.items() if outcome is None)
    held = tuple(_watched(charge) for charge in command.charges if _is_held_without_store(charge))
    refused = any(outcome and not outcome.allowed and not outcome.shadow for outcome in by_policy.values())
    if local or held:
        locally = Decide(local + held, command.commit and not refused, command.lease)
        answers = yield DecideLocally(locally)
        by_policy.update(zip(local, _outcomes(locally, answers), strict=False))
    outcomes = tuple(outcome for charge in command.charges if (outcome := by_policy[charge]) is not None)
    return _decision(command.charges, outcomes, command, degraded=True)


def _is_held_without_store(charge: Charge) -> bool:
    return charge.rule.is_concurrency and charge.rule.on_store_failure == "allow"


def _watched(charge: Charge) -> Charge:
    """What is open counts although it is let through unasked: held here, and told to the store when it is back."""
    return charge._replace(rule=replace(charge.rule, action="shadow"))


def _allow(charge: Charge, error: StoreError) -> Outcome | None:
    return _policy_outcome(charge, error, allowed=True)


def _deny(charge: Charge, error: StoreError) -> Outcome | None:
    return _policy_outcome(charge, error, allowed=False)


def _decide_locally(charge: Charge, error: StoreError) -> Outcome | None:
    return None


_POLICIES = {"allow": _allow, "deny": _deny, "local": _decide_locally}


def _policy_outcome(charge: Charge, error: StoreError, *, allowed: bool) -> Outcome:
    rule = charge.rule
    return Outcome(
        rule=rule.name,
        ident=charge.ident,
        allowed=allowed,
        limit=rule.plan.limit,
        remaining=rule.plan.limit if allowed else 0,
        retry_after=0.0 if allowed else error.retry_after,
        reset_after=0.0 if allowed else error.retry_after,
        reason=Reason.STORE_FAILED,
        shadow=rule.is_shadow,
        window=rule.window,
    )


def _outcomes(command: Decide, answers: tuple[Answer, ...]) -> tuple[Outcome, ...]:
    granted = command.commit and all(map(passes, command.charges, answers))
    return tuple([_outcome(charge, answer, granted) for charge, answer in zip(command.charges, answers, strict=True)])


def _outcome(charge: Charge, answer: Answer, charged: bool) -> Outcome:
    rule, (retry, remaining, reset) = charge.rule, answer
    return Outcome(
        rule.name,
        charge.ident,
        retry == 0,
        rule.plan.limit,
        remaining,
        None if retry == NEVER else retry / 1_000_000,
        reset / 1_000_000,
        Reason.WITHIN if retry == 0 else _reason(retry),
        rule.is_shadow,
        rule.window,
        _delay(charge, answer, charged) if rule.action == "delay" and retry == 0 else 0.0,
    )


def _delay(charge: Charge, answer: Answer, charged: bool) -> float:
    """How long a queued call waits for its turn: all that was queued before it."""
    _, _, unit, _, fineness = charge.rule.plan
    own = -(-charge.cost * unit // fineness) if charged else 0  # rounded as reset is: nobody waits for nobody
    return max(0, answer.reset - own) / 1_000_000


def _reason(retry: int) -> Reason:
    return Reason.TOO_COSTLY if retry == NEVER else Reason.EXCEEDED


def _decision(
    charges: tuple[Charge, ...], outcomes: tuple[Outcome, ...], command: Decide, *, degraded: bool = False
) -> Decision:
    holds = tuple((charge.rule.id, charge.ident) for charge in charges if charge.rule.is_concurrency)
    lease = Lease(command.lease, holds) if command.lease and command.commit and holds else None
    return conclude(outcomes, lease, degraded=degraded)

"""The decision logic, written once: generators that yield store commands and receive replies.

``stores.drive`` runs them, synchronously or not. A store that fails is thrown into the flow, so what
happens then is written once too.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from django_throttle.core.command import Charge, Command, Decide, DecideLocally, Forget, Refund, Release, receipt
from django_throttle.core.damped import Meters, damped
from django_throttle.core.decision import Decision, Lease, Outcome, conclude
from django_throttle.core.orders import RESET, Order, Tell
from django_throttle.core.outcomes import outcome_without_store, outcomes_of
from django_throttle.core.quota import crossings
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
    charges: tuple[Charge, ...],
    *,
    commit: bool = True,
    lease: str | None = None,
    whole: bool = False,
    denials: Denials | None = None,
    meters: Meters | None = None,
) -> Flow[Decision]:
    """Decide all charges as one; without the store, each rule's failure policy decides.

    ``whole`` has the receipt be of all charges, not only of those that count some answers.
    """
    if not charges:
        return Decision()
    if meters is not None and _is_local(charges):
        if len(charges) == 1 and charges[0].rule.is_damper:
            return meters.decide(charges[0], commit=commit)
        rest = partial(decide, commit=commit, lease=lease, whole=whole, denials=denials)
        return (yield from damped(charges, commit, meters, rest))
    if denials is None or not commit:
        return (yield from _decide(Decide(charges, commit, lease, whole)))
    decision = denials.find(charges)
    if decision is None:
        epoch = denials.epoch
        decision = yield from _decide(Decide(charges, commit, lease, whole))
        denials.note(charges, decision, epoch)
    return decision


def _is_local(charges: tuple[Charge, ...]) -> bool:
    for charge in charges:  # noqa: SIM110 - on the hot path, where any() costs three times as much
        if charge.rule.is_local:
            return True
    return False


def _decide(command: Decide) -> Flow[Decision]:
    try:
        answers = yield from _ask(command)
    except StoreError as error:
        return (yield from _without_store(command, error))
    outcomes = outcomes_of(command, answers)
    decision = _decision(command.charges, outcomes, command)
    if not (command.commit and decision.allowed):
        return decision
    if crossed := crossings(command.charges, answers, outcomes):
        decision = decision._replace(crossed=crossed)
    paid = receipt(command, answers)
    return decision._replace(receipt=paid) if paid else decision


def forget(charges: tuple[Charge, ...]) -> Flow[int]:
    """Make the rates of these charges full again; returns how many keys were removed.

    Whoever has an open socket of theirs is told to remember no refusal any more.
    """
    if not charges:
        return 0
    removed: int = yield Forget(charges)
    try:
        yield Tell(tuple([Order(RESET, ident=ident) for ident in {charge.ident for charge in charges}]))
    except StoreError:  # it is sent again
        pass
    return removed


def release(lease: Lease | None) -> Flow[None]:
    """Give a lease back; when the store is away, its own bookkeeping does so later."""
    if lease is None:
        return
    try:
        yield Release(lease.id, lease.holds)
    except StoreError:
        return


def refund(paid: Refund | None) -> Flow[bool]:
    """Give back what a call was charged; False when the store is away, and then it stays charged."""
    if paid is None:
        return True
    try:
        yield paid
    except StoreError:
        return False
    return True


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
    paid = None
    if local or held:
        locally = Decide(local + held, command.commit and not refused, command.lease, command.whole)
        answers = yield DecideLocally(locally)
        by_policy.update(zip(local, outcomes_of(locally, answers), strict=False))
        paid = receipt(locally, answers, locally=True) if locally.commit else None
    outcomes = tuple(outcome for charge in command.charges if (outcome := by_policy[charge]) is not None)
    decision = _decision(command.charges, outcomes, command, degraded=True)
    return decision._replace(receipt=paid if decision.allowed else None, cause=error.cause)


def _is_held_without_store(charge: Charge) -> bool:
    return charge.rule.is_concurrency and charge.rule.on_store_failure == "allow"


def _watched(charge: Charge) -> Charge:
    """What is open counts although it is let through unasked: held here, and told to the store when it is back."""
    return charge._replace(rule=replace(charge.rule, action="shadow"))


def _allow(charge: Charge, error: StoreError) -> Outcome | None:
    return outcome_without_store(charge, error, allowed=True)


def _deny(charge: Charge, error: StoreError) -> Outcome | None:
    return outcome_without_store(charge, error, allowed=False)


def _decide_locally(charge: Charge, error: StoreError) -> Outcome | None:
    return None


_POLICIES = {"allow": _allow, "deny": _deny, "local": _decide_locally}


def _decision(
    charges: tuple[Charge, ...], outcomes: tuple[Outcome, ...], command: Decide, *, degraded: bool = False
) -> Decision:
    if not (command.lease and command.commit):
        return conclude(outcomes, degraded=degraded)
    holds = tuple([(charge.rule.id, charge.ident) for charge in charges if charge.rule.is_concurrency])
    return conclude(outcomes, Lease(command.lease, holds) if holds else None, degraded=degraded)

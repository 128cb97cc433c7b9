"""What is decided in the process, before the store is asked about anything else: dampers, and quotas in batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from django_throttle.core.command import Charge, Command
from django_throttle.core.decision import Crossing, Decision, Outcome, conclude

Rest = Callable[[tuple[Charge, ...]], Generator[Command, Any, Decision]]


class Meters(Protocol):
    """What a process has attempted, and let through, of late: it decides by that alone.

    ``decide`` is one damper's; ``judge`` is of any local charges, and counts what dampers are to count, whatever comes
    of the call. ``passed`` is told of those of a call that has passed, and says what is to be told of.
    """

    def decide(self, charge: Charge, *, commit: bool = True) -> Decision: ...

    def judge(self, charges: Sequence[Charge], *, commit: bool = True) -> tuple[Outcome, ...]: ...

    def passed(self, charges: Sequence[Charge]) -> tuple[Crossing, ...]: ...


def damped(charges: tuple[Charge, ...], commit: bool, meters: Meters, rest: Rest) -> Generator[Command, Any, Decision]:
    """Decide all charges as one: where a local one refuses the call, the store is not asked and nothing charged."""
    local = [charge for charge in charges if charge.rule.is_local]
    judged = meters.judge(local, commit=commit)
    if any(not (outcome.allowed or outcome.shadow) for outcome in judged):
        return conclude(judged)
    exact = tuple([charge for charge in charges if not charge.rule.is_local])
    decision = (yield from _with_the_rest(charges, judged, exact, rest)) if exact else conclude(judged)
    if not (commit and decision.allowed):
        return decision
    crossed = meters.passed(local)
    return decision._replace(crossed=decision.crossed + crossed) if crossed else decision


def _with_the_rest(
    charges: tuple[Charge, ...], judged: tuple[Outcome, ...], exact: tuple[Charge, ...], rest: Rest
) -> Generator[Command, Any, Decision]:
    decision = yield from rest(exact)
    local, others = iter(judged), iter(decision.outcomes)
    outcomes = tuple([next(local if charge.rule.is_local else others) for charge in charges])
    both = conclude(outcomes, decision.lease, degraded=decision.degraded)
    return both._replace(crossed=decision.crossed, receipt=decision.receipt, cause=decision.cause)

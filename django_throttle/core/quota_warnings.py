"""Quota warnings: which shares of its limit a call has brought a rule to, and which of them are new."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from django_throttle.core.commands import Answer, Charge, Command, Mark, Once
from django_throttle.core.decision import Crossing, Decision, Outcome
from django_throttle.exceptions import StoreError

# Those whose windows begin afresh, all at once; the others have one that ends at every moment.
WINDOWS: Final = ("fixed_window", "calendar_window")


def crossings(
    charges: tuple[Charge, ...], answers: tuple[Answer, ...], outcomes: tuple[Outcome, ...]
) -> tuple[Crossing, ...]:
    """The shares that a call has reached which was charged as it is answered here."""
    if not [charge for charge in charges if charge.rule.thresholds]:  # on the hot path
        return ()
    told = zip(charges, answers, outcomes, strict=True)
    return tuple([crossing for each in told if each[1].retry == 0 for crossing in _crossed(*each)])


def first_told(decision: Decision) -> Generator[Command, tuple[bool, ...], Decision]:
    """The decision with those of its crossings that nobody has been told of in this window.

    A store that fails says nothing, and rather twice than never: in most windows a share is reached only once.
    """
    try:
        told = yield Once(tuple([crossing.mark for crossing in decision.crossed]))
    except StoreError:
        return decision
    first = tuple([crossing for crossing, is_first in zip(decision.crossed, told, strict=True) if is_first])
    return decision._replace(crossed=first)


def _crossed(charge: Charge, answer: Answer, outcome: Outcome) -> Iterator[Crossing]:
    rule = charge.rule
    used = rule.plan.limit - answer.remaining
    for share, reached_at in rule.thresholds:
        if used - charge.cost < reached_at <= used:
            yield Crossing(outcome, share, _mark(charge, answer, share))


def _mark(charge: Charge, answer: Answer, share: float) -> Mark:
    """Named after the window that it belongs to, where that ends for everybody at one moment."""
    rule, name = charge.rule, str(share)
    if rule.plan.algorithm in WINDOWS:
        left = answer.reset
    elif rule.plan.algorithm == "interval_bucket":
        left = (answer.reset - 1) % rule.plan.a + 1  # until the next refill
    else:
        return Mark(rule.id, charge.ident, name, round((rule.window or 0) * 1_000_000))
    return Mark(rule.id, charge.ident, f"{name}:{answer.at + left}", left)

"""The damper: each process refuses a share of the attempts, so that the rest keeps the rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import Faults, RuleLike
from django_throttle.core.algorithms.uncounted import Uncounted
from django_throttle.core.texts import gettext_noop, translatable

MAX_DAMPER_LIMIT: Final = 1_000_000_000_000  # sums of attempts stay exact in doubles
ESTIMATOR_WORDS: Final = {
    "fast": gettext_noop("judged by the last seconds"),
    "average": gettext_noop("judged by the last 24 seconds"),
}


@dataclass(frozen=True, slots=True)
class Damper(Uncounted):
    """Refuses the share of attempts that keeps the rest to ``limit`` in a ``window``. No store counts it."""

    window: int
    name = "damper"


def _shape_of_damper(rule: RuleLike, windows: str) -> tuple[str, ...]:
    return translatable("held to that by refusing a share of what is attempted"), translatable(
        ESTIMATOR_WORDS[rule.estimator]
    )


SUB_INTERVAL_SECONDS: Final = 6


def _faults(rule: RuleLike) -> Faults:
    if rule.rate is None:
        yield "rates", translatable("a damper has one rate: write another rule for another one")
    if rule.on_store_failure == "deny":
        yield (
            "on_store_failure",
            translatable("a damper decides without the store: on_store_failure is local or allow, not deny"),
        )
    if rule.rate and rule.rate.limit * SUB_INTERVAL_SECONDS < rule.rate.window:
        yield (
            "rate",
            translatable("a damper holds a rate over seconds: its rate must be at least one call in six seconds"),
        )
    if rule.key == "connection":
        yield "algorithm", translatable("a damper limits many callers together, so it cannot have the key connection")


DAMPER: Final = base.Algorithm(
    name="damper",
    label="Damper",
    help="approximate, no Redis call",
    params=lambda rule: Damper(base.max_units_of(rule), base.rate_of(rule).window_us),
    shape=_shape_of_damper,
    faults=_faults,
    takes=("estimator",),
    max_limit=MAX_DAMPER_LIMIT,
    takes_more=gettext_noop("a fixed or sliding window takes more"),
    decided_locally=True,
)

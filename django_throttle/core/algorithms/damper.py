"""The damper: decided by each process for itself, of what all have attempted; see ``django_throttle/damper``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import Plan, RuleLike, Uncounted

MAX_DAMPED: Final = 1_000_000_000_000  # sums of what is attempted stay whole numbers
JUDGED: Final = {"fast": "judged by the last seconds", "average": "judged by the last 24 seconds"}


@dataclass(frozen=True, slots=True)
class Damper(Uncounted):
    """The share of attempts is refused that keeps the rest to ``limit`` in a ``window``. No store counts it."""

    window: int
    name = "damper"


def plan(rule: RuleLike) -> Plan:
    return Damper(base.most_of(rule), base.rate_of(rule).window_us)


def shape(rule: RuleLike, every: str) -> tuple[str, ...]:
    return "held to that by refusing a share of what is attempted", JUDGED[rule.estimator]


DAMPER: Final = base.Algorithm(
    name="damper",
    label="Damper",
    help="refuses a share of what is attempted, so that the rest keeps the rate",
    plan=plan,
    shape=shape,
    takes=("estimator",),
    max_limit=MAX_DAMPED,
    takes_more="a fixed or sliding window takes more",
    is_damper=True,
)

"""The algorithms: one file each, and the table of those that rules may name."""

from __future__ import annotations

from typing import Final

from django_throttle.core.algorithms.base import Algorithm, LateCost, Plan, State, StepResult, Uncounted
from django_throttle.core.algorithms.concurrency import CONCURRENCY
from django_throttle.core.algorithms.damper import DAMPER
from django_throttle.core.algorithms.fixed_window import FIXED_WINDOW
from django_throttle.core.algorithms.gcra import GCRA, LEAKY_BUCKET, TOKEN_BUCKET
from django_throttle.core.algorithms.sliding_log import SLIDING_LOG
from django_throttle.core.algorithms.sliding_window import SLIDING_WINDOW

__all__ = ["ALGORITHMS", "Algorithm", "LateCost", "Plan", "State", "StepResult", "Uncounted"]

_EVERY: Final = (SLIDING_WINDOW, SLIDING_LOG, FIXED_WINDOW, TOKEN_BUCKET, LEAKY_BUCKET, GCRA, CONCURRENCY, DAMPER)
# By the option's value, as the admin lists them.
ALGORITHMS: Final[dict[str, Algorithm]] = {each.name: each for each in _EVERY}

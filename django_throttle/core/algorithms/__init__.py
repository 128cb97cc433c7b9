"""The algorithms that count, and the table of those that rules may name."""

from __future__ import annotations

from typing import Final

from django_throttle.core.algorithms.base import Algorithm, Backfill, CounterParams, State, StepResult
from django_throttle.core.algorithms.concurrency import CONCURRENCY, Concurrency
from django_throttle.core.algorithms.damper import DAMPER
from django_throttle.core.algorithms.fixed_window import FIXED_WINDOW, CalendarWindow
from django_throttle.core.algorithms.gcra import GCRA, LEAKY_BUCKET, TOKEN_BUCKET
from django_throttle.core.algorithms.sliding_log import SLIDING_LOG
from django_throttle.core.algorithms.sliding_window import SLIDING_WINDOW
from django_throttle.core.algorithms.uncounted import Uncounted

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Backfill",
    "CalendarWindow",
    "Concurrency",
    "CounterParams",
    "State",
    "StepResult",
    "Uncounted",
]  # fmt: skip

_ALL_ALGORITHMS: Final = (
    SLIDING_WINDOW,
    SLIDING_LOG,
    FIXED_WINDOW,
    TOKEN_BUCKET,
    LEAKY_BUCKET,
    GCRA,
    CONCURRENCY,
    DAMPER,
)
# By the option's value, as the admin lists them.
ALGORITHMS: Final[dict[str, Algorithm]] = {each.name: each for each in _ALL_ALGORITHMS}

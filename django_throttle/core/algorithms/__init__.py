"""The reference algorithms: pure functions over whole numbers, one for each Lua fragment.

Each takes ``(state, now, cost, plan, counts_denied)``: the stored state or None, the store's time in
microseconds, the cost asked for, the rule's Plan, and whether a refused call is charged too. Each
returns a Step. The fragments in ``stores/lua`` say the same; one table of cases and the property tests
run on both. Lua computes in doubles, so no product here may pass 2^53.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django_throttle.core.algorithms.buckets import concurrency, gcra, interval_bucket
from django_throttle.core.algorithms.windows import calendar_window, fixed_window, sliding_log, sliding_window
from django_throttle.core.plan import NEVER, Plan, State, Step

__all__ = [
    "NEVER",
    "RATE_ALGORITHMS",
    "State",
    "Step",
    "calendar_window",
    "concurrency",
    "fixed_window",
    "gcra",
    "interval_bucket",
    "sliding_log",
    "sliding_window",
]

RATE_ALGORITHMS: Final[dict[str, Callable[[State | None, int, int, Plan, bool], Step]]] = {
    "calendar_window": calendar_window,
    "fixed_window": fixed_window,
    "sliding_log": sliding_log,
    "sliding_window": sliding_window,
    "interval_bucket": interval_bucket,
    "gcra": gcra,
}

"""An edit of any option locks nobody out for longer than the new rule itself ever does, and lets no more through."""

from itertools import combinations
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.options import BUCKETS
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from tests.bounds import most
from tests.clock import FrozenClock
from tests.strategies import RATE_ALGORITHMS

Options = dict[str, Any]
FIXED: Options = {"algorithm": "fixed_window"}
BUCKET: Options = {"algorithm": "token_bucket"}
QUEUE: Options = {"algorithm": "leaky_bucket", "action": "delay"}
LOG: Options = {"algorithm": "sliding_log"}
BILLION: Options = {"rate": "1000000000/day", "unit": "bytes"}
SHAPES: list[Options] = [{}, FIXED, LOG, {"resolution": 6}, {"algorithm": "gcra"}, {**BUCKET, "refill": "interval"}]
# Under each shape, and both ways.
CHANGES: list[tuple[Options, Options]] = [
    ({"rate": "1000/day"}, {"rate": "10/day"}), ({"rate": "100/30d"}, {"rate": "100/min"}), ({"cost": 50}, {}),
    ({"count_denied": True}, {}), ({"enforce_at": 50}, {}), ({"prepaid": True}, {}), (BILLION, {}),
    ({**BILLION, "count_denied": True}, {"count_denied": True}),
]  # fmt: skip
EDITS: list[tuple[Options, Options]] = [
    *(({**shape, **before}, {**shape, **after}) for shape in SHAPES for before, after in CHANGES),
    ({**FIXED, "rate": "100/31d"}, {**FIXED, "rate": "100/month"}), ({**LOG, "rate": "9000/day"}, LOG),
    ({}, {"rate": None, "rates": ["100/day", "5/min"]}), ({"rate": None, "rates": ["9/day", "5/min"]}, {"rate": "2/h"}),
    *(
        ({"rate": "9000/12h", "algorithm": one}, {"rate": "9000/12h", "algorithm": other})
        for one, other in combinations(RATE_ALGORITHMS, 2)
    ),
    ({**BUCKET, "burst": 1000}, {**BUCKET, "burst": 3}), ({**QUEUE, "burst": 1}, QUEUE),
    ({**BUCKET, "refill": "interval"}, BUCKET), (QUEUE, {**QUEUE, "max_delay": 900}),
    (QUEUE, {**QUEUE, "max_queue": 3}),
    ({"algorithm": "leaky_bucket"}, QUEUE), ({**FIXED, "timezone": "Pacific/Kiritimati"}, {**FIXED, "timezone": "UTC"}),
    ({**FIXED, "timezone": "UTC"}, FIXED), ({}, {"resolution": 24}), ({"strict": True}, {}),
]  # fmt: skip


def is_possible(options: Options) -> bool:
    return not ({"prepaid", "refill"} <= {*options} or {"unit": "bytes", **LOG}.items() <= options.items())


def longest(rule: Rule) -> float:
    """The longest that this rule by itself ever has a call wait that it does not refuse for ever."""
    plan = rule.params
    if rule.algorithm in BUCKETS and rule.refill == "continuous":
        return plan.bucket / plan.fineness / 1_000_000 + 0.000001
    if plan.name == "interval_bucket":
        return -(-plan.limit // plan.refill_units) * (rule.window or 0)
    if plan.name == "sliding_window":
        return plan.sub_window * (plan.n + 1) / 1_000_000
    return rule.window or 0


@pytest.mark.parametrize("pause", [0, 1800, 23 * 3600], ids="{} s".format)
@pytest.mark.parametrize(("old", "new"), [pair for pair in EDITS if all(map(is_possible, pair))])
def test_an_edit_locks_nobody_out_and_opens_no_gap(old: Options, new: Options, pause: int) -> None:
    first, second = (Rule("edited", **{"rate": "100/day", **options}) for options in (old, new))
    for before, after in ((first, second), (second, first)):
        clock = FrozenClock()
        store = MemoryStore(clock)
        for later in (3600, pause, pause):
            for cost in (max(1, before.parts[0].params.limit // before.factor), 1, 1, 1):
                Limiter([before], store).acquire("user:1", cost)
            clock.step(later)
        limiter, part = Limiter([after], store), after.parts[0]
        decision = limiter.peek("user:1")
        if before.unit != after.unit:
            assert decision.outcomes[0].remaining == after.params.limit, "bytes never meet what was counted in calls"
        assert decision.retry_after is not None
        assert decision.retry_after <= max(map(longest, after.parts))
        admitted, span = 0, part.rate.window_us // 8  # type: ignore[union-attr]
        for _ in range(8):
            left = limiter.peek("user:1", 0).outcomes[0].remaining // after.factor
            if left and limiter.acquire("user:1", left).allowed:
                admitted += left * after.factor
            clock.now_us += span
        assert admitted <= most(part)

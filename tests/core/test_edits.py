"""An edit of any option locks nobody out for longer than the new rule itself ever does, and lets no more through."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.options import BUCKETS
from django_throttle.core.rule import OPTIONS
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from tests.bounds import most
from tests.clock import FrozenClock

Options = dict[str, Any]
DAY: Options = {"rate": "100/day"}
LOG: Options = {**DAY, "algorithm": "sliding_log"}
FIXED: Options = {**DAY, "algorithm": "fixed_window"}
BUCKET: Options = {**DAY, "algorithm": "token_bucket"}
QUEUE: Options = {**DAY, "algorithm": "leaky_bucket", "action": "delay"}
DAMPER: Options = {"rate": "10/s", "algorithm": "damper"}
SLOTS: Options = {"limit": 5, "algorithm": "concurrency"}
SHAPES: list[Options] = [
    {}, {"algorithm": "fixed_window"}, {"resolution": 6}, {"algorithm": "gcra"},
    {"algorithm": "token_bucket", "refill": "interval"},
]  # fmt: skip
KNOWN = [name for name in ALGORITHMS if name != "concurrency"]
#: Options that change which calls count, and under which ident; not the meaning of a count.
OTHER_CALLS: Options = {
    "scopes": ["a"], "events": ["message"], "methods": ["POST"], "audience": ["staff"], "plans": {"staff": "9000/day"},
    "key": "user", "count_on": [401], "refund_on": ["5xx"], "warn_at": [0.5], "on_store_failure": "deny",
    "enabled": False, "action": "shadow",
}  # fmt: skip


def shaped(before: Options, after: Options, *more: Options) -> list[tuple[Options, Options]]:
    """The edit under each algorithm."""
    return [({**DAY, **shape, **before}, {**DAY, **shape, **after}) for shape in [*SHAPES, *more]]


# For each option, a rule before and after; both ways are tried.
EDITS: dict[str, list[tuple[Options, Options]]] = {
    "rate": [
        *shaped({"rate": "1000/day"}, {"rate": "10/day"}),
        *shaped({"rate": "100/30d"}, {"rate": "100/min"}),
        ({**FIXED, "rate": "100/31d"}, {**FIXED, "rate": "100/month"}),
        ({**LOG, "rate": "9000/day"}, LOG),
    ],
    "rates": [(DAY, {"rates": ["100/day", "5/min"]}), ({"rates": ["9/day", "5/min"]}, {"rate": "2/h"})],
    "limit": [(DAY, SLOTS)],
    "algorithm": [
        ({"rate": "9000/12h", "algorithm": one}, {"rate": "9000/12h", "algorithm": other})
        for one, other in combinations(KNOWN, 2)
    ],
    "burst": [({**BUCKET, "burst": 1000}, {**BUCKET, "burst": 3}), ({**QUEUE, "burst": 1}, QUEUE)],
    "refill": [({**BUCKET, "refill": "interval"}, BUCKET)],
    "max_delay": [(QUEUE, {**QUEUE, "max_delay": 900})],
    "max_queue": [(QUEUE, {**QUEUE, "max_queue": 3})],
    "timezone": [({**FIXED, "timezone": zone}, {**FIXED, "timezone": "UTC"}) for zone in ("Pacific/Kiritimati", None)],
    "resolution": [(DAY, {**DAY, "resolution": 24})],
    "strict": [({**DAY, "strict": True}, DAY)],
    "count_denied": shaped({"count_denied": True}, {}, LOG),
    "cost": shaped({"cost": 50}, {}, LOG),
    "unit": [
        *shaped({"rate": "1000000000/day", "unit": "bytes"}, {}),
        *shaped({"rate": "1000000000/day", "unit": "bytes", "count_denied": True}, {"count_denied": True}),
        ({**LOG, "rate": "10000/day", "unit": "bytes"}, LOG),
    ],
    "enforce_at": shaped({"enforce_at": 50}, {}, LOG),
    "prepaid": [pair for pair in shaped({"prepaid": True}, {}, LOG) if "refill" not in pair[0]],
    "estimator": [({**DAMPER, "estimator": "average"}, DAMPER)],
    "at_limit": [({**SLOTS, "at_limit": "evict_idle"}, SLOTS)],
    "reserve": [({**DAY, "unit": "rows", "reserve": 2}, {**DAY, "unit": "rows"})],
    "measure": [({**DAY, "unit": "units", "measure": "shop.limits.rows"}, {**DAY, "unit": "units"})],
    **{option: [({**DAY, option: value}, DAY)] for option, value in OTHER_CALLS.items()},
}  # fmt: skip
EDITS["action"].append(({**BUCKET, "algorithm": "leaky_bucket"}, QUEUE))
BOTH_WAYS = [
    pytest.param(option, old, new, id=f"{option}-{number}-{way}")
    for option, pairs in EDITS.items()
    for number, pair in enumerate(pairs)
    for way, (old, new) in enumerate([pair, pair[::-1]])
]


def longest(rule: Rule) -> float:
    """The longest that this rule by itself ever has a call wait that it does not refuse for ever."""
    plan = rule.plan
    if rule.algorithm in BUCKETS and rule.refill == "continuous":
        return plan.bucket / plan.fineness / 1_000_000 + 0.000001
    if plan.name == "interval_bucket":
        return -(-plan.limit // plan.brings) * (rule.window or 0)
    if plan.name == "sliding_window":
        return plan.sub_window * (plan.n + 1) / 1_000_000
    return rule.window or 0


def use_up(limiter: Limiter, rule: Rule) -> None:
    """All there is, in large parts and small ones, and some more that is refused."""
    for cost in (max(1, rule.parts[0].plan.limit // rule.factor), 1, 1, 1):
        limiter.acquire("user:1", cost)


@pytest.mark.parametrize(("option", "old", "new"), BOTH_WAYS)
def test_an_edit_locks_nobody_out_and_opens_no_gap(option: str, old: Options, new: Options) -> None:
    before, after = Rule.from_options("edited", old), Rule.from_options("edited", new)
    for pause in (0, 1, 1800, 23 * 3600):  # seconds from one burst to the next, and to the edit
        clock = FrozenClock()
        store = MemoryStore(clock)
        for later in (3600, pause, pause):
            use_up(Limiter([before], store), before)
            clock.step(later)
        limiter = Limiter([after], store)
        if after.is_damper or after.is_concurrency or not after.enabled:
            return
        decision = limiter.peek("user:1")
        if option == "unit":
            assert decision.outcomes[0].remaining == after.plan.limit
        assert decision.retry_after is not None
        assert decision.retry_after <= max(map(longest, after.parts))
        part = after.parts[0]
        admitted, span = 0, part.rate.window_us // 8  # type: ignore[union-attr]
        for _ in range(8):
            left = limiter.peek("user:1", 0).outcomes[0].remaining // after.factor
            if left and limiter.acquire("user:1", left).allowed:
                admitted += left * after.factor
            clock.now_us += span
        assert admitted <= most(part)


def test_every_option_is_edited() -> None:
    assert EDITS.keys() == set(OPTIONS)


def test_a_rule_of_bytes_never_meets_what_was_counted_in_calls() -> None:
    ids = {Rule("upload", "1000/day", unit=unit, variant=name).id for unit in ("calls", "bytes") for name in ("", "x")}
    assert len(ids) == 4

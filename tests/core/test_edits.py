"""An edit of any option locks nobody out for longer than the new rule itself ever does, and lets no more through."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.options import BUCKETS
from django_throttle.core.rule import OPTIONS
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from tests.bounds import most
from tests.clock import FrozenClock

DAY = {"rate": "100/day"}
LOG = {**DAY, "algorithm": "sliding_log"}
FIXED = {**DAY, "algorithm": "fixed_window"}
BUCKET = {**DAY, "algorithm": "token_bucket"}
QUEUE = {**DAY, "algorithm": "leaky_bucket"}
UTC = {**FIXED, "timezone": "UTC"}
DAMPER = {"rate": "10/s", "algorithm": "damper"}
SLOTS = {"limit": 5, "algorithm": "concurrency"}
BYTES = {"rate": "1000000000/day", "unit": "bytes"}
KNOWN = ("fixed_window", "sliding_window", "sliding_log", "gcra", "token_bucket", "leaky_bucket", "damper")
SHAPES: list[dict[str, Any]] = [
    {},
    {"algorithm": "fixed_window"},
    {"resolution": 6},
    {"algorithm": "gcra"},
    {"algorithm": "token_bucket", "refill": "interval"},
]
# For each option, a rule before and after; both ways are tried.
EDITS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "rate": [
        *(({**shape, "rate": "1000/day"}, {**shape, "rate": "10/day"}) for shape in SHAPES),
        *(({**shape, "rate": "100/30d"}, {**shape, "rate": "100/min"}) for shape in SHAPES),
        ({**FIXED, "rate": "100/31d"}, {**FIXED, "rate": "100/month"}),
        ({**LOG, "rate": "9000/day"}, LOG),
    ],
    "rates": [({"rate": "100/day"}, {"rates": ["100/day", "5/min"]}), ({"rates": ["9/day", "5/min"]}, {"rate": "2/h"})],
    "limit": [({"rate": "100/day"}, {"limit": 5, "algorithm": "concurrency"})],
    "algorithm": [
        ({"rate": rate, "algorithm": one}, {"rate": rate, "algorithm": other})
        for one, other in combinations(KNOWN, 2)
        for rate in ["9000/12h" if "damper" in (one, other) else "100/day"]
    ],
    "burst": [({**BUCKET, "burst": 1000}, {**BUCKET, "burst": 3}), ({**QUEUE, "burst": 1}, QUEUE)],
    "refill": [({**BUCKET, "refill": "interval"}, BUCKET)],
    "max_delay": [({**QUEUE, "action": "delay"}, {**QUEUE, "action": "delay", "max_delay": 900})],
    "max_queue": [({**QUEUE, "action": "delay"}, {**QUEUE, "action": "delay", "max_queue": 3})],
    "timezone": [({**FIXED, "timezone": "Pacific/Kiritimati"}, UTC), (FIXED, UTC)],
    "resolution": [({**DAY, "resolution": 1}, {**DAY, "resolution": 24})],
    "strict": [({**DAY, "strict": True}, DAY)],
    "count_denied": [({**DAY, **shape, "count_denied": True}, {**DAY, **shape}) for shape in [*SHAPES, LOG]],
    "cost": [({**DAY, **shape, "cost": 50}, {**DAY, **shape}) for shape in [*SHAPES, LOG]],
    "unit": [
        *(({**BYTES, **shape}, {**DAY, **shape}) for shape in SHAPES),
        *(({**BYTES, **shape, "count_denied": True}, {**DAY, **shape, "count_denied": True}) for shape in SHAPES),
        ({**LOG, "rate": "10000/day", "unit": "bytes"}, LOG),
    ],
    "enforce_at": [({**DAY, **shape, "enforce_at": 50}, {**DAY, **shape}) for shape in [*SHAPES, LOG]],
    "prepaid": [
        ({**DAY, **shape, "prepaid": True}, {**DAY, **shape})
        for shape in [*SHAPES, LOG]
        if "refill" not in shape and shape.get("action") != "delay"
    ],
    "estimator": [({**DAMPER, "estimator": "average"}, DAMPER)],
    "action": [({**DAY, "action": "shadow"}, DAY), ({**QUEUE, "action": "delay"}, QUEUE)],
    "at_limit": [({**SLOTS, "at_limit": "evict_idle"}, SLOTS)],
    # What these change is which calls count, and under which ident; not what a count means.
    "scopes": [({**DAY, "scopes": ["a"]}, DAY)],
    "events": [({**DAY, "events": ["message"]}, DAY)],
    "methods": [({**DAY, "methods": ["POST"]}, DAY)],
    "audience": [({**DAY, "audience": ["staff"]}, DAY)],
    "plans": [({**DAY, "plans": {"staff": "9000/day"}}, DAY)],
    "key": [({**DAY, "key": "user"}, DAY)],
    "count_on": [({**DAY, "count_on": [401]}, DAY)],
    "refund_on": [({**DAY, "refund_on": ["5xx"]}, DAY)],
    "reserve": [({**DAY, "unit": "rows", "reserve": 2}, {**DAY, "unit": "rows"})],
    "measure": [({**DAY, "unit": "units", "measure": "shop.limits.rows"}, {**DAY, "unit": "units"})],
    "warn_at": [({**DAY, "warn_at": [0.5]}, DAY)],
    "on_store_failure": [({**DAY, "on_store_failure": "deny"}, DAY)],
    "enabled": [({**DAY, "enabled": False}, DAY)],
}  # fmt: skip
BOTH_WAYS = [
    pytest.param(option, old, new, id=f"{option}-{number}-{way}")
    for option, pairs in EDITS.items()
    for number, pair in enumerate(pairs)
    for way, (old, new) in enumerate([pair, pair[::-1]])
]
LATER = [0, 1, 1800, 23 * 3600]  # seconds from one burst to the next, or to the edit


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


@pytest.mark.parametrize("pause", LATER)
@pytest.mark.parametrize(("option", "old", "new"), BOTH_WAYS)
def test_an_edit_locks_nobody_out_and_opens_no_gap(
    option: str, old: dict[str, Any], new: dict[str, Any], pause: int
) -> None:
    clock = FrozenClock()
    store = MemoryStore(clock)
    before, after = Rule.from_options("edited", old), Rule.from_options("edited", new)
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
    calls, in_bytes = (Rule("upload", "1000/day", unit=unit) for unit in ("calls", "bytes"))
    assert calls.id != in_bytes.id
    assert Rule("upload", "1000/day", unit="bytes", variant="x").id != Rule("upload", "1000/day", variant="x").id

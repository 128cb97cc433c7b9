"""Plans of a rule: how they are written, what is wrong with them, and what the rule is under each."""

from typing import Any

import pytest

from django_throttle.core import Rate, Rule
from django_throttle.core.headers import policies, rate_limit
from django_throttle.core.options import BUCKETS
from django_throttle.core.plans import plan_name, read_plan
from django_throttle.exceptions import InvalidRule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from tests.clock import FrozenClock


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({"group:premium": "1000 / Minute"}, ("group:premium = 1000/min",)),
        ({"staff": {"rate": "1000/min"}, "anonymous": Rate(5, 60)}, ("staff = 1000/min", "anonymous = 5/min")),
        (["tenant:a b=7/min"], ("tenant:a b = 7/min",)),
        ({"shop.limits.plan:pro": "7/min", "shop.limits.is_pro": "8/min"}, None),
        ({"authenticated": "7/min", "tenant:a": "8/min"}, ("authenticated = 7/min", "tenant:a = 8/min")),
        ({}, ()),
    ],
)
def test_however_they_are_given_they_are_lines(given: Any, lines: tuple[str, ...] | None) -> None:
    rule = Rule("api", "10/min", plans=given)
    assert lines is None or rule.plans == lines
    assert Rule.from_options("api", rule.as_options()) == rule


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"plans": "group:x = 5/min"}, "must be a dictionary such as"),
        ({"plans": ["group:x 5/min"]}, "written like group:premium = 1000/min, unlike 'group:x 5/min'"),
        ({"plans": [5]}, r"plans must be a dictionary such as .*, not \[5\]"), ({"plans": {5: "5/min"}}, "not 5"),
        ({"plans": {"group:a=b": "5/min"}}, "without ="), ({"plans": {"group:a\nb": "5/min"}}, "is one line"),
        ({"plans": {"gruop:x": "5/min"}}, "did you mean 'group:x'"),
        ({"plans": {"shop.limits.plan:": "5/min"}}, "there is no audience"),
        ({"plans": {"staff": "fast"}}, "plan 'staff': 'fast' is not a rate"),
        ({"plans": {"staff": None}}, "plan 'staff' needs a rate such as 1000/min, not None"),
        ({"plans": {"staff": {"rates": [7]}}}, "needs a rate such as 1000/min, not 7"),
        ({"plans": {"staff": {"raet": "5/min"}}}, "rate, rates, limit, burst only, not 'raet'"),
        ({"plans": {"staff": {"burst": 5}}}, "needs a rate"),
        ({"plans": {"staff": {"rate": "5/min", "burst": True}}}, "burst must be a whole number"),
        ({"plans": {"staff": "5/min burst 7"}}, "plan 'staff': burst belongs to"),
        ({"plans": {"staff": "5/hour"}}, r"needs the window of the rule \(min\), so that counts are kept"),
        ({"plans": {"staff": 5}}, "needs a rate, such as 1000/min"),
        ({"plans": {"staff": "5/min"}, "cost": 7}, "plan 'staff': one call costs 7, more than the 5"),
        ({"plans": ["staff = 5/min", "staff = 6/min"]}, "the same audience"),
        ({"plans": {f"group:{number}": "5/min" for number in range(21)}}, "at most 20"),
        ({"plans": {"staff": "50/min"}, "algorithm": "damper"}, "does not go with damper"),
        ({"plans": {"staff": "5/min"}, "algorithm": "leaky_bucket", "action": "defer"}, "a single rate: remove plans"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_of_the_option(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidRule, match=fault) as raised:
        Rule("api", **{"rate": "10/min", **options})
    assert raised.value.option == "plans"
    assert str(raised.value).startswith("rule 'api': ")


def test_slots_have_limits() -> None:
    rule = Rule("open", limit=3, algorithm="concurrency", plans={"staff": 20, "group:x": {"limit": 5}})
    assert rule.plans == ("staff = 20", "group:x = 5")
    with pytest.raises(InvalidRule, match="plan 'staff' needs a limit, the number held at once"):
        Rule("open", limit=3, algorithm="concurrency", plans={"staff": "20/min"})


@pytest.mark.parametrize(
    "shape",
    [
        {"algorithm": "sliding_window"}, {"algorithm": "sliding_window", "resolution": 6, "strict": True},
        {"algorithm": "fixed_window"}, {"algorithm": "sliding_log"}, {"algorithm": "gcra"},
        {"algorithm": "token_bucket"}, {"algorithm": "token_bucket", "refill": "interval"},
        {"algorithm": "leaky_bucket"},
    ],
    ids=str,
)  # fmt: skip
def test_what_was_used_counts_on_under_another_plan(shape: dict[str, Any]) -> None:
    rule = Rule("api", "10/min", plans={"staff": "100/min"}, **shape)
    (_, premium), (_, free) = rule.by_plan
    store = MemoryStore(FrozenClock())
    assert (premium.id, premium.plan_of, free.plan_of, free.limit) == (rule.id, "staff", "", 10)
    assert Limiter([free], store).acquire("user:1", 5).remaining == 5
    left = Limiter([premium], store).peek("user:1", 0).outcomes[0].remaining
    is_bucket = rule.algorithm in BUCKETS
    assert left == (95 if not is_bucket else 5 if "refill" in shape else 50)
    assert Limiter([premium], store).acquire("user:1", left).allowed
    back = Limiter([free], store).acquire("user:1")
    assert not back.allowed and (back.retry_after or 0) <= 120


def test_a_client_reads_the_name_of_its_plan() -> None:
    assert [plan_name(who) for who in ("group:a:b", "staff", "shop.limits.plan:pro", "shop.limits.is_pro")] == [
        "a:b", "staff", "pro", "is_pro",
    ]  # fmt: skip
    (_, premium), (_, free) = Rule("api", "10/min", plans={"group:größer": "100/min"}).by_plan
    for rule, said in ((premium, '"api";q=100;w=60;plan="gr%C3%B6%C3%9Fer"'), (free, '"api";q=10;w=60')):
        decision = Limiter([rule], MemoryStore(FrozenClock())).acquire("user:1")
        assert rate_limit(policies(decision.outcomes), "draft-11")["RateLimit-Policy"] == said


def test_a_line_says_all_of_a_plan() -> None:
    plan = read_plan("group:a = 10/s, 100/day BURST 20")
    assert (plan.holder, plan.burst, [rate.limit for rate in plan.rates]) == ("group:a", 20, [10, 100])
    assert read_plan(str(plan)) == plan

"""What a rule's numbers are for the algorithms, and the share of them that one of many processes has."""

from __future__ import annotations

import pytest
from hypothesis import given

from django_throttle.core import Rate, Rule
from tests.strategies import rules


def test_what_is_tolerated_is_the_store_s_and_the_limit_stays() -> None:
    rule = Rule("api", "100/min", enforce_at=2.3)
    assert (rule.limit, rule.plan.limit, rule.tolerance) == (100, 230, 130)
    bucket = Rule("api", "60/min", algorithm="gcra", burst=10, enforce_at=2)
    assert (bucket.plan.limit, bucket.tolerance, bucket.plan.unit) == (
        20,
        10,
        Rule("api", "60/min", algorithm="gcra").plan.unit,
    )
    assert Rule("api", "100/min").tolerance == 0


def test_a_share_tolerates_its_part() -> None:
    shared = Rule("api", "100/min", enforce_at=2.5, warn_at=(0.8,)).share(4)
    assert (shared.limit, shared.plan.limit) == (25, 62)
    assert Rule("api", "100/min", cost="shop.limits.price").share(4).limit == 25


@given(rules())
def test_every_number_of_a_plan_is_exact_in_a_double(rule: Rule) -> None:
    assert all(type(number) is int and 0 <= number < 2**53 for number in rule.plan.numbers)
    assert rule.plan.limit >= rule.cost


@pytest.mark.parametrize(
    ("limit", "parts", "share"), [(100, 1, 100), (100, 0, 100), (100, 4, 25), (100, 3, 33), (2, 5, 1)]
)
def test_the_shares_of_all_processes_add_up_to_no_more_than_the_limit(limit: int, parts: int, share: int) -> None:
    assert Rule("api", Rate(limit, 60)).share(parts).limit == share
    assert Rule("cap", limit=limit, algorithm="concurrency").share(parts).limit == share
    shared = Rule("api", Rate(limit, 60), algorithm="gcra", burst=limit).share(parts)
    assert (shared.limit, shared.burst, shared.id) == (share, share, Rule("api", Rate(1, 60), algorithm="gcra").id)


@given(rules())
def test_every_rule_has_a_share_that_counts_in_the_same_place(rule: Rule) -> None:
    for part in rule.parts:
        assert part.share(3).id == part.id


def test_a_month_stays_a_month() -> None:
    rule = Rule("quota", "1000/month", algorithm="fixed_window", timezone="Europe/Berlin")
    assert str(rule.share(2).rate) == "500/month"


def test_a_share_still_admits_one_call() -> None:
    rule = Rule("api", "10/min", cost=4).share(10)
    assert rule.limit == rule.plan.limit == 4

"""Overrides: what they may say, and what they make of rules, in whatever order they are given."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Decision, Override, Rate, Reason, Rule, charges_of
from django_throttle.core.algorithms.damper import MAX_DAMPER_LIMIT
from django_throttle.core.algorithms.gcra import MAX_BUCKET_UNITS
from django_throttle.core.algorithms.sliding_log import MAX_LOG_UNITS
from django_throttle.core.io import run
from django_throttle.core.key import secret_bytes
from django_throttle.core.overrides import (
    apply_override,
    block_outcomes,
    decide_blocked,
    describe_effect,
    is_in_share,
    overridden,
    subject_kinds,
)
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidOverride
from tests.strategies import rules

SOCKETS = Rule("sockets", limit=5, algorithm="concurrency")
EXTRAS: dict[str, dict[str, Any]] = {"multiply": {"factor": 2}, "replace": {"rates": (Rate(7, 60),)}}


def override(effect: str, **options: Any) -> Override:
    return Override(**{"subject": "user:1", "effect": effect, **EXTRAS.get(effect, {}), **options})


class TestPrecedence:
    def test_block_goes_before_replace_multiply_and_exempt_for_one_subject(self) -> None:
        rule = Rule("a", "5/min")
        ranked = sorted(map(override, ("exempt", "multiply", "replace", "block")), key=lambda one: one.rank)
        assert block_outcomes((rule,), ranked, apply_override, 0.0)
        assert overridden(rule, ranked[1:], apply_override) == Rule("a", "7/min")
        assert overridden(rule, ranked[2:], apply_override) == Rule("a", "10/min")
        assert overridden(rule, ranked[3:], apply_override) is None
        assert overridden(rule, [], apply_override) is rule

    def test_one_that_does_not_fit_leaves_the_rule_to_the_next(self) -> None:
        ranked = [override("replace"), override("multiply", subject="group:a")]  # a rate, for what is no rate
        assert overridden(SOCKETS, ranked, apply_override) == Rule("sockets", limit=10, algorithm="concurrency")

    def test_blocks_that_only_record_refuse_nobody_and_are_told_beside_the_decision(self) -> None:
        async def decide() -> Decision:
            return Decision(allowed=True, rule="b")

        (block,) = block_outcomes((Rule("a", "5/min"),), [override("block")], apply_override, 0.0)
        record = block._replace(shadow=True)
        for blocks, allowed in (((record,), True), ((record, block), False)):
            decision = run(decide_blocked(blocks, decide))
            assert (decision.allowed, decision.outcomes) == (allowed, blocks)

    def test_each_covered_rule_that_a_block_names_refuses(self) -> None:
        several = Rule("b", rates=("5/min", "2/s"), algorithm="gcra")
        rules = (Rule("a", "5/min"), several, Rule("s", limit=2, algorithm="concurrency"))
        found = block_outcomes(rules, [override("block", rules=("b", "s"), until=90.0)], apply_override, 30.0)
        assert [(one.rule, one.limit, one.window) for one in found] == [("b", 5, 60), ("b", 2, 1), ("s", 2, None)]
        assert {one.retry_after for one in found} == {60.0}
        assert {one.reason for one in found} == {Reason.BLOCKED}
        assert not any(one.allowed or one.shadow or one.remaining for one in found)


class TestLimits:
    @pytest.mark.parametrize(
        ("rule", "factor", "limit"),
        [
            (Rule("a", "100/min"), 2, 200),
            (Rule("a", "100/min"), 0.29, 29),  # which in doubles is 28.999…
            (Rule("a", "100/min"), 0.001, 1),
            (Rule("a", "100/min", cost=5), 0.001, 5),  # one call
            (Rule("a", f"{MAX_LIMIT}/day"), 1_000_000, MAX_LIMIT),
            (Rule("a", "100/min", algorithm="sliding_log"), 1_000_000, MAX_LOG_UNITS),
            (Rule("a", f"{MAX_LIMIT // 3}/min", enforce_at=2.5), 1_000_000, int(MAX_LIMIT / 2.5)),
            (Rule("a", "1000000000/min", algorithm="damper"), 1_000_000, MAX_DAMPER_LIMIT),
            (Rule("a", "1000000000/min", algorithm="gcra"), 1_000_000, MAX_BUCKET_UNITS),
            (SOCKETS, 2, 10),
            (SOCKETS, 0.1, 1),
        ],
    )
    def test_multiplied(self, rule: Rule, factor: float, limit: int) -> None:
        new = apply_override(rule, override("multiply", factor=factor))
        assert new is not None
        assert new.limit == limit
        assert (new.name, new.window) == (rule.name, rule.window)
        assert new.id == rule.id or limit == MAX_BUCKET_UNITS  # so large a bucket counts in coarser steps

    def test_every_rate_and_the_burst_are_multiplied(self) -> None:
        rule = Rule("a", rates=("10/s", "100/day"), algorithm="gcra", burst=3)
        new = apply_override(rule, override("multiply", factor=3))
        assert new is not None
        assert ([str(rate) for rate in new.rates], new.burst) == (["30/s", "300/day"], 9)

    @given(rules(), st.floats(0.0001, 1_000_000))
    def test_whatever_is_multiplied_still_makes_sense_or_stays(self, rule: Rule, factor: float) -> None:
        new = apply_override(rule, override("multiply", factor=factor))
        if new is not None:
            assert new.limit is None or new.limit >= 1
            assert [part.window for part in new.parts] == [part.window for part in rule.parts]
            assert charges_of(new, "x", 1)

    def test_replaced(self) -> None:
        two = override("replace", rates=(Rate(7, 60), Rate(1, 1)), limit=9)
        assert apply_override(Rule("a", "5/min"), two) == Rule("a", rates=("7/min", "1/s"))
        assert apply_override(SOCKETS, two) == Rule("sockets", limit=9, algorithm="concurrency")
        assert apply_override(SOCKETS, override("replace")) is None
        assert apply_override(Rule("a", "5/min"), override("replace", rates=(), limit=9)) is None

    def test_a_bucket_keeps_its_burst_as_far_as_the_new_rate_goes(self) -> None:
        rule = Rule("a", "100/min", algorithm="gcra", burst=20)
        replaced = [apply_override(rule, override("replace", rates=(Rate(limit, 60),))) for limit in (7, 100, 500)]
        assert [(one.burst, one.id == rule.id) for one in replaced if one] == [(7, True), (20, True), (20, False)]

    @pytest.mark.parametrize(
        ("rule", "rate"),
        [
            (Rule("a", "50/min", cost=10), "7/min"),
            (Rule("a", "5/hour", algorithm="fixed_window", timezone="UTC"), "7/90s"),
            (Rule("a", "5/min", algorithm="sliding_log"), "20000/min"),
            (Rule("a", "5/min", enforce_at=2.0), f"{MAX_LIMIT}/min"),
            (Rule("a", "5/min"), "9/month"),
        ],
        ids=str,
    )
    def test_what_the_rule_could_not_be_is_no_fit(self, rule: Rule, rate: str) -> None:
        replacing = override("replace", rates=(Rate.parse(rate, calendar=True),))
        assert apply_override(rule, replacing) is None
        assert apply_override(Rule("a", "5/day", algorithm="fixed_window"), replacing) is not None


USER: dict[str, Any] = {"subject": "user:1"}


RATE = Rate(5, 60)


BLOCK: dict[str, Any] = {"effect": "block"}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("kind", {**BLOCK, "subject": "shoe:1"}),
    ("kind", {**BLOCK, "subject": "1"}),
    *(
        ("value", {**BLOCK, "subject": subject})
        for subject in ("user:", "user: 1", "user:a\nb", "tenant:" + "x" * 301, "ip:203.0.113.9/24", "ip:somewhere")
    ),
    ("effect", {"effect": "scold"}),
    *(("rules", {**BLOCK, "rules": rules}) for rules in ((), "api", ("a,b",))),
    *(
        ("factor", {"effect": "multiply", "factor": factor})
        for factor in (None, 0, -1, float("nan"), float("inf"), 1_000_001, True, "2")
    ),
    ("factor", {**BLOCK, "factor": 2}),
    ("rate", {"effect": "multiply", "factor": 2, "rates": (RATE,)}),
    ("limit", {"effect": "exempt", "limit": 5}),
    *(
        ("rate", {"effect": "replace", "rates": rates})
        for rates in ((), (RATE, Rate(6, 60)), tuple(Rate(1, window) for window in range(1, 12)))
    ),
    *(("limit", {"effect": "replace", "limit": limit}) for limit in (0, -1, MAX_LIMIT + 1, 2.0, True)),
]


@pytest.mark.parametrize(("option", "options"), WRONG, ids=str)
def test_what_makes_no_sense_is_refused(option: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOverride) as caught:
        Override(**{**USER, **options})
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("rules", "named", "others"),
    [
        (("*",), ["api", "", "a,b", "[x]"], []),
        (("api",), ["api"], ["API", "apis", "ap"]),
        (("api*", "chat"), ["api", "api:search", "chat"], ["chat:x", "my-api"]),
        (("ap?",), ["api"], ["ap", "apis"]),
        (("[x]",), ["[x]", "x"], ["y"]),  # a name is itself, whatever signs are in it
    ],
)
def test_the_rules_that_it_names(rules: tuple[str, ...], named: list[str], others: list[str]) -> None:
    override = Override(**USER, effect="block", rules=rules)
    assert [name for name in named if not override.names(name)] == []
    assert [name for name in others if override.names(name)] == []


def test_the_most_specific_goes_first_then_the_strongest_then_the_latest() -> None:
    wanted = [
        Override(subject="api_key:x", effect="exempt"), Override(subject="user:1", effect="block", number=1),
        Override(subject="user:1", effect="replace", limit=1, number=3),
        Override(subject="user:1", effect="multiply", factor=1, number=9),
        Override(subject="user:1", effect="multiply", factor=1, number=8),
        Override(subject="user:1", effect="exempt", number=7), Override(subject="ip:203.0.113.9", effect="exempt"),
        Override(subject="ip:203.0.113.0/24", effect="exempt"), Override(subject="ip:203.0.0.0/16", effect="block"),
        Override(subject="ip:2001:db8::/64", effect="exempt"), Override(subject="ip:2001:db8::/48", effect="block"),
        Override(subject="tenant:acme", effect="block"), Override(subject="group:staff", effect="block"),
    ]  # fmt: skip
    backwards = wanted[::-1]
    assert sorted(backwards, key=lambda override: override.rank) == wanted
    assert {override.kind for override in wanted} <= {*subject_kinds()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"effect": "block"}, "blocked"),
        ({"effect": "block", "rules": ("api", "chat")}, "blocked from what api and chat covers"),
        ({"effect": "exempt", "rules": ("api", "*")}, "exempt from every rule"),
        ({"effect": "multiply", "factor": 2.0, "rules": ("api",)}, "2 × the limit of api"),
        ({"effect": "multiply", "factor": 0.29}, "0.29 × the limit of every rule"),
        ({"effect": "replace", "rates": (RATE, Rate(1, 1)), "limit": 1000}, "5/min, 1/s and 1,000 at once instead of"),
    ],
)
def test_it_says_what_it_does(options: dict[str, Any], words: str) -> None:
    assert describe_effect(Override(**USER, **options)).startswith(words)


@pytest.mark.parametrize(
    "effect", [{"effect": "multiply", "factor": 0.05}, {"effect": "replace", "rates": (Rate(5, 60),)}], ids=str
)
def test_an_override_that_allows_less_than_a_call_reserves_has_it_reserve_less(effect: dict[str, Any]) -> None:
    rule = Rule("rows", "100/min", unit="rows", reserve=10)
    changed = apply_override(rule, override(**effect))
    assert changed is not None
    assert (changed.limit, changed.reserve) == (5, 5)


SECRET = secret_bytes("secret")
SHARES = st.floats(0, 1)


@given(st.text(min_size=1, max_size=40), SHARES, SHARES)
def test_who_is_in_a_share_is_in_every_larger_one(ident: str, share: float, another: float) -> None:
    small, large = sorted((share, another))
    assert is_in_share(ident, small, SECRET) <= is_in_share(ident, large, SECRET)
    assert is_in_share(ident, 1.0, SECRET) and not is_in_share(ident, 0.0, SECRET)

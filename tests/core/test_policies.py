"""Policies: what they are called, and which a client is told of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Decision, Outcome, Reason
from django_throttle.core.decision import conclude
from django_throttle.core.headers import MAX_POLICIES, names, policies, tightest, told


def outcome(rule: str = "api", ident: str = "ip:192.0.2.1", **options: Any) -> Outcome:
    given = {"allowed": True, "limit": 10, "remaining": 4, "retry_after": 0.0, "reset_after": 30.0, "window": 60.0}
    return Outcome(rule, ident, **(given | options))


def anybody(ident: str) -> bool:
    return True


REFUSED = {"allowed": False, "remaining": 0, "retry_after": 5.0}


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("api", "api"),
        ("search and chat (v2)", "search and chat (v2)"),
        ('say "hi" \\o/', 'say "hi" \\o/'),
        ("50%", "50%25"),
        ("api#min", "api%23min"),
        ("Größe", "Gr%C3%B6%C3%9Fe"),
        ("🐢", "%F0%9F%90%A2"),
        ("\ud800", "%ED%A0%80"),
        ("a\x00\r\n", "a%00%0D%0A"),
    ],
)
def test_a_name_is_printable_ascii(rule: str, name: str) -> None:
    assert names([outcome(rule)]) == [name]


def test_the_rates_of_a_rule_have_names_of_their_own() -> None:
    windows = [1.0, 60.0, 600.0, 86_400.0, 0.25, 31 * 86_400.0]
    found = names([outcome(window=window) for window in windows] + [outcome("other")])
    assert found == ["api#s", "api#min", "api#10m", "api#day", "api#250ms", "api#31d", "other"]


@given(st.lists(st.tuples(st.text(), st.integers(1, 10**6)), unique=True))
def test_no_two_names_are_alike(found: list[tuple[str, int]]) -> None:
    named = names([outcome(rule, window=window / 1000) for rule, window in found])
    assert len(set(named)) == len(named)
    assert all(name.isascii() and (name.isprintable() or not name) for name in named)


class TestTold:
    @pytest.mark.parametrize(
        "options",
        [
            {"shadow": True},
            {"shadow": True, **REFUSED},
            {"reason": Reason.BLOCKED, **REFUSED},
            {"reason": Reason.NO_ADDRESS, **REFUSED},
            {"reason": Reason.STORE_FAILED},
            {"ident": "user:7"},
        ],
        ids=str,
    )
    def test_not_of_everything(self, options: dict[str, Any]) -> None:
        decision = conclude((outcome(), outcome("other", **options)))
        assert told([decision], lambda ident: ident == "ip:192.0.2.1") == (outcome(),) * (not decision.unavailable)

    def test_nothing_of_what_one_process_decided_for_itself(self) -> None:
        decisions = [conclude((outcome(),)), conclude((outcome("local"),), degraded=True)]
        assert [one.rule for one in told(decisions, anybody)] == ["api"]

    def test_nothing_where_the_store_fails_the_client(self) -> None:
        failed = conclude((outcome("strict", reason=Reason.STORE_FAILED, **REFUSED),), degraded=True)
        assert told([conclude((outcome(),)), failed], anybody) == ()

    def test_the_last_word_of_each_rule_and_rate(self) -> None:
        first = conclude((outcome(), outcome(window=1.0)))
        then = conclude((outcome(remaining=3), outcome("other")))
        assert told([first, then], anybody) == (outcome(remaining=3), outcome(window=1.0), outcome("other"))

    def test_nothing_of_nothing(self) -> None:
        assert told([], anybody) == told([Decision()], anybody) == ()


def test_of_very_many_those_nearest_their_limits() -> None:
    found = policies([outcome(str(number), remaining=number, limit=100) for number in range(50, 0, -1)])
    assert [policy.remaining for policy in found] == list(range(1, MAX_POLICIES + 1))


def test_the_tightest_has_least_left_for_longest() -> None:
    found = policies([outcome(), outcome("a", remaining=1, reset_after=9.0), outcome("b", remaining=1)])
    assert tightest(found).name == "b"


def test_a_wait_that_is_over_is_a_second_all_the_same() -> None:
    """As of a refusal that was remembered, which may be a little older than the unit that came back."""
    (policy,) = policies([outcome(reset_after=0.000001, **REFUSED).later(0.0)])
    assert policy.more_after == 1
    (policy,) = policies([outcome().later(60.0)])
    assert policy.more_after is None

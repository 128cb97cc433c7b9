"""A candidate is one more rule in the same decision: it refuses nobody but those of its share."""

from __future__ import annotations

from django_throttle.call_facts import Facts
from django_throttle.conf import conf
from django_throttle.core import Override, Rule
from django_throttle.core.key import secret_bytes
from django_throttle.core.overrides import Candidate, is_in_share
from django_throttle.rulebook import Snapshot
from tests.callers import Caller

LIVE = Rule("api", "5/min", key="user")
STRICT = Rule("api", "1/min", key="user")


def actions(snapshot: Snapshot, user: str = "user:1", **facts: object) -> dict[str, bool]:
    """By the name of each rule that a call is asked: whether it only records."""
    who = Caller(user=user)
    found = snapshot.match(Facts(**{"scope": "search", "events": ("request",), "who": who, **facts}))  # type: ignore[arg-type]
    return {charge.rule.name: charge.rule.is_shadow for charge in found}


def beside(share: float = 0.0) -> Snapshot:
    return Snapshot([LIVE], candidates=[Candidate.of("api", STRICT, share)])


def test_it_records_beside_the_live_rule() -> None:
    assert actions(beside()) == {"api": False, "api (candidate)": True}
    assert beside().version != Snapshot([LIVE]).version


def test_a_call_that_names_the_rule_is_asked_both() -> None:
    assert actions(beside(), rule="api") == {"api": False, "api (candidate)": True}
    assert actions(beside(), only=("api",)) == {"api": False, "api (candidate)": True}


def test_of_both_exactly_one_refuses_each_ident() -> None:
    snapshot, secret = beside(0.3), secret_bytes(conf().KEY_SECRET)
    halves = set()
    for number in range(100):
        ident = f"user:{number}"
        within = is_in_share(ident, 0.3, secret)
        assert actions(snapshot, ident) == {"api": within, "api (candidate)": not within}
        halves.add(within)
    assert halves == {True, False}


def test_an_override_of_the_rule_is_one_of_its_candidate() -> None:
    exempt = Override(subject="user:1", effect="exempt", rules=("api",))
    snapshot = Snapshot([LIVE], [exempt], candidates=[Candidate.of("api", STRICT)])
    assert actions(snapshot) == {}

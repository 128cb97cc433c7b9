"""What would happen to a call, and why: it is what happens, and asking changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.core import Override, Rule
from django_throttle.explain import Explanation, explain
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.coverage import Call
from django_throttle.stores import MemoryStore
from tests import doors
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce, Store

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)
POST = Call("search", "POST")


def told(store: Store, ident: str = "ip:192.0.2.1", call: Call = POST) -> Explanation:
    return explain(store, rulebook.current(), call, KnownCaller(ident))


def ask(ident: str = "ip:192.0.2.1", scope: str = "search") -> bool:
    return limiter.decide(Facts(scope, ("request", "inflight"), KnownCaller(ident), method="POST")).allowed


@BOTH
def test_it_says_what_happens_next_and_charges_nothing(enforce: Enforce) -> None:
    store = enforce(api={"rate": "3/min", "scopes": ["sea*"]}, all={"rate": "100/min", "key": "everyone"})
    for used in range(4):
        before = told(store)
        assert [(one.outcome.rule, one.used, one.outcome.limit) for one in before.rules] == [
            ("all", min(used, 3), 100),
            ("api", min(used, 3), 3),
        ]
        assert told(store).as_json() == before.as_json()
        assert (before.would == "allowed") == ask() == (used < 3)
    assert told(store).refusing == ("api",)
    last = told(store).sentence
    assert last.startswith("A POST to search by ip:192.0.2.1 would be refused by rule 'api': 3 of 3 used, free in ")
    assert told(store, "ip:192.0.2.2").sentence.endswith("allowed: rule 'api' is nearest to its limit, 0 of 3 used.")


@BOTH
def test_overrides_decide(enforce: Enforce) -> None:
    store = enforce(api={"rate": "1/min"})
    now = rulebook.current()
    subject = "ip:192.0.2.1"
    assert ask() and not ask()

    def under(**options: Any) -> Explanation:
        snapshot = Snapshot(now.rules, [Override(subject=subject, number=7, **options)])
        return explain(store, snapshot, POST, KnownCaller(subject))

    doubled = under(effect="multiply", factor=3)
    assert (doubled.would, doubled.rules[0].outcome.limit, doubled.rules[0].verdict) == ("allowed", 3, "allowed")
    exempt = under(effect="exempt")
    assert (exempt.would, exempt.rules[0].verdict, exempt.rules[0].used) == ("allowed", "exempt", 1)
    blocked = under(effect="block")
    assert blocked.sentence.endswith("would be refused by override 7: ip:192.0.2.1 is blocked.")
    assert blocked.as_json()["rules"][0]["override"]["effect"] == "block"


@BOTH
def test_other_kinds_of_rules(enforce: Enforce) -> None:
    store = enforce(
        slots={"limit": 1, "algorithm": "concurrency", "events": ["inflight"]},
        quiet={"rate": "1/min", "action": "shadow"},
        damped={"rate": "100/s", "algorithm": "damper"},
        weights={"rate": "10/min", "unit": "bytes"},
    )
    first = limiter.decide(Facts("search", ("request", "inflight"), KnownCaller("ip:192.0.2.1"), method="POST"))
    found = {one.outcome.rule: one for one in told(store).rules}
    assert next(iter(found)) == "damped" and found["damped"].chance == 0.0
    assert found["slots"].why == "1 of 1 open, free when one ends"
    assert found["quiet"].verdict == "shadowed"
    assert told(store).refusing == ("slots",)
    store.leases.drop(*first.lease.holds[0], first.lease.id) if isinstance(store, MemoryStore) else None
    if isinstance(store, MemoryStore):
        assert told(store).sentence.endswith("allowed: rule 'quiet' would refuse it, but only records.")


RULES = st.builds(
    Rule,
    rate=st.just("5/min"),
    name=st.sampled_from("abcdef"),
    scopes=st.sampled_from([("*",), ("search",), ("s?arch", "x"), ("chat",)]),
    key=st.sampled_from(["ip", "user", "user_or_ip", "everyone", "user+ip", "tenant"]),
    methods=st.sampled_from([(), ("GET",), ("POST", "PUT")]),
    audience=st.sampled_from([(), ("anonymous", "staff"), ("staff",)]),
)


@given(rules=st.lists(RULES, max_size=6, unique_by=lambda rule: rule.name))
def test_the_rules_that_count_are_those_that_are_charged(rules: list[Rule]) -> None:
    """As the way of a decision has it, which this does not go."""
    snapshot, who = Snapshot(rules), KnownCaller("ip:192.0.2.1")
    charged = [charge.rule.name for charge in snapshot.match(Facts("search", POST.events, who, method="POST"))]
    found = explain(MemoryStore(FrozenClock()), snapshot, POST, who)
    assert [one.outcome.rule for one in found.rules] == charged

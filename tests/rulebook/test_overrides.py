"""Whose overrides hold: found by subject, the narrowest network first, and gone at their moment without an edit."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.call_facts import Facts
from django_throttle.core import Override, Reason, Rule
from django_throttle.core.decide import EarlierCharges
from django_throttle.identity import network
from django_throttle.limiter import ask, begin
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.snapshot import Overrides
from django_throttle.stores import MemoryStore
from tests.callers import Caller
from tests.clock import FrozenClock

API = Rule("api", "5/min", key="user_or_ip")


def override(subject: str, effect: str = "block", **options: Any) -> Override:
    return Override(subject=subject, effect=effect, **options)


def of(overrides: Overrides, who: Caller) -> list[str]:
    return [found.subject for found in overrides.of(who)]


def test_each_kind_of_subject_is_found_the_most_specific_first() -> None:
    tag = "x" * 22
    subjects = [f"api_key:{tag}", "user:1", "ip:192.0.2.7", "ip:192.0.2.0/24", "tenant:acme", "group:a", "group:b"]
    overrides = Overrides(map(override, reversed([*subjects, "user:2", "ip:192.0.3.0/24", "tenant:b", "group:c"])))
    everybody = Caller(
        "group:a", "group:b", user="user:1", ip="ip:192.0.2.7", tenant="tenant:acme", api_key=f"api_key:{tag}"
    )
    assert of(overrides, everybody) == subjects
    assert of(overrides, Caller(ip="ip:192.0.2.8")) == ["ip:192.0.2.0/24"]
    assert of(overrides, Caller()) == []


def test_addresses_are_found_again_among_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of them is bounded, and says the same each time."""
    monkeypatch.setattr("django_throttle.rulebook.snapshot.MAX_REMEMBERED", 10)
    overrides = Overrides([override("ip:10.0.0.0/25"), override("ip:10.0.0.7")])
    for _ in range(2):
        for number in range(256):
            found = of(overrides, Caller(ip=f"ip:10.0.0.{number}"))
            assert found == ["ip:10.0.0.7"] * (number == 7) + ["ip:10.0.0.0/25"] * (number < 128)


@given(st.lists(st.ip_addresses(v=4), min_size=1, max_size=9), st.lists(st.integers(1, 32), min_size=9, max_size=9))
def test_networks_are_found_as_a_look_at_all_of_them_finds_them(addresses: list[Any], lengths: list[int]) -> None:
    networks = {
        ip_network((address, length), strict=False) for address, length in zip(addresses, lengths, strict=False)
    }
    subjects = {f"ip:{network.with_prefixlen}" for network in networks}
    overrides = Overrides(map(override, subjects))
    for address in [*addresses, ip_address("192.0.2.1")]:
        around = sorted((one for one in networks if address in one), key=lambda one: -one.prefixlen)
        assert of(overrides, Caller(ip=f"ip:{address}")) == [f"ip:{one.with_prefixlen}" for one in around]


def test_ipv6_callers_are_networks_themselves() -> None:
    overrides = Overrides(
        map(override, ["ip:2001:db8::/64", "ip:2001:db8::/32", "ip:2001:db8:0:1::/64", "ip:192.0.2.0/24"])
    )
    assert of(overrides, Caller(ip=f"ip:{network('2001:db8::17', 64)}")) == ["ip:2001:db8::/64", "ip:2001:db8::/32"]
    assert of(overrides, Caller(ip=f"ip:{network('::ffff:192.0.2.5', 64)}")) == ["ip:192.0.2.0/24"]
    # A wider one is not inside a narrower one.
    assert of(overrides, Caller(ip="ip:2001:db8::/48")) == ["ip:2001:db8::/32"]


def test_it_falls_away_at_its_moment(clock: FrozenClock) -> None:
    end = clock() + 7200
    overrides = Overrides([override("user:1", until=end), override("user:1", "exempt")], clock)
    who = Caller(user="user:1")
    assert [found.effect for found in overrides.of(who)] == ["block", "exempt"]
    clock.to(7199.999)
    assert [found.effect for found in overrides.of(who)] == ["block", "exempt"]
    clock.to(7200)
    assert [found.effect for found in overrides.of(who)] == ["exempt"]


class TestDecisions:
    def decide(self, overrides: list[Override], who: Caller, clock: FrozenClock, *rules: Rule, **facts: Any) -> Any:
        snapshot = Snapshot(rules or (API,), overrides=overrides, now=clock)
        store = MemoryStore(clock)
        call = Facts("x", ("request",), who, **facts)
        return ask(begin(snapshot, call, store, True), store, call)

    @pytest.mark.parametrize(("factor", "reason"), [(1, Reason.TOO_COSTLY), (2, Reason.WITHIN)])
    def test_a_door_asks_for_the_rest_where_an_override_has_the_whole_fit(
        self, factor: float, reason: Reason, clock: FrozenClock
    ) -> None:
        rises = [override("user:1", "multiply", factor=factor)]
        before = EarlierCharges({("api", "user:1"): 1})
        decision = self.decide(rises, Caller(user="user:1", user_or_ip="user:1"), clock, cost=6, charged=before)
        assert (decision.outcomes[0].reason, decision.remaining) == (reason, 5)

    def test_a_block_is_refused_without_the_store(self, clock: FrozenClock) -> None:
        who = Caller(user_or_ip="user:1", ip="ip:192.0.2.7")
        snapshot = Snapshot([API], overrides=[override("ip:192.0.2.0/24", until=clock() + 90)], now=clock)

        class Untouchable(MemoryStore):
            def execute(self, command: object) -> NoReturn:
                pytest.fail("the store was asked")

        store = Untouchable(clock)
        decision = ask(begin(snapshot, Facts("x", ("request",), who), store, True), store)
        assert (decision.allowed, decision.rule, decision.retry_after, decision.remaining) == (False, "api", 90.0, 0)
        assert [outcome.reason for outcome in decision.outcomes] == [Reason.BLOCKED]

    def test_where_everything_is_a_shadow_blocks_only_record(self, settings: Any, clock: FrozenClock) -> None:
        settings.DJANGO_THROTTLE = {"SHADOW": True}
        decision = self.decide([override("user:1")], Caller(user_or_ip="user:1", user="user:1"), clock)
        assert decision.allowed
        assert [(one.reason, one.allowed, one.shadow) for one in decision.outcomes] == [
            (Reason.WITHIN, True, False),
            (Reason.BLOCKED, False, True),
        ]


def test_the_version_is_of_rules_and_overrides_together() -> None:
    overrides = [override("user:1", number=1), override("user:1", "exempt", number=2), override("group:a", number=3)]
    version = Snapshot([API], overrides=overrides).version
    assert Snapshot([API], overrides=reversed(overrides)).version == version
    assert len({version, Snapshot([API]).version, Snapshot([API], overrides=overrides[:2]).version}) == 3

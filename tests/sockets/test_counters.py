"""Rules of one socket alone: counted in the process, first of all, and gone with the socket."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Rule
from django_throttle.core.commands import Decide, charge
from django_throttle.core.decide import outcomes_of
from django_throttle.core.decision import conclude
from django_throttle.exceptions import InvalidRule
from django_throttle.identity import HttpWho, ScopeWho
from django_throttle.sockets.counters import MAX_DELAY, SocketCounters, decision_of, with_capped_delay
from django_throttle.sockets.limits import size_of
from django_throttle.stores import MemoryStore
from tests.clock import FrozenClock
from tests.strategies import rate_rules, rates


class TestCounters:
    @given(
        rules=st.lists(rate_rules("rule", rates(st.integers(1, 8))), min_size=1, max_size=3),
        calls=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 0, 1, 400, 61_000])), max_size=25),
    )
    def test_they_decide_as_a_store_does(self, rules: list[Rule], calls: list[tuple[int, int]]) -> None:
        rules = [Rule.from_options(f"rule{n}", rule.as_options()) for n, rule in enumerate(rules)]
        clock = FrozenClock()
        store, counters = MemoryStore(clock), SocketCounters()
        for cost, milliseconds in calls:
            clock.to(clock() + milliseconds / 1000)
            charges = tuple(charge(rule, "connection:x", cost) for rule in rules)
            command = Decide(charges)
            expected = conclude(outcomes_of(command, store.execute(command)))
            assert decision_of(charges, counters.charge(charges, clock())) == expected

    def test_to_look_changes_nothing(self) -> None:
        counters = SocketCounters()
        charges = (charge(Rule("own", "1/min", algorithm="gcra", count_denied=True), "connection:x", 1),)
        assert [counters.peek(charges, 0.0).allowed for _ in range(3)] == [True] * 3
        assert [counters.charge(charges, 0.0).allowed for _ in range(2)] == [True, False]
        counters.clear()
        assert counters.charge(charges, 0.0).allowed

    def test_nothing_waits_for_more_than_two_seconds(self) -> None:
        queue = Rule("queue", "1/s", burst=10, algorithm="leaky_bucket", action="delay", max_delay=8)
        assert with_capped_delay(queue).max_delay == MAX_DELAY
        assert with_capped_delay(with_capped_delay(queue)) is with_capped_delay(queue)
        plain = Rule("own", "1/s")
        assert with_capped_delay(plain) is plain
        slow = Rule("slow", "2/min", cost=2, algorithm="leaky_bucket", action="delay")
        assert with_capped_delay(slow).plan.limit == 2, "one message passes, whatever it costs"


class TestSense:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"events": ("request",)}, "takes the events message and send only"),
            ({"events": ("message", "connect")}, "takes the events message and send only"),
            ({"warn_at": (0.5,)}, "sends no warnings"),
            ({"on_store_failure": "deny"}, "without the store"),
            ({"algorithm": "damper", "rate": "5/s"}, "cannot have the key connection"),
            ({"algorithm": "fixed_window", "timezone": "Europe/Berlin", "rate": "5/day"}, "calendar"),
            ({"algorithm": "fixed_window", "rate": "5/month"}, "calendar"),
        ],
    )
    def test_what_one_socket_cannot_have(self, options: dict[str, Any], reason: str) -> None:
        whole = {"rate": "5/min", "events": ("message",), "key": "connection", **options}
        with pytest.raises(InvalidRule, match=reason):
            Rule.from_options("own", whole)

    def test_it_is_joined_with_no_other_key(self) -> None:
        with pytest.raises(InvalidRule, match="not 'connection'"):
            Rule("own", "5/min", key="user+connection", events=("message",))

    def test_only_requests_and_messages_have_bytes(self) -> None:
        for events in (("connect",), ("task",), ("message", "publish")):
            with pytest.raises(InvalidRule, match="have bytes"):
                Rule("volume", "5/min", unit="bytes", events=events)
        with pytest.raises(InvalidRule, match="unit must be one of calls, bytes"):
            Rule("volume", "5/min", unit="litres", events=("message",))

    def test_only_an_open_socket_is_one(self, rf: Any) -> None:
        assert HttpWho(rf.get("/")).ident("connection") is None
        assert ScopeWho({"type": "websocket"}).ident("connection") is None

    def test_sizes(self) -> None:
        assert size_of({"text": "abc"}) == 3
        assert size_of({"text": "ü€", "bytes": None}) == 5
        assert size_of({"text": None, "bytes": b"\x00\x01"}) == 2
        assert size_of({}) == 0
        assert size_of({"text": "\ud800"}) == 3

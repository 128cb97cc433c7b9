"""Rules of one socket alone: counted in the process, first of all, and gone with the socket."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle import observe
from django_throttle.call_facts import Facts
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
from tests.doors import Enforce, enforcer
from tests.inside import counters
from tests.servers import slack
from tests.sockets.guarded import Line, texts
from tests.strategies import rate_rules, rates

enforce = pytest.fixture(enforcer)
OWN = {"rate": "3/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}


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


class TestFrames:
    async def test_each_socket_has_its_own_budget(self, enforce: Enforce) -> None:
        store = enforce(own=OWN)
        first, second = await Line().open(), await Line().open()
        first.send("1", "2", "3", "4")
        await first.until(lambda: first.told("error"))
        second.send("1", "2", "3")
        await second.until(lambda: len(texts(second)) == 3)
        told = first.told("error")[0]
        assert texts(first) == ["1", "2", "3"]
        assert (told["code"], told["rule"], told["limit"], told["window"]) == ("rate_limited", "own", 3, 60)
        assert 0 < told["retry_after"] <= 20
        assert counters(store) == {}, "no store was asked"
        for line in (first, second):
            await line.close()

    async def test_it_comes_before_all_others_and_costs_them_nothing(self, enforce: Enforce) -> None:
        shared = {"rate": "100/min", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
        store = enforce(own=OWN, shared=shared)
        line = await Line().open()
        line.send(*"12345")
        await line.until(lambda: line.told("error"))
        ((_, count), _) = next(iter(counters(store).values()))
        assert count == 3
        await line.close()

    async def test_what_others_refuse_costs_it_nothing(self, enforce: Enforce, clock: FrozenClock) -> None:
        shared = {"rate": "1/min", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
        enforce(own=OWN, shared=shared, MAX_VIOLATIONS=0)
        line = await Line().open()
        line.send(*"123456")
        await line.until(lambda: line.told("error"))
        for minute in (1, 2):
            clock.to(60 * minute)
            line.send("again")
            await line.until(lambda minute=minute: len(texts(line)) == 1 + minute)
        assert {told["rule"] for told in line.told("error")} == {"shared"}, "its own three were never used up"
        await line.close()

    async def test_bytes(self, enforce: Enforce) -> None:
        enforce(volume={**OWN, "rate": "10/min", "unit": "bytes"})
        line = await Line().open()
        line.send("12345", "üü", "", "12")
        await line.until(lambda: line.told("error"))
        assert texts(line) == ["12345", "üü", ""]
        assert line.told("error")[0]["remaining"] == 1
        await line.close()

    async def test_a_frame_larger_than_the_budget_never_passes(self, enforce: Enforce) -> None:
        enforce(volume={**OWN, "rate": "10/min", "unit": "bytes"})
        line = await Line().open()
        line.send("x" * 11, "x" * 10)
        await line.until(lambda: texts(line))
        assert line.told("error")[0]["retry_after"] is None
        await line.close()

    async def test_a_queue_of_its_own(self, enforce: Enforce) -> None:
        enforce(queue={**OWN, "rate": "20/s", "algorithm": "leaky_bucket", "action": "delay"})
        line = await Line().open()
        began = time.monotonic()
        line.send(*map(str, range(10)))
        await line.until(lambda: len(texts(line)) == 10)
        seconds = time.monotonic() - began
        print(f"10 frames at 20/s took {seconds:.2f} s")
        assert 0.4 <= seconds <= 0.45 + slack(1.0)
        assert texts(line) == [f"{n}" for n in range(10)]
        await line.close()

    async def test_it_may_only_record(self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[Any] = []

        async def tell(facts: Facts, decision: Any, seconds: float = 0.0) -> None:
            told.append((facts.events, facts.size, [outcome.verdict for outcome in decision.outcomes]))

        monkeypatch.setattr(observe.reports, "atell", tell)
        enforce(own={**OWN, "rate": "1/min", "action": "shadow"})
        line = await Line().open()
        told.clear()
        line.send("one", "three")
        await line.until(lambda: len(texts(line)) == 2)
        assert told == [(("message",), 5, ["shadowed"])]
        await line.close()

    async def test_the_budget_refills(self, enforce: Enforce) -> None:
        enforce(own={**OWN, "rate": "1/100ms"})
        line = await Line().open()
        for _ in range(3):
            line.send("in", "over")
            await line.until(lambda: line.told("error"))
            line.sent.clear()
            await asyncio.sleep(0.12)
        assert texts(line) == ["in"] * 3
        await line.close()


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

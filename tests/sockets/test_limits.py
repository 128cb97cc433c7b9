"""What a frame's decision is made of, and who is told of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError

from django_throttle import rulebook
from django_throttle.core import Outcome, Override, Reason, Rule
from django_throttle.event_loop import is_on_event_loop
from django_throttle.exceptions import InvalidIdent
from django_throttle.observe import reports
from django_throttle.rulebook import Snapshot
from django_throttle.signals import quota_warning, throttled
from tests.consumers import AsyncEcho, handshake, opened
from tests.doors import Enforce, enforcer
from tests.inside import counters
from tests.sockets.guarded import Line, Live, becomes, live_enforcer, texts

enforce = pytest.fixture(enforcer)
enforce_live = pytest.fixture(live_enforcer)
OWN = {"rate": "50/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
told: Counter[tuple[str, bool]] = Counter()
SHARED = {"rate": "1000/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}


def count(report: reports.Report) -> None:
    for outcome in report.decision.outcomes if report.facts.events == ("message",) else ():
        told[outcome.rule, outcome.allowed] += 1


class TestTelling:
    @pytest.mark.parametrize("rules", [{"own": OWN}, {"shared": SHARED}, {"own": OWN, "shared": SHARED}])
    async def test_every_message_is_told_once(self, enforce_live: Live, rules: dict[str, Any]) -> None:
        """However few questions the store was asked."""
        told.clear()
        enforce_live(**rules, MAX_VIOLATIONS=0, HOOKS=["tests.sockets.test_limits.count"])
        line = await Line().open()
        line.send(*["x"] * 60)
        passed = 50 if "own" in rules else 60
        await line.until(lambda: len(texts(line)) == passed)
        await becomes(lambda: told.total() == passed * len(rules) + (60 - passed))
        for name in rules:
            assert told[name, True] == passed
        assert told["own", False] == 60 - passed
        await line.close()

    async def test_receivers_hear_of_refusals_and_of_shares_reached(self, enforce_live: Live) -> None:
        heard: list[Any] = []

        def refused(sender: Any, facts: Any, decision: Any, **_: Any) -> None:
            heard.append(decision.rule)

        def reached(sender: Any, facts: Any, outcome: Any, share: float, **_: Any) -> None:
            heard.append(share)

        throttled.connect(refused)
        quota_warning.connect(reached)
        try:
            enforce_live(shared={**SHARED, "rate": "10/h", "warn_at": [0.5, 1]})
            line = await Line().open()
            line.send(*["x"] * 11)
            await line.until(lambda: line.told("error"))
            assert heard == [0.5, 1.0, "shared"]
            await line.close()
        finally:
            throttled.disconnect(refused)
            quota_warning.disconnect(reached)


class TestRules:
    async def test_what_the_process_meters_costs_no_question(self, enforce: Enforce) -> None:
        """A damper, and a rule beside it that refuses."""
        store = enforce(
            smooth={"rate": "5/s", "events": ["message"], "key": "ip", "algorithm": "damper"},
            shared={**SHARED, "rate": "3/h"},
        )
        line = await Line().open()
        line.send(*["x"] * 5)
        await line.until(lambda: line.told("error"))
        assert len(texts(line)) == 3
        assert [state[-1] for state, _ in counters(store).values()] == [3]
        await line.close()

    async def test_what_a_damper_suppresses_costs_nobody_anything(
        self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        smooth = {"rate": "5/s", "events": ["message"], "key": "ip", "algorithm": "damper"}
        store = enforce(own=OWN, shared=SHARED, smooth=smooth)
        suppressed = Outcome("smooth", "ip:203.0.113.9", False, 5, 0, 0.5, 0.5, Reason.SUPPRESSED, window=1.0)
        monkeypatch.setattr(store.local_limits, "decide_all", lambda charges: (suppressed,))
        line = await Line().open()
        line.send("x")
        await line.until(lambda: line.told("error"))
        assert line.told("error")[0]["rule"] == "smooth"
        assert counters(store) == {}
        await line.close()

    async def test_a_function_prices_by_the_scope_and_by_bytes(self, enforce: Enforce) -> None:
        enforce(volume={**OWN, "rate": "20/min", "unit": "bytes", "cost": "tests.sockets.test_limits.twice"})
        line = await Line().open()
        line.send("12345", "123456", "12345")
        await line.until(lambda: len(texts(line)) == 2)
        assert texts(line) == ["12345", "12345"]
        await line.close()

    async def test_a_frame_that_costs_nothing_is_free_of_bytes_too(self, enforce: Enforce) -> None:
        enforce(volume={**OWN, "rate": "5/min", "unit": "bytes"}, shared=SHARED)
        line = await Line(cost=lambda event: 0 if event["text"].startswith("ping") else 1).open()
        line.send(*["ping, as often as one likes"] * 5, "12345")
        await line.until(lambda: len(texts(line)) == 6 or line.told("error"))
        assert (texts(line)[5], line.told("error")) == ("12345", [])
        await line.close()

    async def test_groups_are_asked_for_off_the_event_loop(
        self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []

        def names(user: Any) -> frozenset[str]:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                asked.append(user.pk)
                return frozenset(["editors"])
            raise SynchronousOnlyOperation

        monkeypatch.setattr("django_throttle.identity.keys.group_names", names)
        enforce(own={**OWN, "rate": "1/min", "audience": ["group:editors"]})
        communicator = await opened(AsyncEcho.as_asgi(), user=User(pk=7))
        for text in ("one", "two"):
            await communicator.send_to(text)
        assert await communicator.receive_from() == "one"
        assert (await communicator.receive_json_from())["rule"] == "own"
        assert asked == [7]
        await communicator.disconnect()

    @pytest.mark.parametrize("key", ["user", "connection"])
    async def test_who_changes_groups_has_another_plan_a_second_later(
        self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch, key: str
    ) -> None:
        groups: list[str] = []
        asked: list[int] = []

        def names(user: Any) -> frozenset[str]:
            if is_on_event_loop():
                raise SynchronousOnlyOperation
            asked.append(user.pk)
            return frozenset(groups)

        monkeypatch.setattr("django_throttle.identity.keys.group_names", names)
        enforce(shared={**SHARED, "rate": "2/h", "key": key, "plans": {"group:premium": "5/h"}}, MAX_VIOLATIONS=0)
        line = Line()
        line.scope["user"] = User(pk=7)
        await line.open()
        for number, (new, passed) in enumerate([([], 2), (["premium"], 5), ([], 5)], 1):
            groups[:] = new
            await asyncio.sleep(1.01)
            line.send(*"x" * (passed - len(texts(line)) + 1))
            await line.until(line.queue.empty)
            await line.until(lambda many=passed: len(texts(line)) == many)
            await asyncio.sleep(0.05)
            assert (len(texts(line)), asked) == (passed, [7] * number)
        await line.close()

    async def test_a_database_that_fails_changes_no_plan_of_an_open_socket(
        self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = iter([frozenset(["premium"])])

        def names(user: Any) -> frozenset[str]:
            if is_on_event_loop():
                raise SynchronousOnlyOperation
            for found in answers:
                return found
            raise DatabaseError("gone")

        monkeypatch.setattr("django_throttle.identity.keys.group_names", names)
        enforce(shared={**SHARED, "rate": "1/h", "key": "user", "plans": {"group:premium": "5/h"}})
        line = Line()
        line.scope["user"] = User(pk=7)
        await line.open()
        for passed in (1, 2):
            line.send("x")
            await line.until(lambda passed=passed: len(texts(line)) == passed or line.told("error"))
            await asyncio.sleep(1.01)
        assert line.told("error") == []
        await line.close()

    async def test_who_logs_in_is_another_one_a_second_later(self, enforce: Enforce) -> None:
        """``channels.auth.login`` puts the user into the scope of a socket that is open."""
        enforce(shared={**SHARED, "rate": "1/h", "key": "user"})
        line = await Line().open()
        line.send("one", "two")
        await line.until(lambda: len(texts(line)) == 2)
        line.scope["user"] = User(pk=5)
        await asyncio.sleep(1.0)
        line.send("three", "four")
        await line.until(lambda: line.told("error"))
        assert len(texts(line)) == 3
        await line.close()

    async def test_a_function_that_names_nobody_is_an_error_of_the_site(self, enforce: Enforce) -> None:
        enforce(shared={**SHARED, "key": "tests.sockets.test_limits.nobody"})
        line = await Line().open()
        line.send("x")
        assert line.task is not None
        with pytest.raises(InvalidIdent):
            await line.task

    async def test_a_block_that_only_records_lets_pass_and_is_told(self, enforce: Enforce, caplog: Any) -> None:
        enforce(own=OWN, SHADOW=True)
        rules = [Rule.from_options("own", OWN).as_shadow()]
        before = rulebook.pin(Snapshot(rules, overrides=[Override(subject="ip:203.0.113.9", effect="block")]))
        try:
            line = await Line().open()
            line.send("x")
            await line.until(lambda: texts(line))
            assert "shadowed by rule 'own' (blocked)" in caplog.text
            await line.close()
        finally:
            rulebook.pin(before)

    async def test_who_is_blocked_does_not_come_in(self, enforce: Enforce) -> None:
        enforce()
        before = rulebook.pin(Snapshot([], overrides=[Override(subject="user:5", effect="block")]))

        class Browser(AsyncEcho):
            refuse = "frame"

        try:
            _, frame, close = await handshake(Browser.as_asgi(), user=User(pk=5))
            assert '"code": "blocked"' in frame["text"]
            assert (close["code"], close["reason"]) == (4403, "blocked")
        finally:
            rulebook.pin(before)


def twice(scope: Any) -> int:
    return 2


def nobody(scope: Any) -> Any:
    return object()

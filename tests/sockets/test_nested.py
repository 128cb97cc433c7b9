"""Both doors around one socket: each rule is charged once, and the consumer's terms hold."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from django_throttle.channels import ThrottleMiddleware
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.core import Decision, Rule
from django_throttle.limiter import Limiter
from tests.consumers import TWO_SOCKETS, AsyncEcho, SyncEcho, held, opened, socket
from tests.doors import BOTH, Enforce, enforcer
from tests.inside import counters
from tests.sockets.guarded import Line
from tests.sockets.test_rule_change import Pin, blocked, change

__all__ = ["change", "enforce"]

enforce = pytest.fixture(enforcer)
WINDOW = {"algorithm": "fixed_window", "key": "everyone"}


class Telling(AsyncEcho):
    throttle_ladder = {"close": 2}

    def throttle_error_payload(self, decision: Decision) -> object:
        return f"no more of {decision.rule}"


def around(consumer: Any, *scopes: str) -> Any:
    app = consumer.as_asgi()
    for scope in scopes:
        app = ThrottleMiddleware(app, scope)
    return app


def used(store: Any) -> int:
    """The largest count that the memory store has."""
    return max(state[-1] for state, _ in counters(store).values())


class TestOneScope:
    @pytest.mark.parametrize("consumer", [AsyncEcho, SyncEcho])
    async def test_it_is_charged_once(self, enforce: Enforce, consumer: Any) -> None:
        store = enforce(
            sockets={**TWO_SOCKETS, "limit": 1},
            knocks={**WINDOW, "rate": "9/min", "events": ["connect"]},
            frames={**WINDOW, "rate": "9/min", "events": ["message"]},
            sends={**WINDOW, "rate": "9/min", "events": ["send"]},
        )
        communicator = await opened(around(consumer, "chat", "chat"))
        assert (held(store), len(open_sockets)) == (1, 1)
        await communicator.send_to("hello")
        assert await communicator.receive_from() == "hello"
        counts = sorted(state[-1] for state, _ in counters(store).values())
        assert counts == [1, 1, 1]
        await communicator.disconnect()
        assert (held(store), len(open_sockets)) == (0, 0)

    async def test_the_terms_of_the_one_inside_hold(self, enforce: Enforce) -> None:
        enforce(own={"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"})
        communicator = await opened(around(Telling, "chat"))
        for text in ("in", "over", "over"):
            await communicator.send_to(text)
        assert await communicator.receive_from() == "in"
        assert await communicator.receive_from() == "no more of own"
        assert (await communicator.receive_output())["code"] == 4429
        await communicator.wait()

    async def test_so_do_its_timeouts(self, enforce: Enforce) -> None:
        class Hasty(AsyncEcho):
            throttle_idle_timeout = 0.2
            throttle_close_codes = {"idle": 4001}

        class Aging(AsyncEcho):
            throttle_max_age = 0.2

        class Patient(AsyncEcho):
            throttle_idle_timeout = 0

        enforce(SOCKET_IDLE_TIMEOUT=0.3)
        patient, hasty, aging = [await opened(around(one, "chat")) for one in (Patient, Hasty, Aging)]
        assert (await hasty.receive_json_from())["code"] == "idle"
        assert (await hasty.receive_output())["code"] == 4001
        assert (await aging.receive_json_from())["code"] == "too_old"
        await asyncio.sleep(0.3)
        await patient.send_to("hello")
        assert await patient.receive_from() == "hello"
        await patient.disconnect()


class TestTwoScopes:
    @BOTH
    async def test_what_both_match_is_charged_once_and_each_other_rule_too(self, enforce: Enforce) -> None:
        store = enforce(
            sockets={**TWO_SOCKETS, "limit": 1, "scopes": ["*"]},
            everywhere={**WINDOW, "rate": "3/min", "events": ["connect", "message"]},
            site={**WINDOW, "rate": "9/min", "events": ["message"], "scopes": ["site"]},
            chat={**WINDOW, "rate": "9/min", "events": ["message"], "scopes": ["chat"]},
        )
        communicator = await opened(around(AsyncEcho, "site"))
        assert held(store) == 1
        for text in ("one", "two"):
            await communicator.send_to(text)
            assert await communicator.receive_from() == text
        await communicator.send_to("three")
        assert (await communicator.receive_json_from())["rule"] == "everywhere"
        await communicator.disconnect()
        assert held(store) == 0

    @BOTH
    @pytest.mark.parametrize("refuse", ["http", "frame"])
    async def test_a_handshake_that_the_inner_one_refuses_is_charged_by_none(
        self, enforce: Enforce, refuse: str
    ) -> None:
        class Strict(AsyncEcho):
            pass

        Strict.refuse = refuse
        knocks = {**WINDOW, "events": ["connect"]}
        store = enforce(
            everywhere={**knocks, "rate": "3/min"},
            stubborn={**knocks, "rate": "4/min", "count_denied": True},
            slots={**TWO_SOCKETS, "scopes": ["site"]},
            chat={**knocks, "rate": "1/min", "scopes": ["chat"]},
        )
        app = around(Strict, "site", "further out")
        first = await opened(app)
        for _ in range(2):
            communicator = socket(app)
            assert (await communicator.connect())[0] is (refuse == "frame")
            await communicator.disconnect()
        left = [
            Limiter([Rule(name, **options)], store).peek("everyone").remaining
            for name, options in {
                "everywhere": {**knocks, "rate": "3/min"},
                "stubborn": {**knocks, "rate": "4/min", "count_denied": True},
            }.items()
        ]
        assert (left, held(store)) == ([2, 1], 1)
        await first.disconnect()

    async def test_each_takes_its_own_slots_and_one_socket_has_them_all(self, enforce: Enforce) -> None:
        store = enforce(site={**TWO_SOCKETS, "scopes": ["site"]}, chat={**TWO_SOCKETS, "limit": 1, "scopes": ["chat"]})
        communicator = await opened(around(AsyncEcho, "site"))
        (found,) = open_sockets.everyone()
        assert (held(store), len(found.leases)) == (2, 2)
        assert store.leases.unreleased() == {lease.id for lease in found.leases}
        assert (await socket(around(AsyncEcho, "site")).connect())[0] is False, "the inner one refuses"
        assert held(store) == 2
        await communicator.disconnect()
        assert held(store) == 0

    async def test_who_is_refused_further_out_is_not_silent_within(self, enforce: Enforce) -> None:
        enforce(outer={"rate": "1/h", "events": ["message"], "key": "connection", "scopes": ["site"]})
        line = Line()
        inner = ThrottleMiddleware(line.echo, "chat", idle_timeout=0.5)
        line.app = ThrottleMiddleware(inner, "site", ladder={"close": 0})
        await line.open()
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            line.send("x")
            await asyncio.sleep(0.02)
        assert line.closed is None
        await line.until(lambda: line.closed)
        assert line.closed["reason"] == "idle"

    async def test_a_lower_limit_of_the_inner_one_reaches_it(self, enforce: Enforce, change: Pin) -> None:
        options: dict[str, Any] = {**TWO_SOCKETS, "scopes": ("chat",), "events": ("connection",)}
        store = enforce(sockets={**options, "limit": 5})

        class Yielding(AsyncEcho):
            throttle_on_rule_change = "close"

        communicators = [await opened(around(Yielding, "site")) for _ in range(3)]
        change(Rule("sockets", **{**options, "limit": 2}))
        assert (await communicators[2].receive_json_from())["rule"] == "sockets"
        assert (await communicators[2].receive_output())["code"] == 4430
        await communicators[2].wait()
        assert held(store) == 2
        for communicator in communicators[:2]:
            await communicator.send_to("still here")
            assert await communicator.receive_from() == "still here"
            await communicator.disconnect()
        assert held(store) == 0

    @pytest.mark.parametrize("rules", [("inside",), ("*",)])
    async def test_a_block_of_the_inner_one_s_rules_closes_it_once(
        self, enforce: Enforce, change: Pin, rules: tuple[str, ...]
    ) -> None:
        knocks = {"key": "ip", "events": ("connect",), "rate": "100/min"}
        enforce(inside={**knocks, "scopes": ["chat"]})
        communicator = await opened(around(AsyncEcho, "site"), client=["203.0.113.9", 1])
        change(Rule("inside", scopes=("chat",), **knocks), overrides=(blocked(rules=rules),))
        assert (await communicator.receive_json_from())["code"] == "blocked"
        closing = await communicator.receive_output()
        assert (closing["type"], closing["code"]) == ("websocket.close", 4403)
        await communicator.wait()
        assert open_sockets.everyone() == ()

    async def test_a_reset_reaches_the_inner_one(self, enforce: Enforce) -> None:
        enforce(
            own={"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra", "scopes": ["chat"]}
        )
        communicator = await opened(around(AsyncEcho, "site"))
        for text in ("in", "over"):
            await communicator.send_to(text)
        assert await communicator.receive_from() == "in"
        assert (await communicator.receive_json_from())["rule"] == "own"
        open_sockets.everyone()[0].reset()
        await asyncio.sleep(0)
        await communicator.send_to("again")
        assert await communicator.receive_from() == "again"
        await communicator.disconnect()

    async def test_an_inner_one_that_is_over_is_forgotten(self, enforce: Enforce) -> None:
        enforce()

        async def twice(scope: Any, receive: Any, send: Any) -> None:
            await ThrottleMiddleware(greets, "chat")(scope, receive, send)
            (found,) = open_sockets.everyone()
            assert found.inner == ()  # type: ignore[attr-defined]
            assert (await receive())["type"] == "websocket.disconnect"

        async def greets(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            (found,) = open_sockets.everyone()
            assert len(tuple(found.all_scopes())) == 2  # type: ignore[attr-defined]
            await send({"type": "websocket.accept"})

        communicator = await opened(ThrottleMiddleware(twice, "site"))
        await communicator.disconnect()

    async def test_what_the_inner_one_says_of_itself_does_not_count_outside(self, enforce: Enforce) -> None:
        enforce(
            own={"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra", "scopes": ["chat"]},
            sends={**WINDOW, "rate": "2/min", "events": ["send"], "scopes": ["site"]},
        )
        communicator = await opened(around(AsyncEcho, "site"))
        for text in ("one", "over"):
            await communicator.send_to(text)
        assert await communicator.receive_from() == "one"
        assert (await communicator.receive_json_from())["rule"] == "own"
        found = open_sockets.everyone()[0]
        assert found.sent == 1
        await communicator.disconnect()

    async def test_a_close_from_elsewhere_reaches_the_application(self, enforce: Enforce) -> None:
        told: list[int] = []

        class Noting(AsyncEcho):
            async def disconnect(self, code: int) -> None:
                told.append(code)

        store = enforce(sockets=TWO_SOCKETS)
        communicator = await opened(around(Noting, "site"))
        open_sockets.everyone()[0].close(4000, "goodbye")
        assert (await communicator.receive_output())["code"] == 4000
        await communicator.wait()
        assert (told, held(store)) == ([4000], 0)

"""Several entry points around one socket: each rule is charged once, and slots come back whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.channels import ThrottleMiddleware
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.core import Rule
from tests.consumers import TWO_SOCKETS, AsyncEcho, PlainEcho, held
from tests.doors import BOTH, Enforce
from tests.sockets.guarded import Line, blocked, only, used

ONE = {**TWO_SOCKETS, "limit": 1}
WINDOW = {"algorithm": "fixed_window", "key": "everyone"}
OWN = {"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}


def line(consumer: Any = AsyncEcho, *scopes: str) -> Line:
    """Return a client of a consumer with a middleware around it, of another scope by default."""
    app = consumer.as_asgi()
    for scope in scopes or ("site",):
        app = ThrottleMiddleware(app, scope)
    return Line(app)


@BOTH
async def test_what_both_match_is_charged_once_and_each_other_rule_too(enforce: Enforce) -> None:
    store = enforce(
        sockets={**TWO_SOCKETS, "scopes": ["*"]},
        room={**ONE, "scopes": ["chat"]},
        everywhere={**WINDOW, "rate": "4/min", "events": ["connect", "message"]},
        site={**WINDOW, "rate": "9/min", "events": ["message"], "scopes": ["site"]},
        chat={**WINDOW, "rate": "9/min", "events": ["message"], "scopes": ["chat"]},
    )
    async with line() as socket:
        leases = only().leases
        assert (held(store), len(leases)) == (2, 2)
        assert store.leases.unreleased() == {lease.id for lease in leases}
        assert (await line().open()).closed, "the inner one refuses"
        assert held(store) == 2
        socket.send("one", "two", "three", "four")
        assert (await socket.error())["rule"] == "everywhere"
        assert socket.frames[:3] == ["one", "two", "three"]
    assert held(store) == 0


@BOTH
@pytest.mark.parametrize("refuse", ["http", "frame"])
async def test_a_handshake_that_the_inner_one_refuses_is_charged_by_none(enforce: Enforce, refuse: str) -> None:
    knocks = {**WINDOW, "events": ["connect"]}
    everywhere, stubborn = {**knocks, "rate": "3/min"}, {**knocks, "rate": "4/min", "count_denied": True}
    store = enforce(
        everywhere=everywhere,
        stubborn=stubborn,
        slots={**TWO_SOCKETS, "scopes": ["site"]},
        chat={**knocks, "rate": "1/min", "scopes": ["chat"]},
    )
    consumer = type("Strict", (AsyncEcho,), {"refuse": refuse})
    async with line(consumer, "site", "further out"):
        for _ in range(2):
            refused = await line(consumer, "site", "further out").open()
            await refused.ended()
            assert refused.closed["code"] == 4429
        rules = Rule("everywhere", **everywhere), Rule("stubborn", **stubborn)
        assert [used(store, "everyone", rule) for rule in rules] == [1, 3]
        assert held(store) == 1


@pytest.mark.parametrize("rules", [("inside",), ("*",)])
async def test_a_block_of_the_rules_of_the_inner_one_closes_it_once(
    enforce: Enforce, change: Any, rules: tuple[str, ...]
) -> None:
    knocks = {"key": "ip", "events": ("connect",), "rate": "100/min", "scopes": ("chat",)}
    enforce(inside=knocks)
    socket = await line().open()
    change(Rule("inside", **knocks), overrides=(blocked(rules=rules),))
    await socket.ended()
    assert [event["type"].partition(".")[2] for event in socket.sent] == ["accept", "send", "close"]
    assert (socket.told("error")[0]["code"], socket.closed["code"]) == ("blocked", 4403)
    assert open_sockets.everyone() == ()


async def test_a_reset_reaches_the_inner_one(enforce: Enforce) -> None:
    """Its error frame does not count outside."""
    sends = {**WINDOW, "rate": "2/min", "events": ["send"], "scopes": ["site"]}
    enforce(own={**OWN, "scopes": ["chat"]}, sends=sends)
    async with line() as socket:
        socket.send("in", "over")
        assert (await socket.error())["rule"] == "own"
        assert only().sent == 1
        only().reset()
        await asyncio.sleep(0)
        socket.send("again")
        await socket.until(lambda: socket.frames[2:] == ["again"])


@pytest.mark.parametrize("kind", [dict, UserDict])
@pytest.mark.parametrize("scopes", [("chat", "chat"), ("chat", "news")])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_consumers_side_by_side(
    enforce: Enforce, kind: Callable[..., Any], scopes: tuple[str, str], order: tuple[int, int]
) -> None:
    """As a demultiplexer has them: both begin at once, and either may end first."""
    store = enforce(sockets={**TWO_SOCKETS, "limit": 4})
    lines = [Line(ThrottleMiddleware(PlainEcho.as_asgi(), scope)) for scope in scopes]
    lines[0].scope = lines[1].scope = shared = kind(lines[0].scope)
    await asyncio.gather(*(each.open() for each in lines))
    assert [each.sent[0]["type"] for each in lines] == ["websocket.accept"] * 2
    assert held(store) > 0
    for place in order:
        await lines[place].close()
    assert (held(store), len(open_sockets), dict(shared).get("django_throttle")) == (0, 0, None)

"""The page on WebSockets is run, and does what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from channels.auth import AuthMiddlewareStack
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.routing import URLRouter
from channels.security.websocket import OriginValidator
from django.urls import path

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.conf import Conf
from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.sockets.error_frames import CLOSE_CODES
from django_throttle.sockets.settings import ON_RULE_CHANGE, SocketSettings
from tests.consumers import opened
from tests.doors import Enforce, enforcer
from tests.pages import DOCS, shown

enforce = pytest.fixture(enforcer)
CONSUMER, MIDDLEWARE, RULES, COST, ROOM, LADDER, COALESCE, OPTIONS = shown("sockets")
PAGE = (DOCS / "reference" / "sockets.rst").read_text(encoding="utf-8")


def run(code: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "__name__": "shown",
        "AsyncJsonWebsocketConsumer": AsyncJsonWebsocketConsumer,
        "ThrottledConsumerMixin": ThrottledConsumerMixin,
        "ThrottleMiddleware": ThrottleMiddleware,
        "AuthMiddlewareStack": AuthMiddlewareStack,
        "URLRouter": URLRouter,
    }
    exec(code, found)
    return found


def echoing(consumer: Any) -> Any:
    async def receive_json(self: Any, content: Any, **_: Any) -> None:
        await self.send_json(content)

    return type("Echo", (consumer,), {"receive_json": receive_json}).as_asgi()


def test_every_rule_makes_sense() -> None:
    rules = {name: Rule.from_options(name, options) for name, options in run(RULES)["DJANGO_THROTTLE"]["RULES"].items()}
    assert describe(rules["outward"]) == "each WebSocket: 50 messages sent per second, bursts up to 50"
    assert describe(rules["volume"]) == "each WebSocket: 100,000 bytes of WebSocket messages per second"


def test_a_socket_makes_room_for_another() -> None:
    (rule,) = (Rule.from_options(name, options) for name, options in run(ROOM)["DJANGO_THROTTLE"]["RULES"].items())
    assert describe(rule) == "each user: 3 open WebSockets at once, a new WebSocket closes the oldest"


async def test_the_consumer_echoes(enforce: Enforce) -> None:
    enforce(**run(RULES)["DJANGO_THROTTLE"]["RULES"])
    communicator = await opened(echoing(run(CONSUMER)["ChatConsumer"]), client=("203.0.113.9", 1))
    told = await echoed(communicator, 0)
    sent = 1
    while told == sent - 1:  # on a slow machine some of the second is over before the limit is reached
        told = await echoed(communicator, sent)
        sent += 1
    assert sent > 50
    assert (told["rule"], told["limit"], told["window"]) == ("inward", 50, 1)
    await communicator.disconnect()


async def echoed(communicator: Any, content: int) -> Any:
    await communicator.send_json_to(content)
    return await communicator.receive_json_from()


def test_the_middleware_stands_inside_the_validator() -> None:
    app = run(MIDDLEWARE)["protected"]([path("chat", run(CONSUMER)["ChatConsumer"].as_asgi())])
    assert isinstance(app, OriginValidator)


async def test_pings_are_free(enforce: Enforce) -> None:
    enforce(own={"rate": "1/min", "events": ["message"], "key": "connection"})
    communicator = await opened(echoing(run(COST)["DocumentConsumer"]))
    for _ in range(5):
        await communicator.send_to('{"type": "ping"}')
        assert await communicator.receive_json_from() == {"type": "ping"}
    await communicator.disconnect()


async def test_the_ladder(enforce: Enforce) -> None:
    enforce(own={"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"})
    consumer = run(LADDER)["StrictConsumer"]
    terms = SocketSettings("chat", ladder=consumer.throttle_ladder)
    steps = [terms.action(n) for n in range(1, 21)]
    assert steps == ["drop"] * 2 + ["error"] * 2 + ["delay"] * 15 + ["close"]
    communicator = await opened(echoing(consumer))
    for n in range(4):
        await communicator.send_json_to(n)
    assert await communicator.receive_json_from() == 0
    assert set((await communicator.receive_json_from())["error"]) == {"code", "seconds"}
    await communicator.disconnect()


async def test_the_newest_of_each_symbol(enforce: Enforce) -> None:
    enforce(outward={"rate": "1/100ms", "events": ["send"], "key": "connection", "algorithm": "gcra"})
    communicator = await opened(echoing(run(COALESCE)["TickerConsumer"]))
    for price in range(4):
        await communicator.send_json_to({"symbol": "ABC", "price": price})
    assert (await communicator.receive_json_from())["price"] == 0
    dropped = await communicator.receive_json_from()
    assert (dropped["type"], dropped["lost"]) == ("dropped", 2)
    assert (await communicator.receive_json_from())["price"] == 3
    await communicator.disconnect()


def test_the_options_of_the_middleware() -> None:
    app = run(OPTIONS)["strict"](None)
    app.settings.check()
    assert app.settings.lifetimes() == (600, 86400)


def test_codes_settings_and_words_are_those_that_there_are() -> None:
    for word, code in CLOSE_CODES.items():
        assert f"``{word}``" in PAGE
        assert f"\n{code}  " in PAGE
    for setting in ("SOCKET_ACCEPT_TIMEOUT", "SOCKET_IDLE_TIMEOUT", "SOCKET_MAX_AGE"):
        assert f"``{setting}`` ({f'{getattr(Conf(), setting):g} s' if getattr(Conf(), setting) else 'off'})" in PAGE
    for word in ON_RULE_CHANGE:
        assert f'``"{word}"``' in PAGE
    frames = [json.loads(block) for block in _json()]
    assert [frame["type"] for frame in frames] == ["error", "continuity_lost"]


def _json() -> list[str]:
    blocks = PAGE.split(".. code-block:: json\n\n")[1:]
    return [block.split("\n\n")[0] for block in blocks]

"""The code on the page about WebSockets is run, and does what the page says."""

from __future__ import annotations

import json
import re
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
from tests import pages
from tests.doors import Enforce
from tests.sockets.guarded import Line

CONSUMER, MIDDLEWARE, RULES, COST, ROOM, LADDER, COALESCE, _LOGIN, OPTIONS = pages.shown("sockets")
PAGE = (pages.DOCS / "reference" / "sockets.rst").read_text(encoding="utf-8")
NAMES = (AsyncJsonWebsocketConsumer, ThrottledConsumerMixin, ThrottleMiddleware, URLRouter)
OWN = {"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
pytestmark = pytest.mark.usefixtures("loop_clock")


def run(code: str) -> Any:
    names = {name.__name__: name for name in NAMES}
    return pages.run(code, AuthMiddlewareStack=AuthMiddlewareStack, **names)


def rules(code: str) -> dict[str, Any]:
    return run(code)["DJANGO_THROTTLE"]["RULES"]


def echoing(consumer: Any) -> Line:
    async def receive_json(self: Any, content: Any, **_: Any) -> None:
        await self.send_json(content)

    return Line(type("Echo", (consumer,), {"receive_json": receive_json}).as_asgi())


def test_every_rule_makes_sense() -> None:
    found = {name: describe(Rule.from_options(name, rule)) for name, rule in (rules(RULES) | rules(ROOM)).items()}
    assert found["outward"] == "each WebSocket: 50 messages sent per second, bursts up to 50"
    assert found["volume"] == "each WebSocket: 100,000 bytes of WebSocket messages per second"
    assert "each user: 3 open WebSockets at once, a new WebSocket closes the oldest" in found.values()


async def test_the_consumer_echoes(enforce: Enforce) -> None:
    enforce(**rules(RULES))
    async with echoing(run(CONSUMER)["ChatConsumer"]) as line:
        line.send(*map(str, range(51)))
        error = await line.error()
        assert (error["rule"], error["limit"], error["window"]) == ("inward", 50, 1)
        assert line.frames[:50] == list(range(50))


def test_the_middleware_stands_inside_the_validator() -> None:
    app = run(MIDDLEWARE)["protected"]([path("chat", run(CONSUMER)["ChatConsumer"].as_asgi())])
    assert isinstance(app, OriginValidator)


async def test_pings_are_free(enforce: Enforce) -> None:
    enforce(own=OWN)
    async with echoing(run(COST)["DocumentConsumer"]) as line:
        line.send(*['{"type": "ping"}'] * 5)
        await line.until(lambda: line.frames == [{"type": "ping"}] * 5)


async def test_the_ladder(enforce: Enforce) -> None:
    enforce(own=OWN)
    consumer = run(LADDER)["StrictConsumer"]
    terms = SocketSettings("chat", ladder=consumer.throttle_ladder)
    steps = [terms.action(n) for n in range(1, 21)]
    assert steps == ["drop"] * 2 + ["error"] * 2 + ["delay"] * 15 + ["close"]
    async with echoing(consumer) as line:
        line.send(*(f'{{"id": {number}}}' for number in range(4)))
        await line.until(lambda: len(line.frames) == 2)
        refused = line.frames[1]
        assert (line.frames[0], refused["re"], set(refused["error"])) == ({"id": 0}, 3, {"code", "seconds"})


async def test_the_newest_of_each_symbol(enforce: Enforce) -> None:
    enforce(outward={**OWN, "rate": "1/s", "events": ["send"]})
    async with echoing(run(COALESCE)["TickerConsumer"]) as line:
        line.send(*(f'{{"symbol": "ABC", "price": {price}}}' for price in range(4)))
        await line.until(lambda: len(line.frames) == 3)
        first, dropped, last = line.frames
        assert (first["price"], dropped["type"], dropped["lost"], last["price"]) == (0, "dropped", 2, 3)


def test_the_options_of_the_middleware() -> None:
    terms = run(OPTIONS)["strict"](None).settings
    terms.check()
    assert terms.lifetimes() == (600, 86400)


def test_codes_settings_and_words_are_those_that_there_are() -> None:
    for word, code in CLOSE_CODES.items():
        assert f"``{word}``" in PAGE
        assert f"\n{code}  " in PAGE
    for setting in ("SOCKET_ACCEPT_TIMEOUT", "SOCKET_IDLE_TIMEOUT", "SOCKET_MAX_AGE"):
        default = getattr(Conf(), setting)
        assert f"``{setting}`` ({f'{default:g} s' if default else 'off'})" in PAGE
    for word in ON_RULE_CHANGE:
        assert f'``"{word}"``' in PAGE
    frames = re.findall(r"\.\. code-block:: json\n\n(.*?)\n\n", PAGE, re.DOTALL)
    assert [json.loads(frame)["type"] for frame in frames] == ["error", "continuity_lost"]

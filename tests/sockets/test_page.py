"""The code on the page about WebSockets is run, and does what the page says."""

from __future__ import annotations

from typing import Any

import pytest
from channels.auth import AuthMiddlewareStack
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.routing import URLRouter
from channels.security.websocket import OriginValidator
from django.urls import path

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.core import Rule
from tests import pages
from tests.doors import Enforce
from tests.sockets.guarded import Line

CONSUMER, MIDDLEWARE, RULES, COST, ROOM, LADDER, COALESCE, _LOGIN, OPTIONS = pages.shown("sockets")
NAMES = (AsyncJsonWebsocketConsumer, ThrottledConsumerMixin, ThrottleMiddleware, URLRouter)
OWN = {"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}


def run(code: str) -> Any:
    return pages.run(code, AuthMiddlewareStack=AuthMiddlewareStack, **{name.__name__: name for name in NAMES})


def test_rules_and_middleware() -> None:
    for code in (RULES, ROOM):
        for name, options in run(code)["DJANGO_THROTTLE"]["RULES"].items():
            assert Rule.from_options(name, options)
    app = run(MIDDLEWARE)["protected"]([path("chat", run(CONSUMER)["ChatConsumer"].as_asgi())])
    assert isinstance(app, OriginValidator)
    terms = run(OPTIONS)["strict"](None).settings
    terms.check()
    assert terms.lifetimes() == (600, 86400)


PRICES = [f'{{"symbol": "ABC", "price": {price}}}' for price in range(4)]


@pytest.mark.usefixtures("loop_clock")
@pytest.mark.parametrize(
    ("code", "name", "event", "sent", "keys"),
    [
        (COST, "DocumentConsumer", "message", ['{"type": "ping"}'] * 3, ["type", "type", "type"]),
        (LADDER, "StrictConsumer", "message", [f'{{"id": {number}}}' for number in range(4)], ["id", "re"]),
        (COALESCE, "TickerConsumer", "send", PRICES, ["price", "lost", "price"]),
    ],
    ids=["cost", "ladder", "coalesce"],
)
async def test_consumers(enforce: Enforce, code: str, name: str, event: str, sent: list[str], keys: list[str]) -> None:
    async def receive_json(self: Any, content: Any, **_: Any) -> None:
        await self.send_json(content)

    enforce(own={**OWN, "rate": "1/s" if event == "send" else "1/min", "events": [event]})
    consumer = type("Echo", (run(code)[name],), {"receive_json": receive_json})
    async with Line(consumer.as_asgi()) as line:
        line.send(*sent)
        await line.until(lambda: len(line.frames) == len(keys))
        assert all(key in frame for key, frame in zip(keys, line.frames, strict=True))

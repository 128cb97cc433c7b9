"""Whatever consumers, and what stands around them, do to the scope of a socket, its slots come back."""

from __future__ import annotations

import asyncio
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.channels import ThrottleMiddleware
from django_throttle.connections.open_sockets import open_sockets
from tests.consumers import TWO_SOCKETS, AsyncEcho, PlainEcho, held, opened, socket
from tests.doors import Enforce

CONNECT: dict[str, Any] = {"type": "websocket.connect"}


class Failure(Exception):
    """An error of the site's own."""


def without(scope: Any) -> None:
    del scope["django_throttle"]


def frozen(scope: Any) -> None:
    """A scope that answers nothing any more."""
    for name in list(scope):
        del scope[name]
    scope["django_throttle"] = 42


class Events:
    """The events that several consumers of one socket each receive."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.receive = self.queue.get

    def put(self, *events: dict[str, Any]) -> None:
        for event in events:
            self.queue.put_nowait(event)

    async def send(self, event: dict[str, Any]) -> None:
        self.put(event)


@pytest.mark.parametrize("guard", ["mixin", "middleware", "both"])
@pytest.mark.parametrize("spoil", [dict.clear, without, frozen])
async def test_a_consumer_that_empties_it(enforce: Enforce, spoil: Callable[[Any], None], guard: str) -> None:
    class Spoiling:
        async def disconnect(self, code: int) -> None:
            spoil(self.scope)  # type: ignore[attr-defined]
            raise Failure

    base = PlainEcho if guard == "middleware" else AsyncEcho
    app = type("Consumer", (Spoiling, base), {}).as_asgi()
    app = app if guard == "mixin" else ThrottleMiddleware(app, "around")
    store = enforce(sockets=TWO_SOCKETS)
    for _ in range(4):
        communicator = await opened(app)
        assert held(store) == 1
        with pytest.raises(Failure) as raised:
            await communicator.disconnect()
        assert raised.value.__context__ is None, "nothing else is logged"
        assert (held(store), len(open_sockets)) == (0, 0)


@pytest.mark.parametrize("kind", [dict, UserDict])
async def test_consumers_side_by_side(enforce: Enforce, kind: Callable[..., Any]) -> None:
    """As a demultiplexer has them: both begin at once, and either may end first."""
    store = enforce(sockets={**TWO_SOCKETS, "limit": 4})
    for scopes in (("chat", "chat"), ("chat", "news")):
        for order in ((0, 1), (1, 0)):
            scope = kind(socket().scope)
            parts = [Events(), Events()]
            apps = [ThrottleMiddleware(PlainEcho.as_asgi(), scope) for scope in scopes]
            pairs, sent = zip(apps, parts, strict=True), Events()
            both = [asyncio.create_task(app(scope, part.receive, sent.send)) for app, part in pairs]
            await asyncio.sleep(0)  # both wait for their first event
            for part in parts:
                part.put(CONNECT)
            assert [(await sent.receive())["type"] for _ in both] == ["websocket.accept"] * 2
            assert held(store) > 0
            for place in order:
                parts[place].put({"type": "websocket.disconnect", "code": 1000})
                await both[place]
            assert (held(store), len(open_sockets), dict(scope).get("django_throttle")) == (0, 0, None)

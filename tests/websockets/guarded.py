"""Sockets without a server, driven frame by frame: what an application gets, what a client is sent."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

from django_throttle import rulebook
from django_throttle.channels import ThrottleMiddleware
from django_throttle.core import Override, Rule
from django_throttle.limiter import Limiter
from django_throttle.local.open_sockets import OpenSocket, open_sockets
from django_throttle.stores import AnyStore, RedisStore, get_store
from django_throttle.websockets.error_frames import Event
from tests.servers import slack

Live = Callable[..., RedisStore]
PATIENCE = 60.0  # also of a clock that passes at once
ADDRESS = "203.0.113.9"
IDENT = f"ip:{ADDRESS}"
SOCKETS: dict[str, Any] = {"algorithm": "concurrency", "events": ("connection",), "key": "ip"}
ports = itertools.count(1024)


async def becomes(condition: Callable[[], Any]) -> None:
    """Wait for what no event tells of."""
    async with asyncio.timeout(slack(PATIENCE)):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def live_enforcer(redis_url: str, settings: Any) -> Live:
    """Puts rules in force on a real Redis by its own clock; what has a name in capitals is a setting."""

    def enforce(**given: Any) -> RedisStore:
        rules = {name: options for name, options in given.items() if not name.isupper()}
        own = {name: value for name, value in given.items() if name.isupper()}
        calm = {"DATABASE_RULES": False, "RETRY_JITTER": 0.0, "DEADLINE": 5.0, "REDIS": redis_url}
        settings.DJANGO_THROTTLE = {"RULES": rules, **calm, **own}
        store = get_store()
        assert isinstance(store, RedisStore)
        return store

    return enforce


class Line:
    """One client on its line to an application: ``got`` by the application, ``sent`` to the client.

    The application is ``app``, or one behind the middleware: ``inside`` it, else one that echoes.
    """

    def __init__(
        self, app: Any = None, scope: str = "chat", *, address: str = ADDRESS, user: Any = None, inside: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.got: list[Event] = []
        self.sent: list[Event] = []
        self.app = app or ThrottleMiddleware(inside or self.echo, scope, **options)
        self.scope = {"type": "websocket", "path": "/chat", "client": [address, next(ports)], "headers": []}
        self.scope |= {"user": user} if user else {}
        self.queue: asyncio.Queue[Event] = asyncio.Queue()
        self.news = asyncio.Event()
        self.task: Any = None
        self.say: Any = None  # what the application sends with

    async def open(self) -> Line:
        self.queue.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.ensure_future(self.app(self.scope, self.queue.get, self.take))
        await self.until(lambda: self.sent or self.task.done())
        return self

    def send(self, *texts: str) -> None:
        for text in texts:
            self.queue.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def close(self) -> None:
        self.leave()
        await self.ended()

    async def ended(self) -> None:
        """Wait for the application to end; raises what it raises."""
        async with asyncio.timeout(slack(PATIENCE)):
            await self.task

    async def __aenter__(self) -> Line:
        return self if self.task else await self.open()

    async def __aexit__(self, *error: object) -> None:
        if not self.task.done():
            await self.close()

    async def error(self, number: int = 1) -> dict[str, Any]:
        await self.until(lambda: len(self.told("error")) >= number)
        return self.told("error")[-1]

    async def closing(self) -> Event:
        await self.until(lambda: self.closed)
        return self.closed

    async def received(self, number: int) -> list[str]:
        """The texts of all frames that the application got, once there are so many."""
        await self.until(lambda: len(texts(self)) >= number)
        return texts(self)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for this, which an event of the line brings about most of the time."""
        async with asyncio.timeout(slack(PATIENCE)):
            while not condition():
                self.news.clear()
                waiting = asyncio.ensure_future(self.news.wait())
                tasks = {waiting, self.task} if self.task is not None and not self.task.done() else {waiting}
                await asyncio.wait(tasks, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()

    @property
    def frames(self) -> list[Any]:
        return [_decoded(event.get("text")) for event in self.sent if event["type"] == "websocket.send"]

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if isinstance(frame, dict) and frame.get("type") == kind]

    @property
    def closed(self) -> Event | None:
        return next((event for event in self.sent if event["type"] == "websocket.close"), None)

    async def echo(self, scope: Any, receive: Any, send: Any) -> None:
        self.say = send
        await receive()
        await send({"type": "websocket.accept"})
        event: Event = {}
        while event.get("type") != "websocket.disconnect":
            self.got.append(event := await receive())
            self.news.set()
            if "text" in event:
                await send({"type": "websocket.send", "text": event["text"]})

    async def take(self, event: Event) -> None:
        self.sent.append(event)
        self.news.set()


def accepting(go_on: Callable[[Any, Any], Any]) -> Any:
    """An application that accepts, and goes on with ``receive`` and ``send``."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await go_on(receive, send)

    return app


def _decoded(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except ValueError:
        return text


def texts(line: Line) -> list[str]:
    return [event["text"] for event in line.got if event["type"] == "websocket.receive"]


def used(store: AnyStore, ident: str = IDENT, rule: Rule | None = None) -> int:
    decision = Limiter([rule or rulebook.current().rules[0]], store).peek(ident)
    assert not decision.degraded
    return decision.limit - decision.remaining


def blocked(subject: str = IDENT, **options: Any) -> Override:
    return Override(subject=subject, effect="block", **options)


def only() -> OpenSocket:
    (found,) = open_sockets.all()
    return found


class Deaf(Line):
    async def take(self, event: Any) -> None:
        if event["type"] != "websocket.accept":
            await asyncio.Event().wait()
        await super().take(event)

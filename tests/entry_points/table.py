"""The entry points: where limits apply, and how a call is made there.

A new entry point is a row of ENTRY_POINTS. Every expectation of ``test_entry_points.py`` whose trait the row has is
then a test of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from math import ceil
from typing import Any, ClassVar, Final, NamedTuple

import httpx
import pytest
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from django_throttle import rulebook
from django_throttle.channels import throttled_group_send, throttled_group_send_sync
from django_throttle.contrib.httpx import AsyncThrottledTransport, CallRefused, ThrottledTransport
from django_throttle.exceptions import Refused
from django_throttle.limiter import Limiter
from django_throttle.stores import get_store
from tests.consumers import DENIAL, opened, socket
from tests.entry_points import site

ALLOWED, REFUSED, UNAVAILABLE = "allowed", "refused", "unavailable"


class Answer(NamedTuple):
    """The verdict on a call, and what its caller is told: seconds to wait, and the calls that remain."""

    verdict: str
    retry_after: int | None = None
    remaining: int | None = None

    @classmethod
    def of(cls, verdict: str, seconds: Any = None, remaining: Any = None) -> Answer:
        whole = [None if number is None else ceil(float(number)) for number in (seconds, remaining)]
        return cls(verdict, *whole)


class EntryPoint:
    """A place where limits apply. Subclasses say how a call is made there and who makes it.

    Traits: ``rules`` are those in force, ``cost`` is what a call says, ``refund`` follows from the answer, ``lease`` is
    held during the call, ``params`` of a user, ``override`` of the caller, ``delay`` is waited for, ``told`` is what
    remains.
    """

    key, ident = "user", "user:1"
    event, lease_event = "request", "inflight"
    traits: ClassVar[frozenset[str]] = frozenset({"rules", "cost", "override", "lease", "plan", "delay", "told"})

    def __init__(self, name: str, *, lacks: str = "") -> None:
        self.name = name
        self.traits = type(self).traits - {*lacks.split()}  # type: ignore[misc]

    def __str__(self) -> str:
        return self.name

    def start(self, run: Callable[[Any], Any], settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = run

    def call(self, *, cost: int = 1, user: bool = False, doing: str = "ok") -> Answer:
        """Make one call, by a user or by nobody, and return what came of it."""
        raise NotImplementedError

    def end(self) -> None:
        """Close what is open."""


class Http(EntryPoint):
    """A view of the site, asked as a server of WSGI or ASGI would."""

    key, ident = "ip", "ip:127.0.0.1"
    traits = EntryPoint.traits | {"refund"}

    def __init__(self, name: str, path: str, *, server: str = "wsgi", **options: Any) -> None:
        super().__init__(name, **options)
        self.path, self.server = path, server

    def start(self, run: Callable[[Any], Any], settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        super().start(run, settings, monkeypatch)
        settings.ROOT_URLCONF = site.__name__
        settings.MIDDLEWARE = [f"{site.__name__}.log_in", *(site.MIDDLEWARE if "middleware" in self.path else [])]

    def get(self, doing: str = "ok", **headers: str) -> Any:
        address = self.path.format(doing)
        if self.server == "asgi":
            return self.run(self.aget(address, headers))
        response = Client(raise_request_exception=False).get(address, headers=headers)
        if response.streaming:
            b"".join(response)  # type: ignore[arg-type]
        return response

    async def aget(self, address: str, headers: dict[str, str]) -> Any:
        response = await AsyncClient(raise_request_exception=False).get(address, headers=headers)
        if response.streaming:
            b"".join([part async for part in response])
        return response

    def call(self, *, cost: int = 1, user: bool = False, doing: str = "ok") -> Answer:
        response = self.get(doing, **{"X-Cost": str(cost)}, **({"X-User": "1"} if user else {}))
        remaining = re.search(r";r=(\d+)", response.get("RateLimit", ""))
        verdict = {429: REFUSED, 503: UNAVAILABLE}.get(response.status_code, ALLOWED)
        return Answer.of(verdict, response.get("Retry-After"), remaining and remaining[1])


class Frames(EntryPoint):
    """A socket of the site; a call is a frame on it."""

    key, ident = "ip", "ip:127.0.0.1"
    event = "message"
    traits = EntryPoint.traits - {"lease", "delay"}
    open: Any = None

    def start(self, run: Callable[[Any], Any], settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        super().start(run, settings, monkeypatch)
        seconds = itertools.count(0.0, 100.0)  # a socket gets few error frames in a second
        monkeypatch.setattr("django_throttle.websockets.error_frames.monotonic", lambda: next(seconds))

    def call(self, *, cost: int = 1, user: bool = False, doing: str = "ok") -> Answer:
        return self.run(self.acall(cost, user))

    async def acall(self, cost: int, user: bool) -> Answer:
        if self.open is None:
            scope: dict[str, Any] = {"user": User(pk=1)} if user else {}
            self.open = await opened(site.SOCKETS[self.name.partition(": ")[2]], client=("127.0.0.1", 1), **scope)
        await self.open.send_to(str(cost))
        text = await self.open.receive_from()
        if text == str(cost):
            return Answer(ALLOWED)
        frame = json.loads(text)
        verdict = UNAVAILABLE if frame["code"] == "limiter_unavailable" else REFUSED
        return Answer.of(verdict, frame["retry_after"], frame["remaining"])

    def end(self) -> None:
        if self.open is not None:
            self.run(self.open.disconnect())
            self.open = None


class Handshake(EntryPoint):
    """The handshake of a socket; a socket that is let in is closed at once."""

    key, ident = "ip", "ip:127.0.0.1"
    event, lease_event = "connect", "connection"
    traits = EntryPoint.traits - {"cost", "told", "lease"}

    def call(self, *, cost: int = 1, user: bool = False, doing: str = "ok") -> Answer:
        return self.run(self.acall(user))

    async def acall(self, user: bool) -> Answer:
        scope: dict[str, Any] = {"client": ("127.0.0.1", 1)} | ({"user": User(pk=1)} if user else {})
        communicator = socket(site.SOCKETS["consumer"], extensions=DENIAL, **scope)
        await communicator.send_input({"type": "websocket.connect"})
        first = asyncio.create_task(communicator.receive_output())
        await asyncio.wait({first, communicator.future}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done() and communicator.output_queue.empty():
            first.cancel()
            await communicator.future  # raises what has ended it
        start = await first
        if start["type"] == "websocket.accept":
            await communicator.disconnect()
            return Answer(ALLOWED)
        await communicator.wait()
        verdict = {429: REFUSED, 503: UNAVAILABLE}[start["status"]]
        return Answer.of(verdict, dict(start["headers"]).get(b"retry-after"))


class Call(EntryPoint):
    """A callable that raises Refused; ``make`` gets the user, and the cost where it is not 1."""

    def __init__(
        self, name: str, make: Callable[..., Any], *, awaits: bool = False, event: str = "request", **options: Any
    ) -> None:
        super().__init__(name, **options)
        self.make, self.awaits, self.event = make, awaits, event

    def call(self, *, cost: int = 1, user: bool = False, doing: str = "ok") -> Answer:
        given = {} if cost == 1 else {"cost": cost}
        try:
            made = self.make(User(pk=1), **given)
            if self.awaits:
                self.run(made)
        except (Refused, CallRefused) as error:
            decision = error.decision
            verdict = UNAVAILABLE if decision.unavailable else REFUSED
            return Answer.of(verdict, decision.retry_after, decision.remaining)
        return Answer(ALLOWED)


def transport_of(kind: Any, answer: Callable[..., Any]) -> Any:
    return kind(site.RULE, httpx.MockTransport(answer), ident="user:1", max_wait=0)


def transport(user: User) -> None:
    with httpx.Client(transport=transport_of(ThrottledTransport, site.answered)) as client:
        client.get("http://shop.example/")


async def atransport(user: User) -> None:
    async with httpx.AsyncClient(transport=transport_of(AsyncThrottledTransport, site.aanswered)) as client:
        await client.get("http://shop.example/")


MESSAGE = {"type": "news.item"}


def publish(user: User) -> None:
    throttled_group_send_sync("news", MESSAGE, publisher="user:1")


async def apublish(user: User) -> None:
    await throttled_group_send("news", MESSAGE, publisher="user:1")


def acquire(user: User, cost: int = 1) -> None:
    limiter = Limiter(rulebook.current().rules, get_store())
    decision = limiter.acquire("user:1", cost)
    site.seen.append(len(limiter.store.leases))
    limiter.release(decision.lease)
    if not decision.allowed:
        raise Refused(decision)


async def aacquire(user: User, cost: int = 1) -> None:
    limiter = Limiter((await rulebook.acurrent()).rules, get_store())
    decision = await limiter.aacquire("user:1", cost)
    site.seen.append(len(limiter.store.leases))
    await limiter.arelease(decision.lease)
    if not decision.allowed:
        raise Refused(decision)


DROP_IN = "rules cost refund lease plan delay"
ENTRY_POINTS: Final = (
    Http("middleware", "/middleware/{}", lacks="cost"),
    Http("middleware on ASGI", "/middleware/{}", server="asgi", lacks="cost"),
    Http("middleware, asynchronous view", "/async-middleware/{}", server="asgi", lacks="cost"),
    Http("RuleThrottle", "/drf/{}"), Http("RuleThrottle on ASGI", "/drf/{}", server="asgi"),
    Http("RuleThrottle, asynchronous view", "/async-drf/{}", server="asgi"),
    Http("drop-in", "/drop-in/{}", lacks=DROP_IN),
    Http("drop-in, asynchronous view", "/async-drop-in/{}", server="asgi", lacks=DROP_IN),
    Http("decorator", "/decorated/{}"), Http("decorator, asynchronous view", "/async-decorated/{}", server="asgi"),
    Http("decorator on WSGI, asynchronous view", "/async-decorated/{}"), Http("decorated class", "/class/{}"),
    Http("decorated class, asynchronous", "/async-class/{}", server="asgi"),
    Http("decorated method of a REST view", "/method/{}"), Http("decorated operation of Ninja", "/ninja/sync/{}"),
    Http("decorated operation of Ninja, asynchronous", "/ninja/async/{}", server="asgi"),
    Call("decorated function", site.function), Call("decorated function, asynchronous", site.afunction, awaits=True),
    Frames("frames: consumer"), Frames("frames: synchronous consumer"), Frames("frames: ASGI middleware"),
    Handshake("handshake"), Call("publication", publish, event="publish", lacks="cost lease"),
    Call("publication, asynchronous", apublish, awaits=True, event="publish", lacks="cost lease"),
    Call("task function", site.task_function, event="task"),
    Call("task of Django", site.django_task.call, event="task"),
    Call("task of Django, asynchronous", site.adjango_task.acall, awaits=True, event="task"),
    Call("transport of httpx", transport, lacks="cost override delay"),
    Call("transport of httpx, asynchronous", atransport, awaits=True, lacks="cost override delay"),
    Call("Limiter", acquire, lacks="override plan delay"),
    Call("Limiter, asynchronous", aacquire, awaits=True, lacks="override plan delay"),
)  # fmt: skip


def entry_points(*traits: str) -> Any:
    """Parametrize a test by the entry points that have these traits."""
    rows = [row for row in ENTRY_POINTS if row.traits.issuperset(traits)]
    return pytest.mark.parametrize("entry_point", rows, ids=str, indirect=True)

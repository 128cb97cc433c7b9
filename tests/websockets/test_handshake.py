"""The handshake: one decision, also of several entry points around a socket, and how a client is told of a refusal."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from channels.security.websocket import AllowedHostsOriginValidator
from django.contrib.auth.models import User
from hypercorn.protocol.ws_stream import WSStream

from django_throttle.channels import ThrottleMiddleware
from django_throttle.core import Decision, Rule
from django_throttle.core.commands import DecideLocally
from django_throttle.exceptions import Cause, StoreError
from django_throttle.local.open_sockets import open_sockets
from django_throttle.observe.reports import ident_for_logs
from django_throttle.websockets.error_frames import Close, refuse_handshake
from django_throttle.websockets.server_stream import is_closed_by_server
from tests.clock import FrozenClock
from tests.consumers import DENIAL, TWO_SOCKETS, AsyncEcho, handshake, held
from tests.doors import BOTH, REDIS, Enforce
from tests.inside import commands_to
from tests.websockets.guarded import ADDRESS, Line, blocked, only, used
from tests.websockets.servers import CAP, HEADERS, Server, Visitor, echo

ONE = {**TWO_SOCKETS, "limit": 1}
WINDOW = {"algorithm": "fixed_window", "key": "everyone"}
OWN = {"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
KNOCKS = {"rate": "1/min", "events": ["connect"], "key": "everyone", "algorithm": "fixed_window"}


class Browser(AsyncEcho):
    refuse = "frame"


async def is_let_in(headers: Any = (), **options: Any) -> bool:
    line = Line(**options)
    line.scope["headers"] = list(headers)
    async with line:
        return line.closed is None


async def test_a_refusal_is_an_http_response_where_the_server_takes_one(enforce: Enforce, clock: FrozenClock) -> None:
    enforce(knocks=KNOCKS)
    clock.to(12.5)
    assert await is_let_in()
    start, body = await handshake(extensions=DENIAL)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    headers = dict(start["headers"])
    assert (headers[b"retry-after"], headers[b"content-type"]) == (b"48", b"application/problem+json")
    assert int(headers[b"content-length"]) == len(body["body"])
    assert (body["type"], body["more_body"]) == ("websocket.http.response.body", False)
    assert json.loads(body["body"]) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Rate limit exceeded",
        "status": 429,
        "detail": "Rate limit exceeded. Try again in 48 seconds.",
        "violated-policies": ["knocks"],
        "reference": ident_for_logs("everyone"),
    }


async def test_a_handshake_that_never_passes_has_no_retry_after() -> None:
    line, never, close = Line(), Decision(allowed=False, retry_after=None), Close(4430, "rate limited")
    for scope in ({"extensions": DENIAL}, {}):
        await refuse_handshake(scope, line.take, never, close, by="http")
    start, body, closed = line.sent
    assert b"retry-after" not in dict(start["headers"])
    detail = "Rate limit exceeded. This costs more than the limit ever allows."
    assert (json.loads(body["body"])["detail"], closed["reason"]) == (detail, "rate limited")


async def test_a_refusal_in_a_frame_is_accepted_told_and_closed(enforce: Enforce) -> None:
    enforce(sockets=ONE)
    async with Line():
        accept, frame, close = await handshake(Browser.as_asgi(), subprotocols=["v2", "v1"], extensions=DENIAL)
    assert accept == {"type": "websocket.accept", "subprotocol": "v2"}
    error = json.loads(frame["text"])
    assert (error["type"], error["code"], error["rule"]) == ("error", "connection_limit", "sockets")
    assert (error["limit"], error["remaining"], error["window"]) == (1, 0, None)
    assert (close["type"], close["code"]) == ("websocket.close", 4430)
    assert close["reason"].startswith("connection limit; retry_after=")


@pytest.mark.row("A41")
@REDIS
async def test_a41_another_site_s_page_takes_no_lease(enforce: Enforce, settings: Any, monkeypatch: Any) -> None:
    """The validator stands before the consumer, so nothing is even asked."""
    settings.ALLOWED_HOSTS = ["ours.example"]
    store = enforce(sockets=TWO_SOCKETS)
    asked = commands_to(store, monkeypatch)
    app: Any = AllowedHostsOriginValidator(AsyncEcho.as_asgi())
    for origin in (b"https://evil.example", b"https://ours.example.evil.example", b"null", b""):
        assert not await is_let_in([(b"origin", origin)], app=app)
    assert (asked, held(store)) == ([], 0)
    assert await is_let_in([(b"origin", b"https://ours.example")], app=app)
    assert asked


@pytest.mark.row("A47")
@pytest.mark.row("A48")
async def test_users_are_kept_out_by_themselves_alone_and_learn_no_more(enforce: Enforce) -> None:
    store = enforce(**{"plan-of-42": {**ONE, "key": "user_or_ip"}})
    async with Line(), Line(user=User(pk=1)), Line(user=User(pk=2)):
        assert held(store) == 3
        for caller in ({}, {"user": User(pk=1)}, {"user": User(pk=2)}):
            (close,) = await handshake(client=[ADDRESS, 1], **caller)
            reason, _, seconds = close["reason"].partition("; retry_after=")
            assert (close["code"], reason, seconds.isdigit()) == (4430, "connection limit", True)
    assert held(store) == 0


@pytest.mark.row("A48")
@pytest.mark.parametrize("cause", Cause)
async def test_a_store_that_fails_is_not_described(enforce: Enforce, monkeypatch: Any, cause: Cause) -> None:
    store = enforce(knocks={**KNOCKS, "on_store_failure": "deny"})

    async def fail(command: Any) -> Any:
        if isinstance(command, DecideLocally):
            return store.execute(command)
        raise StoreError(cause, retry_after=2.5) from ConnectionError("redis://:secret@10.0.0.7:6379")

    monkeypatch.setattr(store, "aexecute", fail)
    (close,) = await handshake()
    assert (close["code"], close["reason"]) == (4503, "limiter unavailable; retry_after=3")
    start, body = await handshake(extensions=DENIAL)
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"3")
    problem = json.loads(body["body"])
    assert problem["type"].endswith("#temporary-reduced-capacity")
    assert problem["detail"] == "The limiter is unavailable. Try again in 3 seconds."
    _, frame, close = await handshake(Browser.as_asgi(), extensions=DENIAL)
    assert (json.loads(frame["text"])["code"], close["code"]) == ("limiter_unavailable", 4503)
    assert "secret" not in str((start, body, frame))


FRAME = b"\x81\x85\x00\x00\x00\x00hello"  # masked, as a client must


async def test_sockets_that_hypercorn_has_refused_hold_no_slot(serve: Callable[..., list[Server]]) -> None:
    (hypercorn,) = serve("hypercorn")
    for path in ("chat", "sync", "middleware"):
        visitor = Visitor(hypercorn)
        head = HEADERS.format(path=visitor.address(path), port=hypercorn.port, key="AAAAAAAAAAAAAAAAAAAAAA==").encode()
        for _ in range(2 * CAP):
            reader, writer = await asyncio.open_connection("127.0.0.1", hypercorn.port)
            writer.write(head + FRAME)
            # 400 by the server, or 403 while the slots of earlier ones are still held
            assert (await reader.readline()).split()[1] in (b"400", b"403")
            writer.close()
        await visitor.holds(0)
        async with visitor.open(path) as connection:
            await echo(connection)
        await visitor.holds(0)


class Session:
    """Wraps ``send`` as Channels' middleware of sessions does."""

    def __init__(self, send: Any) -> None:
        self.real_send = send

    async def send(self, event: Any) -> None:
        await self.real_send(event)


def wrap(send: Any) -> Any:
    async def wrapped(event: Any) -> None:
        await send(event)

    return wrapped


@pytest.mark.parametrize("closed", [False, True])
def test_the_middleware_of_a_site_does_not_hide_it(closed: bool) -> None:
    stream: Any = WSStream.__new__(WSStream)
    stream.closed = closed
    send, session = stream.app_send, Session(stream.app_send).send
    for way in (send, session, partial(send), wrap(session), wrap(wrap(partial(send)))):
        assert is_closed_by_server(way) is closed
    assert not is_closed_by_server(print)


def nested(consumer: Any = AsyncEcho, *scopes: str) -> Line:
    """Return a client of a consumer with a middleware around it, of another scope by default."""
    app = consumer.as_asgi()
    for scope in scopes or ("site",):
        app = ThrottleMiddleware(app, scope)
    return Line(app)


@BOTH
@pytest.mark.parametrize("around", [("site",), ("site", "further out"), ("between", "site")])
async def test_what_both_match_is_charged_once_and_each_other_rule_too(
    enforce: Enforce, around: tuple[str, ...]
) -> None:
    store = enforce(
        sockets={**TWO_SOCKETS, "scopes": ["*"]},
        room={**ONE, "scopes": ["chat"]},
        everywhere={**WINDOW, "rate": "4/min", "events": ["connect", "message"]},
        site={**WINDOW, "rate": "9/min", "events": ["message"], "scopes": ["site"]},
        chat={**WINDOW, "rate": "9/min", "events": ["message"], "scopes": ["chat"]},
    )
    async with nested(AsyncEcho, *around) as socket:
        leases = only().leases
        assert (held(store), len(leases)) == (2, 2)
        assert store.leases.unreleased() == {lease.id for lease in leases}
        assert (await nested(AsyncEcho, *around).open()).closed, "the inner one refuses"
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
    async with nested(consumer, "site", "further out"):
        for _ in range(2):
            refused = await nested(consumer, "site", "further out").open()
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
    socket = await nested().open()
    change(Rule("inside", **knocks), overrides=(blocked(rules=rules),))
    await socket.ended()
    assert [event["type"].partition(".")[2] for event in socket.sent] == ["accept", "send", "close"]
    assert (socket.told("error")[0]["code"], socket.closed["code"]) == ("blocked", 4403)
    assert open_sockets.all() == ()


async def test_a_reset_reaches_the_inner_one(enforce: Enforce) -> None:
    sends = {**WINDOW, "rate": "2/min", "events": ["send"], "scopes": ["site"]}
    enforce(own={**OWN, "scopes": ["chat"]}, sends=sends)
    async with nested() as socket:
        socket.send("in", "over")
        assert (await socket.error())["rule"] == "own"
        assert only().sent == 1
        only().reset()
        await asyncio.sleep(0)
        socket.send("again")
        await socket.until(lambda: socket.frames[2:] == ["again"])

"""Frames and refusals that we send to clients, and the ASGI types."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.utils.functional import Promise

from django_throttle.core import Decision
from django_throttle.core.headers import delay_seconds
from django_throttle.core.problem import CONTENT_TYPE, detail, error_code, problem, refusing
from django_throttle.retry import retry_seconds
from django_throttle.sockets.open_sockets import Farewell
from django_throttle.sockets.options import code_of

Scope = dict[str, Any]
Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[Any]]


# RFC 6455, 5.5: a control frame carries at most 125 bytes, two of which are the close code.
MAX_REASON: Final = 123


def error_payload(decision: Decision) -> dict[str, Any]:
    """The error frame's content; times in seconds, ``retry_after`` in whole milliseconds and None for never."""
    outcome = refusing(decision)
    return {
        "type": "error",
        "code": error_code(decision),
        "detail": detail(decision, delay_seconds(decision.retry_after)),
        "rule": decision.rule,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "window": _short(outcome.window if outcome else None),
        "retry_after": _short(decision.retry_after),
    }


class Gap(NamedTuple):
    """How many frames to a client were left out, or overtaken by a newer one of their kind, and since when."""

    lost: int
    since: datetime


def continuity_payload(gap: Gap) -> dict[str, Any]:
    """The content of the frame that tells of a gap; ``since`` is ISO 8601 in UTC, by the server's clock."""
    are = "messages were" if gap.lost != 1 else "message was"
    since = gap.since.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    detail = f"{gap.lost} {are} not sent to you, as there were too many."
    return {"type": "continuity_lost", "lost": gap.lost, "since": since, "detail": detail}


def notice(code: str, detail: str, retry_after: float | None = None) -> dict[str, Any]:
    """An error frame's content where no rule speaks: why a socket is closed, and when to come back, None for never."""
    nothing = dict.fromkeys(("rule", "limit", "remaining", "window"))
    return {"type": "error", "code": code, "detail": detail, **nothing, "retry_after": retry_after}


def close_reason(decision: Decision) -> str:
    """Such as ``rate limited; retry_after=17``: at most 123 bytes, which some servers drop."""
    said = error_code(decision).replace("_", " ")
    seconds = delay_seconds(decision.retry_after)
    reason = said if seconds is None else f"{said}; retry_after={seconds}"
    return reason[:MAX_REASON]


def encoded(payload: object) -> str | bytes:
    """Text and bytes as they are, anything else as JSON; raises TypeError or ValueError for what is none of them."""
    if isinstance(payload, Promise):  # a text that waits for its language
        payload = str(payload)
    if isinstance(payload, str):
        payload.encode()  # half of a surrogate pair can be sent by no server
        return payload
    if payload is None:
        raise TypeError("None is nothing to tell a client")
    return payload if isinstance(payload, bytes) else json.dumps(payload, cls=DjangoJSONEncoder, allow_nan=False)


def frame(payload: object) -> Event:
    """A payload as the event that sends it; raises what ``encoded`` does."""
    content = encoded(payload)
    return {"type": "websocket.send", "bytes" if isinstance(content, bytes) else "text": content}


def _short(seconds: float | None) -> float | None:
    """Rounded up to a millisecond; a whole number where it is one, as it reads better in JSON."""
    if seconds is None:
        return None
    rounded = ceil(round(seconds * 1000, 3)) / 1000
    return int(rounded) if rounded.is_integer() else rounded


Codes = Callable[[str], int]
Refusal = Callable[[Scope, Send, Decision, object, Codes], Awaitable[None]]


def close_event(code: int, decision: Decision) -> Event:
    """The event that closes a socket and says why."""
    return {"type": "websocket.close", "code": code, "reason": close_reason(decision)}


async def by_http(scope: Scope, send: Send, decision: Decision, payload: object, codes: Codes = code_of) -> None:
    """429 (503 when the store failed) with Retry-After, else a close before accept, which servers make a 403.

    The response's events go only to a server that offers to send them (ASGI's ``websocket.http.response``
    extension): another lets the client hang.
    """
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send(_close_handshake(decision, codes))
        return
    status = 503 if decision.unavailable else 429
    seconds = retry_seconds(decision.retry_after)
    body = problem(decision, status, seconds, is_request=False)
    # Nothing may come between these two: a server may end the response after the first.
    await send({"type": "websocket.http.response.start", "status": status, "headers": _headers(seconds, body)})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def by_frame(scope: Scope, send: Send, decision: Decision, payload: object, codes: Codes = code_of) -> None:
    """Accept, say why in one frame, close: for browsers, whose scripts see nothing of a refused handshake."""
    # A browser that offered subprotocols fails the connection when the server chooses none.
    offered = scope.get("subprotocols") or [None]
    await send({"type": "websocket.accept", "subprotocol": offered[0]})
    await send(frame(payload))
    await send(_close_handshake(decision, codes))


REFUSALS: Final[dict[str, Refusal]] = {"http": by_http, "frame": by_frame}


def _close_handshake(decision: Decision, codes: Codes) -> Event:
    word = error_code(decision)
    # Too many connections, be it at once or in a minute: both are told apart from too many messages.
    return close_event(codes("connection_limit" if word == "rate_limited" else word), decision)


def _headers(seconds: int | None, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if seconds is not None:
        headers.append((b"retry-after", str(seconds).encode()))
    return headers


logger = logging.getLogger("django_throttle")

# A client that reads nothing lets a server wait for ever.
PATIENCE: Final = 1.0


def to_whoever_is_there(send: Send) -> Send:
    """``send``, to a client that may be slow, or have gone: each server says so by an exception of its own."""

    async def tell(event: Event) -> None:
        with suppress(Exception):
            async with asyncio.timeout(PATIENCE):
                await send(event)

    return tell


def past(outer: Send, send: Send) -> Send:
    """What a guard inside another one says of itself: its frames go past the other, which hears of all else."""
    through = to_whoever_is_there(send)

    async def tell(event: Event) -> None:
        await (outer if event["type"] == "websocket.send" else through)(event)

    return tell


def parting(farewell: Farewell) -> Iterator[Event]:
    """The events that close an open socket."""
    if farewell.payload is not None:
        try:
            yield frame(farewell.payload)
        except Exception:  # whatever is wrong with it, the socket can be closed
            logger.exception("what a client was to be told cannot be sent")
    yield closing(farewell)


def turning_away(farewell: Farewell, scope: dict[str, Any], *, by_frame: bool) -> Iterator[Event]:
    """The events that end a handshake which has not been accepted; ``by_frame`` for browsers, see sockets.refusal."""
    if by_frame:
        yield {"type": "websocket.accept", "subprotocol": (scope.get("subprotocols") or [None])[0]}
        yield from parting(farewell)
    else:
        yield closing(farewell)


def closing(farewell: Farewell) -> Event:
    """The event that closes a socket and says why."""
    return {"type": "websocket.close", "code": farewell.code, "reason": farewell.reason[:MAX_REASON]}

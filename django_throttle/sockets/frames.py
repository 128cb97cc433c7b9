"""The ASGI types, and the frames that we send to clients ourselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.utils.functional import Promise

from django_throttle.core import Decision
from django_throttle.core.headers import delay_seconds
from django_throttle.core.problem import detail, error_code, refusing

Scope = dict[str, Any]
Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[Any]]


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
        "window": _milliseconds(outcome.window if outcome else None),
        "retry_after": _milliseconds(decision.retry_after),
    }


class Gap(NamedTuple):
    """How many frames to a client were dropped, or replaced by a newer one of their kind, and since when."""

    lost: int
    since: datetime


def continuity_payload(gap: Gap) -> dict[str, Any]:
    """The content of the frame that reports a gap; ``since`` is ISO 8601 in UTC, by the server's clock."""
    are = "messages were" if gap.lost != 1 else "message was"
    since = gap.since.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    detail = f"{gap.lost} {are} not sent to you, as there were too many."
    return {"type": "continuity_lost", "lost": gap.lost, "since": since, "detail": detail}


def notice(code: str, detail: str, retry_after: float | None = None) -> dict[str, Any]:
    """An error frame's content without a rule: why a socket is closed, and when to come back, None for never."""
    nothing = dict.fromkeys(("rule", "limit", "remaining", "window"))
    return {"type": "error", "code": code, "detail": detail, **nothing, "retry_after": retry_after}


def encoded(payload: object) -> str | bytes:
    """Text and bytes as they are, anything else as JSON; raises TypeError or ValueError where neither is possible."""
    if isinstance(payload, Promise):  # a lazy translation
        payload = str(payload)
    if isinstance(payload, str):
        payload.encode()  # no server can send half of a surrogate pair
        return payload
    if payload is None:
        raise TypeError("a frame cannot be made of None")
    return payload if isinstance(payload, bytes) else json.dumps(payload, cls=DjangoJSONEncoder, allow_nan=False)


def frame(payload: object) -> Event:
    """A payload as the event that sends it; raises what ``encoded`` does."""
    content = encoded(payload)
    return {"type": "websocket.send", "bytes" if isinstance(content, bytes) else "text": content}


def _milliseconds(seconds: float | None) -> float | None:
    """Seconds rounded up to a millisecond; a whole number where it is one, as it reads better in JSON."""
    if seconds is None:
        return None
    rounded = ceil(round(seconds * 1000, 3)) / 1000
    return int(rounded) if rounded.is_integer() else rounded


SEND_TIMEOUT: Final = 1.0  # seconds: a client that reads nothing lets a server wait for ever


def best_effort(send: Send) -> Send:
    """``send`` for our own frames: a client that is slow or gone is no error, for which each server has its own."""

    async def tell(event: Event) -> None:
        with suppress(Exception):
            async with asyncio.timeout(SEND_TIMEOUT):
                await send(event)

    return tell


def bypassing(outer: Send, send: Send) -> Send:
    """``best_effort`` of a connection inside another: its own frames are not counted by the outer one.

    The outer connection sees all other events.
    """
    through = best_effort(send)

    async def tell(event: Event) -> None:
        await (outer if event["type"] == "websocket.send" else through)(event)

    return tell

"""What we send to clients ourselves: error frames, and how often; close codes; refused handshakes; ASGI's types."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import ceil
from time import monotonic
from typing import Any, Final, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.utils.functional import Promise
from django.utils.translation import ngettext

from django_throttle.core import Decision
from django_throttle.core.decision import deciding_outcome, error_code
from django_throttle.core.headers import delay_seconds
from django_throttle.http.problem_details import CONTENT_TYPE, detail, problem
from django_throttle.http.retry_after import retry_seconds
from django_throttle.observe.reports import reference

Scope = dict[str, Any]
Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[Any]]


def error_payload(decision: Decision) -> dict[str, Any]:
    """The error frame's content; times in seconds, ``retry_after`` in whole milliseconds and None for never."""
    outcome = deciding_outcome(decision)
    return {
        "type": "error",
        "code": error_code(decision),
        "detail": detail(decision, delay_seconds(decision.retry_after)),
        "rule": decision.rule,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "window": _milliseconds(outcome.window if outcome else None),
        "retry_after": _milliseconds(decision.retry_after),
        "reference": reference(decision),
    }


class DroppedFrames(NamedTuple):
    """How many frames to a client were dropped, or replaced by a newer one of their kind, and since when."""

    lost: int
    since: datetime


def continuity_payload(dropped: DroppedFrames) -> dict[str, Any]:
    """The content of the frame that reports dropped frames; ``since`` is ISO 8601 in UTC, by the server's clock."""
    since = dropped.since.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    detail = ngettext(
        "%(count)d message was not sent to you, as there were too many.",
        "%(count)d messages were not sent to you, as there were too many.",
        dropped.lost,
    )
    return {"type": "continuity_lost", "lost": dropped.lost, "since": since, "detail": detail % {"count": dropped.lost}}


def encode(payload: object) -> str | bytes:
    """Text and bytes as they are, anything else as JSON; raises TypeError or ValueError where neither is possible."""
    if isinstance(payload, Promise):  # a lazy translation
        payload = str(payload)
    if isinstance(payload, str):
        payload.encode()  # no server can send half of a surrogate pair
        return payload
    if payload is None:
        raise TypeError("a frame cannot be made of None")
    return payload if isinstance(payload, bytes) else json.dumps(payload, cls=DjangoJSONEncoder, allow_nan=False)


def frame_event(payload: object) -> Event:
    """A payload as the event that sends it; raises what ``encode`` does."""
    content = encode(payload)
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

    async def send_own(event: Event) -> None:
        with suppress(Exception):
            async with asyncio.timeout(SEND_TIMEOUT):
                await send(event)

    return send_own


def bypassing(outer: Send, send: Send) -> Send:
    """``best_effort`` of a connection inside another: its own frames are not counted by the outer one.

    The outer connection sees all other events.
    """
    through = best_effort(send)

    async def send_own(event: Event) -> None:
        await (outer if event["type"] == "websocket.send" else through)(event)

    return send_own


# Which refused messages are answered: each, or none until a message can pass again.
ANSWERS: Final = ("each", "once")
# What is done about a refused frame, the mildest first.
ACTIONS: Final = ("drop", "error", "delay", "close")
# Error frames: so many at once, then one a second. Else the limiter would answer a flood with another.
ERROR_BURST: Final = 5
# Seconds until the next error frame about frames that can never pass.
NEVER_RETRY: Final = 1.0


class Escalation:
    """The refusals in a row of one socket; ``quiet_until`` is on the monotonic clock."""

    __slots__ = ("_errors_forgotten_at", "quiet_until", "violations")

    def __init__(self) -> None:
        self.violations = 0
        self.quiet_until = 0.0
        self._errors_forgotten_at = 0.0

    def reset(self) -> None:
        """A frame has passed: the next refusal is the first in a row."""
        self.violations, self.quiet_until = 0, 0.0

    def action_for_refusal(self, decision: Decision, action_for: Callable[[int], str]) -> str:
        """What to do about this refusal, by the action for so many in a row; a failed store is no violation."""
        if decision.unavailable:
            return min(action_for(max(1, self.violations)), "error", key=ACTIONS.index)
        self.violations += 1
        return action_for(self.violations)

    def may_send_error(self, decision: Decision, *, once: bool = False) -> bool:
        """Return True if an error frame is to be sent for this refusal; it then counts as sent.

        ``once``: there is no other until a frame can pass.
        """
        now = monotonic()
        if now < self.quiet_until or self._errors_forgotten_at - now > ERROR_BURST - 1:
            return False
        if once:
            self.quiet_until = now + (decision.retry_after or NEVER_RETRY)
        self._errors_forgotten_at = max(self._errors_forgotten_at, now) + 1.0
        return True


logger = logging.getLogger("django_throttle")

RATE_LIMITED: Final = 4429
CONNECTION_LIMIT: Final = 4430
TIMEOUT: Final = 4408

# Close codes by reason. A reason is also the ``code`` of an error frame.
CLOSE_CODES: Final[dict[str, int]] = {
    "rate_limited": RATE_LIMITED,
    "connection_limit": CONNECTION_LIMIT,
    "evicted": CONNECTION_LIMIT,
    "closed": 4410,  # by an operator
    "limiter_unavailable": 4503,
    "idle": TIMEOUT,
    "too_old": TIMEOUT,
    "not_accepted": TIMEOUT,
    "blocked": 4403,
}
# RFC 6455, 5.5: a control frame carries at most 125 bytes, two of which are the close code.
MAX_REASON: Final = 123


def close_code(reason: str, *codes: Mapping[str, int]) -> int:
    """Return the close code for a reason: the first that ``codes`` have, else ours, else 4429."""
    return next((own[reason] for own in codes if reason in own), CLOSE_CODES.get(reason, RATE_LIMITED))


class Close(NamedTuple):
    """How a socket is closed: close code, reason, and what its client is sent before; None for nothing."""

    code: int
    reason: str
    payload: object = None


def close_reason(decision: Decision) -> str:
    """Such as ``rate limited; retry_after=17``: at most 123 bytes, which some servers drop."""
    reason = error_code(decision).replace("_", " ")
    seconds = delay_seconds(decision.retry_after)
    return (reason if seconds is None else f"{reason}; retry_after={seconds}")[:MAX_REASON]


def close_events(close: Close) -> Iterator[Event]:
    if close.payload is not None:
        try:
            yield frame_event(close.payload)
        except Exception:  # whatever is wrong with it, the socket can be closed
            logger.exception("the last frame to a client cannot be encoded: its socket is closed without it")
    yield {"type": "websocket.close", "code": close.code, "reason": close.reason[:MAX_REASON]}


def handshake_close_events(close: Close, scope: Scope, *, accepts: bool) -> Iterator[Event]:
    """The events that end a handshake which has not been accepted.

    ``accepts``: accept it, say why in a frame, close. Scripts in a browser see nothing of a refused handshake.
    """
    if accepts:
        # A browser that offered subprotocols fails the connection when the server chooses none.
        yield {"type": "websocket.accept", "subprotocol": (scope.get("subprotocols") or [None])[0]}
    yield from close_events(close if accepts else close._replace(payload=None))


# The values of ``refuse`` and of the setting REFUSE_SOCKET.
REFUSALS: Final = ("http", "frame")


async def refuse_handshake(scope: Scope, send: Send, decision: Decision, close: Close, *, by: str) -> None:
    """Refuse a handshake ``by`` "http" or "frame".

    "http" is 429 (503 when the store failed) with Retry-After, else a close before accept, which servers make a 403.
    The response's events go only to a server that offers to send them (ASGI's ``websocket.http.response`` extension):
    another lets the client hang. "frame" accepts, says why in one frame, and closes.
    """
    if by == "frame" or "websocket.http.response" not in (scope.get("extensions") or {}):
        for event in handshake_close_events(close, scope, accepts=by == "frame"):
            await send(event)
        return
    status = 503 if decision.unavailable else 429
    seconds = retry_seconds(decision.retry_after)
    body = problem(decision, status, seconds, is_request=False, reference=reference(decision))
    # Nothing may come between these two: a server may end the response after the first.
    await send({"type": "websocket.http.response.start", "status": status, "headers": _headers(seconds, body)})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def _headers(seconds: int | None, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if seconds is not None:
        headers.append((b"retry-after", str(seconds).encode()))
    return headers

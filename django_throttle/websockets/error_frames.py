"""Frames, closes and handshake responses of django_throttle itself, and ASGI's types."""

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


def error_payload(decision: Decision) -> dict[str, object]:
    """Return the content of an error frame.

    ``window`` and ``retry_after`` are in seconds, rounded up to milliseconds. ``retry_after`` is None for never.
    """
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
    """Dropped frames to a client, those replaced by a newer frame of their kind included."""

    lost: int  #: number of frames
    since: datetime  #: time when the first of them was dropped


def continuity_payload(dropped: DroppedFrames) -> dict[str, object]:
    """Return the content of the frame that reports dropped frames; ``since`` is in ISO 8601 and UTC."""
    since = dropped.since.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    detail = ngettext(
        "%(count)d message was not sent to you, as there were too many.",
        "%(count)d messages were not sent to you, as there were too many.",
        dropped.lost,
    )
    return {"type": "continuity_lost", "lost": dropped.lost, "since": since, "detail": detail % {"count": dropped.lost}}


def encode(payload: object) -> str | bytes:
    """Return text and bytes unchanged, anything else as JSON. Raise TypeError or ValueError for other payloads."""
    if isinstance(payload, Promise):  # a lazy translation
        payload = str(payload)
    if isinstance(payload, str):
        payload.encode()  # raises for half of a surrogate pair, which servers cannot send
        return payload
    if payload is None:
        raise TypeError("a frame cannot be made of None")
    return payload if isinstance(payload, bytes) else json.dumps(payload, cls=DjangoJSONEncoder, allow_nan=False)


def frame_event(payload: object) -> Event:
    """Return the event that sends a payload. Raise the errors of ``encode``."""
    content = encode(payload)
    return {"type": "websocket.send", "bytes" if isinstance(content, bytes) else "text": content}


def _milliseconds(seconds: float | None) -> float | None:
    """Return seconds rounded up to a millisecond, as an int if possible, for readable JSON."""
    if seconds is None:
        return None
    rounded = ceil(round(seconds * 1000, 3)) / 1000
    return int(rounded) if rounded.is_integer() else rounded


SEND_TIMEOUT: Final = 1.0  # seconds: a server waits for ever for a client that reads nothing


def best_effort(send: Send) -> Send:
    """Return ``send`` with a timeout and without errors. Each server has its own error for a client that has gone."""

    async def send_own(event: Event) -> None:
        with suppress(Exception):
            async with asyncio.timeout(SEND_TIMEOUT):
                await send(event)

    return send_own


def bypassing(outer: Send, send: Send) -> Send:
    """Return a ``best_effort`` of ``send`` for a connection inside another.

    Frames go through ``outer``, so that the outer connection does not count them. It sees all other events.
    """
    inner = best_effort(send)

    async def send_own(event: Event) -> None:
        await (outer if event["type"] == "websocket.send" else inner)(event)

    return send_own


# The refused messages that are answered: each, or only the first until a message can pass again.
ANSWERS: Final = ("each", "once")
# Actions for a refused frame, the mildest first.
ACTIONS: Final = ("drop", "error", "delay", "close")
# Error frames that may be sent at once; then one a second, so that a flood is not answered with another.
ERROR_BURST: Final = 5
# Seconds until the next error frame, with "once", if the refused frame can never pass.
NEVER_RETRY_SECONDS: Final = 1.0


class Escalation:
    """The consecutive refusals of a socket."""

    __slots__ = ("_burst_ends_at", "errors_muted_until", "violations")

    def __init__(self) -> None:
        self.violations = 0  #: number of consecutive refusals
        self.errors_muted_until = 0.0  #: time on the monotonic clock until which no error frame is sent
        #: The time on the monotonic clock when the whole burst of error frames is available again.
        self._burst_ends_at = 0.0

    def reset(self) -> None:
        """Count refusals from 0 again, as a frame has passed."""
        self.violations, self.errors_muted_until = 0, 0.0

    def action_for_refusal(self, decision: Decision, action_for: Callable[[int], str]) -> str:
        """Return the action for a refusal. Refusals by a failed store do not count as violations.

        ``action_for`` returns the action for a number of consecutive refusals.
        """
        if decision.unavailable:
            return min(action_for(max(1, self.violations)), "error", key=ACTIONS.index)
        self.violations += 1
        return action_for(self.violations)

    def may_send_error(self, decision: Decision, *, once: bool = False) -> bool:
        """Count an error frame and return True if it may be sent for this refusal.

        With ``once``, no other may be sent until a frame can pass.
        """
        now = monotonic()
        if now < self.errors_muted_until or self._burst_ends_at - now > ERROR_BURST - 1:
            return False
        if once:
            self.errors_muted_until = now + (decision.retry_after or NEVER_RETRY_SECONDS)
        self._burst_ends_at = max(self._burst_ends_at, now) + 1.0
        return True


logger = logging.getLogger("django_throttle")

RATE_LIMITED: Final = 4429
CONNECTION_LIMIT: Final = 4430
TIMEOUT: Final = 4408

# Default close codes by reason. A reason is also the ``code`` of an error frame.
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
MAX_REASON_BYTES: Final = 123


def close_code(reason: str, *codes: Mapping[str, int]) -> int:
    """Return the close code for a reason: the first in ``codes``, else the default, else 4429."""
    return next((mapping[reason] for mapping in codes if reason in mapping), CLOSE_CODES.get(reason, RATE_LIMITED))


class Close(NamedTuple):
    """A close by django_throttle."""

    code: int
    reason: str
    payload: object = None  #: last frame before the close; None for no frame


def close_reason(decision: Decision) -> str:
    """Return a reason such as ``rate limited; retry_after=17``. Some servers do not send it."""
    reason = error_code(decision).replace("_", " ")
    seconds = delay_seconds(decision.retry_after)
    return (reason if seconds is None else f"{reason}; retry_after={seconds}")[:MAX_REASON_BYTES]


def close_events(close: Close) -> Iterator[Event]:
    """Yield the events that close an accepted socket."""
    if close.payload is not None:
        try:
            yield frame_event(close.payload)
        except Exception:  # the socket has to be closed in any case
            logger.exception("the last frame to a client cannot be encoded: its socket is closed without it")
    yield {"type": "websocket.close", "code": close.code, "reason": close.reason[:MAX_REASON_BYTES]}


def handshake_close_events(close: Close, scope: Scope, *, accepts: bool) -> Iterator[Event]:
    """Yield the events that end a handshake.

    With ``accepts``, the socket is accepted, and closed after a frame with the reason. Scripts in a browser cannot see
    the reason of a refused handshake otherwise.
    """
    if accepts:
        # A browser that offered subprotocols fails the connection when the server chooses none.
        yield {"type": "websocket.accept", "subprotocol": (scope.get("subprotocols") or [None])[0]}
    yield from close_events(close if accepts else close._replace(payload=None))


# The values of ``refuse``.
REFUSALS: Final = ("http", "frame")


async def refuse_handshake(scope: Scope, send: Send, decision: Decision, close: Close, *, by: str) -> None:
    """Refuse a handshake ``by`` "http" or "frame".

    With "http", the response is 429 (503 if the store failed) with Retry-After. It needs ASGI's extension
    ``websocket.http.response``: a server without it would let the client hang. There the socket is closed before
    accept, which the server turns into a 403. With "frame", the socket is accepted, and closed after an error frame.
    """
    if by == "frame" or "websocket.http.response" not in (scope.get("extensions") or {}):
        for event in handshake_close_events(close, scope, accepts=by == "frame"):
            await send(event)
        return
    status = 503 if decision.unavailable else 429
    seconds = retry_seconds(decision.retry_after)
    body = problem(decision, status, seconds, is_request=False, reference=reference(decision))
    length = str(len(body)).encode()
    headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", length), (b"cache-control", b"no-store")]
    if seconds is not None:
        headers.append((b"retry-after", str(seconds).encode()))
    # No await of anything else between these two: a server may end the response after the first.
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})

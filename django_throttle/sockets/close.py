"""How sockets end: close codes, the last frames, and refused handshakes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, NamedTuple

from django_throttle.core import Decision
from django_throttle.core.headers import delay_seconds
from django_throttle.core.problem import CONTENT_TYPE, error_code, problem
from django_throttle.retry import retry_seconds
from django_throttle.sockets.frames import Event, Scope, Send, frame

logger = logging.getLogger("django_throttle")

RATE_LIMITED: Final = 4429
CONNECTION_LIMIT: Final = 4430
TIMEOUT: Final = 4408

# Close codes by reason. A reason is also the ``code`` of an error frame.
CODES: Final[dict[str, int]] = {
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


def code_of(reason: str, own: Mapping[str, int] = {}) -> int:
    """The close code for a reason, by a site's own codes first; 4429 where neither has it."""
    return own.get(reason) or CODES.get(reason, RATE_LIMITED)


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
    """The events that close an open socket."""
    if close.payload is not None:
        try:
            yield frame(close.payload)
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


Codes = Callable[[str], int]
Refuse = Callable[[Scope, Send, Decision, object, Codes], Awaitable[None]]


async def by_http(scope: Scope, send: Send, decision: Decision, payload: object, codes: Codes = code_of) -> None:
    """429 (503 when the store failed) with Retry-After, else a close before accept, which servers make a 403.

    The response's events go only to a server that offers to send them (ASGI's ``websocket.http.response``
    extension): another lets the client hang.
    """
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await _refuse(scope, send, decision, payload, codes, accepts=False)
        return
    status = 503 if decision.unavailable else 429
    seconds = retry_seconds(decision.retry_after)
    body = problem(decision, status, seconds, is_request=False)
    # Nothing may come between these two: a server may end the response after the first.
    await send({"type": "websocket.http.response.start", "status": status, "headers": _headers(seconds, body)})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def by_frame(scope: Scope, send: Send, decision: Decision, payload: object, codes: Codes = code_of) -> None:
    """Accept, say why in one frame, close."""
    await _refuse(scope, send, decision, payload, codes, accepts=True)


# The values of ``refuse`` and of the setting REFUSE_SOCKET.
REFUSALS: Final[dict[str, Refuse]] = {"http": by_http, "frame": by_frame}


async def _refuse(
    scope: Scope, send: Send, decision: Decision, payload: object, codes: Codes, *, accepts: bool
) -> None:
    # Too many connections, open at once or in a minute: both have another code than too many messages.
    reason = error_code(decision)
    code = codes("connection_limit" if reason == "rate_limited" else reason)
    for event in handshake_close_events(Close(code, close_reason(decision), payload), scope, accepts=accepts):
        await send(event)


def _headers(seconds: int | None, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if seconds is not None:
        headers.append((b"retry-after", str(seconds).encode()))
    return headers

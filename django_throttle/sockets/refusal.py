"""How a handshake is refused: an HTTP response, or an accepted socket that says why and closes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from django_throttle.core import Decision
from django_throttle.core.headers import delay_seconds
from django_throttle.core.problem import CONTENT_TYPE, problem
from django_throttle.sockets.asgi import Event, Scope, Send
from django_throttle.sockets.frames import close_reason, frame

# Private-use codes that mirror HTTP. Every server sends them, where 1008 and 1013 fail on some; and the
# code must carry the distinction, because some servers drop the reason.
RATE_LIMITED: Final = 4429
CONNECTION_LIMIT: Final = 4430
UNAVAILABLE: Final = 4503

Refusal = Callable[[Scope, Send, Decision, object], Awaitable[None]]


def close_event(code: int, decision: Decision) -> Event:
    """The event that closes a socket and says why."""
    return {"type": "websocket.close", "code": code, "reason": close_reason(decision)}


async def by_http(scope: Scope, send: Send, decision: Decision, payload: object) -> None:
    """429 (503 when the store failed) with Retry-After, else a close before accept, which servers make a 403.

    The response's events go only to a server that offers to send them (ASGI's ``websocket.http.response``
    extension): another lets the client hang.
    """
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send(_close_handshake(decision))
        return
    status = 503 if decision.unavailable else 429
    body = problem(decision, status)
    # Nothing may come between these two: a server may end the response after the first.
    await send({"type": "websocket.http.response.start", "status": status, "headers": _headers(decision, body)})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def by_frame(scope: Scope, send: Send, decision: Decision, payload: object) -> None:
    """Accept, say why in one frame, close: for browsers, whose scripts see nothing of a refused handshake."""
    # A browser that offered subprotocols fails the connection when the server chooses none.
    offered = scope.get("subprotocols") or [None]
    await send({"type": "websocket.accept", "subprotocol": offered[0]})
    await send(frame(payload))
    await send(_close_handshake(decision))


REFUSALS: Final[dict[str, Refusal]] = {"http": by_http, "frame": by_frame}


def _close_handshake(decision: Decision) -> Event:
    return close_event(UNAVAILABLE if decision.unavailable else CONNECTION_LIMIT, decision)


def _headers(decision: Decision, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    seconds = delay_seconds(decision.retry_after)
    if seconds is not None:
        headers.append((b"retry-after", str(seconds).encode()))
    return headers

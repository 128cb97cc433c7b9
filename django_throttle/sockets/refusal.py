"""How a handshake is refused: an HTTP response, or an accepted socket that says why and closes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from django_throttle.core import Decision
from django_throttle.core.problem import CONTENT_TYPE, error_code, problem
from django_throttle.retry import retry_seconds
from django_throttle.sockets.asgi import Event, Scope, Send
from django_throttle.sockets.codes import code_of
from django_throttle.sockets.frames import close_reason, frame

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
    body = problem(decision, status, seconds)
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

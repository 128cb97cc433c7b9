"""What we send a client of ourselves: never in the way of the application, whatever has become of the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from django_throttle.sockets.asgi import Event, Send
from django_throttle.sockets.frames import MAX_REASON, frame
from django_throttle.sockets.live import Farewell

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

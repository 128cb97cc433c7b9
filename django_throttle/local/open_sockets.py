"""The WebSockets that are open in this process."""

from __future__ import annotations

import secrets
from itertools import count
from typing import Protocol

from django.utils.translation import gettext

from django_throttle.core import Lease
from django_throttle.runtime import in_child, shutdown


class OpenSocket(Protocol):
    """The interface of an open socket for other parts of the process. Thread-safe."""

    id: str  #: unique to the socket
    scope: str  #: scope of its rules
    path: str
    leases: tuple[Lease, ...]
    opened: float  #: time on the monotonic clock
    last_received: float  #: time of the last incoming frame, on the monotonic clock
    received: int  #: number of incoming frames
    refused: int  #: number of refused incoming frames
    sent: int  #: number of outgoing frames
    lost: int  #: number of outgoing frames that were dropped

    @property
    def idents(self) -> frozenset[str]:
        """All idents that the socket counts for."""

    @property
    def address(self) -> str:
        """The address of the client; empty if it is unknown."""

    def close_code(self, reason: str) -> int:
        """Return the close code for a reason."""

    def close(self, code: int, reason: str, payload: object = None) -> None:
        """Close the socket in its event loop. Repeating it has no effect."""

    def reset(self) -> None:
        """Clear the cached refusals of the socket, because its budgets were reset."""


class OpenSockets:
    """The throttled sockets that are open in this process. Empty in a forked child."""

    def __init__(self) -> None:
        self.restart()
        in_child(self, OpenSockets.restart)

    def restart(self) -> None:
        """Start without sockets, in a forked child."""
        self._sockets: dict[int, OpenSocket] = {}
        self._process, self._numbers = secrets.token_urlsafe(9), count()

    def new_id(self) -> str:
        """Return an id that is unique over all processes."""
        return f"{self._process}{next(self._numbers)}"

    def add(self, socket: OpenSocket) -> None:
        """Add a socket that has been accepted."""
        self._sockets[id(socket)] = socket
        shutdown.watch()

    def remove(self, socket: OpenSocket) -> None:
        """Remove a socket that has ended. Repeating it has no effect."""
        self._sockets.pop(id(socket), None)

    def clear(self) -> None:
        self._sockets.clear()

    def all(self) -> tuple[OpenSocket, ...]:
        return tuple(self._sockets.values())

    def __len__(self) -> int:
        return len(self._sockets)


open_sockets = OpenSockets()


def notice_payload(code: str, detail: str, retry_after: float | None = None) -> dict[str, object]:
    """Return the content of an error frame that says why a socket is closed, if no rule is the reason.

    ``detail`` is in English and is translated here. ``retry_after`` is in seconds, None if the client need not return.
    """
    empty = dict.fromkeys(("rule", "limit", "remaining", "window"))
    return {"type": "error", "code": code, "detail": gettext(detail), **empty, "retry_after": retry_after}

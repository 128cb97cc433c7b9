"""The WebSockets that are open in this process."""

from __future__ import annotations

import secrets
from itertools import count
from typing import Any, Protocol

from django.utils.translation import gettext

from django_throttle.core import Lease
from django_throttle.runtime import in_child, shutdown


class OpenSocket(Protocol):
    """What others see of an open socket, from any thread.

    ``id`` is its own in this process, ``scope`` names its rules, ``path`` is where it was opened. ``leases`` are what
    it holds of concurrency rules, ``idents`` all that it counts for. ``opened`` and ``last_received``, when its last
    frame came in, are on time.monotonic's clock. ``received``, ``refused``, ``sent`` and ``lost`` are numbers of
    frames: refused ones came in, lost ones were to go out. ``address`` is empty when nobody knows it.
    """

    id: str
    scope: str
    path: str
    leases: tuple[Lease, ...]
    opened: float
    last_received: float
    received: int
    refused: int
    sent: int
    lost: int

    @property
    def idents(self) -> frozenset[str]: ...

    @property
    def address(self) -> str: ...

    def close_code(self, reason: str) -> int:
        """The code that it is closed with for this reason."""

    def close(self, code: int, reason: str, payload: object = None) -> None:
        """Have its event loop close it; a second time, or when it has closed, changes nothing."""

    def reset(self) -> None:
        """Have it forget the refusals that it remembers: its budgets were given back."""


class OpenSockets:
    """All guarded sockets of this process; none in a forked child."""

    def __init__(self) -> None:
        self.restart()
        in_child(self, OpenSockets.restart)

    def restart(self) -> None:
        """Be another process, without sockets."""
        self._sockets: dict[int, OpenSocket] = {}
        self._process, self._numbers = secrets.token_urlsafe(9), count()

    def new_id(self) -> str:
        """An id that no other socket has, of whatever process."""
        return f"{self._process}{next(self._numbers)}"

    def add(self, socket: OpenSocket) -> None:
        """It has been let in."""
        self._sockets[id(socket)] = socket
        shutdown.watch()

    def remove(self, socket: OpenSocket) -> None:
        """It has ended; a second time changes nothing."""
        self._sockets.pop(id(socket), None)

    def clear(self) -> None:
        self._sockets.clear()

    def everyone(self) -> tuple[OpenSocket, ...]:
        return tuple(self._sockets.values())

    def __len__(self) -> int:
        return len(self._sockets)


open_sockets = OpenSockets()


def notice_payload(code: str, detail: str, retry_after: float | None = None) -> dict[str, Any]:
    """Return the content of an error frame that says why a socket is closed, if no rule is the reason.

    ``detail`` is in English and is translated here. ``retry_after`` is in seconds, None if the client need not return.
    """
    empty = dict.fromkeys(("rule", "limit", "remaining", "window"))
    return {"type": "error", "code": code, "detail": gettext(detail), **empty, "retry_after": retry_after}

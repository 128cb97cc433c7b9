"""The sockets that this process has open: to be looked at, closed or reset from any thread."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from django_throttle.core import Lease
from django_throttle.identity import ScopeWho
from django_throttle.lifecycle import ending, in_child
from django_throttle.sockets.options import code_of


class Farewell(NamedTuple):
    """How a socket is closed: its close code and reason, and what its client is sent before; None for nothing."""

    code: int
    reason: str
    payload: object = None


class Socket(ABC):
    """One guarded socket, as others see it. What it counts is written on its event loop, and read from anywhere.

    ``id`` is its own in this process, ``scope`` names its rules, ``path`` is where it was opened. ``leases`` are what
    it holds of concurrency rules. ``opened`` and ``heard``, when its last frame came in, are on time.monotonic's
    clock. ``received``, ``refused``, ``sent`` and ``lost`` are numbers of frames: refused ones came in, lost ones
    were to go out.
    """

    __slots__ = (
        "__weakref__", "heard", "id", "leases", "loop", "lost", "opened", "path", "received", "refused", "scope",
        "sent", "who",
    )  # fmt: skip

    def __init__(self, id: str, scope: str, path: str, who: ScopeWho) -> None:  # noqa: A002 - as in a row of a table
        self.id, self.scope, self.path, self.who = id, scope, path, who
        self.loop = asyncio.get_running_loop()
        self.leases: tuple[Lease, ...] = ()
        self.opened = self.heard = time.monotonic()
        self.received = self.refused = self.sent = self.lost = 0

    @property
    def idents(self) -> frozenset[str]:
        """Whom it counts for: the idents that it holds leases under, its user's and its address's."""
        found = {ident for lease in self.leases for _, ident in lease.holds}
        return frozenset(found.union(filter(None, map(self.who.ident, ("user", "ip")))))

    @property
    def address(self) -> str:
        """The client's address as text; empty when nobody knows it."""
        return str(self.who.address() or "")

    def close_code(self, word: str) -> int:
        """The code that it is closed with for this reason."""
        return code_of(word)

    def close(self, code: int, reason: str, payload: object = None) -> None:
        """Have it closed by its own event loop, at once; a second time, or when it has closed, changes nothing."""
        self._call(self.leave, Farewell(code, reason, payload))

    def reset(self) -> None:
        """Have it forget what it remembers of refusals: its budgets were given back."""
        self._call(self.forget)

    @abstractmethod
    def leave(self, farewell: Farewell) -> None:
        """Close, on the event loop."""

    @abstractmethod
    def forget(self) -> None:
        """Reset, on the event loop."""

    def _call(self, function: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop has been closed, and the socket with it
            self.loop.call_soon_threadsafe(function, *args)


class Live:
    """All guarded sockets of this process; none in a forked child."""

    def __init__(self) -> None:
        self._sockets: dict[int, Socket] = {}
        in_child(self, Live.clear)

    def add(self, socket: Socket) -> None:
        """It has been let in."""
        self._sockets[id(socket)] = socket
        ending.watch()

    def remove(self, socket: Socket) -> None:
        """It is over; a second time changes nothing."""
        self._sockets.pop(id(socket), None)

    def clear(self) -> None:
        """Forget all of them."""
        self._sockets.clear()

    def everyone(self) -> tuple[Socket, ...]:
        """All of them, as they are at this moment."""
        return tuple(self._sockets.values())

    def find(self, *, lease: str | None = None, ident: str | None = None) -> tuple[Socket, ...]:
        """Those that hold the lease of this id, or that count for this ident."""
        if lease is not None:
            return tuple(each for each in self.everyone() if any(held.id == lease for held in each.leases))
        return tuple(each for each in self.everyone() if ident in each.idents)

    def __len__(self) -> int:
        return len(self._sockets)


live = Live()

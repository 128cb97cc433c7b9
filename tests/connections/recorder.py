"""Sockets that are none: they are open as far as this process knows, and say what was done to them."""

from __future__ import annotations

import time
from typing import Any

from django_throttle.connections.open_sockets import open_sockets
from django_throttle.core import Lease
from django_throttle.sockets.error_frames import Close, close_code


class Recorder:
    """A socket that only says what was done to it."""

    address = "192.0.2.7"
    received = refused = sent = lost = 0

    def __init__(self, name: str, idents: tuple[str, ...], *, scope: str = "chat", path: str = "/ws/chat") -> None:
        self.id, self.scope, self.path = name, scope, path
        self.opened = self.last_received = time.monotonic()
        self.leases = tuple(Lease(f"~{name}{ident}", (("rule", ident),)) for ident in idents)
        self.closed: Close | None = None
        open_sockets.add(self)

    @property
    def idents(self) -> frozenset[str]:
        return frozenset(ident for lease in self.leases for _, ident in lease.holds)

    def close_code(self, reason: str) -> int:
        return close_code(reason)

    def close(self, code: int, reason: str, payload: object = None) -> None:
        self.closed = Close(code, reason, payload)
        open_sockets.remove(self)

    def reset(self) -> None:
        raise AssertionError("nobody has reset anything")


def sockets(*given: tuple[str, str], **options: Any) -> list[Recorder]:
    return [Recorder(name, (ident,), **options) for name, ident in given]

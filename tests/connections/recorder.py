"""Sockets that are none: they are open as far as this process knows, and say what was done to them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from django_throttle.core import Lease
from django_throttle.sockets.open_sockets import Farewell, Socket, live


class Recorder(Socket):
    """A socket that only says what was done to it."""

    __slots__ = ("farewell",)

    def __init__(self, name: str, idents: tuple[str, ...], *, scope: str = "chat", path: str = "/ws/chat") -> None:
        who = SimpleNamespace(ident=lambda key: None, address=lambda: "192.0.2.7")
        super().__init__(name, scope, path, who)  # type: ignore[arg-type]
        self.leases = tuple(Lease(f"~{name}{ident}", (("rule", ident),)) for ident in idents)
        self.farewell: Farewell | None = None
        live.add(self)

    def leave(self, farewell: Farewell) -> None:
        self.farewell = farewell
        live.remove(self)

    def forget(self) -> None:
        raise AssertionError("nobody has reset anything")


def sockets(*given: tuple[str, str], **options: Any) -> list[Recorder]:
    """Made on a loop, which runs what they are told at once."""

    async def make() -> list[Recorder]:
        return [Recorder(name, (ident,), **options) for name, ident in given]

    found = asyncio.run(make())
    for one in found:
        one.loop = SimpleNamespace(call_soon_threadsafe=lambda function, *args: function(*args))  # type: ignore[assignment]
    return found

"""What a store is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from django_throttle.connections.registry import Registry
from django_throttle.core.command import Command
from django_throttle.core.orders import Order
from django_throttle.damper.meters import Meters
from django_throttle.stores.denials import Denials


class Orders(Protocol):
    """What processes order one another; an ident is named by its tag."""

    def give(self, orders: Iterable[Order]) -> None: ...

    def resend(self) -> None: ...

    def fetch(self) -> dict[Order, float]: ...

    def tag(self, ident: str) -> str: ...


class Store(Protocol):
    """Where counters live. Carries out one command and answers it, or raises StoreError.

    ``is_remote`` where it is shared with other processes and may not answer. ``denials`` remembers refusals where
    asking again is dear; None where it is not. ``meters`` decide what dampers suppress. ``leases`` are those that
    this process holds, ``orders`` what it is to do with its sockets.
    """

    @property
    def is_remote(self) -> bool: ...

    @property
    def denials(self) -> Denials | None: ...

    @property
    def meters(self) -> Meters: ...

    @property
    def leases(self) -> Registry: ...

    @property
    def orders(self) -> Orders: ...

    def execute(self, command: Command) -> Any: ...

    async def aexecute(self, command: Command) -> Any: ...

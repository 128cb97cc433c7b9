"""What a store is."""

from __future__ import annotations

from typing import Any, Protocol

from django_throttle.core.command import Command
from django_throttle.stores.denials import Denials


class Store(Protocol):
    """Where counters live. Carries out one command and answers it, or raises StoreError.

    ``denials`` remembers refusals where asking again is dear; None where it is not.
    """

    @property
    def denials(self) -> Denials | None: ...

    def execute(self, command: Command) -> Any: ...

    async def aexecute(self, command: Command) -> Any: ...

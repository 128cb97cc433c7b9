"""What a store is."""

from __future__ import annotations

from typing import Any, Protocol

from django_throttle.core.command import Command


class Store(Protocol):
    """Where counters live. Carries out one command and answers it, or raises StoreError."""

    def execute(self, command: Command) -> Any: ...

    async def aexecute(self, command: Command) -> Any: ...

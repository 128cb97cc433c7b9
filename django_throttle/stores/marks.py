"""What is to be said once, over all processes: asked of Redis in one round trip, within half of the deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django_throttle.core.command import Once
from django_throttle.stores.errands import Errand
from django_throttle.stores.link import Call
from django_throttle.stores.scripts import script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore


class OnceErrand(Errand):
    """One call a mark, each in the slot of its rule's counter."""

    __slots__ = ()

    def __init__(self, store: RedisStore, command: Once) -> None:
        super().__init__(store)
        # The decision that it follows may have taken a whole deadline.
        self.seconds = store.link.seconds / 2
        for mark in command.marks:
            key = store.key(f"{mark.rule_id}:{mark.name}", mark.ident)
            self.calls.append(Call(script("once"), (key,), (store.now_arg(), mark.lasts)))

    def read(self, replies: Sequence[Any]) -> tuple[bool, ...]:
        return tuple([reply == 1 for reply in replies])

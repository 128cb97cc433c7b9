"""How many members each process has in groups of a channel layer: said to Redis in calls for many, asked in one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.command import CountMembers
from django_throttle.stores.errands import Errand
from django_throttle.stores.link import Call
from django_throttle.stores.scripts import script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore

MEMBERS: Final = "members"  # in the place of a rule's id, which is shorter or longer


class CountErrand(Errand):
    """One command, within half of the deadline: the decision that it is for has all of its own."""

    __slots__ = ()

    def __init__(self, store: RedisStore, command: CountMembers) -> None:
        super().__init__(store)
        self.seconds = store.link.seconds / 2
        args = (store.now_arg(), command.process, round(command.silence * 1_000_000))
        self.calls.append(Call(script("group_size"), (store.key(MEMBERS, command.group),), args))

    def read(self, replies: Sequence[Any]) -> int:
        return int(replies[0])


def tell_calls(store: RedisStore, process: str, counts: Mapping[str, int], seconds: float) -> list[Call]:
    """The calls that say how many members this process has in these groups: one, or one for each slot of a Cluster."""
    slots: dict[object, dict[str, int]] = defaultdict(dict)
    for group, count in counts.items():
        key = store.key(MEMBERS, group)
        slots[store.link.slot_of(key) if store.link.slot_of else None][key] = count
    first = (store.now_arg(), process, round(seconds * 1000))
    return [Call(script("group_tell"), tuple(found), (*first, *found.values())) for found in slots.values()]

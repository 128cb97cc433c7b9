"""What a decision script is asked, as it reads it; see lua/prelude.lua."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

from django_throttle.core.plan import Plan
from django_throttle.core.rate import TOO_COSTLY
from django_throttle.core.rule import Rule
from django_throttle.stores.link import Call
from django_throttle.stores.scripts import CODES, decision_script

PACK: Final = Struct(">BBddddd").pack


class Announcement(NamedTuple):
    """What Redis is to know before a lease is taken: which process may hold leases under which indexes."""

    uid: str
    introduction: str
    indexes: tuple[str, ...]


class Ask(NamedTuple):
    """One call to be decided: its keys, its part of the script's argument, and the algorithms of its rules.

    ``own`` are its lease's arguments. ``repack`` packs it anew as it is sent, where it depends on the calendar: what
    travels together must agree on the time.
    """

    keys: Sequence[str]
    packed: bytes
    algorithms: frozenset[str]
    own: tuple[Any, ...] = ()
    announcement: Announcement | None = None
    repack: Callable[[], bytes] | None = None
    abandoned: Callable[[], None] | None = None  # called once it has arrived, and nobody waits for it any more


@lru_cache(maxsize=4096)
def pack(rule: Rule, cost: int) -> bytes:
    """A charge as the script reads it; see prelude.lua."""
    return pack_as(rule.plan, rule, cost)


def pack_as(plan: Plan, rule: Rule, cost: int) -> bytes:
    """The same by another plan than the rule's own: one with a calendar's bounds."""
    flags = rule.count_denied + 2 * (rule.action == "shadow")
    return PACK(CODES[plan.algorithm], flags, min(cost, TOO_COSTLY), *plan[1:])


def together(asks: Sequence[Ask], now_arg: str) -> Call:
    """One script call for these asks."""
    if len(asks) == 1:
        (ask,) = asks
        packed = ask.repack() if ask.repack else ask.packed
        return Call(decision_script(ask.algorithms), ask.keys, (now_arg, packed, *ask.own), bool(ask.own))
    keys = [key for ask in asks for key in ask.keys]
    algorithms = asks[0].algorithms.union(*(ask.algorithms for ask in asks[1:]))
    own = [one for ask in asks for one in ask.own]
    packed = b"".join([ask.repack() if ask.repack else ask.packed for ask in asks])
    return Call(decision_script(algorithms), keys, (now_arg, packed, *own), bool(own))

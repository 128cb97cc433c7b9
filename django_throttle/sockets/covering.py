"""Which rules cover what happens on one socket, one way, found anew when rules change and once a second."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic
from typing import Final, NamedTuple

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import rulebook
from django_throttle.core.charged import Pair
from django_throttle.core.command import Charge
from django_throttle.core.decision import Outcome
from django_throttle.facts import Facts
from django_throttle.identity import ScopeWho
from django_throttle.sockets.counters import capped

# A relief that ends, a user who logs in: what no edit of a rule announces.
LASTS: Final = 1.0


class Covering(NamedTuple):
    """The charges for a frame that costs 1 and has one byte.

    ``own`` are of rules that count this socket alone, ``metered`` of those that the process decides by what it has
    metered, ``shared`` are asked of the store. ``blocks`` are an operator's refusals. ``until`` is on the monotonic
    clock. ``delays`` is True when an own rule makes frames wait.
    """

    snapshot: rulebook.Snapshot
    until: float
    own: tuple[Charge, ...]
    metered: tuple[Charge, ...]
    shared: tuple[Charge, ...]
    blocks: tuple[Outcome, ...]
    delays: bool

    @property
    def is_empty(self) -> bool:
        """True when no rule covers anything."""
        return not (self.own or self.metered or self.shared or self.blocks)

    @property
    def pairs(self) -> frozenset[Pair]:
        """The rules and idents that are charged."""
        return frozenset([(one.rule.name, one.ident) for one in (*self.own, *self.metered, *self.shared)])

    def without(self, pairs: Collection[Pair]) -> Covering:
        """What another guard of the same socket leaves to this one."""
        kept = [tuple([one for one in charges if (one.rule.name, one.ident) not in pairs]) for charges in self[2:5]]
        return self._replace(own=kept[0], metered=kept[1], shared=kept[2])


async def find(scope: str, events: tuple[str, ...], who: ScopeWho, snapshot: rulebook.Snapshot) -> Covering:
    """What covers these events of this socket; in a thread, where a database has to be asked who it is."""
    try:
        return _find(scope, events, who, snapshot)
    except SynchronousOnlyOperation:
        return await sync_to_async(_find)(scope, events, who, snapshot)


def _find(scope: str, events: tuple[str, ...], who: ScopeWho, snapshot: rulebook.Snapshot) -> Covering:
    facts = Facts(scope, events, who, size=1)
    charges = snapshot.match(facts)
    own = tuple([one._replace(rule=capped(one.rule)) for one in charges if one.rule.key == "connection"])
    others = [one for one in charges if one.rule.key != "connection"]
    metered = tuple([one for one in others if one.rule.is_local])
    shared = tuple([one for one in others if not one.rule.is_local])
    delays = any([one.rule.action == "delay" for one in own])
    return Covering(snapshot, monotonic() + LASTS, own, metered, shared, snapshot.blocks(facts), delays)


def costs_of(charges: tuple[Charge, ...], cost: int, size: int) -> tuple[int, ...]:
    """What a frame costs under each of these."""
    weight = size if cost else 0
    return tuple([one.cost * (weight if one.rule.unit == "bytes" else cost) for one in charges])

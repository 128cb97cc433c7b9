"""Which rules cover what happens on one socket, one way, found anew when rules change and once a second."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic
from typing import Final, NamedTuple

from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import rulebook
from django_throttle.core.charged import Pair
from django_throttle.core.command import Charge
from django_throttle.core.decision import Outcome
from django_throttle.facts import Facts
from django_throttle.identity import ScopeWho
from django_throttle.sockets.counters import capped
from django_throttle.threads import in_thread

# A relief that ends, a user who logs in: what no edit of a rule announces.
LASTS: Final = 1.0


class Covering(NamedTuple):
    """The charges for a frame that costs 1 and has one byte.

    ``own`` are of rules that count this socket alone, ``metered`` of those that the process decides by what it has
    metered, ``shared`` are asked of the store. ``blocks`` are an operator's refusals. ``until`` is on the monotonic
    clock. ``delays`` is True when an own rule makes frames wait, ``remembers`` when what own rules refuse need not be
    counted, ``is_empty`` when no rule covers anything.
    """

    snapshot: rulebook.Snapshot
    until: float
    own: tuple[Charge, ...]
    metered: tuple[Charge, ...]
    shared: tuple[Charge, ...]
    blocks: tuple[Outcome, ...]
    delays: bool
    remembers: bool
    is_empty: bool

    @property
    def pairs(self) -> frozenset[Pair]:
        """The rules and idents that are charged."""
        return frozenset([(one.rule.name, one.ident) for one in (*self.own, *self.metered, *self.shared)])

    def without(self, pairs: Collection[Pair]) -> Covering:
        """What another guard of the same socket leaves to this one."""

        def left(charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
            return tuple([one for one in charges if (one.rule.name, one.ident) not in pairs])

        return _made(self.snapshot, left(self.own), left(self.metered), left(self.shared), self.blocks)


async def find(scope: str, events: tuple[str, ...], who: ScopeWho, snapshot: rulebook.Snapshot) -> Covering:
    """What covers these events of this socket; in a thread, where a database or a session has to be asked who it is."""
    try:
        return _find(scope, events, who, snapshot)
    except SynchronousOnlyOperation:
        return await in_thread(_find, scope, events, who, snapshot)


def _find(scope: str, events: tuple[str, ...], who: ScopeWho, snapshot: rulebook.Snapshot) -> Covering:
    facts = Facts(scope, events, who, size=1)
    charges = snapshot.match(facts)
    own = tuple([one._replace(rule=capped(one.rule)) for one in charges if one.rule.key == "connection"])
    others = [one for one in charges if one.rule.key != "connection"]
    metered = tuple([one for one in others if one.rule.is_local])
    shared = tuple([one for one in others if not one.rule.is_local])
    return _made(snapshot, own, metered, shared, snapshot.blocks(facts))


def _made(
    snapshot: rulebook.Snapshot,
    own: tuple[Charge, ...],
    metered: tuple[Charge, ...],
    shared: tuple[Charge, ...],
    blocks: tuple[Outcome, ...],
) -> Covering:
    delays = any(one.rule.action == "delay" for one in own)
    remembers = not any(one.rule.count_denied or one.rule.is_shadow for one in own)
    is_empty = not (own or metered or shared or blocks)
    return Covering(snapshot, monotonic() + LASTS, own, metered, shared, blocks, delays, remembers, is_empty)


def costs_of(charges: tuple[Charge, ...], cost: int, size: int) -> tuple[int, ...]:
    """What a frame costs under each of these."""
    weight = size if cost else 0
    return tuple([one.cost * (weight if one.rule.unit == "bytes" else cost) for one in charges])

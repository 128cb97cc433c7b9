"""Eviction: one socket makes room for another, where full rules say so by ``at_limit``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django_throttle.core.commands import Charge
from django_throttle.core.control import Evict
from django_throttle.core.decision import Decision, Lease
from django_throttle.core.flow import Flow, release
from django_throttle.exceptions import StoreError

TRIES: Final = 3


def making_room(decide: Callable[[], Flow[Decision]], charges: tuple[Charge, ...], lease: str) -> Flow[Decision]:
    """Decide; where nothing refuses but full rules that evict, evict, and decide again.

    The slot of who goes is the newcomer's in the same moment, so that nobody else gets it in between; unless a newer
    one has it make room in turn, by which it is refused. What it has taken goes back when another rule refuses it.
    """
    decision = yield from decide()
    taken: dict[tuple[str, str], None] = {}
    for _ in range(TRIES):
        full = _full(charges, decision)
        if not full or any((charge.rule.id, charge.ident) in taken for charge in full):
            break
        for charge in full:
            if not (yield from _evict(charge, lease)):
                yield from _given_back(taken, lease)
                return decision
            taken[charge.rule.id, charge.ident] = None
        decision = yield from decide()
    if not decision.allowed:
        yield from _given_back(taken, lease)
    return decision


def _full(charges: tuple[Charge, ...], decision: Decision) -> list[Charge]:
    """The charges that stand in the way, when all of them are of rules that evict."""
    if decision.allowed or decision.degraded:
        return []
    evicting = {(charge.rule.name, charge.ident): charge for charge in charges if charge.rule.at_limit != "reject"}
    refusing = {(one.rule, one.ident) for one in decision.outcomes if not (one.allowed or one.shadow)}
    return [evicting[pair] for pair in evicting if pair in refusing] if refusing <= evicting.keys() else []


def _evict(charge: Charge, lease: str) -> Flow[bool]:
    try:
        return bool((yield Evict(charge, lease)))
    except StoreError:
        return False


def _given_back(taken: dict[tuple[str, str], None], lease: str) -> Flow[None]:
    if taken:
        yield from release(Lease(lease, tuple(taken)))

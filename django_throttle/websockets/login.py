"""Leases of a socket whose caller changes while it is open, as after a login in its first message."""

from __future__ import annotations

import logging

from django_throttle import limiter, rulebook
from django_throttle.core.commands import Release
from django_throttle.core.decision import NO_RULE_DECISION, Lease
from django_throttle.core.ledger import Ledger
from django_throttle.identity import AsgiCaller
from django_throttle.identity.call import Call
from django_throttle.runtime import in_thread
from django_throttle.stores import get_store
from django_throttle.websockets import limits
from django_throttle.websockets.connection import Connection

logger = logging.getLogger("django_throttle")

EVENTS = ("connection",)


async def move_leases(connection: Connection) -> None:
    """Acquire the leases of the new caller, and release those of the former. Close the socket if they are refused."""
    connection.incoming.forget()
    connection.outgoing.forget()
    try:
        await _move_leases(connection)
    except Exception:  # a function of the site may raise anything
        logger.exception("the leases of a socket were not moved to its new caller; it stays open")


async def _move_leases(connection: Connection) -> None:
    snapshot = rulebook.loaded() or await rulebook.acurrent()
    names = {rule.id: rule.name for rule in snapshot.rules}
    held = {key: (names[key[0]], key[1]) for lease in connection.leases for key in lease.lease_keys if key[0] in names}
    caller = AsgiCaller(connection.caller.subject)
    matched = await limits.match(connection.scope, EVENTS, caller, snapshot)
    charged = Ledger.of_costs(dict.fromkeys([*held.values(), *await connection.outer_pairs(EVENTS)], 1))
    decision = NO_RULE_DECISION
    if matched.is_blocked or not matched.pairs.issubset(charged.costs):
        call = Call(connection.scope, EVENTS, caller, charged=charged)
        decision = await limiter.adecide(call, run_in_thread=in_thread)
    if not decision.allowed:
        await connection.close_by(connection.close_for(decision))
        return
    former_keys = {key for key, pair in held.items() if pair not in matched.pairs}
    if connection.has_ended:
        _release(decision.lease)
        return
    kept = [
        Lease(lease.id, tuple([key for key in lease.lease_keys if key not in former_keys]))
        for lease in connection.leases
    ]
    former = [
        Lease(lease.id, tuple([key for key in lease.lease_keys if key in former_keys])) for lease in connection.leases
    ]
    acquired = () if decision.lease is None else (decision.lease,)
    connection.replace_leases((*[lease for lease in kept if lease.lease_keys], *acquired))
    for lease in former:
        _release(lease)


def _release(lease: Lease | None) -> None:
    if lease is not None and lease.lease_keys:
        get_store().release_soon(Release(lease.id, lease.lease_keys))

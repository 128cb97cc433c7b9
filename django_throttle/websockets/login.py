"""The slots of a socket whose caller changes while it is open, as by a login in its first message."""

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


async def follow(connection: Connection) -> None:
    """Take the slots that the caller needs now, and release those of the former one; close the socket if it may not."""
    connection.incoming.forget()
    connection.outgoing.forget()
    try:
        await _follow(connection)
    except Exception:  # a site's own function may raise anything
        logger.exception("the slots of a socket do not follow its new caller; it stays open")


async def _follow(connection: Connection) -> None:
    snapshot = rulebook.loaded() or await rulebook.acurrent()
    names = {rule.id: rule.name for rule in snapshot.rules}
    held = {
        hold: (names[hold[0]], hold[1]) for lease in connection.leases for hold in lease.lease_keys if hold[0] in names
    }
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
    lost = {hold for hold, pair in held.items() if pair not in matched.pairs}
    if connection.has_ended:
        _release(decision.lease)
        return
    kept = [
        Lease(lease.id, tuple([hold for hold in lease.lease_keys if hold not in lost])) for lease in connection.leases
    ]
    freed = [Lease(lease.id, tuple([hold for hold in lease.lease_keys if hold in lost])) for lease in connection.leases]
    taken = () if decision.lease is None else (decision.lease,)
    connection.put_leases((*[lease for lease in kept if lease.lease_keys], *taken))
    for lease in freed:
        _release(lease)


def _release(lease: Lease | None) -> None:
    if lease is not None and lease.lease_keys:
        get_store().release_soon(Release(lease.id, lease.lease_keys))

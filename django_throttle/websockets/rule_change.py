"""Application of changed rules to open sockets."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

from asgiref.sync import sync_to_async
from django.dispatch import receiver

from django_throttle.core import Decision, Outcome, Reason
from django_throttle.core.algorithms.concurrency import RETRY_AFTER_US
from django_throttle.core.decision import combine_outcomes
from django_throttle.identity.call import Call
from django_throttle.local.open_sockets import open_sockets
from django_throttle.rulebook import Snapshot
from django_throttle.runtime import at_once_or_in_thread, spawn
from django_throttle.signals import rules_changed
from django_throttle.stores import get_store
from django_throttle.stores.redis.pool import text
from django_throttle.websockets.connection import Connection
from django_throttle.websockets.error_frames import frame_event

logger = logging.getLogger("django_throttle")

HANDSHAKE_EVENTS: Final = ("connect", "connection")
# Sockets to which rules are applied before the event loop may do other work.
BATCH_SOCKETS: Final = 20


class LoweredLimit(NamedTuple):
    """A lowered limit under which sockets hold leases."""

    rule_id: str
    ident: str
    rule: str  #: name of the rule
    limit: int
    oldest_first: bool = False  #: True if the rule evicts: the oldest sockets are closed first


@receiver(rules_changed, dispatch_uid="django_throttle.websockets")
def _rules_changed(*, old: Snapshot | None, new: Snapshot, **_: object) -> None:
    by_loop: dict[AbstractEventLoop, list[Connection]] = defaultdict(list)
    for connection in open_sockets.all():
        if isinstance(connection, Connection):
            by_loop[connection.loop].append(connection)
    for loop, connections in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and its sockets with it
            loop.call_soon_threadsafe(lambda sockets: spawn(apply(sockets, old, new)), connections)


async def apply(connections: Iterable[Connection], old: Snapshot | None, new: Snapshot) -> None:
    """Apply the rules to these sockets of the running loop, in batches."""
    lowered: dict[LoweredLimit, list[Connection]] = defaultdict(list)
    with_inner = chain.from_iterable(connection.with_inner() for connection in connections)
    for number, connection in enumerate(with_inner, 1):
        try:
            for limit in await _apply_to_socket(connection, old, new):
                lowered[limit].append(connection)
        except Exception:  # a function of the site may raise anything; go on with the other sockets
            logger.exception("changed rules were not applied to an open socket, which stays open")
        if number % BATCH_SOCKETS == 0:
            await asyncio.sleep(0)
    if not lowered:
        return
    excess = await sync_to_async(excess_leases, thread_sensitive=False)(list(lowered))
    for limit, leases in excess.items():
        for connection in lowered[limit]:
            if any(lease.id in leases for lease in connection.leases):
                _close_or_warn(connection, limit)


async def _apply_to_socket(connection: Connection, old: Snapshot | None, new: Snapshot) -> list[LoweredLimit]:
    """Close the socket if it is blocked. Else return the lowered limits under which it holds leases."""
    connection.forget_refusals()
    call = Call(connection.scope, HANDSHAKE_EVENTS, connection.caller)
    refusal, lowered = await at_once_or_in_thread(_decide, connection, call, old, new)
    if refusal is not None:
        connection.start_close(connection.close_for(refusal))
    return lowered


def _decide(
    connection: Connection, call: Call, old: Snapshot | None, new: Snapshot
) -> tuple[Decision | None, list[LoweredLimit]]:
    blocks = tuple([block for block in new.blocks(call) if block.reason is Reason.BLOCKED and not block.shadow])
    if blocks:
        return combine_outcomes(blocks), []
    return None, list(_lowered_limits(connection, call, old, new))


def _lowered_limits(connection: Connection, call: Call, old: Snapshot | None, new: Snapshot) -> Iterator[LoweredLimit]:
    if connection.settings.on_rule_change == "ignore" or not connection.leases or old is None:
        return
    former_limits = {
        (charge.rule.id, charge.ident): charge.rule.params.limit
        for charge in old.match(call)
        if charge.rule.holds_slots
    }
    leased = {pair for lease in connection.leases for pair in lease.lease_keys}
    for rule, ident, _ in new.match(call):
        pair = (rule.id, ident)
        if pair in leased and not rule.is_shadow and rule.params.limit < former_limits.get(pair, 0):
            yield LoweredLimit(*pair, rule.name, rule.params.limit, rule.at_limit != "reject")


def excess_leases(limits: Sequence[LoweredLimit]) -> dict[LoweredLimit, frozenset[str]]:
    """Return the ids of this process's leases above each limit, in the order of all processes. Raise StoreError."""
    store = get_store()
    if not store.is_remote:
        return {limit: _local_excess(limit) for limit in limits}
    uid = store.leases.uid
    calls = [
        ("find_surplus", (store.key(limit.rule_id, limit.ident),), (uid, limit.limit, int(limit.oldest_first)))
        for limit in limits
    ]
    return {
        limit: frozenset() if isinstance(reply, Exception) else frozenset(map(text, reply))
        for limit, reply in zip(limits, store.pipeline(calls), strict=True)
    }


def _local_excess(limit: LoweredLimit) -> frozenset[str]:
    pair = (limit.rule_id, limit.ident)
    leases = [
        (socket.opened, lease.id)
        for socket in open_sockets.all()
        for lease in socket.leases
        if pair in lease.lease_keys
    ]
    leases.sort(reverse=not limit.oldest_first)
    return frozenset([lease_id for _, lease_id in leases[: max(0, len(leases) - limit.limit)]])


def _close_or_warn(connection: Connection, limit: LoweredLimit) -> None:
    wait = RETRY_AFTER_US / 1_000_000
    decision = combine_outcomes((Outcome(limit.rule, limit.ident, False, limit.limit, 0, wait, wait, Reason.EXCEEDED),))
    if connection.settings.on_rule_change == "close":
        connection.start_close(connection.close_for(decision))
    else:
        spawn(_warn(connection, decision))  # without waiting for a client that does not read


async def _warn(connection: Connection, decision: Decision) -> None:
    content = connection.settings.refusal_content(decision, connection.subprotocol.notice)
    if connection.is_open and content is not None:
        await connection.send_own(frame_event(content))

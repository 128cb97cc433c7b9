"""Applies changed rules to the sockets that are open already."""

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
# Sockets that are looked at before the event loop goes on with its other work.
AT_ONCE: Final = 20


class LoweredLimit(NamedTuple):
    """A limit that is lower now, under which sockets hold leases: the rule's id and the ident, its name, the limit.

    ``oldest_first`` where the rule evicts: an old socket then makes room here too.
    """

    rule_id: str
    ident: str
    rule: str
    limit: int
    oldest_first: bool = False


@receiver(rules_changed, dispatch_uid="django_throttle.websockets")
def _rules_changed(*, old: Snapshot | None, new: Snapshot, **_: object) -> None:
    by_loop: dict[AbstractEventLoop, list[Connection]] = defaultdict(list)
    for connection in open_sockets.all():
        if isinstance(connection, Connection):
            by_loop[connection.loop].append(connection)
    for loop, connections in by_loop.items():
        with suppress(RuntimeError):  # it has been closed, and they with it
            loop.call_soon_threadsafe(lambda those: spawn(apply(those, old, new)), connections)


async def apply(connections: Iterable[Connection], old: Snapshot | None, new: Snapshot) -> None:
    """Apply the rules to these sockets of the running loop, a few at a time."""
    lowered: dict[LoweredLimit, list[Connection]] = defaultdict(list)
    for number, connection in enumerate(chain.from_iterable(one.with_inner() for one in connections), 1):
        try:
            for limit in await _apply(connection, old, new):
                lowered[limit].append(connection)
        except Exception:  # a site's own function may raise anything; the other sockets are looked at all the same
            logger.exception("changed rules were not applied to an open socket, which stays open")
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    if not lowered:
        return
    excess = await sync_to_async(excess_leases, thread_sensitive=False)(list(lowered))
    for limit, leases in excess.items():
        for connection in lowered[limit]:
            if any(lease.id in leases for lease in connection.leases):
                _close_or_warn(connection, limit)


async def _apply(connection: Connection, old: Snapshot | None, new: Snapshot) -> list[LoweredLimit]:
    """Close it when it is blocked; else the limits under which it holds leases and that are lower now."""
    connection.forget_refusals()
    call = Call(connection.scope, HANDSHAKE_EVENTS, connection.caller)
    blocked, lowered = await at_once_or_in_thread(_judge, connection, call, old, new)
    if blocked is not None:
        connection.start_close(connection.close_for(blocked))
    return lowered


def _judge(
    connection: Connection, call: Call, old: Snapshot | None, new: Snapshot
) -> tuple[Decision | None, list[LoweredLimit]]:
    blocks = tuple([one for one in new.blocks(call) if one.reason is Reason.BLOCKED and not one.shadow])
    if blocks:
        return combine_outcomes(blocks), []
    return None, list(_lowered(connection, call, old, new))


def _lowered(connection: Connection, call: Call, old: Snapshot | None, new: Snapshot) -> Iterator[LoweredLimit]:
    if connection.settings.on_rule_change == "ignore" or not connection.leases or old is None:
        return
    before = {(one.rule.id, one.ident): one.rule.params.limit for one in old.match(call) if one.rule.holds_slots}
    leased = {pair for lease in connection.leases for pair in lease.lease_keys}
    for rule, ident, _ in new.match(call):
        pair = (rule.id, ident)
        if pair in leased and not rule.is_shadow and rule.params.limit < before.get(pair, 0):
            yield LoweredLimit(*pair, rule.name, rule.params.limit, rule.at_limit != "reject")


def excess_leases(limits: Sequence[LoweredLimit]) -> dict[LoweredLimit, frozenset[str]]:
    """The leases of this process that are too many, by the order of all processes' together. Raises StoreError."""
    store = get_store()
    if not store.is_remote:
        return {limit: _excess_here(limit) for limit in limits}
    uid = store.leases.uid
    calls = [
        ("find_surplus", (store.key(one.rule_id, one.ident),), (uid, one.limit, int(one.oldest_first)))
        for one in limits
    ]
    return {
        limit: frozenset() if isinstance(reply, Exception) else frozenset(map(text, reply))
        for limit, reply in zip(limits, store.pipeline(calls), strict=True)
    }


def _excess_here(limit: LoweredLimit) -> frozenset[str]:
    pair = (limit.rule_id, limit.ident)
    leases = [(one.opened, lease.id) for one in open_sockets.all() for lease in one.leases if pair in lease.lease_keys]
    leases.sort(reverse=not limit.oldest_first)
    return frozenset([lease for _, lease in leases[: max(0, len(leases) - limit.limit)]])


def _close_or_warn(connection: Connection, limit: LoweredLimit) -> None:
    wait = RETRY_AFTER_US / 1_000_000
    decision = combine_outcomes((Outcome(limit.rule, limit.ident, False, limit.limit, 0, wait, wait, Reason.EXCEEDED),))
    if connection.settings.on_rule_change == "close":
        connection.start_close(connection.close_for(decision))
    else:
        spawn(_warn(connection, decision))  # a client that reads nothing keeps none of the others waiting


async def _warn(connection: Connection, decision: Decision) -> None:
    content = connection.settings.refusal_content(decision, connection.subprotocol.notice)
    if connection.is_open and content is not None:
        await connection.send_own(frame_event(content))

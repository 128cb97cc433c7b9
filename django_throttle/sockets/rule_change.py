"""Applies changed rules to the sockets that are open already."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.dispatch import receiver

from django_throttle.core import Decision, Outcome, Reason
from django_throttle.core.decision import conclude
from django_throttle.core.plan import ASK_AGAIN
from django_throttle.core.problem import error_code
from django_throttle.facts import Facts
from django_throttle.lifecycle import in_thread
from django_throttle.rulebook import Snapshot
from django_throttle.signals import rules_changed
from django_throttle.sockets.connection import Guard
from django_throttle.sockets.frames import close_reason, frame
from django_throttle.sockets.open_sockets import Farewell, live
from django_throttle.sockets.timers import spawn
from django_throttle.stores import get_store
from django_throttle.stores.redis import RedisStore


class Hold(NamedTuple):
    """A slot under a rule: its id and the ident, its name, and the limit that holds now.

    ``oldest`` is True where a newcomer closes an old socket, which then goes first here too.
    """

    rule_id: str
    ident: str
    rule: str
    limit: int
    oldest: bool = False


def surplus(holds: Sequence[Hold]) -> dict[Hold, frozenset[str]]:
    """The leases of this process that have to go, by the order of all processes' together. Raises StoreError."""
    store = get_store()
    if not isinstance(store, RedisStore):
        return {hold: _here(hold) for hold in holds}
    uid = store.leases.uid
    calls = [("surplus", (store.key(hold.rule_id, hold.ident),), (uid, hold.limit, int(hold.oldest))) for hold in holds]
    return {hold: _leases(reply) for hold, reply in zip(holds, store.pipeline(calls), strict=True)}


def _leases(reply: Any) -> frozenset[str]:
    if isinstance(reply, Exception):
        return frozenset()
    return frozenset([lease.decode() if isinstance(lease, bytes) else lease for lease in reply])


def _here(hold: Hold) -> frozenset[str]:
    pair = (hold.rule_id, hold.ident)
    found = [(one.opened, lease.id) for one in live.everyone() for lease in one.leases if pair in lease.holds]
    found.sort(reverse=not hold.oldest)
    return frozenset([lease for _, lease in found[: max(0, len(found) - hold.limit)]])


logger = logging.getLogger("django_throttle")

EVENTS: Final = ("connect", "connection")
# Sockets that are looked at before the event loop goes on with its other work.
AT_ONCE: Final = 20


@receiver(rules_changed, dispatch_uid="django_throttle.sockets")
def _changed(*, old: Snapshot | None, new: Snapshot, **_: object) -> None:
    """Have each event loop look at its own sockets."""
    by_loop: dict[AbstractEventLoop, list[Guard]] = defaultdict(list)
    for guard in live.everyone():
        by_loop[guard.loop].append(guard)  # type: ignore[arg-type]  # nothing else goes in
    for loop, guards in by_loop.items():
        with suppress(RuntimeError):  # it has been closed, and they with it
            loop.call_soon_threadsafe(_begin, guards, old, new)


def _begin(guards: list[Guard], old: Snapshot | None, new: Snapshot) -> None:
    spawn(review(guards, old, new))


async def review(guards: Iterable[Guard], old: Snapshot | None, new: Snapshot) -> None:
    """Look at each of these sockets of the running loop, a few at a time."""
    lowered: dict[Hold, list[Guard]] = defaultdict(list)
    for number, guard in enumerate(chain.from_iterable(guard.nest() for guard in guards), 1):
        try:
            for hold in await _look(guard, old, new):
                lowered[hold].append(guard)
        except Exception:  # a site's own function may raise anything; the other sockets are looked at all the same
            logger.exception("an open socket could not be held against the new rules")
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    for hold, guard in await _beyond(lowered):
        _too_many(guard, hold)


async def _look(guard: Guard, old: Snapshot | None, new: Snapshot) -> list[Hold]:
    """Close it when it is blocked; else the slots that it holds under limits that are lower now."""
    guard.renew()
    facts = Facts(guard.scope, EVENTS, guard.who)
    try:
        blocks, lowered = _judged(guard, facts, old, new)
    except SynchronousOnlyOperation:
        blocks, lowered = await in_thread(_judged, guard, facts, old, new)
    if blocks is not None:
        guard.leave(_farewell(guard, blocks))
    return lowered


def _judged(guard: Guard, facts: Facts, old: Snapshot | None, new: Snapshot) -> tuple[Decision | None, list[Hold]]:
    blocks = tuple([one for one in new.blocks(facts) if one.reason is Reason.BLOCKED and not one.shadow])
    if blocks:
        return conclude(blocks), []
    return None, list(_lowered(guard, facts, old, new))


def _lowered(guard: Guard, facts: Facts, old: Snapshot | None, new: Snapshot) -> Iterator[Hold]:
    if guard.terms.on_rule_change == "ignore" or not guard.leases or old is None:
        return
    before = {(one.rule.id, one.ident): one.rule.plan.limit for one in old.match(facts) if one.rule.is_concurrency}
    held = {pair for lease in guard.leases for pair in lease.holds}
    for rule, ident, _ in new.match(facts):
        pair = (rule.id, ident)
        if pair in held and not rule.is_shadow and rule.plan.limit < before.get(pair, 0):
            yield Hold(*pair, rule.name, rule.plan.limit, rule.at_limit != "reject")


async def _beyond(lowered: dict[Hold, list[Guard]]) -> list[tuple[Hold, Guard]]:
    """Of these sockets, those that came last and are too many."""
    if not lowered:
        return []
    found = await sync_to_async(surplus, thread_sensitive=False)(list(lowered))
    return [
        (hold, guard)
        for hold, leases in found.items()
        for guard in lowered[hold]
        if any(lease.id in leases for lease in guard.leases)
    ]


def _too_many(guard: Guard, hold: Hold) -> None:
    wait = ASK_AGAIN / 1_000_000
    outcome = Outcome(hold.rule, hold.ident, False, hold.limit, 0, wait, wait, Reason.EXCEEDED)
    decision = conclude((outcome,))
    if guard.terms.on_rule_change == "close":
        guard.leave(_farewell(guard, decision))
    else:
        spawn(_warn(guard, decision))  # one that reads nothing keeps none of the others waiting


async def _warn(guard: Guard, decision: Decision) -> None:
    if guard.is_open:
        await guard.tell(frame(guard.terms.said(decision)))


def _farewell(guard: Guard, decision: Decision) -> Farewell:
    code = guard.terms.close_code(error_code(decision))
    return Farewell(code, close_reason(decision), guard.terms.said(decision))

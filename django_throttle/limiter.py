"""``Limiter``, and the decisions of doors: starts flows and runs them with a store."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import agent_thread, rulebook
from django_throttle.call_facts import Facts
from django_throttle.core import Decision, Lease, Rule, overrides
from django_throttle.core.commands import SOCKET_LEASE, Charge, charge, check_cost
from django_throttle.core.decide import (
    Flow,
    decide_and_correct,
    decide_and_evict,
    decide_charges,
    drop_reported,
    release_lease,
    reset_charges,
)
from django_throttle.core.key import check_ident
from django_throttle.exceptions import InvalidRule, Refused
from django_throttle.lifecycle import in_thread
from django_throttle.observe import reports
from django_throttle.stores import get_store
from django_throttle.stores.base import Step, Steps, Store, arun, run


class Limiter:
    """Decides calls under a fixed set of rules; every enabled one applies, all or nothing.

    An ident is text of 1 to 1024 characters, such as "user:42", under which all the rules count; a cost is
    a whole number. Raises InvalidIdent, InvalidCost, and InvalidRule when two rules share a name. The
    store's failures are not raised: each rule's failure policy decides. Rules of policy "local", of slots and of
    dampers have a background thread serve a store on Redis until the process ends, so keep one store, not one a call.
    """

    def __init__(self, rules: Iterable[Rule], store: Store) -> None:
        self.rules = tuple(rules)
        self.store = store
        self._parts = tuple(part for rule in self.rules if rule.enabled for part in rule.parts)
        # A share of the limit takes knowing how many processes there are, and so saying that this one lives.
        self._shares = (
            store.is_remote and agent_thread.is_on() and any(part.on_store_failure == "local" for part in self._parts)
        )
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise InvalidRule(f"two rules share a name: {', '.join(sorted(names))}")

    def acquire(self, ident: str, cost: int = 1) -> Decision:
        """Charge one call; a refused one charges nothing. Cost 0 charges nothing and takes no lease."""
        return run(decide_flow(self._charges(ident, cost), self.store), self.store)

    async def aacquire(self, ident: str, cost: int = 1) -> Decision:
        """Acquire without blocking the event loop."""
        return await arun(decide_flow(self._charges(ident, cost), self.store), self.store)

    def peek(self, ident: str, cost: int = 1) -> Decision:
        """What acquire would answer now; charges nothing, and ``remaining`` is what is there."""
        return run(decide_flow(self._charges(ident, cost), self.store, commit=False), self.store)

    async def apeek(self, ident: str, cost: int = 1) -> Decision:
        """Peek without blocking the event loop."""
        return await arun(decide_flow(self._charges(ident, cost), self.store, commit=False), self.store)

    def reset(self, ident: str) -> int:
        """Make every rate full again for an ident; what it holds open stays. Returns the counters removed.

        Raises StoreError when the store does not answer.
        """
        return run(reset_charges(self._charges(ident, 0)), self.store)

    async def areset(self, ident: str) -> int:
        """Reset without blocking the event loop."""
        return await arun(reset_charges(self._charges(ident, 0)), self.store)

    def release(self, lease: Lease | None) -> None:
        """Give back what ``decision.lease`` holds; None and a second time change nothing."""
        run(release_lease(lease), self.store)

    async def arelease(self, lease: Lease | None) -> None:
        """Release without blocking the event loop."""
        await arun(release_lease(lease), self.store)

    @contextmanager
    def lease(self, ident: str) -> Iterator[Decision]:
        """Hold a slot of the concurrency rules inside a ``with`` block; rates are charged once. Raises Refused."""
        decision = admitted(self.acquire(ident))
        try:
            yield decision
        finally:
            self.release(decision.lease)

    @asynccontextmanager
    async def alease(self, ident: str) -> AsyncIterator[Decision]:
        """Hold a slot inside an ``async with`` block."""
        decision = admitted(await self.aacquire(ident))
        try:
            yield decision
        finally:
            await self.arelease(decision.lease)

    def _charges(self, ident: str, cost: int) -> tuple[Charge, ...]:
        check_ident(ident)
        check_cost(cost)
        if self._shares:
            agent_thread.ensure(self.store)
        return tuple([charge(part, ident, cost) for part in self._parts])


def admitted(decision: Decision) -> Decision:
    """The decision of a call that is allowed; raises Refused for any other."""
    if not decision.allowed:
        raise Refused(decision)
    return decision


def decide_flow(
    charges: tuple[Charge, ...], store: Store, *, commit: bool = True, whole: bool = False, socket: bool = False
) -> Flow[Decision]:
    """The flow that decides these charges; the caller's lease is named before anything is sent.

    A ``socket`` may have others make room for it, and makes room for others.
    """
    leased = local = False
    for rule, _, cost in charges:
        leased = leased or (commit and rule.is_concurrency and cost > 0)
        local = local or rule.is_local
    if leased or local:
        agent_thread.ensure(store)  # a lease needs a process that says it lives, a damper one that reports
    lease = (SOCKET_LEASE if socket else "") + secrets.token_urlsafe(9) if leased else None
    denials, counts = store.denials, store.local_limits if local else None
    decided = partial(
        decide_charges, charges, commit=commit, lease=lease, whole=whole, denials=denials, local_limits=counts
    )
    return decide_and_evict(decided, charges, lease) if lease and socket else decided()


def door_flow(snapshot: rulebook.Snapshot, facts: Facts, store: Store, commit: bool) -> Steps[Decision]:
    """The flow that decides a door's call; matching its rules may ask a database."""
    socket = "connect" in facts.events
    blocks, charges = snapshot.blocks(facts), snapshot.match(facts)
    decided = decide_flow(charges, store, commit=commit, whole=facts.early, socket=socket)
    if blocks:
        decided = overrides.decide_blocked(blocks, decided)
    if facts.charged.costs:
        decided = decide_and_correct(decided, facts.charged, snapshot.by_name)
    return _wait_and_report(decided, facts, commit)


async def _adoor_flow(snapshot: rulebook.Snapshot, facts: Facts, *call: Any) -> Steps[Decision]:
    """The same on an event loop: in a thread where a database has to be asked who is calling."""
    try:
        return door_flow(snapshot, facts, *call)
    except SynchronousOnlyOperation:
        if "connect" in facts.events:
            return await in_thread(door_flow, snapshot, facts, *call)
        return await sync_to_async(door_flow)(snapshot, facts, *call)  # as a view would


def _wait_and_report(decided: Flow[Decision], facts: Facts, commit: bool) -> Steps[Decision]:
    """Decide; then wait where a rule delays the call, and report to hooks, log and signals what is not ordinary."""
    began = perf_counter()
    decision = yield from decided
    if decision.is_ordinary and not reports.installed_hooks():
        return decision
    seconds = perf_counter() - began
    try:
        if decision.delay and commit:
            yield Step(partial(time.sleep, decision.delay), partial(asyncio.sleep, decision.delay))
        if decision.crossed:
            decision = yield from drop_reported(decision)
        report = (facts, decision, seconds)
        yield Step(partial(reports.tell, *report), partial(reports.atell, *report))
    except BaseException:  # the client has gone, or a worker's own timeout: nobody will see this decision
        yield from release_lease(decision.lease)
        raise
    return decision


def decide(facts: Facts, *, commit: bool = True) -> Decision:
    """Decide a call under the rules in force, and wait where a rule delays it; every synchronous door calls this."""
    store, snapshot = _watched_store(), rulebook.current()
    return run(door_flow(snapshot, facts, store, commit), store)


async def adecide(facts: Facts, *, commit: bool = True) -> Decision:
    """Decide, and wait, without blocking the event loop."""
    store, snapshot = _watched_store(), await rulebook.acurrent()
    return await arun(await _adoor_flow(snapshot, facts, store, commit), store)


def _watched_store() -> Store:
    """The store of the settings; what serves it in the background is started by the first call."""
    store = get_store()
    if id(store) not in agent_thread.watched:
        agent_thread.ensure(store, rules=True)
    return store


async def arelease(lease: Lease | None) -> None:
    """Release what a door's decision holds; None and a second time change nothing."""
    await arun(release_lease(lease), get_store())

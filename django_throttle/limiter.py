"""The facade that every door and script uses: it starts flows and hands them to a store."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from django_throttle import agent, observe, rulebook
from django_throttle.core import flow
from django_throttle.core.command import Charge, charge, check_cost
from django_throttle.core.decision import Decision, Lease
from django_throttle.core.key import check_ident
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule, Refused
from django_throttle.facts import Facts
from django_throttle.stores import get_store
from django_throttle.stores.base import Store
from django_throttle.stores.drive import arun, run


class Limiter:
    """Decides calls under a fixed set of rules; every enabled one applies, all or nothing.

    An ident is text of 1 to 1024 characters, such as "user:42", under which all the rules count; a cost is
    a whole number. Raises InvalidIdent, InvalidCost, and InvalidRule when two rules share a name. The
    store's failures are not raised: each rule's failure policy decides.
    """

    def __init__(self, rules: Iterable[Rule], store: Store) -> None:
        self.rules = tuple(rules)
        self.store = store
        self._parts = tuple(part for rule in self.rules if rule.enabled for part in rule.parts)
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
        return run(flow.forget(self._charges(ident, 0)), self.store)

    async def areset(self, ident: str) -> int:
        """Reset without blocking the event loop."""
        return await arun(flow.forget(self._charges(ident, 0)), self.store)

    def release(self, lease: Lease | None) -> None:
        """Give back what ``decision.lease`` holds; None and a second time change nothing."""
        run(flow.release(lease), self.store)

    async def arelease(self, lease: Lease | None) -> None:
        """Release without blocking the event loop."""
        await arun(flow.release(lease), self.store)

    @contextmanager
    def lease(self, ident: str) -> Iterator[Decision]:
        """Hold a slot of the concurrency rules inside the block; rates are charged once. Raises Refused."""
        decision = self.acquire(ident)
        if not decision.allowed:
            raise Refused(decision)
        try:
            yield decision
        finally:
            self.release(decision.lease)

    @asynccontextmanager
    async def alease(self, ident: str) -> AsyncIterator[Decision]:
        """Hold a slot without blocking the event loop."""
        decision = await self.aacquire(ident)
        if not decision.allowed:
            raise Refused(decision)
        try:
            yield decision
        finally:
            await self.arelease(decision.lease)

    def _charges(self, ident: str, cost: int) -> tuple[Charge, ...]:
        check_ident(ident)
        check_cost(cost)
        return tuple([charge(part, ident, cost) for part in self._parts])


def decide_flow(charges: tuple[Charge, ...], store: Store, *, commit: bool = True) -> flow.Flow[Decision]:
    """The flow that decides these charges; the caller's lease is named before anything is sent."""
    leased = commit and bool([one for one in charges if one.rule.is_concurrency and one.cost])
    if leased:
        agent.ensure(store)  # a lease needs a process that says it lives
    lease = secrets.token_urlsafe(9) if leased else None
    return flow.decide(charges, commit=commit, lease=lease, denials=store.denials)


def decide(facts: Facts, *, commit: bool = True) -> Decision:
    """Decide a call under the rules in force, and wait where one delays it: the entrance of every synchronous door."""
    charges = rulebook.current().match(facts)
    store = get_store()
    agent.ensure(store, rules=True)
    decision = run(decide_flow(charges, store, commit=commit), store)
    if decision.delay and commit:
        time.sleep(decision.delay)
    observe.tell(facts, decision)
    return decision


async def adecide(facts: Facts, *, commit: bool = True) -> Decision:
    """Decide, and wait, without blocking the event loop: the entrance of every asynchronous door."""
    charges = (await rulebook.acurrent()).match(facts)
    store = get_store()
    agent.ensure(store, rules=True)
    decision = await arun(decide_flow(charges, store, commit=commit), store)
    if decision.delay and commit:
        await _wait_for_turn(decision, store)
    await observe.atell(facts, decision)
    return decision


async def _wait_for_turn(decision: Decision, store: Store) -> None:
    try:
        await asyncio.sleep(decision.delay)
    except asyncio.CancelledError:
        # Nobody will ever see this decision, so nobody else can give back what it holds.
        await arun(flow.release(decision.lease), store)
        raise


def release(lease: Lease | None) -> None:
    """Give back what a door's decision took; None and a second time change nothing."""
    run(flow.release(lease), get_store())


async def arelease(lease: Lease | None) -> None:
    """Release without blocking the event loop."""
    await arun(flow.release(lease), get_store())

"""``Limiter``, and the decisions of doors: starts flows and runs them with a store."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import agent_thread, rulebook
from django_throttle.call_facts import Facts, Who
from django_throttle.conf import conf
from django_throttle.core import Decision, Lease, Rule, overrides
from django_throttle.core.commands import SOCKET_LEASE, Charge, Charges, Decide, check_cost, rule_set
from django_throttle.core.decide import (
    Flow,
    concluded,
    decide_and_correct,
    decide_and_evict,
    decide_charges,
    decide_without_store,
    drop_reported,
    passed,
    refund_charges,
    release_lease,
    reset_charges,
)
from django_throttle.core.key import check_ident
from django_throttle.core.options import did_you_mean
from django_throttle.event_loop import is_on_event_loop
from django_throttle.exceptions import InvalidRule, Refused, RepeatCommand, StoreError
from django_throttle.identity import HttpWho, who_of
from django_throttle.identity.caller import NO_TEXT, IdentWho, given_ident, is_user
from django_throttle.observe import reports
from django_throttle.prepaid import decide_prepaid, peek_prepaid
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
        agent_thread.load_agent()
        self._set = rule_set(tuple(part for rule in self.rules if rule.enabled for part in rule.parts))
        # A share of the limit takes knowing how many processes there are, and so saying that this one lives.
        self._shares = (
            store.is_remote
            and conf().AGENT
            and any(part.on_store_failure == "local" or part.is_damper for part in self._set.rules)
        )
        is_held = self._set.has_dampers or (self._set.has_prepaid and store.is_costly)
        self._local = self._set.rules[0] if len(self._set.rules) == 1 and is_held else None
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise InvalidRule(f"two rules share a name: {', '.join(sorted(names))}")

    def acquire(self, ident: str, cost: int = 1) -> Decision:
        """Charge one call; a refused one charges nothing. Cost 0 charges nothing and takes no lease."""
        if (known := self._locally(ident, cost)) is not None:
            return known
        charges, store = self._charges(ident, cost), self.store
        return ask(straight(charges, store) or decide_flow(charges, store), store)

    async def aacquire(self, ident: str, cost: int = 1) -> Decision:
        if self._local is not None and (known := self._locally(ident, cost)) is not None:
            return known
        charges, store = self._charges(ident, cost), self.store
        return await aask(straight(charges, store) or decide_flow(charges, store), store)

    def peek(self, ident: str, cost: int = 1) -> Decision:
        """What acquire would answer now; charges nothing, and ``remaining`` is what is there."""
        return run(decide_flow(self._charges(ident, cost), self.store, commit=False), self.store)

    async def apeek(self, ident: str, cost: int = 1) -> Decision:
        return await arun(decide_flow(self._charges(ident, cost), self.store, commit=False), self.store)

    def reset(self, ident: str) -> int:
        """Make every rate full again for an ident; what it holds open stays. Returns the counters removed.

        Raises StoreError when the store does not answer.
        """
        return run(reset_charges(self._charges(ident, 0)), self.store)

    async def areset(self, ident: str) -> int:
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
        decision = admitted(await self.aacquire(ident))
        try:
            yield decision
        finally:
            await self.arelease(decision.lease)

    def _locally(self, ident: str, cost: int) -> Decision | None:
        """The decision where the only rule is a damper, or is prepaid and enough is held."""
        rule = self._local
        if rule is None:
            return None
        limits = self.store.local_limits
        if rule.is_damper:
            (charge,) = self._charges(ident, cost)
            return limits.decide_damper(charge)
        if type(ident) is not str or type(cost) is not int or cost < 0:
            return None
        # For an ident that holds something there is nothing more to check, nor to start.
        return limits.prepaid.spend(rule, ident, cost * rule.factor)

    def _charges(self, ident: str, cost: int) -> Charges:
        check_ident(ident)
        check_cost(cost)
        if self._shares and id(self.store) not in agent_thread.services:
            agent_thread.ensure(self.store)
        return self._set.charges((ident,) * len(self._set.rules), cost)


class Verdict(Decision):
    """A decision that is true where the call is allowed, so that ``if not allows(…)`` does what it says."""

    def __bool__(self) -> bool:
        return self.allowed


def allows(rule: str, caller: Any, *, cost: int = 1, raises: bool = False) -> Verdict:
    """Charge one call to the rule of that name, whatever its scopes and events, and say whether it may pass.

    ``caller`` is an ident such as "ip:203.0.113.9" or "account:anna", a user, a request, a consumer or its scope. An
    ident counts as it is, a user as that user, and of anything else the rule's key is counted. The answer is true
    where the call is allowed, and has what a decision has. Cost 0 charges nothing.

    Raises Refused for a refused call if ``raises``. Raises InvalidRule for a rule that nobody has made, and for one
    that counts no calls; InvalidCost and TypeError for what is no cost and no caller; RuntimeError on an event loop.
    """
    if is_on_event_loop():
        raise RuntimeError("allows() would block the event loop, and nothing was charged: await aallows() instead")
    return _verdict(decide(_question(rulebook.present() or rulebook.current(), rule, caller, cost)), raises)


async def aallows(rule: str, caller: Any, *, cost: int = 1, raises: bool = False) -> Verdict:
    """The same without blocking the event loop."""
    facts = _question(rulebook.present() or await rulebook.acurrent(), rule, caller, cost)
    if isinstance(facts.who, HttpWho):
        await facts.who.aload()
    return _verdict(await adecide(facts), raises)


def _question(snapshot: rulebook.Snapshot, name: str, caller: Any, cost: int) -> Facts:
    check_cost(cost)
    rule = snapshot.by_name(name)
    if rule is None:
        raise InvalidRule(f"there is no rule {name!r}{did_you_mean(name, [known.name for known in snapshot.rules])}")
    if rule.is_concurrency or rule.unit != "calls":
        counts = "what is held at once" if rule.is_concurrency else rule.unit
        raise InvalidRule(
            f"rule {name!r} counts {counts}, which only the call itself can tell: use @throttle({name!r})"
        )
    is_named = isinstance(caller, str) or is_user(caller)
    if rule.methods and (is_named or not isinstance(who_of(caller, "caller"), HttpWho)):
        raise InvalidRule(f"rule {name!r} is for requests of some methods, so the caller is the request")
    if is_named:
        ident = given_ident("caller", caller, None)
        who: Who = IdentWho(ident or NO_TEXT, account=caller if is_user(caller) else None)
        return Facts(name, (), who, cost, rule=name, ident=ident, is_claimed=isinstance(caller, str))
    who = who_of(caller, "caller")
    method = str(who.subject.method or "").upper() if isinstance(who, HttpWho) else ""
    return Facts(name, (), who, cost, rule=name, method=method)


def _verdict(decision: Decision, raises: bool) -> Verdict:
    if raises:
        admitted(decision)
    verdict: Verdict = object.__new__(Verdict)
    verdict.__dict__.update(decision.__dict__, allowed=decision.allowed)
    return verdict


def admitted(decision: Decision) -> Decision:
    """The decision of a call that is allowed; raises Refused for any other."""
    if not decision.allowed:
        raise Refused(decision)
    return decision


def straight(charges: Charges, store: Store, whole: bool = False) -> Decide | Decision | None:
    """The command that decides these charges, or the refusal of them that is remembered; None where it takes a flow."""
    if not charges.rules.is_straight or rulebook.carry_over.edits:
        return None
    refused = store.denials.find(charges) if store.denials.known else None
    return refused or Decide(charges, True, None, whole)


def ask(call: Any, store: Store, facts: Facts | None = None) -> Decision:
    """Decide by a flow, or by the one command that does; a decision is known already. Doors have ``facts``."""
    if type(call) is not Decide:
        return call if isinstance(call, Decision) else run(call, store)
    since = perf_counter(), store.denials.epoch
    try:
        answers = store.execute(call)
    except StoreError as error:
        answers = error
    found = end(call, answers, store, since, facts)
    return found if isinstance(found, Decision) else run(found, store)


async def aask(call: Any, store: Store, facts: Facts | None = None) -> Decision:
    if type(call) is not Decide:
        return call if isinstance(call, Decision) else await arun(call, store)
    since = perf_counter(), store.denials.epoch
    try:
        answers = await store.aexecute(call)
    except StoreError as error:
        answers = error
    found = end(call, answers, store, since, facts)
    return found if isinstance(found, Decision) else await arun(found, store)


def decide_flow(
    charges: Sequence[Charge],
    store: Store,
    *,
    commit: bool = True,
    whole: bool = False,
    socket: bool = False,
    carried: bool = False,
) -> Flow[Decision]:
    """The flow that decides these charges; the caller's lease is named before anything is sent.

    A ``socket`` may have others make room for it, and makes room for others. ``carried`` where what was used under
    edited rules counts already.
    """
    if not isinstance(charges, Charges):
        charges = Charges.of(charges)
    carry_over = rulebook.carry_over
    if carry_over.edits and commit and not carried and (due := carry_over.due(charges)):
        again = partial(decide_flow, charges, store, whole=whole, socket=socket, carried=True)
        return carry_over.carry_first(due, again)
    rules, denials = charges.rules, store.denials
    if rules.is_counted:  # as of most calls
        return decide_charges(charges, commit=commit, whole=whole, denials=denials)
    prepaid = rules.has_prepaid and store.is_costly
    leased = commit and any([charges.costs[place] for place in rules.leases])  # noqa: C419 - on the hot path
    if leased or rules.has_dampers:
        agent_thread.ensure(store)  # a lease needs a process that says it lives, a damper one that reports
    lease = (SOCKET_LEASE if socket else "") + secrets.token_urlsafe(9) if leased else None
    counts = store.local_limits if rules.has_dampers else None
    decide = partial(decide_charges, commit=commit, lease=lease, whole=whole, denials=denials, local_limits=counts)
    decided: Callable[[], Flow[Decision]] = partial(decide, charges)
    if prepaid:
        if not commit:
            return peek_prepaid(decided(), charges, store.local_limits.prepaid)
        decided = partial(decide_prepaid, charges, store, decide, whole=whole)
    return decide_and_evict(decided, charges, lease) if lease and socket and rules.evicts else decided()


def begin(snapshot: rulebook.Snapshot, facts: Facts, store: Store, commit: bool) -> Decide | Steps[Decision]:
    """The one command that decides a door's call, as of most of them; else the flow that does. Raises InvalidCost.

    Matching its rules may ask a database.
    """
    if type(facts.cost) is not int or facts.cost < 0:
        check_cost(facts.cost)
    charges = snapshot.match(facts)
    is_plain = commit and not (facts.charged.costs or snapshot.overrides.all) and conf().NO_ADDRESS != "refuse"
    if is_plain and (found := straight(charges, store, facts.early)) is not None:
        return found if isinstance(found, Decide) else decide_reported(found, facts, commit, charges)
    blocks = snapshot.blocks(facts)
    decided = decide_flow(charges, store, commit=commit, whole=facts.early, socket="connection" in facts.events)
    if blocks:
        decided = overrides.decide_blocked(blocks, decided)
    if facts.charged.costs:
        decided = decide_and_correct(decided, facts.charged, snapshot.by_name)
    return decide_reported(decided, facts, commit, charges)


def end(command: Decide, answers: Any, store: Store, since: tuple[float, int], facts: Facts | None) -> Any:
    """What the store's answers to ``straight``'s command come to, or its error: a decision, or the flow of one.

    ``since`` is the time and the epoch of the memory of refusals, both before asking. A door's call is reported.
    """
    charges: Any = command.charges
    found: Any = passed(command, answers)
    if found is not None and facts is not None and not reports.installed_hooks():  # as of most calls of doors
        reports.record.passed(charges, facts.scope, facts.method, facts.events, since[0])
        return found
    if isinstance(answers, RepeatCommand):
        found = decide_charges(charges, whole=command.whole, denials=store.denials)
    elif isinstance(answers, StoreError):
        found = decide_without_store(command, answers)
    elif found is None:
        found = concluded(command, answers, store.denials, since[1])
    return found if facts is None else decide_reported(found, facts, True, charges, since[0])


def report(facts: Facts, decision: Decision, seconds: float = 0.0) -> Step:
    """Tell hooks, log and signals of a decision that took so many seconds."""
    told = facts, decision, seconds
    return Step(partial(reports.tell, *told), partial(reports.atell, *told))


def decide_reported(
    decided: Any, facts: Facts, commit: bool = True, charges: Charges | None = None, began: float | None = None
) -> Steps[Decision]:
    """Decide; then wait where a rule delays the call, and report to hooks, log and signals what is not ordinary.

    What is ``decided`` is a decision, or the flow of one. It ``began`` now, or at a moment on perf_counter's clock.
    """
    began = perf_counter() if began is None else began
    decision: Decision = decided if isinstance(decided, Decision) else (yield from decided)
    is_ordinary = decision.is_ordinary
    if is_ordinary and commit:
        if charges is None:
            reports.record.happened(facts, decision, perf_counter() - began)
        else:
            reports.record.passed(charges, facts.scope, facts.method, facts.events, began)
    if (is_ordinary and not reports.installed_hooks()) or (facts.asks_again and not decision.allowed):
        return decision
    seconds = perf_counter() - began
    try:
        if decision.delay and commit and facts.waits:
            yield Step(partial(time.sleep, decision.delay), partial(asyncio.sleep, decision.delay))
        if decision.crossed:
            decision = yield from drop_reported(decision)
        yield report(facts, decision, seconds)
    except BaseException:  # the client has gone, or a worker's own timeout: nobody will see this decision
        yield from release_lease(decision.lease)
        if decision.delay and commit and decision.paid is not None:
            yield from refund_charges(decision.paid.turns)
        raise
    return decision


def decide(facts: Facts, *, commit: bool = True) -> Decision:
    """Decide a call under the rules in force, and wait where a rule delays it; every synchronous door calls this."""
    store = _watched_store()
    return ask(begin(rulebook.present() or rulebook.current(), facts, store, commit), store, facts)


Aside = Callable[..., Awaitable[Any]]  # calls a function with these arguments in a thread


async def as_view(work: Callable[..., Any], *args: Any) -> Any:
    """In the thread in which a synchronous view of this request would run."""
    return await sync_to_async(work)(*args)


async def adecide(facts: Facts, *, commit: bool = True, aside: Aside = as_view) -> Decision:
    """Decide, and wait, without blocking the event loop; ``aside`` where a database has to be asked who is calling."""
    store, known = _watched_store(), (rulebook.present() or await rulebook.acurrent(), facts)
    try:
        call = begin(*known, store, commit)
    except SynchronousOnlyOperation:
        call = await aside(begin, *known, store, commit)
    return await aask(call, store, facts)


def _watched_store() -> Store:
    """The store of the settings; what serves it in the background is started by the first call."""
    store = get_store()
    if id(store) not in agent_thread.watched:
        agent_thread.ensure(store, rules=True)
    return store


async def arelease(lease: Lease | None) -> None:
    """Release what a door's decision holds; None and a second time change nothing."""
    await arun(release_lease(lease), get_store())

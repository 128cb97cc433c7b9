"""``Limiter``, and the decisions of entry points."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import agent, rulebook
from django_throttle.conf import conf
from django_throttle.core import Decision, Lease, Rule, overrides
from django_throttle.core.commands import (
    SOCKET_LEASE,
    Answer,
    Charge,
    Charges,
    Decide,
    charges_under,
    check_cost,
    rule_set,
)
from django_throttle.core.decide import (
    correct,
    decide_and_correct,
    decide_and_evict,
    decide_charges,
    decide_without_store,
    decision_from_answers,
    drop_reported,
    plain_decision_or_none,
    release_lease,
    reset_charges,
)
from django_throttle.core.io import Io, run
from django_throttle.core.key import check_ident
from django_throttle.core.options import did_you_mean
from django_throttle.exceptions import InvalidIdent, InvalidRule, Refused, RepeatCommand, StoreError
from django_throttle.identity import RequestCaller, caller_of
from django_throttle.identity.call import Call, Caller
from django_throttle.identity.caller import NO_TEXT, IdentCaller, given_ident, is_user
from django_throttle.observe import recorders, reports
from django_throttle.runtime import is_on_event_loop
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, Store, StoreIo
from django_throttle.stores.prepaid import decide_prepaid, peek_prepaid

#: The rules that transports for httpx name; here, as httpx is optional.
named_by_transports: Final[set[str]] = set()


class Limiter:
    """Decides calls under a fixed set of rules; every enabled one applies, all or nothing.

    An ident is text of 1 to 1024 characters, such as "user:42", under which all the rules count; a cost is
    a whole number. Raises InvalidIdent, InvalidCost, and InvalidRule when two rules share a name. The
    store's failures are not raised: each rule's failure policy decides. Rules of policy "local", of slots and of
    dampers have a background thread serve a store on Redis until the process ends, so keep one store, not one a call.
    """

    def __init__(self, rules: Iterable[Rule], store: Store) -> None:
        self.rules = tuple(rules)
        self.store, self._io, self._aio = store, BlockingIo(store), LoopIo(store)
        self._set = rule_set(tuple(part for rule in self.rules if rule.enabled for part in rule.parts))
        # A share of the limit takes knowing how many processes there are, and so saying that this one lives.
        self._shares = (
            store.is_remote
            and conf().AGENT
            and any(part.on_store_failure == "local" or part.decided_locally for part in self._set.rules)
        )
        is_held = self._set.has_local or (self._set.has_prepaid and store.is_costly)
        self._local = self._set.rules[0] if len(self._set.rules) == 1 and is_held else None
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise InvalidRule(f"two rules share a name: {', '.join(sorted(names))}")

    def acquire(self, ident: str, cost: int = 1) -> Decision:
        """Charge one call; a refused one charges nothing. Cost 0 charges nothing and takes no lease."""
        if (known := self._locally(ident, cost)) is not None:
            return known
        charges, io = self._charges(ident, cost), self._io
        return execute_decision(io, fast_path_command(charges, io.store) or decide_fully(io, charges))

    async def aacquire(self, ident: str, cost: int = 1) -> Decision:
        if self._local is not None and (known := self._locally(ident, cost)) is not None:
            return known
        charges, io = self._charges(ident, cost), self._aio
        return await aexecute_decision(io, fast_path_command(charges, io.store) or decide_fully(io, charges))

    def peek(self, ident: str, cost: int = 1) -> Decision:
        """What acquire would answer now; charges nothing, and ``remaining`` is what is there."""
        return run(decide_fully(self._io, self._charges(ident, cost), commit=False))

    async def apeek(self, ident: str, cost: int = 1) -> Decision:
        return await decide_fully(self._aio, self._charges(ident, cost), commit=False)

    def reset(self, ident: str) -> int:
        """Make every rate full again for an ident; what it holds open stays. Returns the counters removed.

        Raises StoreError when the store does not answer.
        """
        return run(reset_charges(self._io, self._charges(ident, 0)))

    async def areset(self, ident: str) -> int:
        return await reset_charges(self._aio, self._charges(ident, 0))

    def release(self, lease: Lease | None) -> None:
        """Give back what ``decision.lease`` holds; None and a second time change nothing."""
        run(release_lease(self._io, lease))

    async def arelease(self, lease: Lease | None) -> None:
        """Release without blocking the event loop."""
        await release_lease(self._aio, lease)

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
        if rule.decided_locally:
            (charge,) = self._charges(ident, cost)
            return limits.decide_damper(charge)
        if type(ident) is not str or type(cost) is not int or cost < 0:
            return None
        # For an ident that holds something there is nothing more to check, nor to start.
        return limits.prepaid.spend(rule, ident, cost * rule.factor)

    def _charges(self, ident: str, cost: int) -> Charges:
        check_ident(ident)
        check_cost(cost)
        if self._shares and id(self.store) not in agent.services:
            agent.ensure(self.store)
        return charges_under(self._set, ident, cost)


class Verdict(Decision):
    """A decision that is true where the call is allowed, so that ``if not allows(…)`` does what it says."""

    def __bool__(self) -> bool:
        return self.allowed


def allows(rule: str, caller: object, *, cost: int = 1, raises: bool = False) -> Verdict:
    """Charge one call to the rule of that name, whatever its scopes and events, and say whether it may pass.

    ``caller`` is an ident such as "ip:203.0.113.9" or "account:anna", a user, a request, a consumer or its scope. An
    ident counts as it is, a user as that user, and of anything else the rule's key is counted. The answer is true
    where the call is allowed, and has what a decision has. Cost 0 charges nothing.

    Raises Refused for a refused call if ``raises``. Raises InvalidRule for a rule that nobody has made, for one that
    counts no calls, or counts them by their answers, and for one that needs a request where there is none; InvalidIdent
    for a user who is not logged in; InvalidCost and TypeError for what is no cost and no caller; RuntimeError on an
    event loop.
    """
    if is_on_event_loop():
        raise RuntimeError("allows() would block the event loop, and nothing was charged: await aallows() instead")
    return _verdict(decide(_question(rulebook.loaded() or rulebook.current(), rule, caller, cost)), raises)


async def aallows(rule: str, caller: object, *, cost: int = 1, raises: bool = False) -> Verdict:
    """The same without blocking the event loop."""
    call = _question(rulebook.loaded() or await rulebook.acurrent(), rule, caller, cost)
    if isinstance(call.caller, RequestCaller):
        await call.caller.aload()
    return _verdict(await adecide(call), raises)


def _question(snapshot: rulebook.Snapshot, name: str, caller: object, cost: int) -> Call:
    check_cost(cost)
    rule = snapshot.by_name(name)
    if rule is None:
        raise InvalidRule(f"there is no rule {name!r}{did_you_mean(name, [known.name for known in snapshot.rules])}")
    if rule.holds_slots or rule.unit != "calls" or rule.key == "connection":
        counts = "what is held at once" if rule.holds_slots else rule.unit
        counts = "each WebSocket by itself" if rule.key == "connection" else counts
        raise InvalidRule(
            f"rule {name!r} counts {counts}, which only the call itself can tell: use @throttle({name!r})"
        )
    if rule.count_on or rule.refund_on:
        raise InvalidRule(
            f"rule {name!r} counts by the status of the answer (count_on, refund_on), which is not known here: put "
            f"@throttle({name!r}) around the view"
        )
    is_named = isinstance(caller, str) or is_user(caller)
    if is_named and isinstance(rule.cost, str):
        raise InvalidRule(f"the cost of rule {name!r} is a function of the request, so the caller is the request")
    if rule.methods and (is_named or not isinstance(caller_of(caller, "caller"), RequestCaller)):
        raise InvalidRule(f"rule {name!r} is for requests of some methods, so the caller is the request")
    if is_user(caller) and not caller.is_authenticated:
        raise InvalidIdent("a user who is not logged in has no ident: the caller is the request, which has an address")
    if is_named:
        ident = given_ident("caller", caller, None)
        counted: Caller = IdentCaller(ident or NO_TEXT, account=caller if is_user(caller) else None)
        return Call(name, (), counted, cost, rule=name, ident=ident, is_untrusted=isinstance(caller, str))
    counted = caller_of(caller, "caller")
    method = str(counted.subject.method or "").upper() if isinstance(counted, RequestCaller) else ""
    return Call(name, (), counted, cost, rule=name, method=method)


def _verdict(decision: Decision, raises: bool) -> Verdict:
    if raises:
        admitted(decision)
    verdict: Verdict = object.__new__(Verdict)
    verdict.__dict__.update(decision.__dict__, allowed=decision.allowed)
    return verdict


def admitted(decision: Decision) -> Decision:
    """The decision of a call that is allowed; raises Refused for any other."""
    if not decision.allowed:
        raise prepared(Refused(decision))
    return decision


#: Called before Refused is raised, in the thread that raises it; the REST framework integration adds a function.
before_refusals: Final[list[Callable[[], None]]] = []


def prepared(error: Refused) -> Refused:
    """Call the functions of ``before_refusals``, and return the error."""
    for prepare in before_refusals:
        prepare()
    return error


def fast_path_command(charges: Charges, store: Store) -> Decide | Decision | None:
    """Return the one command that decides these charges, or the refusal that is remembered; None for any other call."""
    if not charges.rules.has_fast_path or rulebook.migrate_counts.edits:
        return None
    refused = store.refusal_cache.find(charges) if store.refusal_cache.refusals else None
    return refused or tuple.__new__(Decide, (charges, True, None))  # Decide(charges) takes three times as long


Deciding = Coroutine[Any, Any, Decision]


def execute_decision(io: StoreIo, prepared: Decide | Decision | Deciding, call: Call | None = None) -> Decision:
    """Execute what ``prepare_decision`` returned, and return the decision. Entry points pass ``call``."""
    if type(prepared) is not Decide:
        return prepared if isinstance(prepared, Decision) else run(prepared)  # type: ignore[arg-type]
    store = io.store
    since = perf_counter(), store.refusal_cache.epoch
    try:
        answers = store.execute(prepared)
    except StoreError as error:
        answers = error
    finished = finish_decision(io, prepared, answers, since, call)
    return finished if isinstance(finished, Decision) else run(finished)


async def aexecute_decision(io: StoreIo, prepared: Decide | Decision | Deciding, call: Call | None = None) -> Decision:
    if type(prepared) is not Decide:
        return prepared if isinstance(prepared, Decision) else await prepared  # type: ignore[misc]
    store = io.store
    since = perf_counter(), store.refusal_cache.epoch
    try:
        answers = await io.execute(prepared)
    except StoreError as error:
        answers = error
    finished = finish_decision(io, prepared, answers, since, call)
    if isinstance(finished, Decision):
        return finished
    return await finished  # type: ignore[union-attr]


async def decide_fully(
    io: StoreIo,
    charges: Sequence[Charge],
    *,
    commit: bool = True,
    keeps_ledger: bool = False,
    socket: bool = False,
    is_migrated: bool = False,
) -> Decision:
    """Decide these charges with all that their rules ask for: edits, leases, dampers, units bought ahead, evictions.

    A ``socket`` may have others make room for it, and makes room for others. ``is_migrated`` where what was used under
    edited rules counts already. What the call was charged goes back, where it has to, only if it ``keeps_ledger``. The
    lease is named before anything is sent, and released if deciding is interrupted.
    """
    if not isinstance(charges, Charges):
        charges = Charges.of(charges)
    migrate_counts = rulebook.migrate_counts
    if migrate_counts.edits and commit and not is_migrated and (due := migrate_counts.due(charges)):
        again = partial(decide_fully, io, charges, keeps_ledger=keeps_ledger, socket=socket, is_migrated=True)
        return await migrate_counts.migrate_first(io, due, again)
    store, rules = io.store, charges.rules
    if rules.is_store_only:  # as of most calls
        return await decide_charges(io, charges, commit=commit, refusal_cache=store.refusal_cache)
    prepaid = rules.has_prepaid and store.is_costly
    leased = commit and any([charges.costs[place] for place in rules.lease_places])  # noqa: C419 - on the hot path
    if leased or prepaid or rules.has_local:
        agent.ensure(store)  # which beats for leases, returns prepaid units and reports dampers
    lease = (SOCKET_LEASE if socket else "") + secrets.token_urlsafe(9) if leased else None
    counts = store.local_limits if rules.has_local else None
    decide = partial(
        decide_charges, io, commit=commit, lease=lease, refusal_cache=store.refusal_cache, local_limits=counts
    )
    decide_all: Callable[[], Deciding] = partial(decide, charges)
    if prepaid and not commit:
        return await peek_prepaid(decide_all, charges, store.local_limits.prepaid)
    if prepaid:
        decide_all = partial(decide_prepaid, io, charges, decide, keeps_ledger=keeps_ledger)
    if lease is None:
        return await decide_all()
    try:
        if socket and rules.evicts:
            return await decide_and_evict(io, decide_all, charges, lease)
        return await decide_all()
    except BaseException:
        store.leases.release_later(Lease(lease, charges.lease_keys))
        raise


def prepare_decision(io: StoreIo, snapshot: rulebook.Snapshot, call: Call, commit: bool) -> Decide | Deciding:
    """Return the one command that decides an entry point's call, as of most of them; else what decides it.

    Matching its rules may ask a database. Raises InvalidCost.
    """
    if type(call.cost) is not int or call.cost < 0:
        check_cost(call.cost)
    charges = snapshot.match(call)
    is_plain = commit and not (call.charged or snapshot.overrides.all) and conf().NO_ADDRESS != "refuse"
    if is_plain and (found := fast_path_command(charges, io.store)) is not None:
        return found if isinstance(found, Decide) else decide_reported(io, found, call, commit, charges)
    blocks, is_socket = snapshot.blocks(call), "connection" in call.events
    decide: Callable[[], Deciding]
    decide = partial(decide_fully, io, charges, commit=commit, keeps_ledger=call.refundable, socket=is_socket)
    if blocks:
        decide = partial(overrides.decide_blocked, blocks, decide)
    if call.charged:
        decide = partial(decide_and_correct, io, decide, call.charged, call.leases, snapshot.by_name)
    return decide_reported(io, decide, call, commit, charges)


def finish_decision(
    io: StoreIo, command: Decide, answers: Sequence[Answer] | StoreError, since: tuple[float, int], call: Call | None
) -> Decision | Deciding:
    """Return the decision from the store's answers to a fast-path command, or a coroutine that makes it of an error.

    ``since`` is the time, and the epoch of the remembered refusals, before the store was asked. Calls with ``call``
    are reported.
    """
    charges = command.charges
    found: Any = plain_decision_or_none(command, answers)
    if found is not None and call is not None and not reports.installed_hooks():  # as of most calls of entry points
        if (recorder := recorders.current) is not None:
            recorder.record_allowed(charges, call.scope, call.method, call.events, since[0])
        return found  # type: ignore[no-any-return]
    refusal_cache = io.store.refusal_cache
    if isinstance(answers, RepeatCommand):
        found = partial(decide_charges, io, charges, refusal_cache=refusal_cache)
    elif isinstance(answers, StoreError):
        found = partial(decide_without_store, io, command, answers)
    elif found is None:
        found = decision_from_answers(command, answers, refusal_cache, since[1])
    if call is not None:
        return decide_reported(io, found, call, True, charges, since[0])
    return found if isinstance(found, Decision) else found()


async def report(io: Io, call: Call, decision: Decision, seconds: float = 0.0) -> None:
    """Tell hooks, log and signals of a decision that took so many seconds."""
    told = call, decision, seconds
    await io.call(partial(reports.report, *told), partial(reports.areport, *told))


async def decide_reported(
    io: Io,
    decided: Decision | Callable[[], Awaitable[Decision]],
    call: Call,
    commit: bool = True,
    charges: Charges | None = None,
    began: float | None = None,
) -> Decision:
    """Decide; then wait where a rule delays the call, and report to hooks, log and signals what is not ordinary.

    What is ``decided`` is a decision, or decides. It ``began`` now, or at a moment on perf_counter's clock.
    """
    began = perf_counter() if began is None else began
    decision = decided if isinstance(decided, Decision) else await decided()
    is_ordinary = decision.is_ordinary
    if is_ordinary and commit and (recorder := recorders.current) is not None:
        if charges is None:
            recorder.record(call, decision, perf_counter() - began)
        else:
            recorder.record_allowed(charges, call.scope, call.method, call.events, began)
    if (is_ordinary and not reports.installed_hooks()) or (call.retries_when_refused and not decision.allowed):
        return decision
    seconds = perf_counter() - began
    try:
        if decision.delay and commit and call.honours_delay:
            await io.sleep(decision.delay)
        if decision.crossed:
            decision = await drop_reported(io, decision)
        await report(io, call, decision, seconds)
    except BaseException:  # the client has gone, or a worker's own timeout: nobody will see this decision
        await release_lease(io, decision.lease)
        if decision.delay and commit:
            await correct(io, decision.ledger.refund_queued())
        raise
    return decision


def decide(call: Call, *, commit: bool = True) -> Decision:
    """Decide a call under the current rules, and wait if a rule delays it. Synchronous entry points call this."""
    io = BlockingIo(watched_store())
    return execute_decision(io, prepare_decision(io, rulebook.loaded() or rulebook.current(), call, commit), call)


Aside = Callable[..., Awaitable[Any]]  # calls a function with these arguments in a thread


async def as_view(work: Callable[..., Any], *args: Any) -> Any:
    """In the thread in which a synchronous view of this request would run."""
    return await sync_to_async(work)(*args)


async def adecide(call: Call, *, commit: bool = True, aside: Aside = as_view) -> Decision:
    """Decide, and wait, without blocking the event loop; ``aside`` where a database has to be asked who is calling."""
    io, snapshot = LoopIo(watched_store()), rulebook.loaded() or await rulebook.acurrent()
    try:
        prepared = prepare_decision(io, snapshot, call, commit)
    except SynchronousOnlyOperation:
        prepared = await aside(prepare_decision, io, snapshot, call, commit)
    return await aexecute_decision(io, prepared, call)


def watched_store() -> Store:
    """The store of the settings; what serves it in the background is started by the first call."""
    store = get_store()
    if id(store) not in agent.watched:
        agent.ensure(store, rules=True)
    return store


async def arelease(lease: Lease | None) -> None:
    """Release what an entry point's decision holds; None and a second time change nothing."""
    await release_lease(LoopIo(get_store()), lease)

"""Public limiter API, and the decision functions that entry points call."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeVar, TypeVarTuple

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import agent, rulebook
from django_throttle.conf import conf
from django_throttle.core import Decision, Lease, Rule, overrides
from django_throttle.core.commands import (
    SOCKET_LEASE,
    Answer,
    Answers,
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
    release_lease,
    reset_charges,
)
from django_throttle.core.decision import plain_decision
from django_throttle.core.io import Io, run
from django_throttle.core.key import check_ident
from django_throttle.exceptions import InvalidIdent, InvalidRule, Refused, RepeatCommand, StoreError
from django_throttle.identity import RequestCaller, caller_of
from django_throttle.identity.call import Call, Caller
from django_throttle.identity.caller import NO_TEXT, IdentCaller, ident_from_value, is_user
from django_throttle.observe import recorders, reports
from django_throttle.runtime import is_on_event_loop
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, Store, StoreIo
from django_throttle.stores.prepaid import decide_prepaid, peek_prepaid

#: Names of the rules that httpx transports use. Kept in this module because httpx is optional.
named_by_transports: Final[set[str]] = set()


class Limiter:
    """Decide calls under a fixed set of rules. All enabled rules apply: they charge a call together or not at all.

    All rules count an ident: a text of 1 to 1024 characters, such as "user:42". A cost is a whole number. Methods raise
    InvalidIdent or InvalidCost for other values. The constructor raises InvalidRule if two rules share a name.

    Store failures are not raised: the failure policy of each rule decides. Concurrency rules, dampers and rules of
    failure policy "local" start a background thread for a Redis store, until the process ends. Keep one store per
    process, not one per call.
    """

    def __init__(self, rules: Iterable[Rule], store: Store) -> None:
        self.rules = tuple(rules)
        self.store, self._io, self._aio = store, BlockingIo(store), LoopIo(store)
        self._set = rule_set(tuple(part for rule in self.rules if rule.enabled for part in rule.parts))
        # A share of the limit depends on the number of processes, so this process must announce itself.
        self._needs_agent = store.is_remote and any(
            part.on_store_failure == "local" or part.decided_locally for part in self._set.rules
        )
        has_local_units = self._set.has_local or (self._set.has_prepaid and store.is_costly)
        #: The only rule, if the process may decide it without the store: a damper or a prepaid rule.
        self._local_rule = self._set.rules[0] if len(self._set.rules) == 1 and has_local_units else None
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise InvalidRule(f"two rules share a name: {', '.join(sorted(names))}")

    def acquire(self, ident: str, cost: int = 1) -> Decision:
        """Charge a call of ``cost`` units and return the decision. A refused call charges nothing.

        Cost 0 charges nothing and takes no lease.
        """
        if (decision := self._decide_locally(ident, cost)) is not None:
            return decision
        charges, io = self._charges(ident, cost), self._io
        return execute_decision(io, fast_path_command(charges, io.store) or decide_fully(io, charges))

    async def aacquire(self, ident: str, cost: int = 1) -> Decision:
        if self._local_rule is not None and (decision := self._decide_locally(ident, cost)) is not None:
            return decision
        charges, io = self._charges(ident, cost), self._aio
        return await aexecute_decision(io, fast_path_command(charges, io.store) or decide_fully(io, charges))

    def peek(self, ident: str, cost: int = 1) -> Decision:
        """Return the decision that ``acquire`` would make now. Charge nothing: ``remaining`` is the present budget."""
        return run(decide_fully(self._io, self._charges(ident, cost), commit=False))

    async def apeek(self, ident: str, cost: int = 1) -> Decision:
        return await decide_fully(self._aio, self._charges(ident, cost), commit=False)

    def reset(self, ident: str) -> int:
        """Delete the counters of an ident and return their number. Leases stay.

        Raise StoreError if the store does not answer.
        """
        return run(reset_charges(self._io, self._charges(ident, 0)))

    async def areset(self, ident: str) -> int:
        return await reset_charges(self._aio, self._charges(ident, 0))

    def release(self, lease: Lease | None) -> None:
        """Release ``decision.lease``. None and a released lease are ignored."""
        run(release_lease(self._io, lease))

    async def arelease(self, lease: Lease | None) -> None:
        """Release a lease without blocking the event loop."""
        await release_lease(self._aio, lease)

    @contextmanager
    def lease(self, ident: str) -> Iterator[Decision]:
        """Hold a slot of the concurrency rules in a ``with`` block. Charge rates once. Raise Refused for a refusal."""
        decision = raise_if_refused(self.acquire(ident))
        try:
            yield decision
        finally:
            self.release(decision.lease)

    @asynccontextmanager
    async def alease(self, ident: str) -> AsyncIterator[Decision]:
        decision = raise_if_refused(await self.aacquire(ident))
        try:
            yield decision
        finally:
            await self.arelease(decision.lease)

    def _decide_locally(self, ident: str, cost: int) -> Decision | None:
        """Return the decision of a single damper, or of a single prepaid rule that has enough units; else None."""
        rule = self._local_rule
        if rule is None:
            return None
        limits = self.store.local_limits
        if rule.decided_locally:
            (charge,) = self._charges(ident, cost)
            return limits.decide_damper(charge)
        if type(ident) is not str or type(cost) is not int or cost < 0:
            return None
        # An ident with prepaid units was checked, and the agent started, when they were bought.
        return limits.prepaid.spend(rule, ident, cost * rule.factor)

    def _charges(self, ident: str, cost: int) -> Charges:
        check_ident(ident)
        check_cost(cost)
        if self._needs_agent and id(self.store) not in agent.services:
            agent.ensure(self.store)
        return charges_under(self._set, ident, cost)


class Verdict(Decision):
    """Decision whose truth value is ``allowed``, for ``if not allows(…)``."""

    def __bool__(self) -> bool:
        return self.allowed


def allows(rule: str, caller: object, *, cost: int = 1, raises: bool = False) -> Verdict:
    """Charge a call of ``cost`` units to the named rule, and return a decision that is true if the call is allowed.

    The rule's scopes and events do not matter. ``caller`` is an ident such as "ip:203.0.113.9" or "account:anna", a
    user, a request, a consumer or its scope. An ident is counted as it is, and a user under the user's ident. For the
    other kinds the rule's key is counted. Cost 0 charges nothing.

    Raise Refused for a refused call if ``raises``. Raise InvalidRule if no valid rule has the name, or if the rule does
    not count calls. Raise InvalidRule, too, if it counts calls by the status of the answer, or needs a request and gets
    none. Raise InvalidIdent for a user who is not logged in. Raise InvalidCost or TypeError for an invalid cost or
    caller. Raise RuntimeError on an event loop.
    """
    if is_on_event_loop():
        raise RuntimeError("allows() would block the event loop, and nothing was charged: await aallows() instead")
    return _verdict(decide(_named_call(rulebook.loaded() or rulebook.current(), rule, caller, cost)), raises)


async def aallows(rule: str, caller: object, *, cost: int = 1, raises: bool = False) -> Verdict:
    """Charge a call like ``allows``, without blocking the event loop."""
    call = _named_call(rulebook.loaded() or await rulebook.acurrent(), rule, caller, cost)
    if isinstance(call.caller, RequestCaller):
        await call.caller.aload()
    return _verdict(await adecide(call), raises)


def _named_call(snapshot: rulebook.Snapshot, name: str, caller: object, cost: int) -> Call:
    check_cost(cost)
    rule = snapshot.by_name(name)
    if rule is None:
        raise InvalidRule(snapshot.lacks(name))
    if rule.key == "connection":
        raise InvalidRule(f"rule {name!r} counts each WebSocket by itself, not calls by name: give it another key")
    if rule.holds_slots or rule.unit != "calls":
        counts = "slots" if rule.holds_slots else rule.unit
        raise InvalidRule(f"rule {name!r} counts {counts}, not calls by name: use @throttle({name!r})")
    if rule.count_on or rule.refund_on:
        raise InvalidRule(
            f"rule {name!r} counts by the status of the answer (count_on, refund_on), and there is none yet: put "
            f"@throttle({name!r}) around the view"
        )
    is_named = isinstance(caller, str) or is_user(caller)
    if is_named and isinstance(rule.cost, str):
        raise InvalidRule(f"the cost of rule {name!r} is a function of the request: pass the request as the caller")
    if rule.methods and (is_named or not isinstance(caller_of(caller, "caller"), RequestCaller)):
        raise InvalidRule(f"rule {name!r} has methods: pass the request as the caller")
    if is_user(caller) and not caller.is_authenticated:
        raise InvalidIdent("a user who is not logged in has no ident: pass the request, whose address is counted")
    if is_named:
        ident = ident_from_value("caller", caller, None)
        ident_caller = IdentCaller(ident or NO_TEXT, account=caller if is_user(caller) else None)
        return Call(name, (), ident_caller, cost, rule=name, ident=ident, is_untrusted=isinstance(caller, str))
    keyed_caller: Caller = caller_of(caller, "caller")
    method = str(keyed_caller.subject.method or "").upper() if isinstance(keyed_caller, RequestCaller) else ""
    return Call(name, (), keyed_caller, cost, rule=name, method=method)


def _verdict(decision: Decision, raises: bool) -> Verdict:
    if raises:
        raise_if_refused(decision)
    verdict: Verdict = object.__new__(Verdict)
    verdict.__dict__.update(decision.__dict__, allowed=decision.allowed)
    return verdict


def raise_if_refused(decision: Decision) -> Decision:
    """Return the decision. Raise Refused if the call was refused."""
    if not decision.allowed:
        raise prepare_refusal(Refused(decision))
    return decision


#: Functions that are called before Refused is raised, in the same thread. The REST framework integration adds one.
before_refusals: Final[set[Callable[[], None]]] = set()


def prepare_refusal(error: Refused) -> Refused:
    """Call the functions of ``before_refusals``, and return the error."""
    for prepare in before_refusals:
        prepare()
    return error


def fast_path_command(charges: Charges, store: Store) -> Decide | Decision | None:
    """Return the single command that decides the charges, or their remembered refusal. Return None for other calls."""
    if not charges.rules.has_fast_path or rulebook.migrate_counts.edits:
        return None
    refused = store.refusal_cache.find(charges) if store.refusal_cache.refusals else None
    return refused or tuple.__new__(Decide, (charges, True, None))  # Decide(charges) takes three times as long


Deciding = Coroutine[Any, Any, Decision]


def execute_decision(io: StoreIo, prepared: Decide | Decision | Deciding, call: Call | None = None) -> Decision:
    """Execute the result of ``prepare_decision`` and return the decision. Entry points pass ``call``."""
    if type(prepared) is not Decide:
        return prepared if isinstance(prepared, Decision) else run(prepared)  # type: ignore[arg-type]
    store = io.store
    started = perf_counter(), store.refusal_cache.epoch
    try:
        answers = store.execute(prepared)
    except StoreError as error:
        answers = error
    finished = finish_decision(io, prepared, answers, started, call)
    return finished if isinstance(finished, Decision) else run(finished)


async def aexecute_decision(io: StoreIo, prepared: Decide | Decision | Deciding, call: Call | None = None) -> Decision:
    if type(prepared) is not Decide:
        return prepared if isinstance(prepared, Decision) else await prepared  # type: ignore[misc]
    store = io.store
    started = perf_counter(), store.refusal_cache.epoch
    try:
        answers = await io.execute(prepared)
    except StoreError as error:
        answers = error
    finished = finish_decision(io, prepared, answers, started, call)
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
    """Decide charges with every feature of their rules: edits, leases, dampers, prepaid units and evictions.

    A ``socket`` can be evicted for others, and others for it. ``is_migrated`` is true once the counts of edited rules
    were migrated. Charges can be refunded only if the call ``keeps_ledger``. The lease is named before a command is
    sent, and released if the decision is interrupted.
    """
    if not isinstance(charges, Charges):
        charges = Charges.of(charges)
    migrate_counts = rulebook.migrate_counts
    if migrate_counts.edits and commit and not is_migrated and (due := migrate_counts.pending_migrations(charges)):
        again = partial(decide_fully, io, charges, keeps_ledger=keeps_ledger, socket=socket, is_migrated=True)
        return await migrate_counts.migrate_first(io, due, again)
    store, rules = io.store, charges.rules
    if rules.is_store_only:  # as of most calls
        return await decide_charges(io, charges, commit=commit, refusal_cache=store.refusal_cache)
    prepaid = rules.has_prepaid and store.is_costly
    leased = commit and any([charges.costs[place] for place in rules.lease_places])  # noqa: C419 - on the hot path
    if leased or prepaid or rules.has_local:
        agent.ensure(store)  # renews leases, returns prepaid units and reports dampers
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
    """Return the command that decides a call of an entry point, or a coroutine if one command is not enough.

    Matching the rules may query the database. Raise InvalidCost for an invalid cost.
    """
    if type(call.cost) is not int or call.cost < 0:
        check_cost(call.cost)
    charges = snapshot.match(call)
    is_plain = commit and not (call.charged or snapshot.overrides.all) and conf().NO_ADDRESS != "refuse"
    if is_plain and (command := fast_path_command(charges, io.store)) is not None:
        return command if isinstance(command, Decide) else decide_reported(io, command, call, commit, charges)
    blocks, is_socket = snapshot.blocks(call), "connection" in call.events
    decide: Callable[[], Deciding]
    decide = partial(decide_fully, io, charges, commit=commit, keeps_ledger=call.refundable, socket=is_socket)
    if blocks:
        decide = partial(overrides.decide_blocked, blocks, decide)
    if call.charged:
        decide = partial(decide_and_correct, io, decide, call.charged, call.leases, snapshot.by_name)
    return decide_reported(io, decide, call, commit, charges)


def finish_decision(
    io: StoreIo, command: Decide, answers: Sequence[Answer] | StoreError, started: tuple[float, int], call: Call | None
) -> Decision | Deciding:
    """Turn the store's answers to a fast-path command into a decision, or a coroutine that decides.

    If the store failed, the failure policy of each rule decides. ``started`` is the time on perf_counter's clock and
    the epoch of the refusal cache, both before the command was sent. The decision is reported if there is a ``call``.
    """
    charges = command.charges
    plain = plain_decision(command, answers) if type(answers) is Answers and answers.fits else None
    if plain is not None and call is not None and not reports.installed_hooks():  # as of most calls of entry points
        if (recorder := recorders.current) is not None:
            recorder.record_allowed(charges, call.scope, call.method, call.events, started[0])
        return plain
    refusal_cache = io.store.refusal_cache
    decided: Decision | Callable[[], Deciding]
    if isinstance(answers, RepeatCommand):
        decided = partial(decide_charges, io, charges, refusal_cache=refusal_cache)
    elif isinstance(answers, StoreError):
        decided = partial(decide_without_store, io, command, answers)
    elif plain is not None:
        decided = plain
    else:
        decided = decision_from_answers(command, answers, refusal_cache, started[1])
    if call is not None:
        return decide_reported(io, decided, call, True, charges, started[0])
    return decided if isinstance(decided, Decision) else decided()


async def report(io: Io, call: Call, decision: Decision, seconds: float = 0.0) -> None:
    """Report a decision that took ``seconds`` to hooks, log and signals."""
    await io.call(partial(reports.report, call, decision, seconds), partial(reports.areport, call, decision, seconds))


async def decide_reported(
    io: Io,
    decided: Decision | Callable[[], Awaitable[Decision]],
    call: Call,
    commit: bool = True,
    charges: Charges | None = None,
    began: float | None = None,
) -> Decision:
    """Decide a call, wait if a rule delays it, and report a decision that is not ordinary to hooks, log and signals.

    ``decided`` is a decision or a function that decides. ``began`` is the start on perf_counter's clock; None is now.
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
    except BaseException:  # the client disconnected, or a worker timed out: the decision has no effect
        await release_lease(io, decision.lease)
        if decision.delay and commit:
            await correct(io, decision.ledger.refund_queued())
        raise
    return decision


def decide(call: Call, *, commit: bool = True) -> Decision:
    """Decide a call under the current rules, and wait if a rule delays it. Synchronous entry points call this."""
    io = BlockingIo(watched_store())
    return execute_decision(io, prepare_decision(io, rulebook.loaded() or rulebook.current(), call, commit), call)


T = TypeVar("T")
Args = TypeVarTuple("Args")
#: Calls a function with arguments in a thread.
RunInThread = Callable[..., Awaitable[Any]]


async def run_in_view_thread(function: Callable[[*Args], T], *args: *Args) -> T:
    """Call a function in the thread that runs the synchronous views of this request."""
    return await sync_to_async(function)(*args)


async def adecide(call: Call, *, commit: bool = True, run_in_thread: RunInThread = run_in_view_thread) -> Decision:
    """Decide, and wait, without blocking the event loop. If the rules' keys need a query, match them in a thread."""
    io, snapshot = LoopIo(watched_store()), rulebook.loaded() or await rulebook.acurrent()
    try:
        prepared = prepare_decision(io, snapshot, call, commit)
    except SynchronousOnlyOperation:
        prepared = await run_in_thread(prepare_decision, io, snapshot, call, commit)
    return await aexecute_decision(io, prepared, call)


def watched_store() -> Store:
    """Return the store of the settings. Start its background agent at the first call."""
    store = get_store()
    if id(store) not in agent.watched:
        agent.ensure(store, rules=True)
    return store


async def arelease(lease: Lease | None) -> None:
    """Release the lease of an entry point's decision. None and a released lease are ignored."""
    await release_lease(LoopIo(get_store()), lease)

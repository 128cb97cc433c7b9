"""Fast path of HTTP requests: this module decides a plain request from top to bottom.

A request is plain if only rates apply, without an override for its caller and without later corrections, and if no
entry point has decided it before. Most requests are plain. Each step has the result of the general path
(``limiter.decide``, ``RequestState.note``), which all other requests take.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest

from django_throttle import agent, limiter, rulebook
from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.commands import Answers, Charges, Decide
from django_throttle.core.decision import plain_decision
from django_throttle.core.io import run
from django_throttle.exceptions import StoreError
from django_throttle.http.input_bytes import note_decision
from django_throttle.http.request_state import REQUEST_EVENTS, RequestCall, RequestState
from django_throttle.identity import RequestCaller
from django_throttle.observe import recorders, reports
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, StoreIo


def decide(request: HttpRequest, state: RequestState, scope: str, caller: RequestCaller, cost: int = 1) -> Decision:
    """Decide a request under the rules of its scope, and note the decision. Raise InvalidCost or InvalidIdent."""
    store, snapshot, charges = get_store(), rulebook.loaded() or rulebook.current(), None
    if id(store) not in agent.watched:
        agent.ensure(store, rules=True)
    if cost == 1 and not (state.decisions or reports.installed_hooks() or conf().NO_ADDRESS == "refuse"):
        charges = snapshot.plain_charges(scope, REQUEST_EVENTS, caller)
    if charges is None:
        call = RequestCall(request, state, scope, caller, cost)
        return note_decision(request, state, call, limiter.decide(call))
    command, answers = limiter.fast_path_command(charges, store), None
    began, epoch = perf_counter(), store.refusal_cache.epoch
    if type(command) is Decide:
        try:
            answers = store.execute(command)
        except StoreError as error:
            answers = error
        if type(answers) is Answers and answers.fits:
            return _admit(request, state, scope, command, answers, began)
    call = RequestCall(request, state, scope, caller)
    decided = _decide_rest(BlockingIo(store), charges, command, answers, (began, epoch), call)
    return note_decision(request, state, call, decided if isinstance(decided, Decision) else run(decided))


async def adecide(
    request: HttpRequest, state: RequestState, scope: str, caller: RequestCaller, cost: int = 1
) -> Decision:
    """Decide a request like ``decide``, without blocking the event loop."""
    store, snapshot, charges = get_store(), rulebook.loaded() or await rulebook.acurrent(), None
    if id(store) not in agent.watched:
        agent.ensure(store, rules=True)
    if snapshot.asks_user(scope, REQUEST_EVENTS):
        await caller.aload()
    if cost == 1 and not (state.decisions or reports.installed_hooks() or conf().NO_ADDRESS == "refuse"):
        try:
            charges = snapshot.plain_charges(scope, REQUEST_EVENTS, caller)
        except SynchronousOnlyOperation:
            pass  # the general path tries again in a thread
    if charges is None:
        call = RequestCall(request, state, scope, caller, cost)
        return note_decision(request, state, call, await limiter.adecide(call))
    command, answers = limiter.fast_path_command(charges, store), None
    began, epoch = perf_counter(), store.refusal_cache.epoch
    if type(command) is Decide:
        try:
            answers = await store.aexecute(command)
        except StoreError as error:
            answers = error
        if type(answers) is Answers and answers.fits:
            return _admit(request, state, scope, command, answers, began)
    call = RequestCall(request, state, scope, caller)
    decided: Any = _decide_rest(LoopIo(store), charges, command, answers, (began, epoch), call)
    return note_decision(request, state, call, decided if isinstance(decided, Decision) else await decided)


def _decide_rest(
    io: StoreIo,
    charges: Charges,
    command: Decide | Decision | None,
    answers: Any,
    started: tuple[float, int],
    call: RequestCall,
) -> Decision | limiter.Deciding:
    """Return the decision of a request that is not admitted on the fast path, or a coroutine that decides it.

    The reason is a refusal, a remembered refusal, a store error, edited rules, or a caller without an ident.
    """
    if isinstance(command, Decide):
        return limiter.finish_decision(io, command, answers, started, call)
    if command is None:
        decide_fully = partial(limiter.decide_fully, io, charges, keeps_ledger=True)
        return limiter.decide_reported(io, decide_fully, call, charges=charges)
    return limiter.decide_reported(io, command, call, charges=charges)


def _admit(
    request: HttpRequest, state: RequestState, scope: str, command: Decide, answers: Answers, began: float
) -> Decision:
    """Record and note an allowed plain request."""
    if (recorder := recorders.current) is not None:
        recorder.record_allowed(command.charges, scope, (request.method or "").upper(), REQUEST_EVENTS, began)
    decision = plain_decision(command, answers)
    state.decisions, state.is_plain, state.has_charged = (decision,), True, True
    return decision

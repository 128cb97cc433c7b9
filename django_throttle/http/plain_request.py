"""Decides and finishes requests; a plain request takes the short way that this module shows from top to bottom.

A request is plain if rates alone apply to it, no override is for its caller, no entry point has decided about it
before, and nothing of its charge is to be corrected later. That is most requests. Each step has the result of the
general way (``limiter.decide``, ``RequestState.note``, ``finalize.finish``), which any other request takes.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from django_throttle import limiter, rulebook
from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.commands import Answers, Decide
from django_throttle.core.decision import plain_decision
from django_throttle.core.io import run
from django_throttle.exceptions import StoreError
from django_throttle.http import finalize
from django_throttle.http.input_bytes import note_decision
from django_throttle.http.request_state import REQUEST_EVENTS, RequestFacts, RequestState, method_of
from django_throttle.identity import HttpWho
from django_throttle.observe import reports
from django_throttle.recording.recorder import recorder
from django_throttle.rulebook import Snapshot
from django_throttle.stores.base import BlockingIo, LoopIo, Store


def decide(request: HttpRequest, state: RequestState, scope: str, who: HttpWho, cost: int = 1) -> Decision:
    """Decide a request under the rules of its scope, and note the decision. Raises InvalidCost and InvalidIdent."""
    store = limiter.watched_store()
    command = _plain_command(store, rulebook.present() or rulebook.current(), state, scope, who, cost)
    if command is None:
        facts = RequestFacts(request, state, scope, who, cost)
        return note_decision(request, state, facts, limiter.decide(facts))
    since = perf_counter(), store.refusal_cache.epoch
    try:
        answers = store.execute(command)
    except StoreError as error:
        answers = error
    if type(answers) is Answers and answers.fits:
        return _admit(request, state, scope, command, answers, since[0])
    facts = RequestFacts(request, state, scope, who)
    finished = limiter.finish_decision(BlockingIo(store), command, answers, since, facts)
    return note_decision(request, state, facts, finished if isinstance(finished, Decision) else run(finished))


async def adecide(request: HttpRequest, state: RequestState, scope: str, who: HttpWho, cost: int = 1) -> Decision:
    """The same without blocking the event loop."""
    store, snapshot = limiter.watched_store(), rulebook.present() or await rulebook.acurrent()
    if snapshot.asks_user(scope, REQUEST_EVENTS):
        await who.aload()
    command = _plain_command(store, snapshot, state, scope, who, cost)
    if command is None:
        facts = RequestFacts(request, state, scope, who, cost)
        return note_decision(request, state, facts, await limiter.adecide(facts))
    since = perf_counter(), store.refusal_cache.epoch
    try:
        answers = await store.aexecute(command)
    except StoreError as error:
        answers = error
    if type(answers) is Answers and answers.fits:
        return _admit(request, state, scope, command, answers, since[0])
    facts = RequestFacts(request, state, scope, who)
    finished: Any = limiter.finish_decision(LoopIo(store), command, answers, since, facts)
    return note_decision(request, state, facts, finished if isinstance(finished, Decision) else await finished)


def _plain_command(
    store: Store, snapshot: Snapshot, state: RequestState, scope: str, who: HttpWho, cost: int
) -> Decide | None:
    """Return the command that decides a plain request; None for any other."""
    if state.decisions or cost != 1 or reports.installed_hooks():
        return None
    try:
        charges = snapshot.plain_charges(scope, REQUEST_EVENTS, who)
    except SynchronousOnlyOperation:  # on an event loop: the general way tries again in a thread
        return None
    if charges is None or not charges.rules.owes_nothing or conf().NO_ADDRESS == "refuse":
        return None
    command = limiter.fast_path_command(charges, store)
    return command if type(command) is Decide else None


def _admit(
    request: HttpRequest, state: RequestState, scope: str, command: Decide, answers: Answers, began: float
) -> Decision:
    """Record and note that a plain request passes."""
    charges = command.charges
    recorder.record_allowed(charges, scope, method_of(request), REQUEST_EVENTS, began)
    decision = plain_decision(command, answers)
    state.decisions, state.is_plain, state.has_charged = (decision,), True, True
    return decision


def finish(request: HttpRequest, response: Any, state: RequestState) -> finalize.Owed | None:
    """Add the header fields, and measure the request until it is closed; return what is owed, see ``finalize.finish``.

    For a plain request nothing is.
    """
    if not state.is_plain or len(state.decisions) > 1 or not isinstance(response, HttpResponseBase):
        return finalize.finish(request, response, state)
    state.has_finisher = False
    state.end_charging()
    if not finalize.put_numbers(state.decisions[0], state.is_known, response.headers):
        finalize.put(finalize.header_fields(state.decisions, state.is_known), response.headers)
    state.callers = ()  # who refer to the request
    if conf().METER:
        finalize.measure_until_closed(request, response, state)
    return None

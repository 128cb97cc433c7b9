"""Tools for the tests of a site: rules for a test, a clock that stands still, and assertions of refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from difflib import get_close_matches
from functools import wraps
from inspect import isawaitable, isfunction
from typing import Any, Final, NamedTuple, TypeVar
from unittest import TestCase

from asgiref.sync import iscoroutinefunction
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.test.utils import TestContextDecorator

from django_throttle import agent, rulebook, stores
from django_throttle.conf import conf
from django_throttle.core import Decision, Rule
from django_throttle.core.commands import charges_of, check_cost
from django_throttle.core.key import EVERYONE, KEY_KINDS
from django_throttle.core.options import functions, is_dotted
from django_throttle.costs.measured import learned_means
from django_throttle.exceptions import InvalidCost, InvalidIdent, InvalidRule, Refused
from django_throttle.http.request_state import decisions_of
from django_throttle.identity.call import with_plan
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.limiter import Limiter
from django_throttle.rulebook import Snapshot
from django_throttle.signals import throttled
from django_throttle.stores import MemoryStore, RedisStore

__all__ = ["FrozenClock", "assert_throttled", "override_rules", "use_up"]

# A moment at which every window of a week or less that divides a day begins: Thursday, 2023-11-16, in UTC.
START: Final = 19_677 * 86_400


class FrozenClock:
    """Clock that moves only when a test moves it. A call returns seconds since the epoch.

    A moment is seconds since the epoch, or an aware datetime. Microseconds are whole numbers, so none is rounded away.
    """

    def __init__(self, start: float | datetime = START) -> None:
        self.start_us = self.now_us = _microseconds(start)

    def __call__(self) -> float:
        return self.now_us / 1_000_000

    def tick(self, seconds: float) -> None:
        """Move by seconds, which may be negative."""
        self.now_us += round(seconds * 1_000_000)

    def move_to(self, moment: float | datetime) -> None:
        """Move to a moment, earlier or later."""
        self.now_us = _microseconds(moment)


def _microseconds(moment: float | datetime) -> int:
    if not isinstance(moment, datetime):
        return round(moment * 1_000_000)
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: pass an aware datetime")
    return round(moment.timestamp() * 1_000_000)


Store = MemoryStore | RedisStore
S = TypeVar("S", MemoryStore, RedisStore, Store)
Rules = Mapping[str, Mapping[str, object]] | Iterable[Rule]


class override_rules(TestContextDecorator):  # noqa: N801  (as override_settings is)
    """Put these rules in force, and no others. A context manager, and a decorator of tests and of classes of tests.

    ``rules`` are written as in settings, or are Rules. With ``merge`` they are added to the current rules, and replace
    rules of the same name. They are counted in ``store``, by default a new MemoryStore, whose ``clock`` is by default a
    FrozenClock. ``as`` returns the clock. In a class that is not a TestCase, each method that begins with ``test`` is
    decorated. Blocks may be nested. Raise InvalidRule for an invalid rule.
    """

    def __init__(
        self,
        rules: Rules = (),
        *,
        merge: bool = False,
        store: Store | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        self._rules = _as_rules(rules)
        self._merge, self._store, self._clock = merge, store, clock
        self._undo: list[ExitStack] = []

    def enable(self) -> Any:
        """Put the rules in force, and return the clock of their store."""
        snapshot = _snapshot(self._rules, rulebook.current_limits() if self._merge else Snapshot(()))
        undo = ExitStack()
        store = undo.enter_context(counting_in(self._store or MemoryStore(self._clock or FrozenClock())))
        undo.callback(rulebook.pin, rulebook.pin(snapshot))
        self._undo.append(undo)
        return store.clock

    def disable(self) -> None:
        """Put the former rules in force again."""
        self._undo.pop().close()

    async def __aenter__(self) -> Any:
        if self._merge:
            await rulebook.acurrent()
        return self.enable()

    async def __aexit__(self, *_: object) -> None:
        self.disable()

    def decorate_callable(self, func: Any) -> Any:
        """Return the function with the rules in force while it runs."""
        if not iscoroutinefunction(func):
            return super().decorate_callable(func)

        @wraps(func)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await func(*args, **kwargs)

        return inner

    def decorate_class(self, cls: Any) -> Any:
        """Return the class with the rules in force for each test, and for ``setUp`` of a TestCase."""
        if issubclass(cls, TestCase):
            return super().decorate_class(cls)
        for name in dir(cls):
            if name.startswith("test") and isfunction(test := getattr(cls, name)):
                setattr(cls, name, self.decorate_callable(test))
        return cls


@contextmanager
def counting_in(store: S) -> Iterator[S]:
    """Count in this store inside the block, under whatever rules are in force."""
    is_ours = not store.is_remote and agent.disable_for(store)
    before, means = stores.pin(store), dict(learned_means)
    learned_means.clear()  # they are of the other store
    try:
        yield store
    finally:
        stores.pin(before)
        learned_means.clear()
        learned_means.update(means)
        if is_ours:
            agent.stop_for(store)


def use_up(rule: str, ident: str | Model, *, leaving: int = 0) -> None:
    """Charge an ident all that it has left under a rule, except for ``leaving``.

    The ident's plan and overrides hold. In place of an ident, pass the user, API key or tenant that the rule counts by.
    The ident of an API key that is a row is written "api_key:shop.apikey:5".

    Raise InvalidRule if no such rule is in force, if it limits what is open and not a rate, or if ``leaving`` depends
    on a plan that only a request tells. Raise InvalidIdent for an ident without its kind, for a kind that the rule
    never counts, and for a key, an address, a tenant or a user that does not exist. Raise InvalidCost for ``leaving``
    below 0 or above the limit.
    """
    check_cost(leaving)
    snapshot = rulebook.current()
    used_rule = snapshot.by_name(rule)
    rates = {each.name for each in snapshot.rules if each.all_rates and each.enabled}
    if used_rule is None or rule not in rates:
        raise InvalidRule(f"no rate named {rule!r} is in force, but: {', '.join(sorted(rates)) or 'none'}{_hint()}")
    ident = ident if isinstance(ident, str) else _ident_of_row(ident, used_rule)
    _check_kind(ident, used_rule)
    caller = _caller_of(ident)
    ident, held = caller.name, _as_it_holds(used_rule, caller, snapshot, leaving)
    limit = min(charge.rule.params.limit for charge in charges_of(held, ident, 1))
    if leaving > limit:
        raise InvalidCost(f"rule {rule!r} allows {ident!r} {limit:,} at once, so leaving cannot be {leaving:,}")
    limiter = Limiter([held], stores.get_store())
    left = limiter.peek(ident).remaining or 0
    if left > leaving:
        limiter.acquire(ident, left - leaving)


def _ident_of_row(row: Model, rule: Rule) -> str:
    """Return the ident of a user, API key or tenant. Raise InvalidIdent if the rule does not count by one of them."""
    kind = {"user_or_ip": "user"}.get(rule.key, rule.key)
    values = {"user": row.pk, "tenant": row.pk, "api_key": f"{row._meta.label_lower}:{row.pk}"}
    if kind not in values or (kind == "user" and not isinstance(row, get_user_model())):
        raise InvalidIdent(f"the rule {rule.name!r} counts by {rule.key}, so write its ident in place of {row!r}")
    return f"{kind}:{values[kind]}"


def _caller_of(ident: str) -> KnownCaller:
    """Return the caller of an ident. Raise InvalidIdent if there is no such API key, address, tenant or user."""
    if ident.partition(":")[0] not in ("api_key", "ip", "tenant", "user"):
        return KnownCaller(ident)
    # Not at import, as it has models, and pytest's plugin imports this module.
    from django_throttle.explain.find_caller import known_caller, read_ident

    try:
        return known_caller(read_ident(ident), ident)
    except ValidationError as error:
        raise InvalidIdent(f"{ident!r}: {' '.join(error.messages)}") from error


def _check_kind(ident: str, rule: Rule) -> None:
    """Raise InvalidIdent for an ident without a kind, or with a kind that the rule never counts.

    Code that asks for the rule by its name may name any ident.
    """
    if ident == rule.key or functions(rule.key):
        return
    kinds = [name for name, kind in KEY_KINDS.items() if rule.key in (name, *kind.answers)]
    prefix, colon, value = ident.partition(":")
    near = [] if prefix in KEY_KINDS else get_close_matches(prefix.lower(), kinds, n=1)
    if colon and not near:
        _check_key(ident, rule, [*kinds, rule.key])
        return
    fault = f"the rule {rule.name!r} counts by {rule.key}, so write"
    written = " or ".join(repr(f"{kind}:{value if colon else ident}") for kind in near or kinds or [rule.key])
    raise InvalidIdent(f"{ident!r} has no kind: {fault} {written}" if not colon else f"{ident!r}: {fault} {written}")


def _check_key(ident: str, rule: Rule, kinds: Iterable[str]) -> None:
    """Raise InvalidIdent for an ident that another key makes."""
    from django_throttle.checks.scopes import may_be_named  # not for pytest's plugin

    kind = ident.partition(":")[0]
    is_of_key = kind in (*KEY_KINDS, "group") or "+" in kind
    if is_of_key and kind not in kinds and not may_be_named(rule.name):
        like = KnownCaller(EVERYONE).example_ident(rule.key)
        raise InvalidIdent(f"{ident!r}: the rule {rule.name!r} counts by {rule.key}, so write one like {like!r}")


def _as_it_holds(rule: Rule, caller: KnownCaller, snapshot: Snapshot, leaving: int) -> Rule:
    """Return the rule with a caller's plan and overrides; with the largest plan if the caller's is unknown."""
    if not rule.plans and not snapshot.overrides.all:
        return rule
    if caller.subject is None and any(is_dotted(plan.partition(":")[0]) for plan in rule.plans):
        if leaving:
            raise InvalidRule(
                f"the plan of {caller.name!r} under rule {rule.name!r} depends on the request: use up all of it"
            )
        rule = max([rule, *(planned for _, planned in rule.by_plan)], key=lambda each: each.all_rates[0].limit)
    else:
        rule = with_plan(rule, caller)
    return snapshot.overrides.rule(rule, snapshot.overrides.for_caller(caller)) or rule


def _as_rules(rules: Rules) -> tuple[Rule, ...]:
    if callable(rules):
        raise TypeError('override_rules takes rules: write @override_rules({"api": {"rate": "2/min"}})')
    if isinstance(rules, Mapping):
        return tuple(Rule.from_options(name, options) for name, options in rules.items())
    as_tuple = tuple(rules)
    if len({rule.name for rule in as_tuple}) < len(as_tuple):
        raise InvalidRule(f"two rules share a name: {', '.join(sorted(rule.name for rule in as_tuple))}")
    return as_tuple


def _snapshot(rules: tuple[Rule, ...], below: Snapshot) -> Snapshot:
    """Return a snapshot of rules on top of others. With the setting SHADOW they only record."""
    merged = {rule.name: rule for rule in (*below.rules, *rules)}.values()
    in_force = [rule.as_shadow() for rule in merged] if conf().SHADOW else merged
    return Snapshot(in_force, overrides=below.overrides.all)


class _Answer(NamedTuple):
    """The answer to a call, with its known decisions."""

    answer: object
    decisions: tuple[Decision, ...]

    @property
    def status(self) -> int | None:
        return getattr(self.answer, "status_code", None)

    @property
    def is_refused(self) -> bool:
        if self.status is not None:
            return self.status == 429
        if isinstance(self.answer, Mapping):
            return _refusal_in(self.answer) is not None
        return any(not decision.allowed and not decision.unavailable for decision in self.decisions)

    @property
    def refusers(self) -> set[str]:
        """The known names of the rules that refused the call."""
        if isinstance(self.answer, Mapping):
            refusal = _refusal_in(self.answer) or {}
            return {refusal["rule"]} if refusal.get("rule") else set()
        outcomes = [outcome for decision in self.decisions if not decision.allowed for outcome in decision.outcomes]
        return {outcome.rule for outcome in outcomes if not outcome.allowed and not outcome.shadow}

    @property
    def counts(self) -> str:
        """The counts of the call, each with its ident. Empty if they are unknown."""
        outcomes = [outcome for decision in self.decisions for outcome in decision.outcomes]
        used = ((each, f"{each.limit - each.remaining:,} of {each.limit:,} {each.unit}") for each in outcomes)
        lines = [f"rule {each.rule!r} has counted {units} under {each.ident!r}" for each, units in used]
        is_of_client = hasattr(self.answer, "wsgi_request") or hasattr(self.answer, "asgi_request")
        return "\n".join(lines) or (f"no rule has counted the last call{_hint()}" if is_of_client else "")

    def __str__(self) -> str:
        by = f" by {_rule_names(self.refusers)}" if self.refusers else ""
        if self.is_refused:
            return f"refused{by}"
        if by:
            return f"turned away{by} as the store failed"
        if self.status:
            return f"answered with status {self.status}"
        return f"let through: {self.answer!r}" if isinstance(self.answer, str | Mapping) else "let through"


def assert_throttled(
    answers: Any, *, after: int | None = None, times: int | None = None, rule: str | None = None
) -> Any:
    """Fail unless rules refused the calls. Return the last answer.

    ``answers`` is a function without arguments, which is called, or the answer to a call, or several answers in order.
    An answer is a response of Django or REST framework, a Decision, a raised Refused, or a frame of a WebSocket. The
    first ``after`` calls must pass. Then ``times`` calls must be refused: 1 by default if a function is
    called, else all that follow. With ``times`` alone, that number of answers must be refusals, in any order. ``rule``
    is the name of the rule that must have refused.
    """
    __tracebackhide__ = True
    if callable(answers) and not _is_answer(answers):
        results = [_call(answers) for _ in range((after or 0) + (1 if times is None else times))]
    else:
        results = [_checked_answer(answer) for answer in ([answers] if _is_answer(answers) else answers)]
    for fault in _faults(results, after, times, rule):
        counts = results[-1].counts if results else ""
        raise AssertionError(f"{fault}\n{counts}".rstrip())  # unlike assert, it stays under python -O
    return results[-1].answer


def _faults(results: list[_Answer], after: int | None, times: int | None, rule: str | None) -> Iterator[str]:
    """Yield what contradicts the arguments of ``assert_throttled``."""
    refused = [answer for answer in results if answer.is_refused]
    if not results:
        yield "no call was made"
    elif after is not None or times is None:
        yield from _faults_in_order(results, after or 0, times)
    elif len(refused) != times:
        yield f"{len(refused)} of {len(results)} calls were refused, not {times}"
    for answer in refused if rule is not None else ():
        if not answer.refusers:
            yield f"the rule that refused is unknown: {answer.answer!r} came from no test client"
        elif rule not in answer.refusers:
            yield f"refused by {_rule_names(answer.refusers)}, not by {rule!r}"


def _faults_in_order(results: list[_Answer], after: int, times: int | None) -> Iterator[str]:
    if len(results) < after + (1 if times is None else times):
        yield f"only {len(results)} calls were made"
    for number, answer in enumerate(results, 1):
        is_due = number > after and (times is None or number <= after + times)
        if is_due and not answer.is_refused:
            yield f"call {number} should have been refused, but was {answer}"
        elif answer.is_refused and not is_due:
            wanted = f"the first {after} should pass" if number <= after else f"only {times} should be"
            yield f"call {number} was {answer}, though {wanted}"


def _call(function: Callable[[], object]) -> _Answer:
    decisions: list[Decision] = []

    def note(decision: Decision, **_: object) -> None:
        decisions.append(decision)

    throttled.connect(note, weak=False)
    try:
        answer = function()
    except Exception as error:
        if not _is_answer(error):
            raise
        answer = error
    finally:
        throttled.disconnect(note)
    if isawaitable(answer):
        getattr(answer, "close", lambda: None)()
        raise TypeError("await each call, and give assert_throttled the list of their answers")
    return _answer(answer, decisions)


def _is_answer(answer: object) -> bool:
    return isinstance(answer, Decision | Refused | str | Mapping) or hasattr(answer, "status_code")


def _checked_answer(answer: object) -> _Answer:
    if not _is_answer(answer):
        raise TypeError(f"an answer must be a response, a Decision, a Refused or a frame, not {answer!r}")
    return _answer(answer)


def _answer(answer: object, decisions: Iterable[Decision] = ()) -> _Answer:
    """Return the answer with its decisions. Decode a frame of JSON."""
    if isinstance(answer, str):
        with suppress(ValueError):
            answer = json.loads(answer)
    return _Answer(answer, _decisions(answer) or tuple(decisions))


def _refusal_in(frame: Mapping[str, object]) -> Mapping[str, Any] | None:
    """Return the refusal in a frame of a WebSocket, or None. GraphQL has it in the extensions of an error."""
    errors = frame.get("payload")
    error = errors[0] if isinstance(errors, list) and errors else errors
    refusal = error.get("extensions") if isinstance(error, Mapping) else frame
    is_refusal = isinstance(refusal, Mapping) and refusal.get("code") in ("rate_limited", "connection_limit")
    return refusal if is_refusal and frame.get("type") == "error" else None


def _decisions(answer: object) -> tuple[Decision, ...]:
    if isinstance(answer, Decision):
        return (answer,)
    if isinstance(answer, Refused):
        return (answer.decision,)
    request = getattr(answer, "wsgi_request", None) or getattr(answer, "asgi_request", None)
    return () if request is None else decisions_of(request)


def _hint() -> str:
    """Return the way to rules in a test run without limits."""
    is_off = rulebook.is_unlimited()
    return ' (DJANGO_THROTTLE["TESTS"] is "unlimited": put rules in force by override_rules)' if is_off else ""


def _rule_names(rules: Iterable[str]) -> str:
    return "rule " + ", ".join(map(repr, sorted(rules)))

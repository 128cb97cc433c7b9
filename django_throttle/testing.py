"""What tests of a site need: a clock that stands still, rules for one test, and a look at what was refused."""

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
from django.core.exceptions import ValidationError
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
    """Counts microseconds as a whole number, so that no step is ever rounded away; called, it says seconds.

    A moment is seconds since the epoch, or a datetime that knows its time zone.
    """

    def __init__(self, start: float | datetime = START) -> None:
        self.start_us = self.now_us = _microseconds(start)

    def __call__(self) -> float:
        return self.now_us / 1_000_000

    def tick(self, seconds: float) -> None:
        """Go on by so many seconds; back, when they are less than 0."""
        self.now_us += round(seconds * 1_000_000)

    def move_to(self, moment: float | datetime) -> None:
        """Stand at this moment, earlier or later."""
        self.now_us = _microseconds(moment)


def _microseconds(moment: float | datetime) -> int:
    if not isinstance(moment, datetime):
        return round(moment * 1_000_000)
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone, so nobody knows when that is")
    return round(moment.timestamp() * 1_000_000)


Store = MemoryStore | RedisStore
S = TypeVar("S", MemoryStore, RedisStore, Store)
Rules = Mapping[str, Mapping[str, object]] | Iterable[Rule]


class override_rules(TestContextDecorator):  # noqa: N801  (as override_settings is)
    """Put these rules in force, and no others; a context manager, and a decorator of tests and of classes of tests.

    ``rules`` are written as in settings (names and options), or are Rules. With ``merge`` they are added to those
    in force, and replace those of the same name. They are counted in ``store``, by default a MemoryStore of their
    own, whose ``clock`` is by default a FrozenClock; ``as`` gives the clock. In a class that is no TestCase each
    method that begins with ``test`` is decorated. Blocks may be nested. Raises InvalidRule for an invalid rule.
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
        """Put them in force; returns the clock that they go by."""
        snapshot = _snapshot(self._rules, rulebook.current_limits() if self._merge else Snapshot(()))
        undo = ExitStack()
        store = undo.enter_context(counting_in(self._store or MemoryStore(self._clock or FrozenClock())))
        undo.callback(rulebook.pin, rulebook.pin(snapshot))
        self._undo.append(undo)
        return store.clock

    def disable(self) -> None:
        """Put back in force what was before."""
        self._undo.pop().close()

    async def __aenter__(self) -> Any:
        if self._merge:
            await rulebook.acurrent()
        return self.enable()

    async def __aexit__(self, *_: object) -> None:
        self.disable()

    def decorate_callable(self, func: Any) -> Any:
        """The function with the rules in force while it runs."""
        if not iscoroutinefunction(func):
            return super().decorate_callable(func)

        @wraps(func)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await func(*args, **kwargs)

        return inner

    def decorate_class(self, cls: Any) -> Any:
        """The class with the rules in force for each of its tests; of a TestCase, in setUp as well."""
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
    learned_means.clear()  # it is of the other store
    try:
        yield store
    finally:
        stores.pin(before)
        learned_means.clear()
        learned_means.update(means)
        if is_ours:
            agent.stop_for(store)


def use_up(rule: str, ident: str, *, leaving: int = 0) -> None:
    """Spend what an ident has left under a rule in force, but for ``leaving``: 10,000 calls at once.

    Plans and overrides hold as for a call of this ident. An API key that is a row is written "api_key:shop.apikey:5".

    Raise InvalidRule if no such rule is in force, if it limits what is open and not a rate, or if ``leaving`` depends
    on a plan that only a request tells. Raise InvalidIdent for an ident without its kind, for a kind that the rule
    never counts, and for a key, a user or an address that does not exist. Raise InvalidCost for ``leaving`` below 0 or
    above the limit.
    """
    check_cost(leaving)
    snapshot = rulebook.current()
    found = snapshot.by_name(rule)
    if found is None or not found.all_rates:
        named = ", ".join(each.name for each in snapshot.rules if each.all_rates) or "none"
        raise InvalidRule(f"no rate named {rule!r} is in force, but: {named}")
    _check_kind(ident, found)
    caller = _caller_of(ident)
    ident, held = caller.name, _as_it_holds(found, caller, snapshot, leaving)
    limit = min(charge.rule.params.limit for charge in charges_of(held, ident, 1))
    if leaving > limit:
        raise InvalidCost(f"rule {rule!r} allows {ident!r} {limit:,} at once, so leaving cannot be {leaving:,}")
    limiter = Limiter([held], stores.get_store())
    left = limiter.peek(ident).remaining or 0
    if left > leaving:
        limiter.acquire(ident, left - leaving)


def _caller_of(ident: str) -> KnownCaller:
    """Return the caller of an ident. Raise InvalidIdent if there is no such API key, user or address."""
    kind, _, value = ident.partition(":")
    if kind not in ("api_key", "ip"):
        caller = KnownCaller(ident)
        if kind == "user" and not (caller.is_certain or conf().USER_IDENT):
            raise InvalidIdent(f"{ident!r}: no user has the primary key {value!r}")
        return caller
    # Not at import, as it has models, and pytest's plugin imports this module.
    from django_throttle.explain.find_caller import known_caller, read_ident

    try:
        return known_caller(read_ident(ident), ident)
    except ValidationError as error:
        raise InvalidIdent(f"{ident!r}: {' '.join(error.messages)}") from error


def _check_kind(ident: str, rule: Rule) -> None:
    """Raise InvalidIdent for an ident without a kind, or with one that is not a kind that the rule counts by.

    Code that asks for the rule by its name may name any ident.
    """
    if ident == rule.key or functions(rule.key) or conf().USER_IDENT:
        return
    kinds = [name for name, kind in KEY_KINDS.items() if rule.key in (name, *kind.answers)]
    said, colon, value = ident.partition(":")
    near = [] if said in KEY_KINDS else get_close_matches(said.lower(), kinds, n=1)
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
    """The rule as a caller's plan and overrides have it; of plans that nobody can tell, the largest."""
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
    return snapshot.overrides.rule(rule, snapshot.overrides.of(caller)) or rule


def _as_rules(rules: Rules) -> tuple[Rule, ...]:
    if callable(rules):
        raise TypeError('override_rules takes rules: write @override_rules({"api": {"rate": "2/min"}})')
    if isinstance(rules, Mapping):
        return tuple(Rule.from_options(name, options) for name, options in rules.items())
    made = tuple(rules)
    if len({rule.name for rule in made}) < len(made):
        raise InvalidRule(f"two rules share a name: {', '.join(sorted(rule.name for rule in made))}")
    return made


def _snapshot(rules: tuple[Rule, ...], below: Snapshot) -> Snapshot:
    """Rules on top of others; those that the setting SHADOW has as shadows are so here, too."""
    merged = {rule.name: rule for rule in (*below.rules, *rules)}.values()
    made = [rule.as_shadow() for rule in merged] if conf().SHADOW else merged
    return Snapshot(made, overrides=below.overrides.all)


class _Answer(NamedTuple):
    """What one call came to; ``decisions`` are those that are known of it."""

    given: object
    decisions: tuple[Decision, ...]

    @property
    def status(self) -> int | None:
        return getattr(self.given, "status_code", None)

    @property
    def is_refused(self) -> bool:
        if self.status is not None:
            return self.status == 429
        if isinstance(self.given, Mapping):
            return _refusal_in(self.given) is not None
        return any(not decision.allowed and not decision.unavailable for decision in self.decisions)

    @property
    def refusers(self) -> set[str]:
        """The names of the rules that refuse it, as far as they are known."""
        if isinstance(self.given, Mapping):
            refusal = _refusal_in(self.given) or {}
            return {refusal["rule"]} if refusal.get("rule") else set()
        outcomes = [one for decision in self.decisions if not decision.allowed for one in decision.outcomes]
        return {one.rule for one in outcomes if not one.allowed and not one.shadow}

    @property
    def counts(self) -> str:
        """What was counted of the call, and under which idents; empty if that is unknown."""
        outcomes = [outcome for decision in self.decisions for outcome in decision.outcomes]
        used = ((each, f"{each.limit - each.remaining:,} of {each.limit:,} {each.unit}") for each in outcomes)
        lines = [f"rule {each.rule!r} has counted {units} under {each.ident!r}" for each, units in used]
        is_of_client = hasattr(self.given, "wsgi_request") or hasattr(self.given, "asgi_request")
        return "\n".join(lines) or ("no rule has counted the last call" if is_of_client else "")

    def __str__(self) -> str:
        by = f" by {_rule_names(self.refusers)}" if self.refusers else ""
        if self.is_refused:
            return f"refused{by}"
        if by:
            return f"turned away{by} as the store failed"
        if self.status:
            return f"answered with status {self.status}"
        return f"let through: {self.given!r}" if isinstance(self.given, str | Mapping) else "let through"


def assert_throttled(
    answers: Any, *, after: int | None = None, times: int | None = None, rule: str | None = None
) -> Any:
    """Fail unless calls were refused for being too many; returns the last answer.

    ``answers`` is a function without arguments, which is called; or the answer to a call; or several, in their
    order. An answer is a response of Django's or REST framework's, a Decision, the Refused that was raised, or a
    frame that a WebSocket was sent, decoded or not. The first ``after`` calls must pass. Then ``times`` calls must be
    refused: 1 by default if a function is called, else all that follow. With ``times`` alone, so many of the given
    answers must be refusals, in any order. ``rule`` names the rule that must have refused.
    """
    __tracebackhide__ = True
    if callable(answers) and not _is_answer(answers):
        made = [_call(answers) for _ in range((after or 0) + (1 if times is None else times))]
    else:
        made = [_given(one) for one in ([answers] if _is_answer(answers) else answers)]
    for fault in _faults(made, after, times, rule):
        counts = made[-1].counts if made else ""
        raise AssertionError(f"{fault}\n{counts}".rstrip())  # unlike assert, it stays under python -O
    return made[-1].given


def _faults(made: list[_Answer], after: int | None, times: int | None, rule: str | None) -> Iterator[str]:
    """What contradicts the arguments of ``assert_throttled``."""
    refused = [answer for answer in made if answer.is_refused]
    if not made:
        yield "no call was made"
    elif after is not None or times is None:
        yield from _faults_in_order(made, after or 0, times)
    elif len(refused) != times:
        yield f"{len(refused)} of {len(made)} calls were refused, not {times}"
    for answer in refused if rule is not None else ():
        if not answer.refusers:
            yield f"nobody knows which rule refused: {answer.given!r} came from no test client"
        elif rule not in answer.refusers:
            yield f"refused by {_rule_names(answer.refusers)}, not by {rule!r}"


def _faults_in_order(made: list[_Answer], after: int, times: int | None) -> Iterator[str]:
    if len(made) < after + (1 if times is None else times):
        yield f"only {len(made)} calls were made"
    for number, answer in enumerate(made, 1):
        is_due = number > after and (times is None or number <= after + times)
        if is_due and not answer.is_refused:
            yield f"call {number} should have been refused, but was {answer}"
        elif answer.is_refused and not is_due:
            wanted = f"the first {after} should pass" if number <= after else f"only {times} should be"
            yield f"call {number} was {answer}, though {wanted}"


def _call(function: Callable[[], object]) -> _Answer:
    heard: list[Decision] = []

    def hear(decision: Decision, **_: object) -> None:
        heard.append(decision)

    throttled.connect(hear, weak=False)
    try:
        given = function()
    except Exception as error:
        if not _is_answer(error):
            raise
        given = error
    finally:
        throttled.disconnect(hear)
    if isawaitable(given):
        getattr(given, "close", lambda: None)()
        raise TypeError("await each call, and give assert_throttled the list of their answers")
    return _answer(given, heard)


def _is_answer(given: object) -> bool:
    return isinstance(given, Decision | Refused | str | Mapping) or hasattr(given, "status_code")


def _given(answer: object) -> _Answer:
    if not _is_answer(answer):
        raise TypeError(f"an answer must be a response, a Decision, a Refused or a frame, not {answer!r}")
    return _answer(answer)


def _answer(given: object, heard: Iterable[Decision] = ()) -> _Answer:
    """What a call came to; a frame that is text and JSON as what it says."""
    if isinstance(given, str):
        with suppress(ValueError):
            given = json.loads(given)
    return _Answer(given, _decisions(given) or tuple(heard))


def _refusal_in(frame: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the frame of a WebSocket says of a refused message or connection; None for any other frame.

    Under the subprotocols of GraphQL it stands in the extensions of an error.
    """
    errors = frame.get("payload")
    error = errors[0] if isinstance(errors, list) and errors else errors
    found = error.get("extensions") if isinstance(error, Mapping) else frame
    is_refusal = isinstance(found, Mapping) and found.get("code") in ("rate_limited", "connection_limit")
    return found if is_refusal and frame.get("type") == "error" else None


def _decisions(given: object) -> tuple[Decision, ...]:
    if isinstance(given, Decision):
        return (given,)
    if isinstance(given, Refused):
        return (given.decision,)
    request = getattr(given, "wsgi_request", None) or getattr(given, "asgi_request", None)
    return () if request is None else decisions_of(request)


def _rule_names(rules: Iterable[str]) -> str:
    return "rule " + ", ".join(map(repr, sorted(rules)))

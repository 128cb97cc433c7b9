"""Which rules count a call, as overrides have them, and why the others that cover its scope do not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from django_throttle.core import Override, Rate, Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.descriptions import events_in_words
from django_throttle.core.options import EVENTS, METHODS, did_you_mean, is_dotted
from django_throttle.core.scopes import covers, matches, split_scopes
from django_throttle.core.texts import alternatives, gettext_lazy, gettext_noop, listed, with_commas
from django_throttle.identity.call import Call, plan_names
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.rulebook.snapshot import WILDCARD, Snapshot, rule_cost, takes_method

# The events of one call, by the event that names it: those that its entry point asks after together.
TOGETHER: Final = {"request": ("request", "inflight"), "connect": ("connect", "connection")}


@dataclass(frozen=True, slots=True)
class HypotheticalCall:
    """The call that is asked about; an empty text stands for any scope, method or event.

    Raises ValueError for a method or an event that there is not.
    """

    scope: str = ""
    method: str = ""
    event: str = ""

    def __post_init__(self) -> None:
        if self.method and self.method not in METHODS:
            hint, given = did_you_mean(self.method, METHODS), self.method[:60]
            raise ValueError(gettext_lazy("there is no method {name!r}{hint}", name=given, hint=hint))
        if self.event and self.event not in EVENTS:
            known, given = ", ".join(EVENTS), self.event[:60]
            fault = gettext_lazy("the event is one of {known}, not {given!r}", known=known, given=given)
            raise ValueError(fault)

    @property
    def events(self) -> tuple[str, ...]:
        """The events that its entry point would ask after; a call with a method is a request."""
        event = self.event or ("request" if self.method else "")
        return TOGETHER.get(event, (event,)) if event else EVENTS


class Counting(NamedTuple):
    """A rule that counts the call under ``ident``, with this cost before its own factor; one of bytes at least 1.

    ``rule`` is by the caller's plan, and ``held`` as it holds by the ``override`` that decides about it, None where
    that exempts the caller. ``assumed`` says what of the caller had to be assumed. ``is_doubtful`` if it may count by
    another ident, ``may_not_count`` if the caller may be of no audience of it, or no entry point may name the ident.
    ``alternatives`` are the rule as it holds under plans of which nobody can tell whether the caller has them, and
    ``functions`` those that can tell that, or what the call costs. ``if_named`` is how the rule counts the ident of
    the caller, where its key makes another and an entry point names it.
    """

    rule: Rule
    held: Rule | None
    override: Override | None
    ident: str
    cost: int
    assumed: str = ""
    is_doubtful: bool = False
    may_not_count: bool = False
    alternatives: tuple[Rule, ...] = ()
    functions: tuple[str, ...] = ()
    if_named: Counting | None = None


class NotCounting(NamedTuple):
    """A rule that covers the scope, and why it does not count the call; or, if it ``is_doubtful``, may not.

    ``if_named`` is how it would count the ident of the caller where an entry point names that.
    """

    rule: Rule
    why: str
    is_doubtful: bool = False
    if_named: Counting | None = None


def coverage(snapshot: Snapshot, call: HypotheticalCall, caller: KnownCaller) -> Iterator[Counting | NotCounting]:
    """Each enabled rule that covers the scope, in the order of their names."""
    ranked = snapshot.overrides.of(caller)
    rules = snapshot.covering(call.scope) if call.scope else [rule for rule in snapshot.rules if rule.enabled]
    for rule in rules:
        if why := _why_not_this_call(rule, call):
            yield NotCounting(rule, why)
            continue
        if why := _why_not_this_caller(rule, caller):
            yield NotCounting(rule, why, if_named=_if_named(snapshot, rule, call, caller))
            continue
        planned, unasked = _planned(rule, caller)
        override, held = snapshot.overrides.deciding(planned, ranked)
        may_refuse = held is not None and not held.is_shadow
        # Most sites have rules by address, which are asked about by themselves.
        is_doubtful = may_refuse and rule.key not in ("ip", "session") and caller.may_have_ident(rule.key)
        if (ident := caller.ident(rule.key)) is None:
            named = None if is_doubtful else _if_named(snapshot, rule, call, caller)
            yield NotCounting(rule, caller.why_not(rule.key), is_doubtful, named)
            continue
        charged = planned if held is None else held
        held_by_plan = [snapshot.overrides.deciding(other, ranked)[1] for other in unasked.values()]
        paths = dict.fromkeys(plan.partition(":")[0] for plan in unasked)
        yield Counting(
            rule=planned,
            held=held,
            override=override,
            ident=ident,
            cost=_cost(charged, call, caller),
            assumed=_assumed(rule, list(unasked), caller),
            is_doubtful=is_doubtful,
            may_not_count=_is_unknown(rule, caller),
            alternatives=tuple([other for other in held_by_plan if other is not None]),
            functions=tuple(filter(is_dotted, [*paths, str(rule.cost)])),
            if_named=_if_named(snapshot, rule, call, caller),
        )


def _if_named(snapshot: Snapshot, rule: Rule, call: HypotheticalCall, caller: KnownCaller) -> Counting | None:
    """Return how the rule counts the caller's ident where the code names it; None if its key makes the same."""
    if caller.ident(rule.key) == caller.name or rule.key == "connection":
        return None
    ranked = snapshot.overrides.of(caller)
    override, held = snapshot.overrides.deciding(rule, ranked)
    cost = _cost(rule if held is None else held, call, caller)
    if caller.is_explicit:
        return Counting(rule, held, override, caller.name, cost)
    # The code may name a user, who has a plan, or a text, which has none.
    planned, unasked = _planned(rule, caller)
    plans = {other.plan_of: other for other in (planned, *unasked.values()) if other.plan_of}
    held_by_plan = [snapshot.overrides.deciding(other, ranked)[1] for other in plans.values()]
    assumed = gettext_lazy("where the code names {caller} itself", caller=caller.name)
    return Counting(
        rule=rule,
        held=held,
        override=override,
        ident=caller.name,
        cost=cost,
        assumed=with_commas([assumed, _without_plan(list(plans))]),
        may_not_count=True,
        alternatives=tuple([other for other in held_by_plan if other is not None]),
    )


def _cost(rule: Rule, call: HypotheticalCall, caller: KnownCaller) -> int:
    return 1 if rule.is_plain else rule_cost(rule, Call(call.scope, call.events, caller, size=1))


def _planned(rule: Rule, caller: KnownCaller) -> tuple[Rule, dict[str, Rule]]:
    """Return the rule by the caller's plan, and by those that precede it of which nobody can tell.

    A function is asked with what is known of a request. Where it reads anything else, nobody can tell.
    """
    said: dict[str, Collection[str] | None] = {}
    unasked: dict[str, Rule] = {}
    for plan, planned in rule.by_plan:
        path, _, name = plan.partition(":")
        if is_dotted(path):
            if path not in said:
                request = caller.request()
                names = None if request is None else plan_names(rule, path, request, logs=False)
                said[path] = None if request is None or request.lacks_any else names
            names = said[path]
        else:
            names = (name,) if not plan or caller.is_(plan) else () if caller.is_certain else None
        if names is None:
            unasked[plan] = planned
        elif name in names:
            return planned, unasked
    return rule, unasked


def _assumed(rule: Rule, unasked: Sequence[str], caller: KnownCaller) -> str:
    """What of the caller nobody can tell, in words; empty where all is known."""
    audience = alternatives(rule.audience) if _is_unknown(rule, caller) else ""
    in_audience = gettext_lazy("if the caller is {audience}", audience=audience) if audience else ""
    without_key = gettext_lazy("if the caller sends no API key") if caller.may_have_ident(rule.key) else ""
    return with_commas([in_audience, _without_plan(unasked), without_key])


def _without_plan(plans: Sequence[str]) -> str:
    return gettext_lazy("if the caller has no plan by {plans}", plans=alternatives(plans)) if plans else ""


def _why_not_this_call(rule: Rule, call: HypotheticalCall) -> str:
    if set(rule.events).isdisjoint(call.events):
        return gettext_lazy("it counts {events}", events=events_in_words(rule.events))
    if rule.methods and call.method and not takes_method(rule, call.method):
        return gettext_lazy("it counts {methods} only", methods=listed(rule.methods))
    return ""


def _why_not_this_caller(rule: Rule, caller: KnownCaller) -> str:
    if rule.key == "connection" or (caller.ident(rule.key) is None and not caller.may_have_ident(rule.key)):
        return caller.why_not(rule.key)
    if rule.audience and not _is_unknown(rule, caller) and not any(map(caller.is_, rule.audience)):
        pattern = gettext_noop("it is for {audience} only, and {caller} is not")
        return gettext_lazy(pattern, audience=alternatives(rule.audience), caller=caller.name)
    return ""


def _is_unknown(rule: Rule, caller: KnownCaller) -> bool:
    """Whether the rule names an audience, and nobody can tell whether the caller belongs to it."""
    return bool(rule.audience) and not caller.is_certain and not any(map(caller.is_, rule.audience))


# Two rules that differ in one of these count different things, or are not compared.
_alike: Final = attrgetter(
    "key", "algorithm", "refill", "resolution", "strict", "timezone", "estimator", "unit", "reserve", "measure", "cost",
    "count_on", "refund_on", "plans",
)  # fmt: skip
MOST_COMPARED: Final = 1000  # rules with one, so that ten thousand for every scope hold up no page


def stricter(snapshot: Snapshot, rule: Rule) -> Rule | None:
    """A rule that counts every call that this one counts and refuses before it does; None where none was found.

    Only rules of the same key and algorithm are compared, and without overrides. Of equal ones it is the first by name.
    """
    if not rule.enabled or rule.count_denied or not rule.scopes:
        return None
    for one in islice(snapshot.covering(split_scopes(rule.scopes)[0][0]), MOST_COMPARED):
        if one.name != rule.name and _precedes(one, rule) and (one.name < rule.name or not _precedes(rule, one)):
            return one
    return None


def _precedes(one: Rule, rule: Rule) -> bool:
    """Whether ``one`` refuses first, of all calls that ``rule`` counts."""
    refuses = one.action == one.at_limit == "reject" and not one.prepaid
    if _alike(one) != _alike(rule) or not refuses or not _counts_all_of(one, rule):
        return False
    if one.holds_slots:
        return one.params.limit <= rule.params.limit
    if one.enforce_at > rule.enforce_at:
        return False
    return all(any(_refuses_first(one, ours, theirs, rule) for ours in one.all_rates) for theirs in rule.all_rates)


def _counts_all_of(one: Rule, rule: Rule) -> bool:
    """Whether ``one`` counts each call that ``rule`` counts, their keys being the same."""
    narrows = (one.methods, rule.methods), (one.audience, rule.audience)
    if any(ours and not (theirs and set(theirs) <= set(ours)) for ours, theirs in narrows):
        return False
    return set(rule.events) <= set(one.events) and _covers_all_of(one, rule)


def _covers_all_of(one: Rule, rule: Rule) -> bool:
    """Whether ``one`` covers each scope that ``rule`` covers; False where patterns make that hard to tell."""
    (covered, excluded), (wanted, left_out) = split_scopes(one.scopes), split_scopes(rule.scopes)
    if any(
        pattern not in left_out and (WILDCARD.search(pattern) or covers(rule.scopes, pattern)) for pattern in excluded
    ):
        return False
    return all(
        "*" in covered or scope in covered or (not WILDCARD.search(scope) and matches(covered, scope))
        for scope in wanted
    )


def _refuses_first(one: Rule, ours: Rate, theirs: Rate, rule: Rule) -> bool:
    """Whether what ``ours`` lets pass is never more than what ``theirs`` does."""
    is_slower = ours.limit * theirs.window <= theirs.limit * ours.window
    if one.decided_locally:
        return is_slower
    if ALGORITHMS[one.algorithm].is_bucket:
        is_alike = one.refill == "continuous" or ours.window == theirs.window
        return is_alike and is_slower and (one.burst or ours.limit) <= (rule.burst or theirs.limit)
    if ours.window == theirs.window or one.resolution > 1:
        return ours.window == theirs.window and ours.limit <= theirs.limit
    if ours.window > theirs.window:
        return ours.window % theirs.window == 0 and ours.limit <= theirs.limit
    # A weighted window begins anywhere in a shorter one, which then counts once more.
    times = theirs.window // ours.window + ALGORITHMS[one.algorithm].weighs_windows
    is_whole = theirs.window % ours.window == 0 and not (theirs.monthly or one.strict)
    return is_whole and ours.limit * times <= theirs.limit

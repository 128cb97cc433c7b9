"""Rules that count a hypothetical call, with overrides applied, and reasons why other rules do not count it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from django_throttle.conf import conf
from django_throttle.core import Override, Rate, Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.descriptions import events_in_words
from django_throttle.core.options import EVENTS, METHODS, did_you_mean, is_dotted
from django_throttle.core.scopes import covers, matches, split_scopes
from django_throttle.core.texts import alternatives, gettext_noop, listed, translatable, with_commas
from django_throttle.identity.call import Call
from django_throttle.identity.keys import is_path
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.identity.site_functions import plan_names
from django_throttle.rulebook.snapshot import WILDCARD, Snapshot, rule_cost, takes_method

# Events of one call, by its name in explanations. An entry point decides them together.
JOINT_EVENTS: Final = {"request": ("request", "inflight"), "connect": ("connect", "connection")}


@dataclass(frozen=True, slots=True)
class HypotheticalCall:
    """Call to be explained. An empty text stands for any scope, method or event.

    Raise ValueError for a method or an event that does not exist.
    """

    scope: str = ""
    method: str = ""
    event: str = ""

    def __post_init__(self) -> None:
        if self.method and self.method not in METHODS:
            hint = did_you_mean(self.method, METHODS)
            raise ValueError(translatable("there is no method {name!r}{hint}", name=self.method[:60], hint=hint))
        if self.event and self.event not in EVENTS:
            pattern = gettext_noop("the event is one of {known}, not {given!r}")
            raise ValueError(translatable(pattern, known=", ".join(EVENTS), given=self.event[:60]))

    @property
    def events(self) -> tuple[str, ...]:
        """Events that the entry point would decide. A call with a method is a request."""
        event = self.event or ("request" if self.method else "")
        return JOINT_EVENTS.get(event, (event,)) if event else tuple(EVENTS)


class Counting(NamedTuple):
    """Rule that counts the call."""

    rule: Rule  #: by the caller's plan
    effective: Rule | None  #: the rule as changed by the override; None if that exempts the caller
    override: Override | None  #: the override that decides about the rule
    ident: str
    cost: int  #: cost before the rule's factor; for a rule of bytes, that of the first byte
    assumed: str = ""  #: assumptions about the caller, in words
    is_doubtful: bool = False  #: True if the call may count under another ident
    #: True if the caller may be outside the rule's audience, or if no entry point may name the ident.
    may_not_count: bool = False
    alternatives: tuple[Rule, ...] = ()  #: rule under plans that the caller may have
    functions: tuple[str, ...] = ()  #: functions of the site that decide about the caller's plan or the cost
    if_named: Counting | None = None  #: how the rule counts the caller's ident if an entry point names it


class NotCounting(NamedTuple):
    """Rule that covers the scope, and the reason why it does not count the call."""

    rule: Rule
    why: str
    is_doubtful: bool = False  #: True if the rule may count the call nevertheless
    if_named: Counting | None = None  #: how the rule counts the caller's ident if an entry point names it


def coverage(snapshot: Snapshot, call: HypotheticalCall, caller: KnownCaller) -> Iterator[Counting | NotCounting]:
    """Yield each enabled rule that covers the scope, in the order of their names."""
    ranked = snapshot.overrides.for_caller(caller)
    rules = snapshot.covering(call.scope) if call.scope else [rule for rule in snapshot.rules if rule.enabled]
    for rule in rules:
        if why := _why_not_this_call(rule, call):
            yield NotCounting(rule, why)
            continue
        if why := _why_not_this_caller(rule, caller):
            yield NotCounting(rule, why, if_named=_if_named(snapshot, rule, call, caller))
            continue
        planned, unknown_plans = _planned(rule, caller, rule.key)
        override, effective = snapshot.overrides.deciding(planned, ranked)
        may_refuse = effective is not None and not effective.is_shadow
        # Most sites have rules by address. Operators explain those by the address.
        is_doubtful = may_refuse and rule.key not in ("ip", "session") and caller.may_have_ident(rule.key)
        if (ident := caller.ident(rule.key)) is None:
            if_named = None if is_doubtful else _if_named(snapshot, rule, call, caller)
            yield NotCounting(rule, caller.why_not(rule.key), is_doubtful, if_named)
            continue
        may_be_outside = _is_in_audience(rule, caller) is None
        unknown = [*unknown_plans, *(rule.audience if may_be_outside else ())]
        paths = dict.fromkeys(trait.partition(":")[0] for trait in unknown)
        if "tenant" in paths and conf().TENANT and not is_path(conf().TENANT):
            paths[conf().TENANT] = None
        yield Counting(
            rule=planned,
            effective=effective,
            override=override,
            ident=ident,
            cost=_cost(planned if effective is None else effective, call, caller),
            assumed=_assumed(rule, list(unknown_plans), caller),
            is_doubtful=is_doubtful,
            may_not_count=may_be_outside,
            alternatives=_with_overrides(snapshot, unknown_plans.values(), ranked),
            functions=tuple(filter(is_dotted, [*paths, str(rule.cost)])),
            if_named=_if_named(snapshot, rule, call, caller),
        )


def _if_named(snapshot: Snapshot, rule: Rule, call: HypotheticalCall, caller: KnownCaller) -> Counting | None:
    """Return how the rule counts the caller's ident if the code names it. Return None if the rule's key makes it."""
    if caller.ident(rule.key) == caller.name or rule.key == "connection":
        return None
    ranked = snapshot.overrides.for_caller(caller)
    override, effective = snapshot.overrides.deciding(rule, ranked)
    cost = _cost(rule if effective is None else effective, call, caller)
    if caller.is_explicit:
        return Counting(rule, effective, override, caller.name, cost)
    # The code may name a user, who has a plan, or a text, which has none.
    planned, unknown_plans = _planned(rule, caller, "user_or_ip")
    plans = {other.plan_of: other for other in (planned, *unknown_plans.values()) if other.plan_of}
    assumed = translatable("where the code names {caller} itself", caller=caller.name)
    return Counting(
        rule=rule,
        effective=effective,
        override=override,
        ident=caller.name,
        cost=cost,
        assumed=with_commas([assumed, _without_plan(list(plans))]),
        may_not_count=True,
        alternatives=_with_overrides(snapshot, plans.values(), ranked),
    )


def _with_overrides(snapshot: Snapshot, rules: Iterable[Rule], ranked: list[Override]) -> tuple[Rule, ...]:
    effective_rules = (snapshot.overrides.rule(rule, ranked) for rule in rules)
    return tuple([rule for rule in effective_rules if rule is not None])


def _cost(rule: Rule, call: HypotheticalCall, caller: KnownCaller) -> int:
    return 1 if rule.is_plain else rule_cost(rule, Call(call.scope, call.events, caller, size=1))


def _planned(rule: Rule, caller: KnownCaller, key: str) -> tuple[Rule, dict[str, Rule]]:
    """Return the rule by the caller's plan, and the rules by preceding plans that the caller may have.

    A function of the site gets a partial request. If it reads an unknown attribute, its plans are unknown.
    """
    names_by_path: dict[str, Collection[str] | None] = {}
    unknown_plans: dict[str, Rule] = {}
    for plan, planned in rule.by_plan:
        path, _, name = plan.partition(":")
        if is_dotted(path):
            if path not in names_by_path:
                request = caller.request()
                names = None if request is None else plan_names(rule, path, request, logs=False)
                names_by_path[path] = None if request is None or request.lacks_any else names
            names = names_by_path[path]
        else:
            has = not plan or caller.has(plan, key)
            names = None if has is None else (name,) if has else ()
        if names is None:
            unknown_plans[plan] = planned
        elif name in names:
            return planned, unknown_plans
    return rule, unknown_plans


def _assumed(rule: Rule, unknown_plans: Sequence[str], caller: KnownCaller) -> str:
    """Return the assumptions about the caller, in words. Return "" if everything is known."""
    audience = alternatives(rule.audience) if _is_in_audience(rule, caller) is None else ""
    in_audience = translatable("if the caller is {audience}", audience=audience) if audience else ""
    without_key = translatable("if the caller sends no API key") if caller.may_have_ident(rule.key) else ""
    return with_commas([in_audience, _without_plan(unknown_plans), without_key])


def _without_plan(plans: Sequence[str]) -> str:
    return translatable("if the caller has no plan by {plans}", plans=alternatives(plans)) if plans else ""


def _why_not_this_call(rule: Rule, call: HypotheticalCall) -> str:
    if set(rule.events).isdisjoint(call.events):
        return translatable("it counts {events}", events=events_in_words(rule.events))
    if rule.methods and call.method and not takes_method(rule, call.method):
        return translatable("it counts {methods} only", methods=listed(rule.methods))
    return ""


def _why_not_this_caller(rule: Rule, caller: KnownCaller) -> str:
    if rule.key == "connection" or (caller.ident(rule.key) is None and not caller.may_have_ident(rule.key)):
        return caller.why_not(rule.key)
    if _is_in_audience(rule, caller) is False:
        pattern = gettext_noop("it is for {audience} only, and {caller} is not")
        return translatable(pattern, audience=alternatives(rule.audience), caller=caller.name)
    return ""


def _is_in_audience(rule: Rule, caller: KnownCaller) -> bool | None:
    """Return True if the rule's audience covers the calls that it counts of this caller, or None if it is unknown."""
    answers = [caller.has(trait, rule.key) for trait in rule.audience]
    return True if True in answers or not answers else None if None in answers else False


# Rules that differ in one of these options count differently, or are not compared.
_compared_options: Final = attrgetter(
    "key", "algorithm", "refill", "resolution", "strict", "timezone", "estimator", "unit", "reserve", "measure", "cost",
    "count_on", "refund_on", "plans",
)  # fmt: skip
#: Rules that a rule is compared with at most, so that a page with ten thousand rules for each scope loads.
MAX_COMPARED_RULES: Final = 1000


def stricter(snapshot: Snapshot, rule: Rule) -> Rule | None:
    """Return a rule that counts each call of this rule and refuses it first. Return None if none is found.

    Only rules of the same key and algorithm are compared, and without overrides. Of equal rules, the first by name is
    the stricter.
    """
    if not rule.enabled or rule.count_denied or not rule.scopes:
        return None
    for other in islice(snapshot.covering(split_scopes(rule.scopes)[0][0]), MAX_COMPARED_RULES):
        if other.name == rule.name or not _precedes(other, rule):
            continue
        if other.name < rule.name or not _precedes(rule, other):
            return other
    return None


def _precedes(first: Rule, second: Rule) -> bool:
    """Return True if ``first`` refuses each call of ``second`` before ``second`` does."""
    refuses = first.action == first.at_limit == "reject" and not first.prepaid
    is_comparable = refuses and _compared_options(first) == _compared_options(second)
    if not is_comparable or not _counts_all_of(first, second):
        return False
    if first.holds_slots:
        return first.params.limit <= second.params.limit
    if first.enforce_at > second.enforce_at:
        return False
    return all(any(_is_stricter(rate, first, other, second) for rate in first.all_rates) for other in second.all_rates)


def _counts_all_of(first: Rule, second: Rule) -> bool:
    """Return True if ``first`` counts each call of ``second``, as the keys are the same."""
    for wider, narrower in ((first.methods, second.methods), (first.audience, second.audience)):
        if wider and not (narrower and set(narrower) <= set(wider)):
            return False
    return set(second.events) <= set(first.events) and _covers_all_of(first, second)


def _covers_all_of(first: Rule, second: Rule) -> bool:
    """Return True if ``first`` covers each scope of ``second``. Return False if patterns make that hard to decide."""
    covered, excluded = split_scopes(first.scopes)
    scopes, second_excluded = split_scopes(second.scopes)
    for pattern in excluded:
        if pattern not in second_excluded and (WILDCARD.search(pattern) or covers(second.scopes, pattern)):
            return False
    return all(
        "*" in covered or scope in covered or (not WILDCARD.search(scope) and matches(covered, scope))
        for scope in scopes
    )


def _is_stricter(rate: Rate, rule: Rule, other: Rate, other_rule: Rule) -> bool:
    """Return True if ``rate`` never allows more than ``other``."""
    is_slower = rate.limit * other.window <= other.limit * rate.window
    if rule.decided_locally:
        return is_slower
    if ALGORITHMS[rule.algorithm].is_bucket:
        is_comparable = rule.refill == "continuous" or rate.window == other.window
        return is_comparable and is_slower and (rule.burst or rate.limit) <= (other_rule.burst or other.limit)
    if rate.window == other.window or rule.resolution > 1:
        return rate.window == other.window and rate.limit <= other.limit
    if rate.window > other.window:
        return rate.window % other.window == 0 and rate.limit <= other.limit
    # The longer window overlaps with one more window of ``rate`` if windows are weighted.
    windows = other.window // rate.window + ALGORITHMS[rule.algorithm].weighs_windows
    is_multiple = other.window % rate.window == 0 and not (other.monthly or rule.strict)
    return is_multiple and rate.limit * windows <= other.limit

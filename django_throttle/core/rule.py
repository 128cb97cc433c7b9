"""Rules: an immutable rule with its checked options, and the checks across options."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import blake2b
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.algorithms import ALGORITHMS, CounterParams, Uncounted
from django_throttle.core.algorithms.base import Faults, multiplied
from django_throttle.core.algorithms.fixed_window import is_calendar
from django_throttle.core.exceptions import InvalidRule
from django_throttle.core.key import KEY_KINDS
from django_throttle.core.option_words import percent_hint
from django_throttle.core.options import (
    CANCELLED,
    MAX_NAME_LENGTH,
    MAX_RATES,
    MEASURED_UNITS,
    Options,
    as_json,
    check_names,
    countable_events,
    functions,
    is_dotted,
    key_parts,
    sequence,
    table,
)
from django_throttle.core.plans import PlanLimits, read_plan
from django_throttle.core.rate import MAX_LIMIT, Rate, RateLimit, period_of
from django_throttle.core.texts import gettext_noop, in_sentence, text_of, translatable


@dataclass(frozen=True, slots=True)
class Rule(Options):
    """A limit per ident for matching scopes and events: at most ``rate``, or ``limit`` slots held at once.

    The options are the rows of the table. ``rate`` is a Rate or its text. ``rates`` are several rates, all of which
    apply. ``events`` defaults to ("request",), or to ("connection",) for a concurrency rule. ``burst`` defaults to the
    limit of the rate.
    Raises InvalidRule or InvalidRate if the options are invalid, alone or together.
    """

    # These two are no options.
    #: Suffix that separates the counts of a rule changed by an override from those of the rule itself.
    variant: str = field(default="", kw_only=True, repr=False)
    #: Holder of the plan that this rule belongs to, such as "group:premium"; empty for the rule itself.
    plan_of: str = field(default="", kw_only=True, repr=False)
    # Derived once, because the hot path reads them on every call.
    #: A rule for each of several rates; otherwise the rule itself.
    parts: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    id: str = field(init=False, repr=False, compare=False)
    holds_slots: bool = field(init=False, repr=False, compare=False)
    is_shadow: bool = field(init=False, repr=False, compare=False)
    decided_locally: bool = field(init=False, repr=False, compare=False)
    #: True if the cost of a call is known only when the call ends.
    is_measured: bool = field(init=False, repr=False, compare=False)
    #: True if the charge is corrected when the call ends, by its cost or its answer.
    is_settled: bool = field(init=False, repr=False, compare=False)
    #: True if calls wait for a queue slot.
    is_queue: bool = field(init=False, repr=False, compare=False)
    #: Pairs of a plan's holder and the rule with the plan's limits; the last has no holder and is for other callers.
    by_plan: tuple[tuple[str, Rule], ...] = field(init=False, repr=False, compare=False)
    #: True if ident and cost of a call suffice: no plan, audience, method, size or cost function is to be looked up.
    is_plain: bool = field(init=False, repr=False, compare=False)
    #: Seconds; None for a concurrency rule and a rule of several rates.
    window: float | None = field(init=False, repr=False, compare=False)
    #: The option ``cost`` as a number; 1 if a function returns the cost.
    factor: int = field(init=False, repr=False, compare=False)
    params: CounterParams = field(init=False, repr=False, compare=False)
    #: Units that pass beyond the limit under ``enforce_at``.
    tolerance: int = field(init=False, repr=False, compare=False)
    #: Pairs of a share in ``warn_at`` and the units at which it is reached.
    thresholds: tuple[tuple[float, int], ...] = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:
        # For type checkers only, because an option accepts more types than it is stored as: text for a Rate, lists.
        def __init__(self, name: str, rate: Rate | str | None = None, **options: object) -> None: ...

    def __post_init__(self) -> None:
        algorithm = ALGORITHMS.get(self.algorithm) if isinstance(self.algorithm, str) else None
        self._set("holds_slots", algorithm is not None and algorithm.holds_slots)
        self._set("is_shadow", self.action == "shadow")
        self._set("decided_locally", algorithm is not None and algorithm.decided_locally)
        self._set("is_measured", self.unit in MEASURED_UNITS)
        self._set("is_queue", self.action in ("delay", "defer") and not self.defers_to_slots)
        has_calendar = algorithm is not None and algorithm.has_calendar
        if isinstance(self.rate, str):
            self._set("rate", Rate.parse(self.rate, calendar=has_calendar))
        rates = sequence("rates", self.rates)
        self._set(
            "rates",
            tuple(rate if isinstance(rate, Rate) else Rate.parse(rate, calendar=has_calendar) for rate in rates),
        )
        if self.events == ():
            self._set("events", self._default_events())
        try:
            self._check()
            self._set("by_plan", tuple(_rules_by_plan(self)))
        except InvalidRule as error:
            raise InvalidRule(text_of(error), error.option, str(self.name)[:MAX_NAME_LENGTH]) from None
        self._derive()

    def _check(self) -> None:
        """Read the options by their rows of the table, then check them together. Raise InvalidRule for a fault."""
        # By identity: a value that equals the default may still be of another type, and is to be read.
        rows = [row for row in table(type(self)).values() if getattr(self, row.name) is not row.default]
        for row in rows:
            self._set(row.name, row.read(getattr(self, row.name)))
        self._set("factor", self.cost if isinstance(self.cost, int) else 1)
        for option, fault in _amount_faults(self):
            raise InvalidRule(fault, option)
        for row in rows:
            is_set = row.name not in AMOUNT_OPTIONS and getattr(self, row.name) != row.default
            if is_set and not row.takes(self.algorithm):
                raise row.refuse(self.algorithm)
        for option, fault in chain(*(faults(self) for faults in _FAULTS)):
            raise InvalidRule(fault, option)

    def _derive(self) -> None:
        if self.rate is not None:
            self._set("limit", RateLimit(self.rate.limit))
        self._set("window", self.rate.window if self.rate else None)
        has_plain_cost = self.unit == "calls" and not isinstance(self.cost, str)
        self._set("is_plain", has_plain_cost and not (self.methods or self.audience or self.plans))
        self._set("is_settled", bool(self.is_measured or self.count_on or self.refund_on))
        self._set("id", short_id(self))
        self._set("params", _params(self))
        nominal = self.params if self.enforce_at == 1 else _params(replace(self, enforce_at=1.0, warn_at=()))
        self._set("tolerance", self.params.limit - nominal.limit)
        self._set("thresholds", thresholds(nominal.limit, self.warn_at))

        self._set("parts", tuple(replace(self, rate=rate, rates=(), plans=()) for rate in self.rates) or (self,))

    def __hash__(self) -> int:
        return hash(self.id)  # on the hot path; equality still compares every option

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any]) -> Rule:
        """Return the rule with these options, as settings, the database and JSON files hold them.

        Raise InvalidRule if an option does not exist; the message suggests the nearest option.
        """
        check_names(cls, options, name)
        return cls(name, **options)

    def as_options(self) -> dict[str, object]:
        """Return the options that differ from their defaults, in JSON's types: the inverse of ``from_options``."""
        options: dict[str, object] = {}
        for name, row in table(type(self)).items():
            value = getattr(self, name)
            if name != "name" and value != row.default:
                options[name] = as_json(value)
        if self.events == self._default_events():
            del options["events"]
        if self.rate is not None:
            options["rate"] = str(self.rate)
            del options["limit"]
        if self.rates:
            options["rates"] = [str(rate) for rate in self.rates]
        return options

    def share(self, processes: int) -> Rule:
        """Return the rule with its limit divided by the number of processes. The limit stays at least one call."""
        if processes <= 1:
            return self
        limit = max(self.factor, (self.limit or 1) // processes)
        if self.rate is None:
            return replace(self, limit=limit)
        burst = None if self.burst is None else max(self.factor, self.burst // processes)
        queue = None if self.max_queue is None else max(1, self.factor - 1, self.max_queue // processes)
        return replace(self, max_queue=queue).with_rates((replace(self.rate, limit=limit),), burst)

    def with_rates(self, rates: tuple[Rate, ...], burst: int | None) -> Rule:
        """Return the rule with these rates. A number in ``reserve`` is lowered to what they allow at once."""
        rate = rates[0] if len(rates) == 1 else None
        max_reserve = burst or min(rate.limit for rate in rates)
        reserve = min(self.reserve, max_reserve) if isinstance(self.reserve, int) else self.reserve
        return replace(self, rate=rate, rates=() if rate else rates, limit=None, burst=burst, reserve=reserve)

    @property
    def defers_to_slots(self) -> bool:
        """True if a call that finds no free slot is done later, when a slot is released."""
        return self.holds_slots and self.action == "defer"

    @property
    def max_waiting_calls(self) -> int:
        """The number of calls that may wait for a slot."""
        return self.max_queue or self.limit or 0

    def as_shadow(self) -> Rule:
        """Return the rule with the action "shadow": it decides and records, but never refuses."""
        return self if self.is_shadow else replace(self, action="shadow")

    def counts(self, status: int | str) -> bool:
        """Return True if a call that ended with this HTTP status, or as CANCELLED, uses up the budget."""
        names = {status, str(status), f"{str(status)[:1]}xx"}
        if self.count_on and status != CANCELLED and names.isdisjoint(self.count_on):
            return False
        return names.isdisjoint(self.refund_on)

    @property
    def functions(self) -> tuple[tuple[str, str], ...]:
        """The functions of the site that the rule calls: pairs of the option and the function's path."""
        values = [(option, getattr(self, option)) for option in ("cost", "reserve", "measure")]
        paths = dict.fromkeys(holder.partition(":")[0] for holder, _ in self.by_plan)
        values += [("plans", path) for path in paths]
        return (*(("key", path) for path in functions(self.key)), *(pair for pair in values if is_dotted(pair[1])))

    @property
    def all_rates(self) -> tuple[Rate, ...]:
        """The single rate or the several rates; empty for a concurrency rule."""
        return self.rates or ((self.rate,) if self.rate is not None else ())

    def _default_events(self) -> tuple[str, ...]:
        return ("connection",) if self.holds_slots else ("request",)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _rules_by_plan(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Yield pairs of a plan's holder and the rule with the plan's limits; last the rule itself, with no holder.

    Raise InvalidRule for a plan that does not fit the rule. A plan has the windows of the rule, so that units used
    under the plan count under the rule, too.
    """
    if not rule.plans:
        return
    if rule.action == "defer":
        fault = translatable("action: defer allows no plans, because its queue runs at a single rate: remove plans")
        raise InvalidRule(fault, "plans")
    windows = sorted(rate.window for rate in rule.all_rates)
    for plan in map(read_plan, rule.plans):
        if bool(plan.rates) == rule.holds_slots:
            limit = translatable("plan {who!r} needs a limit, the number held at once", who=plan.holder)
            rate = translatable("plan {who!r} needs a rate, such as 1000/min", who=plan.holder)
            raise InvalidRule(limit if rule.holds_slots else rate, "plans")
        if sorted(rate.window for rate in plan.rates) != windows:
            pattern = gettext_noop("plan {who!r} needs the window of the rule ({mine}), so that counts are kept")
            rule_windows = " and ".join(str(rate).partition("/")[2] for rate in rule.all_rates)
            raise InvalidRule(translatable(pattern, who=plan.holder, mine=rule_windows), "plans")
        try:
            yield plan.holder, _with_limits(replace(rule, plans=(), plan_of=plan.holder), plan)
        except InvalidRule as error:
            raise InvalidRule(
                translatable("plan {who!r}: {fault}", who=plan.holder, fault=error.fault), "plans"
            ) from None
    yield "", replace(rule, plans=())


def _with_limits(rule: Rule, plan: PlanLimits) -> Rule:
    if rule.holds_slots:
        return replace(rule, limit=plan.limit, burst=plan.burst)
    return rule.with_rates(plan.rates, rule.burst if plan.burst is None else plan.burst)


AMOUNT_OPTIONS: Final = ("rate", "rates", "limit")  # _amount_faults explains which of them an algorithm takes


def _amount_faults(rule: Rule) -> Faults:
    rates, algorithm = rule.all_rates, ALGORITHMS[rule.algorithm]
    if rule.holds_slots:
        if rates:
            yield "rate", translatable("a concurrency rule has a limit, the number held at once, instead of a rate")
        if rule.limit is None:
            yield (
                "limit",
                translatable("it needs a limit: limit must be a whole number from 1 to {most:,}", most=MAX_LIMIT),
            )
        return
    if not rates and rule.limit is not None:
        fault = translatable(
            "a limit is for concurrency rules only: add algorithm: concurrency, or give a rate instead, such as 100/min"
        )
        yield "algorithm", fault
    if not rates:
        yield "rate", translatable("it needs a rate, such as 100/min")
    if rule.limit is not None and not isinstance(rule.limit, RateLimit):
        yield "limit", translatable("give a rate or a limit, not both: only a concurrency rule has a limit of its own")
    if rule.rates and rule.rate is not None:
        yield "rate", translatable("give rate or rates, not both")
    if has_invalid_rates(rates):
        yield "rate", translatable("at most {most} rates, each with another window", most=MAX_RATES)
    if max(rate.limit for rate in rates) > algorithm.max_limit:
        label = in_sentence(algorithm.label)
        most = translatable("the limit of a {label} is at most {most:,}", label=label, most=algorithm.max_limit)
        more = translatable("{most}; {more}", most=most, more=translatable(algorithm.takes_more))
        yield "rate", more if algorithm.takes_more else most


def has_invalid_rates(rates: tuple[Rate, ...]) -> bool:
    """Return True if these are more rates than a rule may have, or two of them have the same window."""
    return len(rates) > MAX_RATES or len({rate.window for rate in rates}) < len(rates)


_CONCURRENCY_EVENTS: Final = translatable(
    "a concurrency rule counts 'connection' (open WebSockets), 'inflight' (requests being answered) or both"
)
_RATE_EVENTS: Final = translatable("only a concurrency rule counts what is open; a rate counts what happens")
_SIMILAR_EVENTS: Final = {
    "connect": "connection",
    "connection": "connect",
    "request": "inflight",
    "inflight": "request",
}
FRAME_EVENTS: Final = frozenset(("message", "send"))
SIZED_EVENTS: Final = frozenset(("request", "message", "send"))
MEASURABLE_EVENTS: Final = frozenset(("request", "message", "task"))


def _event_faults(rule: Rule) -> Faults:
    countable = countable_events(rule.algorithm)
    for event in rule.events:
        if event not in countable:
            hint = (
                translatable("; did you mean {near!r}?", near=_SIMILAR_EVENTS[event])
                if event in _SIMILAR_EVENTS
                else ""
            )
            expected = _CONCURRENCY_EVENTS if rule.holds_slots else _RATE_EVENTS
            yield "events", translatable("{wanted}, not {event!r}{hint}", wanted=expected, event=event, hint=hint)
    # Other events have no method and no status, so these options would match none of them, or have no effect.
    if rule.methods and rule.events not in (("request",), ("inflight",)):
        yield "methods", translatable("methods belong to rules of HTTP requests (event request or inflight) only")
    for option in ("count_on", "refund_on"):
        if getattr(rule, option) and rule.events != ("request",):
            yield option, translatable("{option} belongs to rules of HTTP requests (event request) only", option=option)
    if (rule.count_on or rule.refund_on) and not any(map(rule.counts, range(200, 600))):
        option = "refund_on" if rule.refund_on else "count_on"
        yield option, translatable("no answer would count: leave a status to count")
    if rule.unit == "bytes" and not SIZED_EVENTS.issuperset(rule.events):
        yield "unit", translatable("only requests and messages have bytes that can be counted")
    if rule.at_limit != "reject" and "connection" not in rule.events:
        yield "at_limit", translatable("at_limit closes WebSockets: add the event connection")


def _max_call_cost(rule: Rule) -> int | None:
    """Return the highest cost of a call that can ever be allowed; for a queue, its length and the running call."""
    if rule.max_queue is not None:
        return rule.max_queue + 1
    return rule.burst or min([rate.limit for rate in rule.all_rates], default=rule.limit)


def _action_faults(rule: Rule) -> Faults:
    algorithm, limits = ALGORITHMS[rule.algorithm], [rate.limit for rate in rule.all_rates]
    if rule.is_queue and "max_delay" not in algorithm.takes:
        yield "action", translatable("only a leaky bucket can delay: it is a queue that drains evenly")
    if rule.is_queue and rule.enforce_at != 1:
        fault = translatable(
            "refuse at (enforce_at) belongs to rules that refuse: a queue of calls that wait has one limit"
        )
        yield "enforce_at", fault
    # A shadow rule may have max_delay, in preparation for "delay".
    if rule.max_delay is not None and rule.action == "reject":
        yield "max_delay", translatable("a longest wait (max_delay) belongs to rules that delay")
    if rule.max_queue is not None and rule.action == "reject":
        yield "max_queue", translatable("a longest queue (max_queue) belongs to rules that delay or defer")
    if rule.max_queue is not None and rule.burst is not None:
        yield "max_queue", translatable("give burst or max_queue, not both: each says how many may wait")
    if rule.timezone is not None and not all(map(period_of, rule.all_rates)):
        yield "rate", translatable("a calendar window is one hour, day, week or month")
    max_cost = _max_call_cost(rule)
    if max_cost is not None and rule.factor > max_cost:
        pattern = gettext_noop("one call costs {factor:,}, more than the {most:,} that the rule allows at once")
        yield "cost", translatable(pattern, factor=rule.factor, most=max_cost)
    refused_at = multiplied(max([*limits, rule.burst or 0]), rule.enforce_at)
    if rule.enforce_at != 1 and refused_at > algorithm.max_limit:
        pattern = gettext_noop("calls would be refused at {at:,} only, more than the {most:,} that can be counted")
        yield "enforce_at", translatable(pattern, at=refused_at, most=algorithm.max_limit)
    if rule.warn_at and rule.warn_at[-1] > rule.enforce_at:
        share = rule.warn_at[-1]
        hint = percent_hint(share) if share >= 2 else ""
        pattern = gettext_noop("use never reaches {share:g} times the limit: calls are refused at {most:g}{hint}")
        yield "warn_at", translatable(pattern, share=share, most=rule.enforce_at, hint=hint)


def _measured_event_faults(rule: Rule) -> Faults:
    if not rule.is_measured:
        return
    if not MEASURABLE_EVENTS.issuperset(rule.events):
        yield "unit", translatable("only requests, messages and tasks are measured (events request, message, task)")
    if rule.unit == "response_bytes" and rule.events != ("request",):
        yield "unit", translatable("response_bytes belongs to rules of HTTP requests (event request) only")
    if rule.measure and rule.events != ("request",):
        yield (
            "measure",
            translatable("measure is a function of a request and its response: leave it out, and spend instead"),
        )
    if rule.key == "connection":
        yield "unit", translatable("the budget of one connection counts calls or bytes")


def _measured_faults(rule: Rule) -> Faults:
    if not rule.is_measured:
        if rule.reserve != "":
            yield (
                "reserve",
                translatable("only what is measured is reserved: choose a unit such as db_ms, or leave reserve out"),
            )
        if rule.measure:
            yield "measure", translatable("measure belongs to rules of unit units")
        return
    if rule.decided_locally or rule.is_queue:
        yield "unit", translatable("a damper or queue counts only calls or bytes: a measured cost is known too late")
    if rule.refill == "interval":
        yield (
            "refill",
            translatable("a bucket that is refilled all at once cannot owe what was measured: refill it continuously"),
        )
    if rule.count_denied:
        yield (
            "count_denied",
            translatable("a refused call has used nothing that could be measured: leave count_denied out"),
        )
    if rule.cost != 1:
        yield "cost", translatable("what is measured is the cost: leave cost out, or write reserve")
    if rule.measure and rule.unit != "units":
        yield "measure", translatable("measure belongs to rules of unit units")
    max_cost = _max_call_cost(rule)
    if isinstance(rule.reserve, int) and max_cost is not None and rule.reserve > max_cost:
        pattern = gettext_noop("a call reserves {reserve:,}, more than the {most:,} that the rule allows at once")
        yield "reserve", translatable(pattern, reserve=rule.reserve, most=max_cost)


def _prepaid_faults(rule: Rule) -> Faults:
    if rule.prepaid and (rule.is_queue or rule.is_measured or rule.refill == "interval"):
        fault = translatable(
            "a queue, what is measured and a bucket that is refilled all at once cannot be bought ahead: leave "
            "prepaid out"
        )
        yield "prepaid", fault
    if rule.prepaid and (rule.count_denied or rule.count_on or rule.refund_on):
        yield (
            "prepaid",
            translatable("count_denied, count_on and refund_on ask Redis about each call: leave them out, or prepaid"),
        )


# Options that a rule with the key ``connection`` must leave at their defaults: a process counts it without the store.
_DEFAULTS_OF_CONNECTION_RULES: Final[dict[str, tuple[object, str]]] = {
    "warn_at": ((), gettext_noop("the budget of one connection ends with it, so it sends no warnings")),
    "prepaid": (False, gettext_noop("the budget of one connection is never shared, so nothing is bought ahead")),
    "on_store_failure": ("local", gettext_noop("the budget of one connection is counted without the store")),
}


def needs_login(rule: Rule) -> bool:
    """Return True if callers who are not logged in have no ident under the rule."""
    return any(part in KEY_KINDS and KEY_KINDS[part].needs_login for part in key_parts(rule.key))


def _key_faults(rule: Rule) -> Faults:
    if needs_login(rule) and rule.audience == ("anonymous",):
        yield (
            "audience",
            translatable("the key user leaves out visitors who are not logged in, so it would limit nobody"),
        )
    if rule.key != "connection":
        return
    if not FRAME_EVENTS.issuperset(rule.events):
        yield "key", translatable("the key connection takes the events message and send only")
    for option, (default, fault) in _DEFAULTS_OF_CONNECTION_RULES.items():
        if getattr(rule, option) != default:
            yield option, translatable(fault)
    if is_calendar(rule) or any(rate.monthly for rate in rule.rates):
        yield "rate", translatable("the windows of one connection start when it was opened, not with the calendar")


def _algorithm_faults(rule: Rule) -> Faults:
    return ALGORITHMS[rule.algorithm].faults(rule)


_FAULTS: Final = (
    _event_faults,
    _action_faults,
    _measured_event_faults,
    _measured_faults,
    _algorithm_faults,
    _prepaid_faults,
    _key_faults,
)


def _params(rule: Rule) -> CounterParams:
    """Return the counter parameters of a checked rule. A rule of several rates is counted by its parts."""
    return Uncounted(0) if rule.rates else ALGORITHMS[rule.algorithm].params(rule)


def thresholds(limit: int, shares: tuple[float, ...]) -> tuple[tuple[float, int], ...]:
    """Return pairs of a share and the units at which it is reached."""
    return tuple((share, ceil(limit * Fraction(repr(share)))) for share in shares)


def short_id(rule: Rule) -> str:
    """Return a hash, in eight characters, of the options that give a rule's stored values their meaning.

    The limit is left out, so that counts are kept if it is edited. A damper's window is left out, because a damper
    always counts by the same sub-intervals.
    """
    window = "" if rule.rate is None or rule.decided_locally else str(rule.rate.window_us)
    parts = [ALGORITHMS[rule.algorithm].layout, rule.name, rule.algorithm, str(rule.resolution), rule.refill]
    parts += [rule.timezone or "", window]
    has_longer_sub_windows = rule.prepaid and ALGORITHMS[rule.algorithm].weighs_windows
    parts += ["prepaid"] if has_longer_sub_windows else []
    parts += [rule.variant] if rule.variant or rule.unit != "calls" else []
    parts += [rule.unit] if rule.unit != "calls" else []  # rules of calls keep the ids of earlier versions
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return urlsafe_b64encode(blake2b(text.encode(), digest_size=6).digest()).decode()


OPTIONS: Final = tuple(name for name in table(Rule) if name != "name")

"""What a rule means, in words: one sentence that an operator can check against what was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.key import AUDIENCE_WORDS, KEY_KINDS
from django_throttle.core.option_words import COUNTED, NOUNS, UNITS, say_scopes
from django_throttle.core.options import table
from django_throttle.core.plans import PlanLimits, read_plan
from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule
from django_throttle.core.texts import Text, gettext_lazy, gettext_noop, listed, ngettext_lazy, with_commas

scopes = say_scopes
# The everyday pair, in everyday words.
BOTH_DOORS: Final = frozenset(("request", "message"))
# A rate's window, by the word of its unit.
WINDOWS: Final[dict[str, Callable[[int], Text]]] = {
    "week": lambda count: ngettext_lazy("week", "{count:,} weeks", count),
    "day": lambda count: ngettext_lazy("day", "{count:,} days", count),
    "hour": lambda count: ngettext_lazy("hour", "{count:,} hours", count),
    "minute": lambda count: ngettext_lazy("minute", "{count:,} minutes", count),
    "second": lambda count: ngettext_lazy("second", "{count:,} seconds", count),
    "millisecond": lambda count: ngettext_lazy("millisecond", "{count:,} milliseconds", count),
}


def describe(rule: Rule) -> str:
    """The whole rule in one sentence, such as "each user: 100 requests per minute, bursts up to 20"."""
    parts = (
        gettext_lazy("{who}: {amount}", who=key_in_words(rule.key), amount=_amount(rule)),
        *_shape(rule),
        *(_plan(read_plan(line)) for line in rule.plans),
        _together(rule.events) if rule.unit == "calls" else "",
        *(row.describe(getattr(rule, name)) for name, row in table(type(rule)).items()),
    )
    return with_commas(parts)


def key_in_words(key: str) -> str:
    """Who has a budget of their own under this key."""
    if "+" in key:
        joined = listed([_one(part) for part in key.split("+")])
        return gettext_lazy("each combination of {keys}", keys=joined)
    if key in KEY_KINDS:
        return gettext_lazy(KEY_KINDS[key].words)
    return gettext_lazy("each value of {function}", function=key)


def _one(key: str) -> Text:
    """Who that is, as one of several that are joined."""
    if key in KEY_KINDS:
        return gettext_lazy(KEY_KINDS[key].words.removeprefix("each "))
    return gettext_lazy("value of {function}", function=key)


def events(names: tuple[str, ...]) -> str:
    """What is counted: "HTTP requests and WebSocket messages"."""
    return listed([gettext_lazy(NOUNS[name]) for name in NOUNS if name in names])


def window(rate: Rate) -> str:
    """The rate's window: "minute", "10 minutes", "month"."""
    if rate.monthly:
        return gettext_lazy("month")
    count, unit = rate.in_units
    return WINDOWS[unit.word](count)


def _amount(rule: Rule) -> str:
    rates = rule.all_rates
    most = rates[0].limit if rates else rule.limit or 0
    _, pattern = UNITS[rule.unit]
    counted = gettext_lazy(pattern, count=most, events=events(rule.events)) if pattern else _calls(rule.events, most)
    if not rates:
        return gettext_lazy("{calls} at once", calls=counted)
    first = gettext_lazy("{calls} per {window}", calls=counted, window=window(rates[0]))
    return listed([first, *map(_rate, rates[1:])])


def _rate(rate: Rate) -> str:
    return gettext_lazy("{limit:,} per {window}", limit=rate.limit, window=window(rate))


def _calls(names: tuple[str, ...], count: int) -> str:
    kinds = set(names)
    if kinds == BOTH_DOORS:
        kinds = {"request"}
    return COUNTED[kinds.pop() if len(kinds) == 1 else ""](count)


def _shape(rule: Rule) -> tuple[str, ...]:
    """How strictly the amount is meant, in the algorithm's terms."""
    every = listed([window(rate) for rate in rule.all_rates])
    if rule.defers_to_slots:
        return (gettext_lazy("up to {most:,} more wait for a slot and are done later", most=rule.most_waiting),)
    return (_queue(rule),) if rule.is_queue else ALGORITHMS[rule.algorithm].shape(rule, every)


def _queue(rule: Rule) -> str:
    most = max(rule.burst or part.limit or 0 for part in rule.parts)
    most = most if rule.max_queue is None else rule.max_queue
    waiting = gettext_lazy("evenly spaced, up to {most:,} waiting their turn", most=most)
    if rule.max_delay is not None:
        waiting = ngettext_lazy(
            "evenly spaced, up to {most:,} waiting their turn for at most {seconds:,g} second",
            "evenly spaced, up to {most:,} waiting their turn for at most {seconds:,g} seconds",
            1 if rule.max_delay == 1 else 2,
            most=most,
            seconds=rule.max_delay,
        )
    later = gettext_lazy("{waiting} and done later where a view can", waiting=waiting)
    return later if rule.action == "defer" else waiting


def _plan(plan: PlanLimits) -> str:
    """Who has a plan, and its limits; the windows are the rule's."""
    if len(plan.rates) == 1:
        amount: str = gettext_lazy("{:,}", plan.rates[0].limit)
    else:
        amount = listed([_rate(rate) for rate in plan.rates]) or gettext_lazy("{:,}", plan.limit)
    whose = _who_has(plan.who)
    if plan.burst is None:
        return gettext_lazy("{who} {amount}", who=whose, amount=amount)
    pattern = gettext_noop("{who} {amount} with bursts up to {burst:,}")
    return gettext_lazy(pattern, who=whose, amount=amount, burst=plan.burst)


def _who_has(plan: str) -> str:
    if plan in AUDIENCE_WORDS:
        return gettext_lazy(AUDIENCE_WORDS[plan])
    kind, colon, name = plan.partition(":")
    name = name if name.isalpha() else repr(name)  # an amount follows
    return gettext_lazy("{kind} {name}", kind=gettext_lazy(kind), name=name) if colon else plan


def _together(names: tuple[str, ...]) -> str:
    if set(names) == BOTH_DOORS:
        return gettext_lazy("HTTP and WebSocket together")
    return gettext_lazy("{events} together", events=events(names)) if len(set(names)) > 1 else ""

"""Descriptions of rules: a sentence in words that an operator can compare with the intention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.key import AUDIENCE_WORDS, KEY_KINDS
from django_throttle.core.option_words import CALLS_IN_WORDS, NOUNS, UNITS
from django_throttle.core.options import table
from django_throttle.core.plans import PlanLimits, read_plan
from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule
from django_throttle.core.texts import Text, gettext_noop, listed, translatable, translatable_plural, with_commas

REQUEST_AND_MESSAGE: Final = frozenset(("request", "message"))
# Windows in words, by the word of their unit.
WINDOWS: Final[dict[str, Callable[[int], Text]]] = {
    "week": lambda count: translatable_plural("week", "{count:,} weeks", count),
    "day": lambda count: translatable_plural("day", "{count:,} days", count),
    "hour": lambda count: translatable_plural("hour", "{count:,} hours", count),
    "minute": lambda count: translatable_plural("minute", "{count:,} minutes", count),
    "second": lambda count: translatable_plural("second", "{count:,} seconds", count),
    "millisecond": lambda count: translatable_plural("millisecond", "{count:,} milliseconds", count),
}


def describe(rule: Rule) -> str:
    """Describe a rule in a sentence, such as "each user: 100 requests per minute, bursts up to 20"."""
    parts = (
        translatable("{who}: {amount}", who=key_in_words(rule.key), amount=_amount(rule)),
        *_shape_in_words(rule),
        *(_plan_in_words(read_plan(line)) for line in rule.plans),
        _shared_budget_in_words(rule.events) if rule.unit == "calls" else "",
        *(row.describe(getattr(rule, name)) for name, row in table(type(rule)).items()),
    )
    return with_commas(parts)


def key_in_words(key: str) -> str:
    """Describe the callers that have a budget of their own under this key, such as "each user"."""
    if "+" in key:
        joined = listed([_joined_key_in_words(part) for part in key.split("+")])
        return translatable("each combination of {keys}", keys=joined)
    if key in KEY_KINDS:
        return translatable(KEY_KINDS[key].words)
    return translatable("each value of {function}", function=key)


def _joined_key_in_words(key: str) -> Text:
    """Describe a key that is part of a combination, such as "user"."""
    if key in KEY_KINDS:
        return translatable(KEY_KINDS[key].words.removeprefix("each "))
    return translatable("value of {function}", function=key)


def events_in_words(names: tuple[str, ...]) -> str:
    """Describe the counted events, such as "HTTP requests and WebSocket messages"."""
    return listed([translatable(NOUNS[name]) for name in NOUNS if name in names])


def window_in_words(rate: Rate) -> str:
    """Describe the window of a rate: "minute", "10 minutes", "month"."""
    if rate.monthly:
        return translatable("month")
    count, unit = rate.in_units
    return WINDOWS[unit.word](count)


def _amount(rule: Rule) -> str:
    rates = rule.all_rates
    limit = rates[0].limit if rates else rule.limit or 0
    _, pattern = UNITS[rule.unit]
    if pattern:
        units: str = translatable(pattern, count=limit, events=events_in_words(rule.events))
    else:
        units = _calls_in_words(rule.events, limit)
    if not rates:
        return translatable("{calls} at once", calls=units)
    first = translatable("{calls} per {window}", calls=units, window=window_in_words(rates[0]))
    return listed([first, *map(_rate, rates[1:])])


def _rate(rate: Rate) -> str:
    return translatable("{limit:,} per {window}", limit=rate.limit, window=window_in_words(rate))


def _calls_in_words(names: tuple[str, ...], count: int) -> str:
    kinds = set(names)
    if kinds == REQUEST_AND_MESSAGE:
        kinds = {"request"}
    return CALLS_IN_WORDS[kinds.pop() if len(kinds) == 1 else ""](count)


def _shape_in_words(rule: Rule) -> tuple[str, ...]:
    """Describe how the algorithm spreads the amount over its window."""
    windows = listed([window_in_words(rate) for rate in rule.all_rates])
    if rule.defers_to_slots:
        return (translatable("up to {most:,} more wait for a slot and are done later", most=rule.max_waiting_calls),)
    return (_queue_in_words(rule),) if rule.is_queue else ALGORITHMS[rule.algorithm].shape(rule, windows)


def _queue_in_words(rule: Rule) -> str:
    length = max(rule.burst or part.limit or 0 for part in rule.parts) if rule.max_queue is None else rule.max_queue
    waiting = translatable("evenly spaced, up to {most:,} waiting their turn", most=length)
    if rule.max_delay is not None:
        waiting = translatable_plural(
            "evenly spaced, up to {most:,} waiting their turn for at most {seconds:,g} second",
            "evenly spaced, up to {most:,} waiting their turn for at most {seconds:,g} seconds",
            1 if rule.max_delay == 1 else 2,
            most=length,
            seconds=rule.max_delay,
        )
    later = translatable("{waiting}, done later (202) where the view supports it", waiting=waiting)
    return later if rule.action == "defer" else waiting


def _plan_in_words(plan: PlanLimits) -> str:
    """Describe the holder and the limits of a plan, whose windows are those of the rule."""
    if len(plan.rates) == 1:
        amount: str = translatable("{:,}", plan.rates[0].limit)
    else:
        amount = listed([_rate(rate) for rate in plan.rates]) or translatable("{:,}", plan.limit)
    holder = _holder_in_words(plan.holder)
    if plan.burst is None:
        return translatable("{who} {amount}", who=holder, amount=amount)
    pattern = gettext_noop("{who} {amount} with bursts up to {burst:,}")
    return translatable(pattern, who=holder, amount=amount, burst=plan.burst)


def _holder_in_words(plan: str) -> str:
    if plan in AUDIENCE_WORDS:
        return translatable(AUDIENCE_WORDS[plan])
    kind, colon, name = plan.partition(":")
    name = name if name.isalpha() else repr(name)  # an amount follows
    return translatable("{kind} {name}", kind=translatable(kind), name=name) if colon else plan


def _shared_budget_in_words(names: tuple[str, ...]) -> str:
    if set(names) == REQUEST_AND_MESSAGE:
        return translatable("HTTP and WebSocket together")
    return translatable("{events} together", events=events_in_words(names)) if len(set(names)) > 1 else ""

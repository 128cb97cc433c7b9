"""What a rule means, in words: one sentence that an operator can check against what was meant."""

from __future__ import annotations

from typing import Final

from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.algorithms.base import listed
from django_throttle.core.key import AUDIENCE_WORDS, KEY_KINDS
from django_throttle.core.options import NOUNS, UNITS, say_scopes, table
from django_throttle.core.plans import PlanLimits, read_plan
from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule

scopes = say_scopes
# The everyday pair, in everyday words.
BOTH_DOORS: Final = frozenset(("request", "message"))


def describe(rule: Rule) -> str:
    """The whole rule in one sentence, such as "each user: 100 requests per minute, bursts up to 20"."""
    parts = (
        f"{who(rule.key)}: {_amount(rule)}",
        *_shape(rule),
        *(_plan(read_plan(line)) for line in rule.plans),
        _together(rule.events) if rule.unit == "calls" else "",
        *(row.describe(getattr(rule, name)) for name, row in table(type(rule)).items()),
    )
    return ", ".join(part for part in parts if part)


def who(key: str) -> str:
    """Who has a budget of their own under this key."""
    if "+" in key:
        return f"each combination of {listed([who(part).removeprefix('each ') for part in key.split('+')])}"
    return KEY_KINDS[key].words if key in KEY_KINDS else f"each value of {key}"


def events(names: tuple[str, ...]) -> str:
    """What is counted: "HTTP requests and WebSocket messages"."""
    return listed([NOUNS[name][2] for name in NOUNS if name in names])


def window(rate: Rate) -> str:
    """The rate's window: "minute", "10 minutes", "month"."""
    if rate.monthly:
        return "month"
    count, unit = rate.in_units
    return unit.word if count == 1 else f"{count:,} {unit.word}s"


def _amount(rule: Rule) -> str:
    rates = rule.all_rates
    most = rates[0].limit if rates else rule.limit or 0
    _, unit = UNITS[rule.unit]
    noun = f"{most:,} " + (f"{unit} {events(rule.events)}" if unit else _noun(rule.events, most))
    if not rates:
        return f"{noun} at once"
    return listed([f"{noun} per {window(rates[0])}", *(f"{rate.limit:,} per {window(rate)}" for rate in rates[1:])])


def _noun(names: tuple[str, ...], count: int) -> str:
    kinds = set(names)
    if kinds == BOTH_DOORS:
        kinds = {"request"}
    if len(kinds) > 1:
        return "call" if count == 1 else "calls"
    return NOUNS[kinds.pop()][count != 1]


def _shape(rule: Rule) -> tuple[str, ...]:
    """How strictly the amount is meant, in the algorithm's terms."""
    every = listed([window(rate) for rate in rule.all_rates])
    return (_queue(rule),) if rule.is_queue else ALGORITHMS[rule.algorithm].shape(rule, every)


def _queue(rule: Rule) -> str:
    most = max(rule.burst or part.limit or 0 for part in rule.parts)
    seconds = "" if rule.max_delay is None else f" for at most {rule.max_delay:,g} second{'s' * (rule.max_delay != 1)}"
    most = most if rule.max_queue is None else rule.max_queue
    later = " and done later where a view can" if rule.action == "defer" else ""
    return f"evenly spaced, up to {most:,} waiting their turn{seconds}{later}"


def _plan(plan: PlanLimits) -> str:
    """Who has a plan, and its limits; the windows are the rule's."""
    if len(plan.rates) == 1:
        amount = f"{plan.rates[0].limit:,}"
    else:
        amount = listed([f"{rate.limit:,} per {window(rate)}" for rate in plan.rates]) or f"{plan.limit:,}"
    burst = "" if plan.burst is None else f" with bursts up to {plan.burst:,}"
    return f"{AUDIENCE_WORDS.get(plan.who) or plan.who.replace(':', ' ', 1)} {amount}{burst}"


def _together(names: tuple[str, ...]) -> str:
    if set(names) == BOTH_DOORS:
        return "HTTP and WebSocket together"
    return f"{events(names)} together" if len(set(names)) > 1 else ""

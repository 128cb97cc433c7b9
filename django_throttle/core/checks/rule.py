"""What a rule may say: one small check for each option, and for each pair that must fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_throttle.core.checks.damper import DAMPER_CHECKS
from django_throttle.core.checks.held import HELD_CHECKS
from django_throttle.core.checks.key import KEY_CHECKS
from django_throttle.core.checks.known import (
    ACTIONS,
    ALGORITHMS,
    BUCKETS,
    EVENTS,
    FAILURE_POLICIES,
    HELD,
    MAX_LOG,
    MAX_NAME,
    MAX_RATES,
    MAX_RESOLUTION,
    REFILLS,
)
from django_throttle.core.checks.match import MATCH_CHECKS
from django_throttle.core.checks.numbers import is_dotted, one_of, whole
from django_throttle.core.checks.quota import QUOTA_CHECKS
from django_throttle.core.checks.socket import SOCKET_CHECKS
from django_throttle.core.periods import period_of, zone
from django_throttle.core.rate import MAX_LIMIT, MAX_WINDOW, Rate, RateLimit
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule


_CONCURRENCY: Final = (
    "a concurrency rule counts 'connection' (open WebSockets), 'inflight' (requests being answered) or both"
)
_RATES: Final = "only a concurrency rule counts what is open; a rate counts what happens"
_MEANT: Final = {"connect": "connection", "connection": "connect", "request": "inflight", "inflight": "request"}


def check_rule(rule: Rule) -> None:
    """Raise InvalidRule, naming the rule, for the first option that makes no sense."""
    try:
        for check in _CHECKS:
            check(rule)
    except InvalidRule as error:
        raise InvalidRule(f"rule {str(rule.name)[:MAX_NAME]!r}: {error}", error.option) from None


def _name(rule: Rule) -> None:
    if not isinstance(rule.name, str) or not 1 <= len(rule.name) <= MAX_NAME or not rule.name.isprintable():
        raise InvalidRule(f"a name is 1 to {MAX_NAME} printable characters", "name")


def _choices(rule: Rule) -> None:
    one_of("algorithm", rule.algorithm, ALGORITHMS)
    one_of("action", rule.action, ACTIONS)
    one_of("refill", rule.refill, REFILLS)
    one_of("on_store_failure", rule.on_store_failure, FAILURE_POLICIES)
    for event in rule.events:
        one_of("events", event, EVENTS)


def _limit(rule: Rule) -> None:
    if rule.algorithm == "concurrency":
        if rule.rate is not None or rule.rates:
            raise InvalidRule("a concurrency rule has a limit, the number held at once, instead of a rate", "rate")
        whole("limit", rule.limit, 1, MAX_LIMIT)
        return
    given = (rule.rate, *rule.rates) if rule.rate is not None else rule.rates
    if not given or not all(isinstance(rate, Rate) for rate in given):
        if rule.limit is not None and not given:
            raise InvalidRule(
                "a limit without a rate is for what is held at once: add algorithm: concurrency, or write a rate "
                "instead, such as 100/min",
                "algorithm",
            )
        raise InvalidRule("it needs a rate, such as 100/min", "rate")
    if rule.limit is not None and not isinstance(rule.limit, RateLimit):
        raise InvalidRule("give a rate or a limit, not both: only a concurrency rule has a limit of its own", "limit")
    if rule.algorithm == "sliding_log" and max(rate.limit for rate in given) > MAX_LOG:
        raise InvalidRule(
            f"the limit of a sliding log is at most {MAX_LOG:,}; a strict sliding window takes any", "rate"
        )


def _rates(rule: Rule) -> None:
    if rule.rates and rule.rate is not None:
        raise InvalidRule("give rate or rates, not both", "rate")
    if len(rule.rates) > MAX_RATES or len({rate.window for rate in rule.rates}) < len(rule.rates):
        raise InvalidRule(f"rates are at most {MAX_RATES}, each with another window", "rate")


def _held(rule: Rule) -> None:
    is_concurrency = rule.algorithm == "concurrency"
    for event in rule.events:
        if (event in HELD) != is_concurrency:
            belongs = _CONCURRENCY if is_concurrency else _RATES
            meant = f"; did you mean {_MEANT[event]!r}?" if event in _MEANT else ""
            raise InvalidRule(f"{belongs}, not {event!r}{meant}", "events")


def _bucket(rule: Rule) -> None:
    if rule.burst is None:
        return
    if rule.algorithm not in BUCKETS:
        raise InvalidRule("only a token bucket, a leaky bucket and gcra have a burst", "burst")
    whole("burst", rule.burst, 1, MAX_LIMIT)


def _delay(rule: Rule) -> None:
    if rule.refill == "interval" and rule.algorithm != "token_bucket":
        raise InvalidRule("only a token bucket can be refilled all at once", "refill")
    if rule.action == "delay" and rule.algorithm != "leaky_bucket":
        raise InvalidRule("only a leaky bucket can delay: it is a queue that drains evenly", "action")
    if rule.max_delay is None:
        return
    # One that only records, for now, may say what it will do.
    if rule.action != "delay" and (rule.action, rule.algorithm) != ("shadow", "leaky_bucket"):
        raise InvalidRule("a longest wait (max_delay) belongs to rules that delay", "max_delay")
    if isinstance(rule.max_delay, bool) or not isinstance(rule.max_delay, (int, float)):
        raise InvalidRule(f"max_delay is a number of seconds, not {rule.max_delay!r}", "max_delay")
    if not 0 <= rule.max_delay <= MAX_WINDOW:  # also refuses NaN
        raise InvalidRule(f"max_delay is from 0 to {MAX_WINDOW} seconds, not {rule.max_delay!r}", "max_delay")


def _calendar(rule: Rule) -> None:
    given = [rate for rate in (rule.rate, *rule.rates) if rate is not None]
    if rule.timezone is None:
        return
    if rule.algorithm != "fixed_window":
        raise InvalidRule("a time zone belongs to a fixed window, which it aligns with the calendar", "timezone")
    if not isinstance(rule.timezone, str):
        raise InvalidRule(f"timezone is a name like Europe/Berlin, not {rule.timezone!r}", "timezone")
    zone(rule.timezone)
    if not all(map(period_of, given)):
        raise InvalidRule("a calendar window is one hour, day, week or month", "rate")


def _window(rule: Rule) -> None:
    whole("resolution", rule.resolution, 1, MAX_RESOLUTION)
    if rule.algorithm != "sliding_window" and (rule.resolution != 1 or rule.strict):
        option = "strict" if rule.resolution == 1 else "resolution"
        raise InvalidRule("resolution and strict belong to the sliding window", option)


def _numbers(rule: Rule) -> None:
    if not is_dotted(rule.cost):
        whole("cost", rule.cost, 1, MAX_LIMIT)
    rates = [rate for rate in (rule.rate, *rule.rates) if rate is not None]
    most = rule.burst or min((rate.limit for rate in rates), default=rule.limit)
    if most is not None and rule.factor > most:
        raise InvalidRule(
            f"one call costs {rule.factor:,}, more than the {most:,} that the rule allows at once", "cost"
        )
    if rule.algorithm == "concurrency" and (rule.cost != 1 or rule.count_denied):
        option = "count_denied" if rule.cost == 1 else "cost"
        raise InvalidRule("cost and count_denied belong to rates; a connection holds one slot", option)


def _switches(rule: Rule) -> None:
    for option in ("strict", "count_denied", "batched", "enabled"):
        if not isinstance(getattr(rule, option), bool):
            raise InvalidRule(f"{option} is True or False, not {getattr(rule, option)!r}", option)


_CHECKS: Final = (
    _name,
    _choices,
    *KEY_CHECKS,
    _limit,
    _held,
    _rates,
    _bucket,
    _delay,
    _calendar,
    _window,
    _numbers,
    _switches,
    *MATCH_CHECKS,
    *QUOTA_CHECKS,
    *DAMPER_CHECKS,
    *SOCKET_CHECKS,
    *HELD_CHECKS,
)

"""What a rule may say: one small check for each option, and for each pair that must fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.periods import period_of, zone
from django_throttle.core.rate import MAX_LIMIT, MAX_WINDOW, Rate
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule

EVENTS: Final = ("request", "connect", "connection", "message", "send", "publish", "task")
KEYS: Final = ("user", "ip", "user_or_ip", "session", "everyone")
ALGORITHMS: Final = (
    "fixed_window",
    "sliding_log",
    "sliding_window",
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "concurrency",
)
ACTIONS: Final = ("reject", "shadow", "delay")
REFILLS: Final = ("continuous", "interval")
FAILURE_POLICIES: Final = ("local", "allow", "deny")
BUCKETS: Final = ("token_bucket", "leaky_bucket", "gcra")
# A log keeps an entry for each unit; past this a strict sliding_window holds the same cap in one value.
MAX_LOG: Final = 10_000
MAX_RATES: Final = 10
MAX_RESOLUTION: Final = 30  # a Lua pattern has 32 captures
MAX_NAME: Final = 100


def names(option: str, given: object) -> tuple[str, ...]:
    """A tuple of non-empty texts; raises InvalidRule for a bare text, which would be read letter by letter."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidRule(f"{option} is a list of names, not {given!r}", option)
    found = tuple(given)
    if not found or not all(isinstance(name, str) and name.strip() for name in found):
        raise InvalidRule(f"{option} needs at least one name and no empty ones, not {given!r}", option)
    for name in found:
        if "," in name or name != name.strip():
            raise InvalidRule(f"{option}: a name has no comma and no space around it, unlike {name!r}", option)
    return found


def sequence(option: str, given: object) -> tuple[Any, ...]:
    """The given list or tuple as a tuple; raises InvalidRule for anything else."""
    if not isinstance(given, (list, tuple)):
        raise InvalidRule(f"{option} is a list, not {given!r}", option)
    return tuple(given)


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
    _one_of("algorithm", rule.algorithm, ALGORITHMS)
    _one_of("action", rule.action, ACTIONS)
    _one_of("refill", rule.refill, REFILLS)
    _one_of("on_store_failure", rule.on_store_failure, FAILURE_POLICIES)
    for event in rule.events:
        _one_of("events", event, EVENTS)
    # A dotted path names a callable of the site's own; the rulebook imports it.
    if not _is_dotted(rule.key):
        _one_of("key", rule.key, KEYS)


def _is_dotted(key: object) -> bool:
    return isinstance(key, str) and "." in key and all(part.isidentifier() for part in key.split("."))


def _limit(rule: Rule) -> None:
    if rule.algorithm == "concurrency":
        if rule.rate is not None or rule.rates:
            raise InvalidRule("a concurrency rule has a limit, the number held at once, instead of a rate", "rate")
        _whole("limit", rule.limit, 1, MAX_LIMIT)
        return
    given = (rule.rate, *rule.rates) if rule.rate is not None else rule.rates
    if not given or not all(isinstance(rate, Rate) for rate in given):
        raise InvalidRule("it needs a rate, such as 100/min", "rate")
    if rule.limit not in (None, given[0].limit):
        raise InvalidRule("the limit is part of the rate; only a concurrency rule has one of its own", "limit")
    if rule.algorithm == "sliding_log" and max(rate.limit for rate in given) > MAX_LOG:
        raise InvalidRule(f"a sliding log keeps at most {MAX_LOG:,} calls; a strict sliding window, any number", "rate")


def _rates(rule: Rule) -> None:
    if rule.rates and rule.rate is not None:
        raise InvalidRule("give rate or rates, not both", "rate")
    if len(rule.rates) > MAX_RATES or len({rate.window for rate in rule.rates}) < len(rule.rates):
        raise InvalidRule(f"rates are at most {MAX_RATES}, each with another window", "rate")


def _connection(rule: Rule) -> None:
    if (rule.algorithm == "concurrency") != ("connection" in rule.events) or (
        "connection" in rule.events and len(rule.events) > 1
    ):
        raise InvalidRule("open connections and concurrency belong together, and to nothing else", "events")


def _bucket(rule: Rule) -> None:
    if rule.burst is None:
        return
    if rule.algorithm not in BUCKETS:
        raise InvalidRule("only a token bucket, a leaky bucket and gcra have a burst", "burst")
    _whole("burst", rule.burst, 1, MAX_LIMIT)


def _delay(rule: Rule) -> None:
    if rule.refill == "interval" and rule.algorithm != "token_bucket":
        raise InvalidRule("only a token bucket can be refilled all at once", "refill")
    if rule.action == "delay" and rule.algorithm != "leaky_bucket":
        raise InvalidRule("only a leaky bucket can delay: it is a queue that drains evenly", "action")
    if rule.max_delay is None:
        return
    if rule.action != "delay":
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
    _whole("resolution", rule.resolution, 1, MAX_RESOLUTION)
    if rule.algorithm != "sliding_window" and (rule.resolution != 1 or rule.strict):
        option = "strict" if rule.resolution == 1 else "resolution"
        raise InvalidRule("resolution and strict belong to the sliding window", option)


def _numbers(rule: Rule) -> None:
    _whole("cost", rule.cost, 1, MAX_LIMIT)
    rates = [rate for rate in (rule.rate, *rule.rates) if rate is not None]
    most = rule.burst or min((rate.limit for rate in rates), default=rule.limit)
    if most is not None and rule.cost > most:
        raise InvalidRule(f"one call costs {rule.cost}, more than the {most} that the rule allows at once", "cost")
    if rule.algorithm == "concurrency" and (rule.cost != 1 or rule.count_denied):
        option = "count_denied" if rule.cost == 1 else "cost"
        raise InvalidRule("cost and count_denied belong to rates; a connection holds one slot", option)


def _switches(rule: Rule) -> None:
    for option in ("strict", "count_denied", "enabled"):
        if not isinstance(getattr(rule, option), bool):
            raise InvalidRule(f"{option} is True or False, not {getattr(rule, option)!r}", option)


def _one_of(option: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise InvalidRule(f"{option} is one of {', '.join(allowed)}, not {given!r}", option)


def _whole(option: str, given: object, least: int, most: int) -> None:
    if type(given) is not int or not least <= given <= most:
        raise InvalidRule(f"{option} is a whole number from {least} to {most}, not {given!r}", option)


_CHECKS: Final = (
    _name,
    _choices,
    _connection,
    _limit,
    _rates,
    _bucket,
    _delay,
    _calendar,
    _window,
    _numbers,
    _switches,
)

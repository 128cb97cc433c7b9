"""What a rule may say: one small check for each option, and for each pair that must fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from django_throttle.core.rate import MAX_LIMIT, Rate
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule

EVENTS: Final = ("request", "connect", "connection", "message", "send", "publish", "task")
KEYS: Final = ("user", "ip", "user_or_ip", "session", "everyone")
ALGORITHMS: Final = ("fixed_window", "sliding_window", "token_bucket", "gcra", "concurrency")
ACTIONS: Final = ("reject", "shadow")
FAILURE_POLICIES: Final = ("local", "allow", "deny")
BUCKETS: Final = ("token_bucket", "gcra")
MAX_RESOLUTION: Final = 60
MAX_NAME: Final = 100


def names(option: str, given: object) -> tuple[str, ...]:
    """A tuple of non-empty texts; raises InvalidRule for a bare text, which would be read letter by letter."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidRule(f"{option} is a list of names, not {given!r}")
    found = tuple(given)
    if not found or not all(isinstance(name, str) and name.strip() for name in found):
        raise InvalidRule(f"{option} needs at least one name and no empty ones, not {given!r}")
    return found


def check_rule(rule: Rule) -> None:
    """Raise InvalidRule, naming the rule, for the first option that makes no sense."""
    try:
        for check in (_name, _choices, _connection, _limit, _bucket, _window, _numbers, _switches):
            check(rule)
    except InvalidRule as error:
        raise InvalidRule(f"rule {str(rule.name)[:MAX_NAME]!r}: {error}") from None


def _name(rule: Rule) -> None:
    if not isinstance(rule.name, str) or not 1 <= len(rule.name) <= MAX_NAME or not rule.name.isprintable():
        raise InvalidRule(f"a name is 1 to {MAX_NAME} printable characters")


def _choices(rule: Rule) -> None:
    _one_of("algorithm", rule.algorithm, ALGORITHMS)
    _one_of("action", rule.action, ACTIONS)
    _one_of("on_store_failure", rule.on_store_failure, FAILURE_POLICIES)
    for event in rule.events:
        _one_of("events", event, EVENTS)
    # A dotted path names a callable of the site's own; the rulebook imports it.
    if not (isinstance(rule.key, str) and "." in rule.key):
        _one_of("key", rule.key, KEYS)


def _limit(rule: Rule) -> None:
    if rule.algorithm == "concurrency":
        if rule.rate is not None:
            raise InvalidRule("a concurrency rule takes limit=, the number held at once, instead of a rate")
        _whole("limit", rule.limit, 1, MAX_LIMIT)
    elif not isinstance(rule.rate, Rate):
        raise InvalidRule(f"{rule.algorithm} needs a rate such as '100/min'")
    elif rule.limit not in (None, rule.rate.limit):
        raise InvalidRule("the limit is part of the rate; limit= belongs to concurrency rules")


def _connection(rule: Rule) -> None:
    if (rule.algorithm == "concurrency") != ("connection" in rule.events) or (
        "connection" in rule.events and len(rule.events) > 1
    ):
        raise InvalidRule("the event connection and the algorithm concurrency belong together, and to nothing else")


def _bucket(rule: Rule) -> None:
    if rule.burst is None:
        return
    if rule.algorithm not in BUCKETS:
        raise InvalidRule(f"burst belongs to {' and '.join(BUCKETS)}, not to {rule.algorithm}")
    _whole("burst", rule.burst, 1, MAX_LIMIT)


def _window(rule: Rule) -> None:
    _whole("resolution", rule.resolution, 1, MAX_RESOLUTION)
    if rule.algorithm != "sliding_window" and (rule.resolution != 1 or rule.strict):
        raise InvalidRule("resolution and strict belong to sliding_window")


def _numbers(rule: Rule) -> None:
    _whole("cost", rule.cost, 1, MAX_LIMIT)
    most = rule.limit if rule.rate is None else (rule.burst or rule.rate.limit)
    if most is not None and rule.cost > most:
        raise InvalidRule(f"one call costs {rule.cost}, more than the {most} that the rule ever allows at once")
    if rule.algorithm == "concurrency" and (rule.cost != 1 or rule.count_denied):
        raise InvalidRule("cost and count_denied belong to rates; a connection holds one slot")


def _switches(rule: Rule) -> None:
    for option in ("strict", "count_denied", "enabled"):
        if not isinstance(getattr(rule, option), bool):
            raise InvalidRule(f"{option} is True or False, not {getattr(rule, option)!r}")


def _one_of(option: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise InvalidRule(f"{option} is one of {', '.join(allowed)}, not {given!r}")


def _whole(option: str, given: object, least: int, most: int) -> None:
    if type(given) is not int or not least <= given <= most:
        raise InvalidRule(f"{option} is a whole number from {least} to {most}, not {given!r}")

"""What a rule may be that counts one WebSocket by itself, or what calls carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.checks.known import UNITS
from django_throttle.core.checks.numbers import one_of
from django_throttle.core.plan import is_calendar
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule

FRAMES: Final = frozenset(("message", "send"))
WEIGHED: Final = frozenset(("request", "message", "send"))
# Of what one process counts for one socket, with no store and no wall clock.
_MEANINGLESS: Final[dict[str, tuple[Any, str]]] = {
    "warn_at": ((), "a connection's own budget ends with it: nobody is warned of its use"),
    "batched": (False, "a connection's own budget is never shared, so it needs no batches"),
    "on_store_failure": ("local", "a connection's own budget is counted without the store"),
}


def _unit(rule: Rule) -> None:
    one_of("unit", rule.unit, UNITS)
    if rule.unit == "bytes" and not WEIGHED.issuperset(rule.events):
        raise InvalidRule("only requests and messages have bytes that can be counted", "unit")


def _connection(rule: Rule) -> None:
    if rule.key != "connection":
        return
    if not FRAMES.issuperset(rule.events):
        raise InvalidRule("the key connection is for what happens on an open WebSocket: message, send", "key")
    for option, (default, why) in _MEANINGLESS.items():
        if getattr(rule, option) != default:
            raise InvalidRule(why, option)
    if rule.is_damper:
        raise InvalidRule("a damper smooths what many do; a connection has a rate of its own", "algorithm")
    if is_calendar(rule) or any(rate.monthly for rate in rule.rates):
        raise InvalidRule("a connection is counted from when it was opened, not by the calendar", "rate")


SOCKET_CHECKS: Final = (_unit, _connection)

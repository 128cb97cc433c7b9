"""What a rule may be told to do with what is held, when somebody wants more of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_throttle.core.checks.known import AT_LIMITS
from django_throttle.core.checks.numbers import one_of
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule


def _at_limit(rule: Rule) -> None:
    one_of("at_limit", rule.at_limit, AT_LIMITS)
    if rule.at_limit != "reject" and not rule.is_concurrency:
        raise InvalidRule("only what is held can be taken away: at_limit belongs to a concurrency rule", "at_limit")
    if rule.at_limit != "reject" and "connection" not in rule.events:
        raise InvalidRule("only a WebSocket can be closed for another (at_limit): add the event connection", "at_limit")


HELD_CHECKS: Final = (_at_limit,)

"""What is decided without the store may be told: dampers, which smooth a rate, and quotas charged in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.checks.known import ESTIMATORS, MAX_DAMPED
from django_throttle.core.checks.numbers import one_of
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule

SUB_SECONDS: Final = 6
_MEANINGLESS: Final[dict[str, tuple[Any, str]]] = {
    "rates": ((), "a damper has one rate; another rule beside it keeps another one"),
    "count_denied": (False, "a damper always counts refused calls too"),
    "count_on": ((), "a damper counts what is attempted, whatever it is answered with"),
    "warn_at": ((), "a damper has no budget of which a share is used; a rule beside it can warn"),
    "batched": (False, "a damper is reported in batches already"),
    "enforce_at": (1.0, "a damper holds its limit; a rule beside it can tolerate more"),
}
_ONE_BY_ONE: Final = {
    "count_denied": "what is charged in batches is what has passed, never what was refused",
    "count_on": "what is charged in batches is not given back",
}


def _damper(rule: Rule) -> None:
    one_of("estimator", rule.estimator, ESTIMATORS)
    if not rule.is_damper:
        if rule.estimator != "fast":
            raise InvalidRule("an estimator belongs to a damper", "estimator")
        return
    for option, (default, why) in _MEANINGLESS.items():
        if getattr(rule, option) != default:
            raise InvalidRule(why, option)
    if rule.on_store_failure == "deny":
        raise InvalidRule("a damper decides without the store: be it local or allow, not deny", "on_store_failure")
    if rule.rate is not None and rule.rate.limit > MAX_DAMPED:
        raise InvalidRule(f"a damper's limit is at most {MAX_DAMPED:,}; a fixed or sliding window takes more", "rate")
    if rule.rate is not None and rule.rate.limit * SUB_SECONDS < rule.rate.window:
        raise InvalidRule("a damper smooths a rate over seconds: it allows one call in six of them, at least", "rate")


def _batched(rule: Rule) -> None:
    if not rule.batched:
        return
    if rule.algorithm != "fixed_window":
        raise InvalidRule("only a fixed window can be charged in batches: of an hour, a day or a month", "batched")
    for option, why in _ONE_BY_ONE.items():
        if getattr(rule, option):
            raise InvalidRule(why, option)


DAMPER_CHECKS: Final = (_damper, _batched)

"""Rules of measured units: the reserve of a call, and the settlement when the call has ended."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from typing import Final, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.utils.module_loading import import_string

from django_throttle.core import decide
from django_throttle.core.commands import check_cost
from django_throttle.core.exceptions import InvalidCost
from django_throttle.core.io import Io
from django_throttle.core.ledger import Ledger
from django_throttle.core.option_words import MEAN
from django_throttle.core.rule import Rule
from django_throttle.costs.meter import MEASURES, Meter, metered
from django_throttle.identity.call import Call
from django_throttle.identity.site_functions import cost_of
from django_throttle.runtime import LogThrottle

T = TypeVar("T")

logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()

MAX_MEANS: Final = 4096
# Mean cost of calls by rule id and scope, from the store's last answer.
learned_means: Final[dict[tuple[str, str], int]] = {}


def reserve_of(rule: Rule, call: Call) -> int:
    """Return the reserve of a call, at most what the rule allows at once.

    Raise SynchronousOnlyOperation if a function of the site runs a query on an event loop.
    """
    reserve, subject = rule.reserve, call.caller.subject
    if not call.cost:
        return 0
    if reserve == MEAN:
        reserve = learned_means.get((rule.parts[0].id, call.scope), 1)
    elif isinstance(reserve, str) and (not reserve or subject is None):
        reserve = 1
    elif isinstance(reserve, str):
        call_kind = f"call under rule {rule.name!r}"
        reserve = cost_of(import_string(reserve), subject, call_kind=call_kind, reraise=(SynchronousOnlyOperation,))
    return min([reserve, *[part.params.limit for part in rule.parts]])


def _cost_by_function(rule: Rule, *args: object) -> int | None:
    """Return the cost by the function of the site in ``measure``. Log a fault of the function, and return None."""
    try:
        return check_cost(import_string(rule.measure)(*args))
    except Exception as error:
        if _log_throttle.try_acquire(rule.measure):
            fault = error if isinstance(error, InvalidCost) else f"it raised {type(error).__name__}"
            line = "measure %s: %s; under rule %r what was reserved stays charged; correct the function"
            logger.exception(line, rule.measure, fault, rule.name)
        return None


def measured_cost(rule: Rule, meter: Meter, spent: int | None, args: tuple[object, ...]) -> int | None:
    """Return the cost of a call under a rule; None if it was not measured.

    ``spent`` are the units that the code spent; None if it cannot spend. ``args`` are the arguments of the function in
    ``measure``; empty if there is no response.
    """
    if rule.measure:
        return _cost_by_function(rule, *args) if args else None
    if rule.unit not in MEASURES:
        return spent
    used: float = getattr(meter, rule.unit)
    return ceil(used)


async def run_measured(io: Io, ledger: Ledger, scope: str, function: Callable[[], Awaitable[T]]) -> T:
    """Await the function, and settle the reserves of the call by the usage. A reserve of ``units`` is not changed."""
    ledger.end()
    if not ledger.unsettled:
        return await function()
    try:
        with metered() as meter:
            return await function()
    finally:
        await settle(io, ledger, scope, meter, None, ())


async def settle(io: Io, ledger: Ledger, scope: str, meter: Meter, spent: int | None, args: tuple[object, ...]) -> None:
    """Settle the reserves of a call under measured rules. If the store fails, the reserves stay charged."""
    cost_of_rule = partial(measured_cost, meter=meter, spent=spent, args=args)
    settlement = ledger.settle(cost_of_rule, scope, secrets.token_urlsafe(9))
    if settlement is None:
        return
    means = await decide.settle(io, settlement)
    if len(learned_means) >= MAX_MEANS:
        learned_means.clear()
    for cost, mean in zip(settlement.measured, means, strict=False):
        learned_means[cost.rule_id, cost.scope] = mean

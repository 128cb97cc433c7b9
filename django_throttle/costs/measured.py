"""Rules of measured units: what a call reserves beforehand, and what it came to when it is over."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from typing import Final, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core import decide
from django_throttle.core.commands import check_cost
from django_throttle.core.exceptions import InvalidCost
from django_throttle.core.io import Io
from django_throttle.core.ledger import Ledger
from django_throttle.core.option_words import MEAN
from django_throttle.core.rule import Rule
from django_throttle.costs.meter import MEASURES, Meter, metered
from django_throttle.identity.call import Call, cost_of
from django_throttle.runtime import LogThrottle

T = TypeVar("T")

logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()

MAX_MEANS: Final = 4096
# By rule id and scope: what calls come to on average, as the store said last.
learned_means: Final[dict[tuple[str, str], int]] = {}


def reserve_of(rule: Rule, call: Call) -> int:
    """What a call reserves: no more than the rule allows at once. Raises what a function of the site lets through."""
    reserve, subject = rule.reserve, call.caller.subject
    if not call.cost:
        return 0
    if reserve == MEAN:
        reserve = learned_means.get((rule.parts[0].id, call.scope), 1)
    elif isinstance(reserve, str) and (not reserve or subject is None):
        reserve = 1
    elif isinstance(reserve, str):
        what = f"call under rule {rule.name!r}"
        reserve = cost_of(import_string(reserve), subject, what=what, reraise=(SynchronousOnlyOperation,))
    return min([reserve, *[part.params.limit for part in rule.parts]])


def _measured(rule: Rule, *args: object) -> int | None:
    """What the function of the site at ``measure`` returns; None, with a log line, where that is no cost."""
    try:
        return check_cost(import_string(rule.measure)(*args))
    except Exception as error:
        if _log_throttle.due(rule.measure):
            why = error if isinstance(error, InvalidCost) else f"it raised {type(error).__name__}"
            line = "measure %s: %s; under rule %r what was reserved stays charged; correct the function"
            logger.exception(line, rule.measure, why, rule.name)
        return None


def used(rule: Rule, meter: Meter, spent: int | None, args: tuple[object, ...]) -> int | None:
    """What a call came to under a rule; None where nothing has measured it.

    ``spent`` are the units that the code spent, None where it cannot. ``args`` are the arguments of a function of the
    site, none where there is no response.
    """
    if rule.measure:
        return _measured(rule, *args) if args else None
    if rule.unit not in MEASURES:
        return spent
    return ceil(getattr(meter, rule.unit)) if conf().METER else None


async def measured(io: Io, ledger: Ledger, scope: str, go: Callable[[], Awaitable[T]]) -> T:
    """Make a call that is no request, and settle what it has reserved by what it used; ``units`` stay as reserved."""
    ledger.end()
    if not ledger.unsettled:
        return await go()
    try:
        with metered() as meter:
            return await go()
    finally:
        await settle(io, ledger, scope, meter, None, ())


async def settle(io: Io, ledger: Ledger, scope: str, meter: Meter, spent: int | None, args: tuple[object, ...]) -> None:
    """Correct all that a call was charged under measured rules; where the store fails, what was reserved stays."""
    settled = ledger.settle(partial(used, meter=meter, spent=spent, args=args), scope, secrets.token_urlsafe(9))
    if settled is None:
        return
    means = await decide.settle(io, settled)
    if len(learned_means) >= MAX_MEANS:
        learned_means.clear()
    for one, mean in zip(settled.measured, means, strict=False):
        learned_means[one.rule_id, one.scope] = mean

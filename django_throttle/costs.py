"""The cost of a call, given as a number or a site's function: a whole number, 1 where the function fails."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from django_throttle.core.rate import TOO_COSTLY
from django_throttle.log_throttling import LogThrottle

logger = logging.getLogger("django_throttle")

_log_throttle: Final = LogThrottle()
_NOTHING: Final[Mapping[str, Any]] = {}


def cost_of(
    said: Callable[..., int] | int,
    *args: Any,
    options: Mapping[str, Any] = _NOTHING,
    what: str = "message",
    name: str = "throttle_cost",
    lets: tuple[type[Exception], ...] = (),
) -> int:
    """The cost, by a number or a function of ``args`` and ``options``; 1, with a log line, for anything else.

    A frame that the function cannot read must not close its socket, and a wrong function must not switch off a rule.
    A cost larger than any limit stays larger. ``what`` is what costs, and ``name`` the name of a number, both for the
    log; ``lets`` are exceptions that the caller handles.
    """
    try:
        cost: Any = said(*args, **options) if callable(said) else said
    except lets:
        raise
    except Exception:
        if _log_throttle.due(f"raises {_name(said, name)}"):
            logger.exception("%s raised this exception: the %s counts 1; mend the function", _name(said, name), what)
        return 1
    if type(cost) is int and cost >= 0:
        return min(cost, TOO_COSTLY)
    if inspect.iscoroutine(cost):
        cost.close()  # or Python would complain as well
    if _log_throttle.due(f"answers {_name(said, name)}"):
        hint = ", and must not be async" if inspect.isawaitable(cost) else ""
        line = "%s says that a %s costs %.80r: it counts 1; the cost has to be a whole number, 0 or more%s"
        logger.error(line, _name(said, name), what, cost, hint)
    return 1


def _name(said: object, name: str) -> str:
    if not callable(said):
        return name
    return f"{getattr(said, '__module__', '')}.{getattr(said, '__qualname__', type(said).__qualname__)}"

"""What a site's own function or number says that a call costs: a whole number, whatever it answers or raises."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from django_throttle.core.rate import TOO_COSTLY
from django_throttle.log_throttling import Complaints

logger = logging.getLogger("django_throttle")

_complaints: Final = Complaints()
_NOTHING: Final[Mapping[str, Any]] = {}


def cost_of(
    said: Callable[..., int] | int,
    *args: Any,
    options: Mapping[str, Any] = _NOTHING,
    what: str = "message",
    name: str = "throttle_cost",
    lets: tuple[type[Exception], ...] = (),
) -> int:
    """The cost, by a function of ``args`` and ``options`` or a number; 1, and a line in the log, where it says none.

    A client's odd frame must neither end its socket nor fill a budget, and a function that is wrong must neither switch
    a rule off nor a site. What is larger than any limit stays that. ``what`` is what costs, and ``name`` what a number
    is called, for the log; ``lets`` are errors that the caller deals with.
    """
    try:
        cost: Any = said(*args, **options) if callable(said) else said
    except lets:
        raise
    except Exception:
        if _complaints.due(f"raises {_name(said, name)}"):
            logger.exception(
                "%s raised this instead of saying what a %s costs, which now counts 1", _name(said, name), what
            )
        return 1
    if type(cost) is int and cost >= 0:
        return min(cost, TOO_COSTLY)
    if inspect.iscoroutine(cost):
        cost.close()  # or Python would complain as well
    if _complaints.due(f"answers {_name(said, name)}"):
        hint = ", and must not be async" if inspect.isawaitable(cost) else ""
        logger.error(
            "%s says that a %s costs %.80r, which now counts 1: it has to be a whole number, 0 or more%s",
            _name(said, name),
            what,
            cost,
            hint,
        )
    return 1


def _name(said: object, name: str) -> str:
    if not callable(said):
        return name
    return f"{getattr(said, '__module__', '')}.{getattr(said, '__qualname__', type(said).__qualname__)}"

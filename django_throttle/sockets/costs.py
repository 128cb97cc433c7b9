"""What a door says that a frame costs: a whole number, whatever its hook answers or raises."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from django_throttle.core.rate import MAX_LIMIT
from django_throttle.sockets.asgi import Event
from django_throttle.stores.complaints import Complaints

logger = logging.getLogger("django_throttle")

_complaints: Final = Complaints()


def cost_of(said: Callable[[Event], int] | int, frame: Event) -> int:
    """The cost, by a hook or a number; 1, and a line in the log, where that says no such thing.

    A client's odd frame must neither end its socket nor fill a budget. What is larger than any limit stays that.
    """
    try:
        cost: Any = said(frame) if callable(said) else said
    except Exception:
        if _complaints.due(f"raises {_name(said)}"):
            logger.exception("%s raised this instead of saying what a message costs, which now counts 1", _name(said))
        return 1
    if type(cost) is int and cost >= 0:
        return min(cost, MAX_LIMIT)
    if inspect.iscoroutine(cost):
        cost.close()  # or Python would complain as well
    if _complaints.due(f"answers {_name(said)}"):
        hint = ", and must not be async" if inspect.isawaitable(cost) else ""
        logger.error(
            "%s says that a message costs %.80r, which now counts 1: it has to be a whole number, 0 or more%s",
            _name(said),
            cost,
            hint,
        )
    return 1


def _name(hook: object) -> str:
    if not callable(hook):
        return "throttle_cost"
    return f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"

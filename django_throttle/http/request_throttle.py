"""``request.throttle``: the throttling of a request for its view, such as the units that it has used so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django_throttle.core import Decision
from django_throttle.http.refusal import late_problem
from django_throttle.http.request_state import RequestState
from django_throttle.http.spending import CallThrottle


@dataclass(slots=True)
class RequestThrottle(CallThrottle):
    """Throttling of a request, set by its first entry point."""

    _state: RequestState  # not the request, which refers to this object

    @property
    def _call(self) -> RequestState:
        return self._state

    def problem(self, decision: Decision) -> dict[str, Any]:
        """Return a problem document, with ``retry_after``, for a client whose stream ends by this refusal."""
        return late_problem(decision)

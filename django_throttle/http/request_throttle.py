"""``request.throttle``: what a view can ask of its request's throttling, such as what the request has used so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django_throttle.core import Decision
from django_throttle.http.refusal import late_problem
from django_throttle.http.request_state import RequestState
from django_throttle.http.spending import CallThrottle


@dataclass(slots=True)
class RequestThrottle(CallThrottle):
    """What the first entry point that a request comes to puts on it."""

    _state: RequestState  # not the request, which refers to this

    @property
    def _call(self) -> RequestState:
        return self._state

    def problem(self, decision: Decision) -> dict[str, Any]:
        """What to tell a client whose stream ends by this refusal: a problem document, with ``retry_after``."""
        return late_problem(decision)

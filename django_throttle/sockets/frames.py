"""What a refused client is told: an error frame, a close reason, a problem document."""

from __future__ import annotations

import json
from math import ceil
from typing import Any, Final

from django_throttle.core import Decision, Outcome
from django_throttle.core.headers import delay_seconds
from django_throttle.sockets.asgi import Event

# RFC 6455, 5.5: a control frame carries at most 125 bytes, two of which are the close code.
MAX_REASON: Final = 123

_DETAILS: Final = {
    "rate_limited": "Rate limit exceeded.",
    "connection_limit": "Too many open connections.",
    "limiter_unavailable": "The limiter is unavailable.",
}
_PROBLEMS: Final = "https://iana.org/assignments/http-problem-types#"


def error_code(decision: Decision) -> str:
    """``limiter_unavailable`` (the store failed), ``connection_limit`` (too many at once) or ``rate_limited``."""
    if decision.unavailable:
        return "limiter_unavailable"
    refusing = _refusing(decision)
    return "connection_limit" if refusing and refusing.window is None else "rate_limited"


def error_payload(decision: Decision) -> dict[str, Any]:
    """The error frame's content; times in seconds, ``retry_after`` in whole milliseconds and None for never."""
    refusing = _refusing(decision)
    return {
        "type": "error",
        "code": error_code(decision),
        "detail": detail(decision),
        "rule": decision.rule,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "window": _short(refusing.window if refusing else None),
        "retry_after": _short(decision.retry_after),
    }


def detail(decision: Decision) -> str:
    """One or two sentences for a person."""
    said = _DETAILS[error_code(decision)]
    seconds = delay_seconds(decision.retry_after)
    if seconds is None:
        return f"{said} This can never pass."
    return f"{said} Try again in {seconds} second{'' if seconds == 1 else 's'}."


def close_reason(decision: Decision) -> str:
    """Such as ``rate limited; retry_after=17``: at most 123 bytes, which some servers drop."""
    said = error_code(decision).replace("_", " ")
    seconds = delay_seconds(decision.retry_after)
    reason = said if seconds is None else f"{said}; retry_after={seconds}"
    return reason[:MAX_REASON]


def problem(decision: Decision, status: int) -> bytes:
    """A problem document (RFC 9457) of the types that the IETF's RateLimit draft registers."""
    kind = "temporary-reduced-capacity" if decision.unavailable else "quota-exceeded"
    document = {
        "type": _PROBLEMS + kind,
        "title": _DETAILS[error_code(decision)].rstrip("."),
        "status": status,
        "detail": detail(decision),
        "violated-policies": [outcome.rule for outcome in _all_refusing(decision)],
    }
    return json.dumps(document).encode()


def frame(payload: object) -> Event:
    """A payload as the event that sends it: text and bytes as they are, anything else as JSON."""
    if isinstance(payload, bytes):
        return {"type": "websocket.send", "bytes": payload}
    text = payload if isinstance(payload, str) else json.dumps(payload, default=str)
    return {"type": "websocket.send", "text": text}


def _refusing(decision: Decision) -> Outcome | None:
    return next((outcome for outcome in decision.outcomes if outcome.rule == decision.rule), None)


def _all_refusing(decision: Decision) -> list[Outcome]:
    return [outcome for outcome in decision.outcomes if not (outcome.allowed or outcome.shadow)]


def _short(seconds: float | None) -> float | None:
    """Rounded up to a millisecond; a whole number where it is one, as it reads better in JSON."""
    if seconds is None:
        return None
    rounded = ceil(round(seconds * 1000, 3)) / 1000
    return int(rounded) if rounded.is_integer() else rounded

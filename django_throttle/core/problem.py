"""What a refusal says of itself, whatever door it leaves by."""

from __future__ import annotations

import json
from typing import Final

from django_throttle.core.decision import Decision, Outcome
from django_throttle.core.headers import delay_seconds

CONTENT_TYPE: Final = "application/problem+json"

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
    found = refusing(decision)
    return "connection_limit" if found and found.window is None else "rate_limited"


def detail(decision: Decision) -> str:
    """One or two sentences for a person."""
    said = _DETAILS[error_code(decision)]
    seconds = delay_seconds(decision.retry_after)
    if seconds is None:
        return f"{said} This can never pass."
    return f"{said} Try again in {seconds} second{'' if seconds == 1 else 's'}."


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


def refusing(decision: Decision) -> Outcome | None:
    """What the rule says that the decision names, at the rate that it is about; None when no rule applied."""
    said = (decision.rule, decision.limit, decision.retry_after)
    return next((one for one in decision.outcomes if (one.rule, one.limit, one.retry_after) == said), None)


def _all_refusing(decision: Decision) -> list[Outcome]:
    return [outcome for outcome in decision.outcomes if not (outcome.allowed or outcome.shadow)]

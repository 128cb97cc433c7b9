"""What a refusal says of itself, whatever door it leaves by."""

from __future__ import annotations

import json
from typing import Any, Final

from django_throttle.core.decision import Decision, Outcome, Reason
from django_throttle.core.headers import names

CONTENT_TYPE: Final = "application/problem+json"

_DETAILS: Final = {
    "rate_limited": "Rate limit exceeded.",
    "connection_limit": "Too many open connections.",
    "blocked": "Access is blocked.",
    "limiter_unavailable": "The limiter is unavailable.",
}
_REQUESTS: Final = _DETAILS | {"connection_limit": "Too many requests are being answered at once."}
# What the IETF's RateLimit draft registers; a block by an operator has nothing to do with quotas.
_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_QUOTA: Final = "quota-exceeded"
_CAPACITY: Final = "temporary-reduced-capacity"


def error_code(decision: Decision) -> str:
    """``limiter_unavailable`` (the store failed), ``blocked``, ``connection_limit`` (too many) or ``rate_limited``."""
    if decision.unavailable:
        return "limiter_unavailable"
    found = refusing(decision)
    if found and found.reason is Reason.BLOCKED:
        return "blocked"
    return "connection_limit" if found and found.window is None else "rate_limited"


def detail(decision: Decision, seconds: int | None, *, is_request: bool = False) -> str:
    """One or two sentences for a person; ``seconds`` as in Retry-After."""
    code = error_code(decision)
    said = (_REQUESTS if is_request else _DETAILS)[code]
    if seconds is not None:
        return f"{said} Try again in {seconds} second{'' if seconds == 1 else 's'}."
    return said if code == "blocked" else f"{said} {too_large(decision)}"


def is_too_large(decision: Decision) -> bool:
    """Whether it refuses what costs more than a rule ever allows."""
    found = None if decision.allowed else refusing(decision)
    return found is not None and found.largest is not None


def too_large(decision: Decision) -> str:
    """What is wrong with a call that never passes, and how large one may be."""
    found = refusing(decision)
    if found is None or found.largest is None:
        return "This costs more than the limit ever allows."
    if found.unit == "bytes":
        return f"This is too large: at most {found.largest:,} bytes are taken at once."
    return f"This costs more than the limit ever allows: at most {found.largest:,} at once."


def problem(decision: Decision, status: int, seconds: int | None, *, is_request: bool = True) -> bytes:
    """A problem document (RFC 9457) of the types that the IETF's RateLimit draft registers.

    ``is_request`` is False for the handshake of a WebSocket, which stays open.
    """
    code = error_code(decision)
    document: dict[str, Any] = {
        "type": "about:blank" if code == "blocked" else _TYPES + (_CAPACITY if decision.unavailable else _QUOTA),
        # RFC 9457, 4.2.1: without a type of its own it says no more than its status does.
        "title": "Too Many Requests"
        if code == "blocked"
        else (_REQUESTS if is_request else _DETAILS)[code].rstrip("."),
        "status": status,
        "detail": detail(decision, seconds, is_request=is_request),
    }
    if code != "blocked":
        document["violated-policies"] = violated(decision)
    return json.dumps(document).encode()


def violated(decision: Decision) -> list[str]:
    """The policies that refuse, by the names that the RateLimit fields give them."""
    told = zip(decision.outcomes, names(decision.outcomes), strict=True)
    return [name for outcome, name in told if not (outcome.allowed or outcome.shadow)]


def refusing(decision: Decision) -> Outcome | None:
    """What the rule says that the decision names, at the rate that it is about; None when no rule applied."""
    said = (decision.rule, decision.limit, decision.retry_after)
    return next((one for one in decision.outcomes if (one.rule, one.limit, one.retry_after) == said), None)

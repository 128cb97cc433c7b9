"""Error codes, sentences and problem documents of refusals, for all doors."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

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
# Problem types of the IETF's RateLimit draft; none is for a block by an operator.
_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_QUOTA: Final = "quota-exceeded"
_CAPACITY: Final = "temporary-reduced-capacity"


def error_code(decision: Decision) -> str:
    """``limiter_unavailable`` (the store failed), ``blocked``, ``connection_limit`` (too many) or ``rate_limited``."""
    if decision.unavailable:
        return "limiter_unavailable"
    outcome = refusing(decision)
    if outcome and outcome.reason is Reason.BLOCKED:
        return "blocked"
    return "connection_limit" if outcome and outcome.window is None else "rate_limited"


def detail(decision: Decision, seconds: int | None) -> str:
    """One or two sentences for a person; ``seconds`` as in Retry-After."""
    code = error_code(decision)
    return _detail(code, _DETAILS[code], decision, seconds)


def _detail(code: str, sentence: str, decision: Decision, seconds: int | None) -> str:
    if seconds is not None:
        return f"{sentence} Try again in {seconds} second{'' if seconds == 1 else 's'}."
    return sentence if code == "blocked" else f"{sentence} {too_large(decision)}"


def is_too_large(decision: Decision) -> bool:
    """Whether the call is refused because it costs more than a rule ever allows at once."""
    outcome = None if decision.allowed else refusing(decision)
    return outcome is not None and outcome.largest is not None


def too_large(decision: Decision) -> str:
    """A sentence for a call that never passes: how large one may be."""
    outcome = refusing(decision)
    if outcome and outcome.largest is not None and outcome.unit == "bytes":
        return f"This is too large: at most {outcome.largest:,} bytes are taken at once."
    most = f": at most {outcome.largest:,} at once" if outcome and outcome.largest is not None else ""
    return f"This costs more than the limit ever allows{most}."


def problem(
    decision: Decision, status: int, seconds: int | None, *, is_request: bool = True, reference: str = ""
) -> bytes:
    """A problem document (RFC 9457) of the types that the IETF's RateLimit draft registers.

    ``is_request`` is False for the handshake of a WebSocket, which stays open. ``reference`` is plain text by which an
    operator finds the caller.
    """
    code = error_code(decision)
    sentence = (_REQUESTS if is_request else _DETAILS)[code]
    before, after = _around_detail(code, sentence, status, violated(decision))
    if reference:
        after = f'{after[:-1]}, "reference": "{reference}"}}'
    return f"{before}{_detail(code, sentence, decision, seconds)}{after}".encode()


@lru_cache(maxsize=1024)
def _around_detail(code: str, sentence: str, status: int, names: tuple[str, ...]) -> tuple[str, str]:
    """The document before and after its detail, which needs no escapes: from one refusal to the next it alone differs.

    ``names`` are those of the policies that refuse.
    """
    is_block = code == "blocked"  # RFC 9457, 4.2.1: the title of about:blank is the status' phrase
    kind = "about:blank" if is_block else _TYPES + (_CAPACITY if code == "limiter_unavailable" else _QUOTA)
    title = "Too Many Requests" if is_block else sentence.rstrip(".")
    document = {"type": kind, "title": title, "status": status, "detail": ""}
    found = json.dumps(document if is_block else document | {"violated-policies": names})
    before, _, after = found.partition('""')
    return f'{before}"', f'"{after}'


def violated(decision: Decision) -> tuple[str, ...]:
    """The policies that refuse, by their names in the RateLimit fields."""
    named = zip(decision.outcomes, names(decision.outcomes), strict=True)
    return tuple([name for outcome, name in named if not (outcome.allowed or outcome.shadow)])


def refusing(decision: Decision) -> Outcome | None:
    """The outcome of the rule and rate that the decision names; None when no rule applied."""
    named = (decision.rule, decision.limit, decision.retry_after)
    for one in decision.outcomes:
        if (one.rule, one.limit, one.retry_after) == named:
            return one
    return None

"""Sentences and problem documents that explain a refusal to clients, in the current language."""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Final

from django.utils.translation import get_language, gettext, ngettext_lazy

from django_throttle.core.decision import Decision, deciding_outcome, error_code
from django_throttle.core.headers import policy_names
from django_throttle.core.texts import gettext_noop
from django_throttle.translated import joined

CONTENT_TYPE: Final = "application/problem+json"

_DETAILS: Final = {
    "rate_limited": gettext_noop("Rate limit exceeded."),
    "connection_limit": gettext_noop("Too many open connections."),
    "blocked": gettext_noop("Access is blocked."),
    "limiter_unavailable": gettext_noop("The limiter is unavailable."),
}
_REQUESTS: Final = _DETAILS | {"connection_limit": gettext_noop("Too many requests are being answered at once.")}
# Problem types of the IETF's RateLimit draft; none is for a block by an operator.
_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_QUOTA: Final = "quota-exceeded"
_CAPACITY: Final = "temporary-reduced-capacity"


UNITS: Final = (
    (ngettext_lazy("%(count)d day", "%(count)d days", "count"), 86_400),
    (ngettext_lazy("%(count)d hour", "%(count)d hours", "count"), 3600),
    (ngettext_lazy("%(count)d minute", "%(count)d minutes", "count"), 60),
    (ngettext_lazy("%(count)d second", "%(count)d seconds", "count"), 1),
)


@lru_cache(maxsize=1024)
def wait_in_words(seconds: int, language: str | None) -> str:
    """Return a rounded-up wait in words: 45 seconds, 1 minute, 90 seconds, 2 minutes. ``language`` is current."""
    # Rounding up to 1 or 2 units would be too inexact.
    name, size = next(pair for pair in UNITS if seconds >= 3 * pair[1] or seconds % pair[1] == 0)
    count = -(-seconds // size)
    return str(name % {"count": count})


def detail(decision: Decision, seconds: int | None) -> str:
    """Return one or two sentences for a person. ``seconds`` are those of Retry-After, or None for never."""
    code = error_code(decision)
    return _detail(code, _DETAILS[code], decision, seconds)


def _detail(code: str, sentence: str, decision: Decision, seconds: int | None) -> str:
    if seconds is not None:
        return _until(sentence, seconds, get_language())
    text = gettext(sentence)
    return text if code == "blocked" else joined([text, too_large(decision)])


@lru_cache(maxsize=1024)
def _until(sentence: str, seconds: int, language: str | None) -> str:
    """Return the sentence, and when to try again, in the current language, which is ``language``."""
    again = gettext("Try again in %(wait)s.") % {"wait": wait_in_words(seconds, language)}
    return joined([gettext(sentence), again])


def is_too_large(decision: Decision) -> bool:
    """Return True if the call is refused because it costs more than a rule ever allows at once."""
    outcome = None if decision.allowed else deciding_outcome(decision)
    return outcome is not None and outcome.largest is not None


def too_large(decision: Decision) -> str:
    """Return a sentence about the largest allowed cost, for a call that can never pass."""
    outcome = deciding_outcome(decision)
    if outcome and outcome.largest is not None and outcome.unit == "bytes":
        text = gettext("This is too large: at most %(most)s bytes are taken at once.")
    elif outcome and outcome.largest is not None:
        text = gettext("This costs more than the limit ever allows: at most %(most)s at once.")
    else:
        return gettext("This costs more than the limit ever allows.")
    return text % {"most": f"{outcome.largest:,}"}


def problem(
    decision: Decision, status: int, seconds: int | None, *, is_request: bool = True, reference: str = ""
) -> bytes:
    """Return a problem document (RFC 9457) of a type that the IETF's RateLimit draft registers.

    ``is_request`` is False for the handshake of a WebSocket, which stays open. ``reference`` is plain text, by which an
    operator finds the caller.
    """
    code = error_code(decision)
    sentence = (_REQUESTS if is_request else _DETAILS)[code]
    before, after = _around_detail(code, sentence, status, violated(decision), get_language())
    if reference:
        after = f'{after[:-1]}, "reference": "{reference}"}}'
    return f"{before}{_escaped(_detail(code, sentence, decision, seconds))}{after}".encode()


_escaped = lru_cache(maxsize=1024)(encode_basestring_ascii)  # with quotes


@lru_cache(maxsize=1024)
def _around_detail(
    code: str, sentence: str, status: int, policy_names: tuple[str, ...], language: str | None
) -> tuple[str, str]:
    """Return the document before and after its detail, which alone differs between similar refusals.

    ``policy_names`` are those of the policies that refuse. ``language`` is the current one.
    """
    is_block = code == "blocked"  # RFC 9457, 4.2.1: the title of about:blank is the status' phrase
    kind = "about:blank" if is_block else _TYPES + (_CAPACITY if code == "limiter_unavailable" else _QUOTA)
    title = "Too Many Requests" if is_block else gettext(sentence).rstrip(".。")
    document = {"type": kind, "title": title, "status": status, "detail": ""}
    text = json.dumps(document if is_block else document | {"violated-policies": policy_names})
    before, _, after = text.partition('""')
    return before, after


def violated(decision: Decision) -> tuple[str, ...]:
    """Return the names of the policies that refuse, as in the RateLimit fields."""
    pairs = zip(decision.outcomes, policy_names(decision.outcomes), strict=True)
    return tuple([name for outcome, name in pairs if not (outcome.allowed or outcome.shadow)])

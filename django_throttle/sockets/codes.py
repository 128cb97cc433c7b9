"""The codes that sockets are closed with: each word for a reason has one, which a site may change.

Private-use codes that mirror HTTP. Every server sends them, where 1008 and 1013 fail on some; and the code must
carry the distinction, because some servers drop the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django_throttle.exceptions import InvalidSetting
from django_throttle.sockets.options import check_word

RATE_LIMITED: Final = 4429
CONNECTION_LIMIT: Final = 4430
UNAVAILABLE: Final = 4503
TIMEOUT: Final = 4408
BLOCKED: Final = 4403
CLOSED: Final = 4410  # by an operator

# The words are also the ``code`` of error frames.
CODES: Final[dict[str, int]] = {
    "rate_limited": RATE_LIMITED,
    "connection_limit": CONNECTION_LIMIT,
    "evicted": CONNECTION_LIMIT,
    "closed": CLOSED,
    "limiter_unavailable": UNAVAILABLE,
    "idle": TIMEOUT,
    "too_old": TIMEOUT,
    "not_accepted": TIMEOUT,
    "blocked": BLOCKED,
}


def code_of(word: str, own: Mapping[str, int] = {}) -> int:
    """The close code for a word, by a site's own codes first; that of a limit where neither knows it."""
    return own.get(word) or CODES.get(word, RATE_LIMITED)


def check_codes(own: object) -> None:
    """Raise InvalidSetting for a word that means nothing here, or a code that not every server can send."""
    if not isinstance(own, Mapping):
        raise InvalidSetting(f"close codes are a dictionary such as {{'idle': 4001}}, not {own!r}")
    for word, code in own.items():
        check_word("a close code", word, CODES)
        if type(code) is not int or not (code == 1000 or 3000 <= code <= 4999):
            raise InvalidSetting(f"a close code is 1000 or from 3000 to 4999, not {code!r}")

"""Options of WebSocket doors and close codes, checked as soon as they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from inspect import iscoroutinefunction
from math import isfinite
from typing import Final

from django_throttle.core.options import meant
from django_throttle.exceptions import InvalidSetting


def check_word(what: str, word: object, known: Iterable[str]) -> None:
    """One of the known words."""
    if not isinstance(word, str) or word not in known:
        raise InvalidSetting(f"{what} is for one of {', '.join(known)}, not {word!r}{meant(word, known)}")


def check_scope(scope: object) -> None:
    """A name."""
    if not isinstance(scope, str) or not scope:
        raise InvalidSetting(f"the scope of sockets is a name, not {scope!r}")


def check_seconds(what: str, given: object) -> None:
    """None, a number of seconds, or a timedelta; 0 for never."""
    if given is None:
        return
    number = seconds(given) if isinstance(given, timedelta) else given
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not isfinite(number) or number < 0:
        raise InvalidSetting(f"{what} is a number of seconds, 0 for never, not {given!r}")


def seconds(given: float | timedelta) -> float:
    """In seconds."""
    return given.total_seconds() if isinstance(given, timedelta) else given


def check_ladder(ladder: object, known: Iterable[str]) -> None:
    """None, or from which refusal in a row on each of these is done."""
    if ladder is None:
        return
    if not isinstance(ladder, Mapping):
        raise InvalidSetting(f"a ladder is a dictionary such as {{'close': 20}}, not {ladder!r}")
    for word, number in ladder.items():
        check_word("a ladder", word, known)
        if type(number) is not int or number < 0:
            raise InvalidSetting(f"a ladder has whole numbers of refusals in a row, not {number!r}")


def check_function(what: str, given: object) -> None:
    """A function that answers at once."""
    if not callable(given):
        raise InvalidSetting(f"{what} is a function, not {given!r}")
    if iscoroutinefunction(given):
        raise InvalidSetting(f"{what} is a plain function: an asynchronous one has no answer at once")


def check_cost(given: object) -> None:
    """A whole number, or a function that answers one at once."""
    if callable(given):
        check_function("cost", given)
    elif type(given) is not int or given < 0:
        raise InvalidSetting(f"cost is a whole number of 0 or more, or a function, not {given!r}")


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Nothing but options that there are."""
    for name in given:
        if name not in known:
            raise InvalidSetting(f"ThrottleMiddleware has no option {name!r}{meant(name, known)}")


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

"""How long an answer asks its client to wait: ``Retry-After``, and the ``RateLimit`` fields of every draft.

Tolerant, as what another server sends need not be well-formed: what is invalid asks for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

MOST_TEXT: Final = 4_096  # characters of a field that are read
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503
# What a 429 asks for that says nothing more.
PLAIN_SECONDS: Final = 1.0
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# A comma, or what stands between commas and semicolons. A string has both, and ends with the text at the latest.
_PIECE: Final = re.compile(r',|(?:"(?:[^"\\]|\\.)*(?:"|\\?$)|[^,;"])+')


def asked_wait(status: int, headers: Mapping[str, str], now: float) -> float:
    """The seconds until the next call may come; 0.0 where the answer asks for nothing.

    ``headers`` ignores the case of its names. ``now`` is in seconds since 1970, for dates in answers without one.
    """
    waits = [*_quota_waits(headers)]
    if status in (TOO_MANY, UNAVAILABLE) and (text := headers.get("Retry-After")):
        waits += _retry_after(text, headers.get("Date"), now)
    return max(waits, default=PLAIN_SECONDS if status == TOO_MANY else 0.0)


def _retry_after(text: str, date: str | None, now: float) -> Iterator[float]:
    """In seconds, or as a date: that is compared with the server's own clock where the answer tells it."""
    seconds = _seconds(text)
    if seconds is not None:
        yield seconds
    elif (until := _moment(text)) is not None:
        since = _moment(date) if date else None
        yield max(0.0, until - (now if since is None else since))


def _quota_waits(headers: Mapping[str, str]) -> Iterator[float]:
    """The wait of each quota of which nothing is left."""
    fields = {name: headers.get(name, "") for name in ("RateLimit", "RateLimit-Policy")}
    members = {name: list(_members(text[:MOST_TEXT])) for name, text in fields.items() if text}
    windows = {name: parameters.get("w", "") for name, parameters in members.get("RateLimit-Policy", ())}
    flat: dict[str, str] = {}  # of draft 07, whose quota has no name
    for name, parameters in members.get("RateLimit", ()):
        key, _, value = name.partition("=")
        flat[key.strip()] = value.strip()
        if parameters.get("r") == "0":
            yield from _found(parameters.get("t") or windows.get(name, ""))
    if flat.get("remaining", headers.get("RateLimit-Remaining", "").strip()) == "0":
        yield from _found(flat.get("reset") or headers.get("RateLimit-Reset", ""))


def _members(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The members of a list of structured fields, each with its parameters."""
    pieces: list[str] = []
    for piece in [*_PIECE.findall(text), ","]:
        if piece != ",":
            pieces.append(piece.strip())
        elif pieces:
            name, *parameters = pieces
            pairs = [one.partition("=") for one in parameters]
            yield name, {key.strip(): value.strip() for key, _, value in pairs}
            pieces = []


def _found(text: str) -> Iterator[float]:
    seconds = _seconds(text)
    if seconds is not None:
        yield seconds


def _seconds(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _moment(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None

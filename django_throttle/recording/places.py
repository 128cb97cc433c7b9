"""Where records are in Redis, for how long, and how idents stand in them."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from hashlib import blake2b
from typing import Final, NamedTuple

from django_throttle.conf import conf
from django_throttle.core.key import ident_tag, secret_bytes
from django_throttle.recording.cells import HOUR, MINUTE

DAY: Final = 24 * HOUR
SLOT: Final = 10 * MINUTE  # that one sample is about
RECENT_SLOTS: Final = 6  # whose samples are larger
SLOTS: Final = DAY // SLOT
MINUTES_TTL_MS: Final = (DAY + HOUR) * 1000
HOURS_TTL_MS: Final = 31 * DAY * 1000
RANKINGS_TTL_MS: Final = 7 * DAY * 1000
SEEN_TTL_MS: Final = HOUR * 1000
MOST_RECENT: Final = 200  # entries of a sample of the last hour
MOST_OLDER: Final = 16
STRATA: Final = ("whole", "refused")
TAG_HEX: Final = 16


class Span(NamedTuple):
    """Cells of one length: that of a cell, and of the times that one key is about."""

    letter: str
    cell: int
    key: int

    def name(self, rule: str, at: int) -> str:
        return f"rec:{self.letter}:{rule_tag(rule)}:{at // self.key}"


MINUTES: Final = Span("m", MINUTE, HOUR)
HOURS: Final = Span("h", HOUR, DAY)


def rule_tag(rule: str) -> str:
    """What stands for a rule's name, whatever characters that has."""
    return blake2b(rule.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def ranking_name(rule: str, hour: int) -> str:
    return f"rec:t:{rule_tag(rule)}:{hour // HOUR}"


def sample_name(stratum: str, slot: int) -> str:
    return f"rec:s:{stratum[0]}:{slot}"


def tag_of(ident: str) -> str:
    """What stands for an ident: 16 hex characters of its keyed hash, of which log lines have the first 8.

    With RECORD_IDENTS the ident itself.
    """
    return ident if conf().RECORD_IDENTS else hashed(ident)


def hashed(ident: str) -> str:
    return urlsafe_b64decode(ident_tag(ident, secret_bytes(conf().KEY_SECRET)) + "==").hex()[:TAG_HEX]


HASHED, CLEAR = b"#", b"="


def short_of(ident: str) -> bytes:
    """The tag as a ranking has it: a hash as 8 bytes."""
    if conf().RECORD_IDENTS:
        return CLEAR + ident.encode("utf-8", "surrogatepass")
    return HASHED + bytes.fromhex(hashed(ident))


def long_of(short: bytes) -> str:
    """The tag that ``short_of`` has made shorter."""
    if short.startswith(HASHED):
        return short[1:].hex()
    return short[1:].decode("utf-8", "replace" if short[:1] != CLEAR else "surrogatepass")

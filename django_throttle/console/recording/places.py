"""Where records are in Redis, for how long, and how idents stand in them."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from hashlib import blake2b
from typing import Final, NamedTuple

from django_throttle.conf import conf
from django_throttle.console.recording.cells import HOUR, MINUTE
from django_throttle.core.key import ident_hash, secret_bytes

DAY: Final = 24 * HOUR
SLOT: Final = 10 * MINUTE  # that one sample is about
RECENT_SLOTS: Final = 7  # whose samples are larger: those of an hour, whenever it began
SLOTS: Final = DAY // SLOT
MINUTES_TTL_MS: Final = (DAY + MINUTE) * 1000  # after the last of an hour
HOURS_TTL_MS: Final = (30 * DAY + HOUR) * 1000  # after the last of a day
RANKING_TTL_MS: Final = 2 * HOUR * 1000  # of a whole ranking: for longer, its first few are beside the hours
SEEN_TTL_MS: Final = HOUR * 1000
# Entries of a sample: of the last hour, and older.
MAX_RECENT_ENTRIES: Final = {"whole": 1080, "refused": 140}
MAX_OLDER_ENTRIES: Final = {"whole": 16, "refused": 10}
STRATA: Final = tuple(MAX_RECENT_ENTRIES)
TAG_HEX: Final = 16
RANKED_HEX: Final = 8  # of a tag in a ranking: as many as log lines have


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


def ranking_field(hour: int) -> int:
    """Where the first few of it stand in the day's key of hours: after the cells."""
    return (HOURS.key + hour % HOURS.key) // HOUR


def sample_name(stratum: str, slot: int) -> str:
    return f"rec:s:{stratum[0]}:{slot}"


def tag_of(ident: str) -> str:
    """What stands for an ident: 16 hex characters of its keyed hash, of which log lines have the first 8.

    With RECORD_IDENTS the ident itself.
    """
    return ident if conf().RECORD_IDENTS else hashed(ident)


def hashed(ident: str) -> str:
    return urlsafe_b64decode(ident_hash(ident, secret_bytes(conf().KEY_SECRET)) + "==").hex()[:TAG_HEX]


CLEAR: Final = b"clear:"


def ranked_tag(ident: str) -> str:
    """What stands for an ident in a ranking: the first 8 characters of its tag, or with RECORD_IDENTS the ident."""
    return ident if conf().RECORD_IDENTS else hashed(ident)[:RANKED_HEX]


def short_of(ident: str) -> bytes:
    """The same as Redis keeps it: a hash as 4 bytes, and longer than that an ident in clear."""
    if conf().RECORD_IDENTS:
        return CLEAR + ident.encode("utf-8", "surrogatepass")
    return bytes.fromhex(ranked_tag(ident))


def long_of(short: bytes) -> str:
    """What ``short_of`` has made shorter."""
    if short.startswith(CLEAR):
        return short[len(CLEAR) :].decode("utf-8", "surrogatepass")
    return short.hex()

"""Keys and lifetimes of records in Redis, and the tags of idents in them."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from hashlib import blake2b
from typing import Final, NamedTuple

from django_throttle.conf import conf
from django_throttle.console.recording.cells import HOUR, MINUTE
from django_throttle.core.key import ident_hash, secret_bytes

DAY: Final = 24 * HOUR
SLOT: Final = 10 * MINUTE  # period of a sample
RECENT_SLOTS: Final = 7  # slots with larger samples: those that overlap with the last hour
SLOTS: Final = DAY // SLOT
MINUTES_TTL_MS: Final = (DAY + MINUTE) * 1000  # from the last minute of an hour
HOURS_TTL_MS: Final = (30 * DAY + HOUR) * 1000  # from the last hour of a day
RANKING_TTL_MS: Final = 2 * HOUR * 1000  # of a whole ranking; its first entries are kept with the hours
SEEN_TTL_MS: Final = HOUR * 1000
# Entries of a sample.
MAX_RECENT_ENTRIES: Final = {"whole": 1080, "refused": 140}
MAX_OLDER_ENTRIES: Final = {"whole": 16, "refused": 10}
STRATA: Final = tuple(MAX_RECENT_ENTRIES)
TAG_HEX: Final = 16
RANKING_TAG_HEX: Final = 8  # as in log lines


class Span(NamedTuple):
    """Length of cells, and of the period of a key."""

    letter: str
    cell: int  #: seconds
    key: int  #: seconds

    def name(self, rule: str, at: int) -> str:
        return f"rec:{self.letter}:{rule_tag(rule)}:{at // self.key}"


MINUTES: Final = Span("m", MINUTE, HOUR)
HOURS: Final = Span("h", HOUR, DAY)


def rule_tag(rule: str) -> str:
    """Return a hash of a rule's name, which may contain any characters."""
    return blake2b(rule.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def ranking_name(rule: str, hour: int) -> str:
    return f"rec:t:{rule_tag(rule)}:{hour // HOUR}"


def ranking_field(hour: int) -> int:
    """Return the field of the first entries of a ranking in the key of a day's hours, after its cells."""
    return (HOURS.key + hour % HOURS.key) // HOUR


def sample_name(stratum: str, slot: int) -> str:
    return f"rec:s:{stratum[0]}:{slot}"


def tag_of(ident: str) -> str:
    """Return the tag of an ident: 16 hex characters of its keyed hash. Log lines have the first 8.

    With RECORD_IDENTS, return the ident itself.
    """
    return ident if conf().RECORD_IDENTS else hashed(ident)


def hashed(ident: str) -> str:
    return urlsafe_b64decode(ident_hash(ident, secret_bytes(conf().KEY_SECRET)) + "==").hex()[:TAG_HEX]


IDENT_PREFIX: Final = b"clear:"  # of an ident that is not hashed


def ranking_tag(ident: str) -> str:
    """Return the tag of an ident in a ranking: 8 characters, or the ident with RECORD_IDENTS."""
    return ident if conf().RECORD_IDENTS else hashed(ident)[:RANKING_TAG_HEX]


def packed_tag(ident: str) -> bytes:
    """Return the encoding of an ident's tag in a ranking in Redis: 4 bytes of a hash, or a prefix and the ident."""
    if conf().RECORD_IDENTS:
        return IDENT_PREFIX + ident.encode("utf-8", "surrogatepass")
    return bytes.fromhex(ranking_tag(ident))


def unpacked_tag(packed: bytes) -> str:
    """Return the tag from ``packed_tag``."""
    if packed.startswith(IDENT_PREFIX):
        return packed[len(IDENT_PREFIX) :].decode("utf-8", "surrogatepass")
    return packed.hex()

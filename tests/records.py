"""The value of an ident in Redis, as tests read and write it: the records of its rules."""

import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import NamedTuple

from django_throttle.core import Rule
from django_throttle.stores.redis.packing import ID_BYTES, LARGE, SMALL, SMALL_TIME_RANGE, RecordLayout

SUMMARY = bytes(ID_BYTES)  # the id of what tells of the records that were not asked for


class Record(NamedTuple):
    """When it runs out, in microseconds, its numbers, and whether it is a large record."""

    expires: int
    numbers: tuple[float, ...] = ()
    is_large: bool = False


def kept_id(rule_id: str) -> bytes:
    return urlsafe_b64decode(rule_id)[:ID_BYTES]


def of_rule(rule: Rule, expires: int, *numbers: float) -> dict[bytes, Record]:
    """A record as this rule has it; ``numbers`` are its first ones, and the last of them all that are left."""
    layout = RecordLayout.of(rule.params)
    filled = tuple([*numbers, *numbers[-1:] * layout.kept][: layout.kept])
    return {kept_id(rule.id): Record(expires, filled, layout.is_large)}


def written(records: Mapping[bytes, Record]) -> bytes:
    """The value with these records, by what they have of a rule's id."""
    return b"".join(_written(key, one) for key, one in records.items())


def records(value: bytes, now_us: int | None = None) -> dict[bytes, Record]:
    """The records of a value, by what they have of a rule's id. Raises ValueError where it is not made of records."""
    now_us = round(time.time() * 1_000_000) if now_us is None else now_us
    return {key: one for key, one in _records(value, now_us) if key != SUMMARY}


def _written(key: bytes, one: Record) -> bytes:
    kind = (LARGE if one.is_large else SMALL) + len(one.numbers)
    whole = one.expires if one.is_large else one.expires % SMALL_TIME_RANGE
    return bytes([kind]) + key + whole.to_bytes(6 + one.is_large, "little") + _numbers(kind).pack(*one.numbers)


def _records(value: bytes, now_us: int) -> Iterator[tuple[bytes, Record]]:
    at, earliest = 0, now_us - SMALL_TIME_RANGE // 2
    while at < len(value):
        is_large, numbers = value[at] >= LARGE, _numbers(value[at])
        time_at = at + 1 + ID_BYTES
        state_at = time_at + 6 + is_large
        if len(value) < state_at + numbers.size:
            raise ValueError(f"ends within a record: {value!r}")
        expires = int.from_bytes(value[time_at:state_at], "little")
        if not is_large:
            expires = (expires - earliest) % SMALL_TIME_RANGE + earliest
        yield value[at + 1 : time_at], Record(expires, numbers.unpack_from(value, state_at), is_large)
        at = state_at + numbers.size


def _numbers(kind: int) -> Struct:
    """Those of a record of this kind. Raises ValueError where there is none."""
    if kind < SMALL:
        raise ValueError(f"no kind of record: {kind}")
    return Struct(f"<{kind - LARGE}d" if kind >= LARGE else f"<{kind - SMALL}I")

"""The value of an ident in Redis, as tests read and write it: the records of its rules."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

from django_throttle.core import Rule
from django_throttle.stores.packing import ID_BYTES
from django_throttle.stores.scripts import LARGE, SMALL, Form

SUMMARY = bytes(ID_BYTES)  # the id of what tells of the records that were not asked for


class Record(NamedTuple):
    """When it runs out, in microseconds (of a small record the last six bytes of that), and its numbers."""

    expires: int
    numbers: tuple[float, ...] = ()


def own_id(rule: Rule) -> bytes:
    """What a record has of a rule's id."""
    return urlsafe_b64decode(rule.id)[:ID_BYTES]


def written(records: Mapping[bytes, Record], large: Iterable[bytes] = ()) -> bytes:
    """The value with these records, by what they have of a rule's id; these of them are large ones."""
    return b"".join(_written(key, one, key in large) for key, one in records.items())


def of(rule: Rule, *numbers: float, expires: int) -> bytes:
    """The value with one record, as this rule has it."""
    return written({own_id(rule): Record(expires, numbers)}, [own_id(rule)] if Form.of(rule.plan).is_large else [])


def records(value: bytes) -> dict[bytes, Record]:
    """The records of a value. Raises ValueError where it is not made of records."""
    return {key: one for key, one in _records(value) if key != SUMMARY}


def _written(key: bytes, one: Record, is_large: bool) -> bytes:
    numbers = _numbers(len(one.numbers), is_large).pack(*one.numbers)
    kind = (LARGE if is_large else SMALL) + len(one.numbers)
    bytes_of_time = 7 if is_large else 6
    time = (one.expires % (1 << 8 * bytes_of_time)).to_bytes(bytes_of_time, "little")
    return bytes([kind]) + key + time + numbers


def _records(value: bytes) -> Iterator[tuple[bytes, Record]]:
    at = 0
    while at < len(value):
        kind, is_large = value[at], value[at] >= LARGE
        if kind < SMALL:
            raise ValueError(f"no record at {at}: {value!r}")
        numbers = _numbers(kind - (LARGE if is_large else SMALL), is_large)
        time = at + 1 + ID_BYTES
        begin = time + (7 if is_large else 6)
        if len(value) < begin + numbers.size:
            raise ValueError(f"ends within a record: {value!r}")
        expires = int.from_bytes(value[time:begin], "little")
        yield value[at + 1 : time], Record(expires, numbers.unpack_from(value, begin))
        at = begin + numbers.size


def _numbers(count: int, is_large: bool) -> Struct:
    return Struct(f"<{count}{'d' if is_large else 'I'}")

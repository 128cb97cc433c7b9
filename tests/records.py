"""The value of an ident in Redis, as tests read and write it: the records of its rules."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import NamedTuple

VERSION = b"\x01"
HEAD = Struct("<7s6sH")
SUMMARY = bytes(6)  # the id of what tells of the records that were not asked for


class Record(NamedTuple):
    """When it runs out, in microseconds, and the bytes of its state."""

    expires: int
    state: bytes


def written(records: Mapping[str, Record]) -> bytes:
    """The value with these records, by rule id."""
    return VERSION + b"".join(
        HEAD.pack(one.expires.to_bytes(7, "little"), urlsafe_b64decode(rule_id), len(one.state)) + one.state
        for rule_id, one in records.items()
    )


def records(value: bytes) -> dict[str, Record]:
    """The records of a value, by rule id. Raises ValueError where it is not made of records."""
    if value[:1] != VERSION:
        raise ValueError(f"no value of records: {value!r}")
    return dict(_records(value))


def _records(value: bytes) -> Iterator[tuple[str, Record]]:
    at = 1
    while at < len(value):
        if len(value) < at + HEAD.size:
            raise ValueError(f"ends within a record: {value!r}")
        expires, own_id, length = HEAD.unpack_from(value, at)
        at += HEAD.size + length
        if len(value) < at:
            raise ValueError(f"ends within a record: {value!r}")
        if own_id != SUMMARY:
            yield urlsafe_b64encode(own_id).decode(), Record(int.from_bytes(expires, "little"), value[at - length : at])

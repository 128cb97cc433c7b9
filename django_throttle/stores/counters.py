"""Counters of the memory store, packed in bytes, as a process may count for a hundred thousand idents."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import lru_cache
from itertools import islice
from struct import Struct
from typing import Final

from django_throttle.core.algorithms import State

Key = tuple[str, str]  # rule id, ident

# A record has its expiry in microseconds, first and big-endian so that records sort by expiry; a byte that is 1 if no
# units were left when it was written; and the numbers of the state.
HEADER: Final = Struct(">qB")
EXPIRY: Final = Struct(">q")
SPENT_OFFSET: Final = EXPIRY.size  # offset of that byte
NUMBER_BYTES: Final = 8


@lru_cache(maxsize=1024)
def numbers(count: int) -> Struct:
    """Return the format of ``count`` whole numbers. Numbers of algorithms are below 2^53."""
    return Struct(f">{count}q")


class Counters(MutableMapping[Key, tuple[State, int]]):
    """States and their expiry, by rule id and ident.

    Each rule has a table of its own, so that many idents under one rule do not displace those of another.
    """

    __slots__ = ("_count", "_tables")

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, bytes]] = {}  # by rule id; oldest written first
        self._count = 0

    def __getitem__(self, key: Key) -> tuple[State, int]:
        record = self._tables[key[0]][key[1]]
        state: State = numbers((len(record) - HEADER.size) // NUMBER_BYTES).unpack_from(record, HEADER.size)
        return state, HEADER.unpack_from(record)[0]

    def __setitem__(self, key: Key, counter: tuple[State, int]) -> None:
        """Write a counter, which keeps its place in the order."""
        table = self._tables.setdefault(key[0], {})
        self._count += key[1] not in table
        table[key[1]] = _pack(*counter, is_spent=False)

    def __delitem__(self, key: Key) -> None:
        del self._tables[key[0]][key[1]]
        self._count -= 1

    def __iter__(self) -> Iterator[Key]:
        return iter([(rule_id, ident) for rule_id, table in self._tables.items() for ident in table])

    def __len__(self) -> int:
        return self._count

    def write(self, key: Key, state: State, expires: int, *, is_spent: bool) -> None:
        """Write a counter, and make it the newest. ``is_spent`` is True if no units are left."""
        table = self._tables.setdefault(key[0], {})
        self._count += table.pop(key[1], None) is None
        table[key[1]] = _pack(state, expires, is_spent=is_spent)

    def drop_expired(self, now: int) -> None:
        """Forget counters that have expired at ``now``, and empty tables."""
        past = EXPIRY.pack(now + 1)
        for rule_id, table in list(self._tables.items()):
            expired = [ident for ident, record in table.items() if record < past]
            for ident in expired:
                del table[ident]
            self._count -= len(expired)
            if not table:
                del self._tables[rule_id]

    def make_room(self, count: int) -> None:
        """Forget ``count`` counters: the oldest of the rule with the most idents.

        Of the oldest, counters with units left are forgotten first, and spent ones become the newest. So a refused
        caller cannot be displaced by many other idents.
        """
        while count > 0 and self._count:
            table = max(self._tables.values(), key=len)
            oldest = list(islice(table.items(), 2 * count))
            oldest.sort(key=lambda entry: entry[1][SPENT_OFFSET])
            expired = min(count, -(-len(oldest) // 2))
            for place, (ident, record) in enumerate(oldest):
                if place < expired or record[SPENT_OFFSET]:
                    del table[ident]
                if place >= expired and record[SPENT_OFFSET]:
                    table[ident] = record
            count -= expired
            self._count -= expired


def _pack(state: State, expires: int, *, is_spent: bool) -> bytes:
    return HEADER.pack(expires, is_spent) + numbers(len(state)).pack(*state)

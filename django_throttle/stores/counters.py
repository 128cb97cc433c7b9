"""Counters of a store in memory: packed, as a process may count for a hundred thousand idents."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import lru_cache
from itertools import islice
from struct import Struct
from typing import Final

from django_throttle.core.algorithms import State

Key = tuple[str, str]  # rule id, ident

# When it expires, in microseconds: first and big-endian, so that records are in the order of their expiry.
# Then whether it is spent: 1 when nothing was left as it was written. Then the numbers of the state.
HEAD: Final = Struct(">qB")
MOMENT: Final = Struct(">q")
SPENT: Final = MOMENT.size  # the place of that byte
NUMBER: Final = 8  # bytes


@lru_cache(maxsize=1024)
def numbers(count: int) -> Struct:
    """So many whole numbers: all that algorithms count with are smaller than 2^53."""
    return Struct(f">{count}q")


class Counters(MutableMapping[Key, tuple[State, int]]):
    """States and when they expire, by rule id and ident: a record of bytes each, in a table for each rule.

    So many idents under one rule do not make those of another forgotten.
    """

    __slots__ = ("_count", "_tables")

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, bytes]] = {}  # by rule id; what was written longest ago first
        self._count = 0

    def __getitem__(self, key: Key) -> tuple[State, int]:
        record = self._tables[key[0]][key[1]]
        state: State = numbers((len(record) - HEAD.size) // NUMBER).unpack_from(record, HEAD.size)
        return state, HEAD.unpack_from(record)[0]

    def __setitem__(self, key: Key, counter: tuple[State, int]) -> None:
        """Write a counter in the place that it has."""
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
        """Write a counter, which is the last one to be forgotten then; ``is_spent`` when nothing is left of it."""
        table = self._tables.setdefault(key[0], {})
        self._count += table.pop(key[1], None) is None
        table[key[1]] = _pack(state, expires, is_spent=is_spent)

    def drop_expired(self, now: int) -> None:
        """Forget what is over at ``now``, and the tables of rules that have nothing left."""
        past = MOMENT.pack(now + 1)
        for rule_id, table in list(self._tables.items()):
            gone = [ident for ident, record in table.items() if record < past]
            for ident in gone:
                del table[ident]
            self._count -= len(gone)
            if not table:
                del self._tables[rule_id]

    def make_room(self, count: int) -> None:
        """Forget so many counters, those of the rule with most idents that were written longest ago.

        Of two that age the one that is not spent goes, the other stays for another turn of all: who is refused must
        not be forgotten for many others' sake.
        """
        while count > 0 and self._count:
            table = max(self._tables.values(), key=len)
            oldest = list(islice(table.items(), 2 * count))
            oldest.sort(key=lambda one: one[1][SPENT])
            gone = min(count, -(-len(oldest) // 2))
            for place, (ident, record) in enumerate(oldest):
                if place < gone or record[SPENT]:
                    del table[ident]
                if place >= gone and record[SPENT]:
                    table[ident] = record
            count -= gone
            self._count -= gone


def _pack(state: State, expires: int, *, is_spent: bool) -> bytes:
    return HEAD.pack(expires, is_spent) + numbers(len(state)).pack(*state)

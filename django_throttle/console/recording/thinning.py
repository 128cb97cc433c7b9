"""A sample of bounded size whose share is known: it keeps the lowest ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from random import getrandbits
from typing import Final, Generic, TypeVar
from zlib import crc32

from django_throttle.conf import conf
from django_throttle.core.key import secret_bytes

T = TypeVar("T")

RANKS: Final = 1 << 32  # ranks are below
MASK: Final = RANKS - 1


def ranks_of(idents: Sequence[str]) -> list[int]:
    """Return the rank of each ident, the same in every process. Nobody can tell it without the secret.

    A cryptographic hash would take more than all else that is recorded of a call.
    """
    start, factor = _keys(conf().KEY_SECRET)
    try:
        texts = [*map(str.encode, idents)]
    except UnicodeEncodeError:  # lone surrogates
        texts = [ident.encode("utf-8", "surrogatepass") for ident in idents]
    return [number * factor & MASK for number in map(crc32, texts, repeat(start))]


@lru_cache(maxsize=1)
def _keys(secret: str) -> tuple[int, int]:
    digest = blake2b(key=secret_bytes(secret), person=b"sample", digest_size=8).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big") | 1


def random_rank() -> int:
    return getrandbits(32)


class Thinned(Generic[T]):
    """Entries of the lowest ranks of all that were offered: ``most``, or a third more until they are thinned.

    All entries of a rank below ``bound`` are in it, so its share is ``bound / RANKS``. The exception are the ranks in
    ``full``: a rank has three quarters of the room at most, so that busy callers leave room for others. Where there are
    too many entries, the highest rank goes with all of its entries, and is the new bound: bottom-k sampling (Cohen and
    Kaplan, "Summarizing data using bottom-k sketches", PODC 2007). One rank always stays. Samples of several processes
    can be joined: the lowest bound holds for all.
    """

    def __init__(self, most: int, bound: int = RANKS) -> None:
        self.most, self.bound, self.full = most, bound, set[int]()
        self.entries: list[tuple[int, T]] = []
        self._counts: Counter[int] = Counter()  # of entries by rank, those that were taken included
        self._size = 0  # their sum

    def rest(self) -> Thinned[T]:
        """Return what goes on where the entries are taken away: it has room for those that would still have had it."""
        rest: Thinned[T] = Thinned(self.most, self.bound)
        rest.full, rest._counts, rest._size = self.full.copy(), self._counts.copy(), self._size
        return rest

    def offer(self, rank: int, entry: T) -> None:
        if rank >= self.bound or rank in self.full:
            return
        self.entries.append((rank, entry))
        self._counts[rank] += 1
        self._size += 1
        if self._counts[rank] >= max(1, self.most * 3 // 4):
            self.full.add(rank)
        if self._size > self.most * 4 // 3:
            self.thin(self.most)

    def thin(self, most: int) -> None:
        """Keep about this many entries, and no more from now on."""
        self.most, each = most, max(1, most * 3 // 4)
        if self._size <= most * 4 // 3:
            return
        self.full |= {rank for rank, count in self._counts.items() if count >= each}
        left, bound = sum(min(each, count) for count in self._counts.values()), self.bound
        for rank in sorted(self._counts, reverse=True):
            if left <= most:
                break
            left, bound = left - min(each, self._counts[rank]), rank
        kept, counts = [], Counter[int]()
        for rank, entry in self.entries:
            counts[rank] += 1
            if counts[rank] <= each:
                kept.append((rank, entry))
        self.entries = kept
        self._counts = Counter({rank: min(each, count) for rank, count in self._counts.items()})
        self.limit(bound)

    def limit(self, bound: int, full: Iterable[int] = ()) -> None:
        """Take only ranks below this bound from now on, and none of the full ones."""
        self.full.update(full)
        self.bound = min(bound, self.bound)
        self.entries = [pair for pair in self.entries if pair[0] < self.bound]
        self._counts = Counter({rank: count for rank, count in self._counts.items() if rank < self.bound})
        self._size = self._counts.total()

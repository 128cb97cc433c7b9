"""Sample of bounded size and known share, of the entries with the lowest ranks."""

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

RANKS: Final = 1 << 32  # number of ranks
RANK_MASK: Final = RANKS - 1


def ranks_of(idents: Sequence[str]) -> list[int]:
    """Return the rank of each ident, equal in every process, and secret.

    A cryptographic hash would take longer than the rest of recording a call.
    """
    start, factor = _keys(conf().KEY_SECRET)
    try:
        texts = [*map(str.encode, idents)]
    except UnicodeEncodeError:  # lone surrogates
        texts = [ident.encode("utf-8", "surrogatepass") for ident in idents]
    return [number * factor & RANK_MASK for number in map(crc32, texts, repeat(start))]


@lru_cache(maxsize=1)
def _keys(secret: str) -> tuple[int, int]:
    digest = blake2b(key=secret_bytes(secret), person=b"sample", digest_size=8).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big") | 1


def random_rank() -> int:
    return getrandbits(32)


class BoundedSample(Generic[T]):
    """Entries with the lowest ranks among those offered: ``max_entries``, or a third more until they are thinned.

    All entries with a rank below ``bound`` are in the sample, so its share is ``bound / RANKS``. Ranks in ``full`` are
    an exception: a rank has at most three quarters of the entries, so that busy callers leave room for others. If there
    are too many entries, all entries of the highest rank are removed, and it becomes the new bound: bottom-k sampling
    (Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007). The lowest rank always stays. Samples of
    several processes can be joined under their lowest bound.
    """

    def __init__(self, max_entries: int, bound: int = RANKS) -> None:
        self.max_entries, self.bound, self.full = max_entries, bound, set[int]()
        self.entries: list[tuple[int, T]] = []
        self._counts: Counter[int] = Counter()  # entries by rank, including those of predecessors
        self._size = 0  # sum of the counts

    def successor(self) -> BoundedSample[T]:
        """Return an empty sample that continues this one, whose entries count against its room."""
        successor: BoundedSample[T] = BoundedSample(self.max_entries, self.bound)
        successor.full, successor._counts, successor._size = self.full.copy(), self._counts.copy(), self._size
        return successor

    def offer(self, rank: int, entry: T) -> None:
        if rank >= self.bound or rank in self.full:
            return
        self.entries.append((rank, entry))
        self._counts[rank] += 1
        self._size += 1
        if self._counts[rank] >= max(1, self.max_entries * 3 // 4):
            self.full.add(rank)
        if self._size > self.max_entries * 4 // 3:
            self.thin(self.max_entries)

    def thin(self, max_entries: int) -> None:
        """Reduce the sample to about this number of entries, now and in future."""
        self.max_entries, max_per_rank = max_entries, max(1, max_entries * 3 // 4)
        if self._size <= max_entries * 4 // 3:
            return
        self.full |= {rank for rank, count in self._counts.items() if count >= max_per_rank}
        size, bound = sum(min(max_per_rank, count) for count in self._counts.values()), self.bound
        for rank in sorted(self._counts, reverse=True):
            if size <= max_entries:
                break
            size, bound = size - min(max_per_rank, self._counts[rank]), rank
        kept, counts = [], Counter[int]()
        for rank, entry in self.entries:
            counts[rank] += 1
            if counts[rank] <= max_per_rank:
                kept.append((rank, entry))
        self.entries = kept
        self._counts = Counter({rank: min(max_per_rank, count) for rank, count in self._counts.items()})
        self.limit(bound)

    def limit(self, bound: int, full: Iterable[int] = ()) -> None:
        """Keep and accept only ranks below this bound. Accept no more entries of the full ranks."""
        self.full.update(full)
        self.bound = min(bound, self.bound)
        self.entries = [pair for pair in self.entries if pair[0] < self.bound]
        self._counts = Counter({rank: count for rank, count in self._counts.items() if rank < self.bound})
        self._size = self._counts.total()

"""A sample of bounded size whose share is known: whatever has too low a level is left out."""

from __future__ import annotations

from collections.abc import Sequence
from random import getrandbits
from typing import Final, Generic, TypeVar
from zlib import crc32

T = TypeVar("T")

HIGHEST: Final = 31


def hashes_of(idents: Sequence[str]) -> list[int]:
    """A number below 2 ** 32 for each ident, the same in every process."""
    try:
        return list(map(crc32, map(str.encode, idents)))
    except UnicodeEncodeError:  # lone surrogates
        return [crc32(ident.encode("utf-8", "surrogatepass")) for ident in idents]


def level_of(ident: str) -> int:
    """The level of an ident: either all of its calls are in the sample, or none."""
    return _zeros(hashes_of([ident])[0])


def random_level() -> int:
    return _zeros(getrandbits(32))


def _zeros(number: int) -> int:
    """How many bits are 0 before the first that is 1, from the left of 32."""
    return min(HIGHEST, 32 - number.bit_length())


class Thinned(Generic[T]):
    """At most ``most`` entries, all those of ``level`` or higher of what was offered.

    Where even the highest level has too many, the rest is lost, and ``lost`` counts it.

    Half of all things have level 0, a quarter level 1, and so on. When there are too many, the level that is asked for
    rises by one, and with it half of them go: Gibbons and Tirthapura, "Estimating simple functions on the union of data
    streams" (SPAA 2001). Samples of several processes can be joined: the highest level of any holds for all.
    """

    def __init__(self, most: int, level: int = 0) -> None:
        self.most, self.level, self.lost = most, level, 0
        self.entries: list[tuple[int, T]] = []

    def offer(self, level: int, entry: T) -> None:
        if level < self.level:
            return
        while len(self.entries) >= self.most and self.level < HIGHEST:
            self.raise_to(self.level + 1)
        if level >= self.level and len(self.entries) < self.most:
            self.entries.append((level, entry))
        elif level >= self.level:
            self.lost += 1

    def raise_to(self, level: int) -> None:
        """Ask for at least this level from now on."""
        if level > self.level:
            self.level = level
            self.entries = [pair for pair in self.entries if pair[0] >= level]

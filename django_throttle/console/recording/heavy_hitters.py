"""The idents that a rule refuses most, in bounded memory, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KEPT: Final = 32
KEPT_LONG: Final = 4  # for a month; one more would be half a MiB of Redis where 100 rules refuse
SLACK: Final = 4  # counters before they are cut to KEPT, times KEPT, so that cutting takes no time a refusal


class HeavyHitters:
    """Counts by ident; ``error`` is what a count may lack.

    Misra and Gries, "Finding repeated elements" (1982), which counts as space-saving (Metwally et al. 2005) does. Both
    can be merged: Agarwal et al., "Mergeable summaries" (PODS 2012). Of n refusals, with KEPT counters, a count is at
    most ``error`` too small, never too large, and ``error`` is at most n / (KEPT + 1): whoever has more is listed.
    """

    __slots__ = ("counts", "error")

    def __init__(self, counts: Mapping[str, int] | None = None, error: int = 0) -> None:
        self.counts, self.error = dict(counts or {}), error

    def add(self, ident: str, number: int = 1) -> None:
        self.counts[ident] = self.counts.get(ident, 0) + number
        if len(self.counts) > KEPT * SLACK:
            self.cut()

    def merge(self, other: HeavyHitters) -> None:
        """Add what others counted; the errors add up."""
        for ident, number in other.counts.items():
            self.counts[ident] = self.counts.get(ident, 0) + number
        self.error += other.error
        self.cut()

    def cut(self) -> None:
        """Keep the KEPT largest, less the largest of the others, which is what they may now lack."""
        if len(self.counts) <= KEPT:
            return
        least = sorted(self.counts.values(), reverse=True)[KEPT]
        self.counts = {ident: number - least for ident, number in self.counts.items() if number > least}
        self.error += least

    def largest(self) -> list[tuple[str, int, int]]:
        """Idents with their count and what it may lack, most first."""
        ranked = sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return [(ident, number, self.error) for ident, number in ranked]

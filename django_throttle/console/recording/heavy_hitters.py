"""Ranking of the idents that a rule refuses most, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_IDENTS: Final = 32
MAX_MONTH_IDENTS: Final = 4  # one more takes half a MiB of Redis if 100 rules refuse
CUT_FACTOR: Final = 4  # counters are cut at this factor of MAX_IDENTS, because cutting on each refusal is slow


class HeavyHitters:
    """Counts by ident with a maximal error.

    Misra and Gries, "Finding repeated elements" (1982), which counts as space-saving (Metwally et al. 2005) does. Both
    can be merged: Agarwal et al., "Mergeable summaries" (PODS 2012). A count is never too large, and at most ``error``
    too small. With n refusals, ``error`` is at most n / (MAX_IDENTS + 1), so idents with more refusals are listed.
    """

    __slots__ = ("counts", "error")

    def __init__(self, counts: Mapping[str, int] | None = None, error: int = 0) -> None:
        self.counts, self.error = dict(counts or {}), error

    def add(self, ident: str, number: int = 1) -> None:
        self.counts[ident] = self.counts.get(ident, 0) + number
        if len(self.counts) > MAX_IDENTS * CUT_FACTOR:
            self.cut()

    def merge(self, other: HeavyHitters) -> None:
        """Add the counts of another ranking. The errors add up."""
        for ident, number in other.counts.items():
            self.counts[ident] = self.counts.get(ident, 0) + number
        self.error += other.error
        self.cut()

    def cut(self) -> None:
        """Keep the largest counts, reduced by the largest of the others, which is added to the error."""
        if len(self.counts) <= MAX_IDENTS:
            return
        largest_removed = sorted(self.counts.values(), reverse=True)[MAX_IDENTS]
        self.counts = {
            ident: number - largest_removed for ident, number in self.counts.items() if number > largest_removed
        }
        self.error += largest_removed

    def largest(self) -> list[tuple[str, int, int]]:
        """Return the idents with their counts and the maximal error, the largest count first."""
        ranked = sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return [(ident, number, self.error) for ident, number in ranked]

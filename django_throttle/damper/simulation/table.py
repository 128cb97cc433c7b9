"""A run as text: what was attempted, what passed, and the factor, over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from django_throttle.damper.simulation.figures import PER_SECOND, Figures
from django_throttle.damper.simulation.world import Setting, Track

STEP: Final = 6  # seconds a line
HEAD: Final = ("seconds", "attempted/s", "achieved/s", "of the limit", "factor")
SUMMARY: Final = ("run", "achieved", "deviation", "reaction", "overshoot", "first 2 s", "refused")


def over_time(setting: Setting, track: Track) -> str:
    """A line for each six seconds."""
    rows = [HEAD, *_lines(setting, track)]
    return _aligned(rows)


def summary(runs: Sequence[tuple[str, Figures]]) -> str:
    """A line for each run under excess; rates as multiples of the limit, overshoot in seconds of it."""
    rows = [SUMMARY]
    for name, found in runs:
        share = found.refused / found.attempted if found.attempted else 0.0
        told = (
            f"{found.achieved:.3f}",
            f"{found.deviation:.1%}",
            f"{found.reaction:.1f} s",
            f"{found.overshoot:.1f} s",
        )
        rows.append((name, *told, f"{found.first:.2f}", f"{share:.1%}"))
    return _aligned(rows)


def _lines(setting: Setting, track: Track) -> Iterator[tuple[str, ...]]:
    step = STEP * PER_SECOND
    for at in range(0, len(track.admitted) - step + 1, step):
        attempted = sum(track.attempted[at : at + step]) / STEP
        admitted = sum(track.admitted[at : at + step]) / STEP
        factor = track.factors[min(at // PER_SECOND + STEP - 1, len(track.factors) - 1)]
        of_limit = f"{admitted / setting.limit:.2f}"
        yield f"{at // PER_SECOND}", f"{attempted:,.0f}", f"{admitted:,.0f}", of_limit, f"{factor:.3f}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = (
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)

"""Runs as a picture: attempted, achieved and factor over time, a column for each controller. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from django_throttle.damper.simulation.figures import PER_SECOND
from django_throttle.damper.simulation.world import Setting, Track

SIZE: Final = (5.2, 4.6)  # inches a column
# Both can be told apart by lightness alone.
ACHIEVED, ATTEMPTED, FACTOR, LIMIT = "#0b5394", "#b7b7b7", "#a64d00", "#333333"
# The same input gives the same bytes, so that a picture in the docs changes only when a run does.
SAME: Final[Any] = {"svg.hashsalt": "django_throttle"}
NO_DATE: Final[dict[str, Any]] = {".svg": {"Date": None}, ".png": {"Software": None}}


def draw(runs: Sequence[tuple[str, Setting, Track]], title: str, path: Path) -> None:
    """Write a PNG or SVG, by the name's ending; raises ValueError for one that matplotlib does not write."""
    with rc_context(SAME):
        figure = Figure(figsize=(SIZE[0] * len(runs), SIZE[1]), layout="constrained")
        figure.suptitle(title)
        axes = figure.subplots(2, len(runs), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1))
        for column, (name, setting, track) in enumerate(runs):
            _rates(axes[0][column], name, setting, track)
            _factor(axes[1][column], track)
        axes[0][0].set_ylabel("× the limit")
        axes[1][0].set_ylabel("factor")
        axes[0][0].legend(loc="center right", frameon=False)
        figure.savefig(path, metadata=NO_DATE.get(path.suffix.lower()))


def _rates(axes: Any, name: str, setting: Setting, track: Track) -> None:
    seconds = range(len(track.admitted) // PER_SECOND)
    axes.set_title(name, fontsize="medium")
    axes.plot(seconds, _by_second(track.attempted, setting.limit), color=ATTEMPTED, label="attempted")
    axes.plot(seconds, _by_second(track.admitted, setting.limit), color=ACHIEVED, label="achieved")
    axes.axhline(1.0, color=LIMIT, linewidth=0.8, linestyle="--", label="limit")
    axes.set_ylim(bottom=0)


def _factor(axes: Any, track: Track) -> None:
    axes.plot(range(len(track.factors)), track.factors, color=FACTOR)
    axes.set_ylim(0, 1)
    axes.set_xlabel("seconds")


def _by_second(costs: Sequence[int], limit: int) -> list[float]:
    whole = len(costs) - len(costs) % PER_SECOND
    return [sum(costs[at : at + PER_SECOND]) / limit for at in range(0, whole, PER_SECOND)]

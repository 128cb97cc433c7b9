"""The pictures of the page about algorithms: what each admits of the same three demands, played on a virtual clock.

``python -m docs.algorithms`` draws them, and writes the table of how many calls were admitted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore

PICTURES: Final = Path(__file__).with_name("pictures")
TABLE: Final = Path(__file__).with_name("algorithms.inc")
LIMIT: Final = 60  # a minute
SPAN, STEP, BAR = 240, 10, 5  # seconds, moments a second, seconds that a bar of a picture stands for
OFFERED, ADMITTED, RATE = "#d9d9d9", "#0b5394", "#a64d00"


class Demand(NamedTuple):
    """What callers ask for: how many calls come at a moment, of STEP a second."""

    name: str
    title: str
    calls: Callable[[int], int]


def _flood(moment: int) -> int:
    second = moment / STEP
    return 2 if 50 <= second < 70 else int(moment % (2 * STEP) == 0)


DEMANDS: Final = (
    Demand("steady", "twice the rate, evenly", lambda moment: int(moment % (STEP // 2) == 0)),
    Demand("bursts", "60 at once, every 45 s", lambda moment: 60 * (moment % (45 * STEP) == 10 * STEP)),
    Demand("flood", "half the rate, and 20/s for 20 s", _flood),
)
SHOWN: Final[dict[str, dict[str, Any]]] = {
    "fixed-window": {"algorithm": "fixed_window"},
    "sliding-window": {"algorithm": "sliding_window"},
    "sliding-window-strict": {"algorithm": "sliding_window", "resolution": 6, "strict": True},
    "sliding-log": {"algorithm": "sliding_log"},
    "token-bucket": {"algorithm": "token_bucket", "burst": 20},
    "token-bucket-interval": {"algorithm": "token_bucket", "refill": "interval"},
    "leaky-bucket": {"algorithm": "leaky_bucket", "burst": 5},
    "gcra": {"algorithm": "gcra", "burst": 20},
}


def admitted(options: dict[str, Any], demand: Demand) -> tuple[list[int], list[int]]:
    """How many calls are offered, and admitted, in each BAR seconds."""
    now = 1_699_999_980.0  # a minute begins
    limiter = Limiter([Rule("rule", f"{LIMIT}/min", **options)], MemoryStore(clock=lambda: now))
    offered, passed = [0] * (SPAN // BAR), [0] * (SPAN // BAR)
    for moment in range(SPAN * STEP):
        for _ in range(demand.calls(moment)):
            offered[moment // (BAR * STEP)] += 1
            passed[moment // (BAR * STEP)] += limiter.acquire("user:1").allowed
        now = 1_699_999_980.0 + (moment + 1) / STEP
    return offered, passed


Played = dict[str, tuple[list[int], list[int]]]


def play() -> dict[str, Played]:
    """By algorithm and demand, what ``admitted`` returns."""
    return {name: {demand.name: admitted(options, demand) for demand in DEMANDS} for name, options in SHOWN.items()}


def digest(played: Played) -> str:
    """A hash of what a picture shows."""
    return hashlib.blake2b(json.dumps(played).encode(), digest_size=8).hexdigest()


def draw(name: str, played: Played) -> None:
    """Write the picture; it says of which figures it is, so that a test can tell."""
    with rc_context({"svg.hashsalt": "django_throttle"}):
        picture = Figure(figsize=(10.4, 2.5), layout="constrained")
        for axes, demand in zip(picture.subplots(1, len(DEMANDS)), DEMANDS, strict=True):
            offered, passed = played[demand.name]
            edges = range(0, SPAN + BAR, BAR)
            axes.set_title(f"{demand.title}: {sum(passed)} of {sum(offered)}", fontsize="medium")
            axes.stairs(offered, edges, fill=True, color=OFFERED, label="offered")
            axes.stairs(passed, edges, fill=True, color=ADMITTED, label="admitted")
            axes.axhline(LIMIT * BAR / 60, color=RATE, linewidth=1, linestyle="--", label="the rate")
            axes.set_ylim(0, 65)
            axes.set_xticks(range(0, SPAN + 1, 60))
        axes.legend(loc="upper right", frameon=False, fontsize="small")
        picture.supxlabel(f"seconds; calls in each {BAR} s", fontsize="small")
        picture.savefig(PICTURES / f"{name}.svg", metadata={"Date": None, "Description": digest(played)})


def table(played: dict[str, Played]) -> str:
    """How many calls each algorithm admits in four minutes."""
    lines = [".. written by python -m docs.algorithms", "", ".. list-table::", "   :header-rows: 1", ""]
    rows = [("Algorithm", *(demand.title for demand in DEMANDS))]
    offered = next(iter(played.values()))
    rows.append(("offered", *(str(sum(offered[demand.name][0])) for demand in DEMANDS)))
    for name, options in SHOWN.items():
        said = ", ".join(f"{key} {value}" for key, value in options.items() if key != "algorithm")
        title = f"``{options['algorithm']}``" + (f" ({said})" if said else "")
        rows.append((title, *(str(sum(played[name][demand.name][1])) for demand in DEMANDS)))
    for first, *rest in rows:
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in rest)]
    return "\n".join(lines) + "\n"


def main() -> None:
    played = play()
    for name, one in played.items():
        draw(name, one)
    TABLE.write_text(table(played), encoding="utf-8")


if __name__ == "__main__":
    main()

"""``make simulation``: play a damped rule on a virtual clock, print what passes, draw pictures."""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from tests.lab.simulation.world import BIN, QUIET, SHAPES, Setting, Track, World, parse_demand

PICTURES: Final = Path(__file__).parents[3] / "docs" / "pictures"
# The scenes that the page on dampers shows.
SHOWN: Final = ("step-5x", "one-node", "release", "gap")
PER_SECOND: Final = round(1 / BIN)
SETTLED: Final = 36.0  # seconds at the end of a phase that count as settled
OVER: Final = 1.1


def summary(setting: Setting, track: Track) -> str:
    """Return the settled mean of six-second rates, their deviation, and how demand was met after it rose.

    The reaction lasts until no two seconds admit 1.1 × the limit; the overshoot is the excess until then.
    """
    rises = setting.shape.changes_at[:1] or (0.0,)
    start, end = round(rises[0] * PER_SECOND), _end(setting)
    excess = track.admitted[start:end]
    tail = track.admitted[max(start, end - round(SETTLED * PER_SECOND)) : end]
    rates = _rates(tail, 6.0, setting.limit)
    reaction = _reaction(excess, setting.limit)
    overshoot = max(0.0, sum(excess[: round(reaction * PER_SECOND)]) / setting.limit - reaction)
    first = sum(excess[: 2 * PER_SECOND]) / (2 * setting.limit)
    text = (
        f"achieved {fmean(rates):.3f}, deviation {pstdev(rates):.1%}, reaction {reaction:.1f} s, "
        f"overshoot {overshoot:.1f} s, first two seconds {first:.2f}, "
        f"refused {1 - sum(track.admitted) / sum(track.attempted):.1%}"
    )
    fell = len(setting.shape.changes_at) > 1
    return f"{text}, nothing refused {release(setting, track):.1f} s after the fall" if fell else text


def release(setting: Setting, track: Track) -> float:
    fell = round(setting.shape.changes_at[-1] * PER_SECOND)
    refused = [a - b for a, b in zip(track.attempted[fell:], track.admitted[fell:], strict=True)]
    return max((place + 1 for place, number in enumerate(refused) if number), default=0) / PER_SECOND


def _end(setting: Setting) -> int:
    changes = setting.shape.changes_at
    return round((changes[1] if len(changes) > 1 else setting.shape.seconds) * PER_SECOND)


def _rates(admitted: Sequence[int], seconds: float, limit: int) -> list[float]:
    step = round(seconds * PER_SECOND)
    return [sum(admitted[at : at + step]) / (seconds * limit) for at in range(0, len(admitted) - step + 1, step)]


def _reaction(admitted: Sequence[int], limit: int) -> float:
    step = 2 * PER_SECOND
    most = OVER * limit * 2
    late = [at + step for at in range(len(admitted) - step + 1) if sum(admitted[at : at + step]) > most]
    # From the end of the last two seconds that had too much, less the two seconds themselves.
    return max(0, max(late, default=0) - step + 1) / PER_SECOND if late else 0.0


# Both can be told apart by lightness alone.
ACHIEVED, ATTEMPTED, FACTOR, LIMIT = "#0b5394", "#b7b7b7", "#a64d00", "#333333"


def draw(setting: Setting, track: Track, title: str, path: Path) -> None:
    """Write a PNG or SVG, by the name's ending. The same input gives the same bytes."""
    with rc_context({"svg.hashsalt": "django_throttle"}):
        figure = Figure(figsize=(5.2, 4.6), layout="constrained")
        figure.suptitle(title)
        rates, factor = figure.subplots(2, sharex=True, height_ratios=(3, 1))
        for costs, color, label in ((track.attempted, ATTEMPTED, "attempted"), (track.admitted, ACHIEVED, "achieved")):
            rates.plot(range(len(costs) // PER_SECOND), _rates(costs, 1, setting.limit), color=color, label=label)
        rates.axhline(1.0, color=LIMIT, linewidth=0.8, linestyle="--", label="limit")
        rates.set_ylabel("× the limit")
        rates.set_title("damper", fontsize="medium")
        rates.set_ylim(bottom=0)
        rates.legend(loc="center right", frameon=False)
        factor.plot(range(len(track.factors)), track.factors, color=FACTOR)
        factor.set(xlabel="seconds", ylabel="factor", ylim=(0, 1))
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else {"Software": None})


# Name: description, demand, and other fields of the setting.
SCENES: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "step-5x": ("a step from idle to 5 times the limit", "step:5x", {}),
    "release": ("5 times the limit, then 0.8 times", "fall:5x-0.8x", {}),
    "one-node": ("5 times the limit on one node of 20", "step:5x", {"where": (0,)}),
    "lost-flush": ("a fifth of all flushes is lost", "step:5x", {"loss": 0.2}),
    "gap": ("Redis is away for 10 s", "step:5x", {"gap": (QUIET + 24, QUIET + 34)}),
}


def scene(name: str, **changes: Any) -> Setting:
    _, demand, special = SCENES[name]
    return replace(Setting(parse_demand(demand), **special), **changes)


def over_time(setting: Setting, track: Track) -> str:
    lines = [f"{'seconds':<8}{'attempted/s':>12}{'achieved/s':>12}{'of the limit':>14}{'factor':>8}"]
    pairs = zip(_rates(track.attempted, 6, 1), _rates(track.admitted, 6, 1), strict=True)
    for at, (attempted, admitted) in enumerate(pairs):
        factor = track.factors[6 * at + 5]
        lines.append(f"{6 * at:<8}{attempted:>12,.0f}{admitted:>12,.0f}{admitted / setting.limit:>14.2f}{factor:>8.3f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play what the arguments describe. The same arguments give the same figures; no Redis is used."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    docs, name, demand, picture = (options.pop(option) for option in ("docs", "scene", "demand", "picture"))
    changes = {option: value for option, value in options.items() if value is not None}
    try:
        if docs:
            for shown in SHOWN:
                setting = scene(shown)
                draw(setting, World(setting).run(), SCENES[shown][0], PICTURES / f"{shown}.svg")
            return
        setting = scene(name, **changes) if name else Setting(parse_demand(demand), **changes)
        title, track = SCENES[name][0] if name else demand, World(setting).run()
        print(f"{title}\n{over_time(setting, track)}\n\n{summary(setting, track)}")
        if picture is not None:
            draw(setting, track, title, picture)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _parser() -> ArgumentParser:
    parser = ArgumentParser("make simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--demand", default="step:5x", help=f"What is attempted: {SHAPES}. Multiples of the limit.")
    what.add_argument("--scene", choices=SCENES, help="A prepared setting.")
    what.add_argument("--docs", action="store_true", help="Draw the pictures of the documentation again.")
    parser.add_argument("--nodes", type=int, help="How many processes (default 20).")
    parser.add_argument("--limit", type=int, help="The limit, so much a second (default 1000).")
    parser.add_argument("--interval", type=float, help="Seconds between flushes (default 2).")
    parser.add_argument("--estimator", choices=["fast", "average"], help="Of the attempted rate (default fast).")
    parser.add_argument("--even", action="store_true", help="Attempts at even distances, not by chance.")
    parser.add_argument("--seed", type=int, help="Another seed, another run (default 1).")
    parser.add_argument("--picture", type=Path, help="Draw it into this file, .png or .svg.")
    return parser


if __name__ == "__main__":
    main()

"""``make simulation``: play a damped rule on a virtual clock, print what passes, draw pictures."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.lab.simulation.results import SCENES, draw, over_time, scene, summary
from tests.lab.simulation.world import SHAPES, Setting, World, parse_demand

PICTURES: Final = Path(__file__).parents[3] / "docs" / "pictures"
# The scenes that the page on dampers shows.
SHOWN: Final = ("step-5x", "one-node", "release", "gap")


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

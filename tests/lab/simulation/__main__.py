"""``make simulation``: play a damped rule on a virtual clock, print what passes, draw pictures."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.lab.simulation.results import SCENES, Run, draw, figures, over_time, scene, summary
from tests.lab.simulation.world import CONTROLLERS, SHAPES, Setting, World, parse_demand

PICTURES: Final = Path(__file__).parents[3] / "docs" / "pictures"
# The scenes that the page on dampers shows, and whether it shows the other controllers beside the damper.
SHOWN: Final = {"step-5x": True, "one-node": False, "release": False, "ramp": False, "bursts": False, "gap": False}
ENDINGS: Final = (".png", ".svg")


def main(arguments: Sequence[str] | None = None) -> None:
    """Play what the arguments describe. The same arguments give the same figures; no Redis is used."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.docs:
            for name, is_compared in SHOWN.items():
                _draw(play(scene(name), "all" if is_compared else "damper"), SCENES[name][0], PICTURES / f"{name}.svg")
            return
        setting, title = _setting(options)
        runs = play(setting, options.controller)
        for name, one, track in runs:
            print(f"\n{name}: {title}\n{over_time(one, track)}")
        print("\n" + summary([(name, figures(one, track)) for name, one, track in runs]))
        if options.picture is not None:
            _draw(runs, title, options.picture)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def play(setting: Setting, controller: str) -> list[Run]:
    """Run a setting under one controller, or under all of them."""
    runs = []
    for name in CONTROLLERS if controller == "all" else (controller,):
        print(f"{name}: {setting.shape.seconds:.0f} seconds of {setting.nodes} nodes ...", file=sys.stderr)
        one = replace(setting, controller=name)
        runs.append((name, one, World(one).run()))
    return runs


def _draw(runs: Sequence[Run], title: str, path: Path) -> None:
    draw(runs, title, path)
    print(f"\n{path}")


def _parser() -> ArgumentParser:
    parser = ArgumentParser("make simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--demand", default="step:5x", help=f"What is attempted: {SHAPES}. Multiples of the limit.")
    what.add_argument("--scene", help=f"One that is prepared: {', '.join(SCENES)}.")
    what.add_argument("--docs", action="store_true", help="Draw the pictures of the documentation again.")
    parser.add_argument("--nodes", type=_whole(1000), help="How many processes (default 20).")
    parser.add_argument("--limit", type=_whole(1_000_000), help="The limit, so much a second (default 1000).")
    parser.add_argument("--interval", type=_seconds, default=2.0, help="Seconds between flushes (default 2).")
    parser.add_argument("--estimator", choices=["fast", "average"], default="fast", help="Of the attempted rate.")
    parser.add_argument("--cost", type=_whole(1_000_000), help="What one attempt costs (default 1).")
    parser.add_argument("--seed", type=int, default=1, help="Another seed, another run (default 1).")
    parser.add_argument(
        "--controller",
        choices=[*CONTROLLERS, "all"],
        default="damper",
        help="The damper, or one to compare it with: naive (1 - limit/attempted from a plain average), "
        "linear (by the admitted rate). All: side by side.",
    )
    parser.add_argument("--picture", type=_picture, help="Draw it into this file, .png or .svg.")
    return parser


def _setting(options: Namespace) -> tuple[Setting, str]:
    """The setting that the options describe, and what it is in words."""
    changes = {name: getattr(options, name) for name in ("nodes", "limit", "cost", "interval", "estimator", "seed")}
    changes = {name: value for name, value in changes.items() if value is not None}
    if options.scene:
        return scene(options.scene, **changes), SCENES[options.scene][0]
    return Setting(parse_demand(options.demand), **changes), options.demand


def _whole(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
            raise ArgumentTypeError(f"a whole number from 1 to {most}, not {text!r}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    if not 0.1 <= float(text) <= 60:
        raise ArgumentTypeError(f"an interval is from 0.1 to 60 seconds, not {text}")
    return float(text)


def _picture(text: str) -> Path:
    if Path(text).suffix.lower() not in ENDINGS:
        raise ArgumentTypeError(f"a picture's name ends in {' or '.join(ENDINGS)}, unlike {text!r}")
    return Path(text)


if __name__ == "__main__":
    main()

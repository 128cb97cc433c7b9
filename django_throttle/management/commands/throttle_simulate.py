"""Plays a damped rule through on a virtual clock: many nodes, late flushes, and a picture of what comes of it."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_throttle.damper.simulation.results import SCENES, figures, over_time, scene, summary
from django_throttle.damper.simulation.world import CONTROLLERS, SHAPES, Setting, World, parse_demand
from django_throttle.exceptions import InvalidSetting

ENDINGS: Final = (".png", ".svg")


def _whole(most: int) -> Any:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
            raise ArgumentTypeError(f"a whole number from 1 to {most}, not {text!r}")
        return int(text)

    return parse


class Command(BaseCommand):
    """No Redis and no database is asked; the same arguments give the same figures."""

    help = (
        "Plays a rule of the damper algorithm through on a virtual clock and says what was attempted, what passed "
        "and how it was suppressed. Asks neither Redis nor the database."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("algorithm", choices=["damper"], help="What to simulate.")
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--demand", default="step:5x", help=f"What is attempted: {SHAPES}. Multiples of the limit.")
        what.add_argument("--scene", help=f"One that is prepared: {', '.join(SCENES)}.")
        parser.add_argument("--nodes", type=_whole(1000), help="How many processes (default 20).")
        parser.add_argument("--limit", type=_whole(1_000_000), help="The limit, so much a second (default 1000).")
        parser.add_argument("--interval", type=float, default=2.0, help="Seconds between flushes (default 2).")
        parser.add_argument("--estimator", choices=["fast", "average"], default="fast", help="Of the attempted rate.")
        parser.add_argument("--cost", type=_whole(1_000_000), help="What one attempt costs (default 1).")
        parser.add_argument("--seed", type=int, default=1, help="Another seed, another run (default 1).")
        parser.add_argument(
            "--controller",
            choices=[*CONTROLLERS, "all"],
            default="damper",
            help="The damper, or one to compare it with: naive (1 - limit/attempted from a plain average), "
            "linear (by the achieved rate). All: side by side.",
        )
        parser.add_argument("--picture", type=Path, help="Draw it into this file, .png or .svg; needs matplotlib.")

    def handle(self, **options: Any) -> None:
        path = options["picture"]
        if path is not None and path.suffix.lower() not in ENDINGS:
            raise CommandError(f"a picture's name ends in {' or '.join(ENDINGS)}, unlike {path.name!r}")
        draw = _drawing() if path is not None else None
        setting, title = _setting(options)
        names = CONTROLLERS if options["controller"] == "all" else (options["controller"],)
        runs = []
        for name in names:
            self.stderr.write(f"{name}: {setting.shape.seconds:.0f} seconds of {setting.nodes} nodes ...")
            one = replace(setting, controller=name)
            runs.append((name, one, World(one).run()))
        for name, one, track in runs:
            self.stdout.write(f"\n{name}: {title}\n{over_time(one, track)}\n")
        self.stdout.write("\n" + summary([(name, figures(one, track)) for name, one, track in runs]))
        if draw is not None:
            try:
                draw(runs, title, path)
            except (OSError, ValueError) as error:
                raise CommandError(f"the picture cannot be written: {error}") from error
            self.stdout.write(f"\n{path}")


def _setting(options: dict[str, Any]) -> tuple[Setting, str]:
    """The setting that the options describe, and what it is in words."""
    if not 0.1 <= options["interval"] <= 60:
        raise CommandError(f"an interval is from 0.1 to 60 seconds, not {options['interval']}")
    changes = {name: options[name] for name in ("nodes", "limit", "cost") if options[name] is not None}
    changes |= {name: options[name] for name in ("interval", "estimator", "seed")}
    try:
        if options["scene"]:
            return scene(options["scene"], **changes), SCENES[options["scene"]][0]
        return Setting(parse_demand(options["demand"]), **changes), options["demand"]
    except InvalidSetting as error:
        raise CommandError(str(error)) from error


def _drawing() -> Any:
    try:
        from django_throttle.damper.simulation.results import draw
    except ImportError as error:
        raise CommandError("a picture needs matplotlib: pip install 'django-throttle-rules[simulate]'") from error
    return draw

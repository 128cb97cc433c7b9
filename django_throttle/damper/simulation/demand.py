"""Demand over time: how much is attempted, as a multiple of the limit, and on which nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Final

from django_throttle.exceptions import InvalidSetting

QUIET: Final = 12.0  # seconds before anything happens
SHAPES: Final = "step:5x, steady:0.9x, fall:5x-0.8x, ramp:0.5x-5x, bursts:5x-0.2x"
_SHAPE: Final = re.compile(r"(step|steady|fall|ramp|bursts):(\d{1,3}(?:\.\d{1,9})?)x(?:-(\d{1,3}(?:\.\d{1,9})?)x)?")
_LONG: Final = 30.0  # mean from which a Poisson number is drawn as a normal one

Demand = Callable[[float], float]  # seconds from the start: multiple of the limit


@dataclass(frozen=True, slots=True)
class Shape:
    """What is attempted; ``changes_at`` are the moments after which something new is to be settled, in seconds."""

    text: str
    demand: Demand
    changes_at: tuple[float, ...]
    seconds: float


def parse_demand(text: str) -> Shape:
    """A shape by its text, such as "step:5x"; raises InvalidSetting for another."""
    found = _SHAPE.fullmatch(text.strip())
    two = found is not None and found[1] in ("fall", "ramp", "bursts")
    if found is None or two != (found[3] is not None):
        raise InvalidSetting(f"demand is like {SHAPES}; not {text!r}")
    return _SHAPES[found[1]](text, float(found[2]), float(found[3] or 0))


def _step(text: str, high: float, _: float) -> Shape:
    return Shape(text, lambda at: high if at >= QUIET else 0.0, (QUIET,), QUIET + 72)


def _steady(text: str, level: float, _: float) -> Shape:
    return Shape(text, lambda at: level, (), 84)


def _fall(text: str, high: float, low: float) -> Shape:
    falls = QUIET + 60
    return Shape(text, lambda at: 0.0 if at < QUIET else high if at < falls else low, (QUIET, falls), falls + 48)


def _ramp(text: str, low: float, high: float) -> Shape:
    def demand(at: float) -> float:
        return low + (high - low) * min(1.0, max(0.0, (at - QUIET) / 60))

    return Shape(text, demand, (QUIET,), QUIET + 96)


def _bursts(text: str, high: float, low: float) -> Shape:
    """Ten seconds high, twenty low."""
    return Shape(text, lambda at: high if at >= QUIET and (at - QUIET) % 30 < 10 else low, (QUIET,), QUIET + 120)


_SHAPES: Final = {"step": _step, "steady": _steady, "fall": _fall, "ramp": _ramp, "bursts": _bursts}


def poisson(random: Random, mean: float) -> int:
    """How many independent attempts come when ``mean`` are to be expected."""
    if mean <= 0:
        return 0
    if mean > _LONG:
        return max(0, round(random.gauss(mean, mean**0.5)))
    number, product, until = 0, random.random(), exp(-mean)
    while product > until:
        number += 1
        product *= random.random()
    return number


class Even:
    """Evenly spaced attempts: the fraction that did not come in one tick comes in the next."""

    def __init__(self, phase: float) -> None:
        self._rest = phase

    def __call__(self, random: Random, mean: float) -> int:
        self._rest += mean
        number = int(self._rest)
        self._rest -= number
        return number

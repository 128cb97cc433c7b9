"""The scenes that a rate limiter for many nodes must get right, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final

from django_throttle.damper.simulation.demand import QUIET, parse_demand
from django_throttle.damper.simulation.world import Setting
from django_throttle.exceptions import InvalidSetting

# Name: what it is, the demand, and what is special about it.
SCENES: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "step-1.2x": ("a step from idle to 1.2 times the limit", "step:1.2x", {}),
    "step-2x": ("a step from idle to twice the limit", "step:2x", {}),
    "step-5x": ("a step from idle to 5 times the limit", "step:5x", {}),
    "step-20x": ("a step from idle to 20 times the limit", "step:20x", {}),
    "ramp": ("a ramp from half the limit to 5 times, in a minute", "ramp:0.5x-5x", {}),
    "bursts": ("10 s at 5 times the limit, 20 s at a fifth, over and over", "bursts:5x-0.2x", {}),
    "release": ("5 times the limit, then 0.8 times", "fall:5x-0.8x", {}),
    "one-node": ("5 times the limit on one node of 20", "step:5x", {"where": (0,)}),
    "100-nodes": ("5 times the limit on 100 nodes", "step:5x", {"nodes": 100}),
    "fan-out": ("publishes of 51 messages each, 5 times the limit", "step:5x", {"cost": 51, "limit": 5000}),
    "join-and-die": (
        "5 of 20 nodes die without a word after half a minute, 5 others join later",
        "step:5x",
        {"alive": [(node, 0.0, QUIET + 30) for node in range(5)] + [(node, QUIET + 40, 1e9) for node in range(5, 10)]},
    ),
    "lost-flush": ("a fifth of all flushes is lost", "step:5x", {"loss": 0.2}),
    "gap": ("Redis is away for 10 s", "step:5x", {"gap": (QUIET + 24, QUIET + 34)}),
}


def scene(name: str, **changes: Any) -> Setting:
    """The setting of a scene, with these fields changed; raises InvalidSetting for a name that does not exist."""
    if name not in SCENES:
        near = get_close_matches(name, SCENES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(SCENES)}"
        raise InvalidSetting(f"there is no scene {name!r}{hint}")
    _, demand, special = SCENES[name]
    return replace(Setting(parse_demand(demand), **special), **changes)

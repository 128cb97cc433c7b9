"""Slots: what is held at once."""

from __future__ import annotations

from django_throttle.core.algorithms.step import Step
from django_throttle.core.plan import Plan


def concurrency(held: int, mine: bool, cost: int, plan: Plan) -> Step:
    """At most ``limit`` leases at once; one that is held already is granted again."""
    limit, ask_again = plan.limit, plan.a
    wanted = 0 if mine else cost
    retry = 0 if held + wanted <= limit else ask_again
    return Step(max(0, limit - held), retry, ask_again if held else 0, ask_again, None, None)

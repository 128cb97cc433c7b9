"""The virtual world of a simulation: clock, demand, nodes, and the network between them and the aggregator."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import exp
from random import Random
from statistics import fmean
from typing import Any, Final

from django_throttle.core.commands import Charge
from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule
from django_throttle.local.damper_aggregate import Aggregates
from django_throttle.local.limits import LocalLimits

QUIET: Final = 12.0  # seconds before anything happens
LONG: Final = 30.0  # mean from which a Poisson number is drawn as a normal one
EPOCH: Final = 1_800_000_003.0  # somewhere within a sub-interval
TICK: Final = 0.02
BIN: Final = 0.1  # seconds that are counted as one
JITTER: Final = 0.1  # share of the interval by which a flush is early or late
LATENCY: Final = (0.001, 0.02)  # seconds one way
SHAPES: Final = "step:5x, steady:0.9x, fall:5x-0.8x"
_SHAPE: Final = re.compile(r"(step|steady|fall):(\d{1,3}(?:\.\d{1,9})?)x(?:-(\d{1,3}(?:\.\d{1,9})?)x)?")


@dataclass(frozen=True, slots=True)
class Shape:
    """Demand in multiples of the limit, by seconds; something new is to be settled after each of ``changes_at``."""

    demand: Callable[[float], float]
    changes_at: tuple[float, ...]
    seconds: float


def parse_demand(text: str) -> Shape:
    """A shape by its text, such as "step:5x"; raises ValueError for another."""
    found = _SHAPE.fullmatch(text.strip())
    if found is None or (found[1] == "fall") != (found[3] is not None):
        raise ValueError(f"demand is like {SHAPES}; not {text!r}")
    first, second, falls = float(found[2]), float(found[3] or 0), QUIET + 60
    shapes = {
        "step": Shape(lambda at: first if at >= QUIET else 0.0, (QUIET,), QUIET + 72),
        "steady": Shape(lambda at: first, (), 84),
        "fall": Shape(lambda at: 0 if at < QUIET else first if at < falls else second, (QUIET, falls), falls + 48),
    }
    return shapes[found[1]]


def poisson(random: Random, mean: float) -> int:
    if mean <= 0:
        return 0
    if mean > LONG:
        return max(0, round(random.gauss(mean, mean**0.5)))
    number, product, until = 0, random.random(), exp(-mean)
    while product > until:
        number += 1
        product *= random.random()
    return number


class Even:
    def __init__(self, phase: float) -> None:
        self._rest = phase

    def __call__(self, random: Random, mean: float) -> int:
        number, self._rest = divmod(self._rest + mean, 1)
        return int(number)


@dataclass(frozen=True, slots=True)
class Setting:
    """Parameters of a run.

    ``where`` has the nodes with demand, by default all; ``gap`` is the outage of Redis; ``loss`` is the share of lost
    flushes.
    """

    shape: Shape
    nodes: int = 20
    limit: int = 1000
    interval: float = 2.0
    estimator: str = "fast"
    where: tuple[int, ...] = ()
    gap: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    even: bool = False
    seed: int = 1


@dataclass(slots=True)
class Track:
    """Attempted and admitted cost in each tenth of a second, and in each second the nodes' mean factor."""

    attempted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)


class Node:
    """A process: the very meters that a process has, on a clock of its own."""

    def __init__(self, world: World) -> None:
        setting, self._world = world.setting, world
        self.offset = world.random.uniform(-1e6, 1e6)
        self.limits = LocalLimits(lambda: world.now + self.offset, world.random.random, interval=setting.interval)
        self.limits.processes = setting.nodes
        rule = Rule("account", Rate(setting.limit, 1), algorithm="damper", estimator=setting.estimator)
        self._charge = Charge(rule, "account:1", 1)
        self.factor = 0.0
        world.at(EPOCH + world.random.uniform(0, setting.interval), self.flush)

    def attempt(self) -> bool:
        decision = self.limits.decide_damper(self._charge)
        self.factor = decision.outcomes[0].factor
        return decision.allowed

    def flush(self) -> None:
        world = self._world
        next_at = world.now + world.setting.interval * (1 + world.random.uniform(-JITTER, JITTER))
        self._send()
        self.limits.due_at = next_at + self.offset
        world.at(next_at, self.flush)

    def _send(self) -> None:
        world, setting = self._world, self._world.setting
        sent = [report for batch in self.limits.collect() for report in batch]
        sent_at = world.now + self.offset
        if not sent:
            return
        there = world.now + world.random.uniform(*LATENCY)
        if setting.gap[0] <= there - EPOCH < setting.gap[1] or world.random.random() < setting.loss:
            world.at(there + 0.1, lambda: self.limits.fail(sent))
            return

        def arrive() -> None:
            replies = world.aggregates.damp([report for _, report in sent])
            world.at(world.now + world.random.uniform(*LATENCY), lambda: self._take(sent, replies, sent_at))

        world.at(there, arrive)

    def _take(self, sent: Any, replies: Any, sent_at: float) -> None:
        self.limits.take(sent, replies, sent_at)
        if any(report.sent_at is None for _, report in sent):  # there is more to send at once
            self._send()


class World:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.now = EPOCH
        self.track = Track()
        self.random = Random(setting.seed)
        self.aggregates = Aggregates(lambda: self.now)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._nodes = [Node(self) for _ in range(setting.nodes)]
        busy = [self._nodes[number] for number in setting.where] or self._nodes
        self._busy = [(node, Even(self.random.random()) if setting.even else poisson) for node in busy]

    def at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def run(self) -> Track:
        for tick in range(round(self.setting.shape.seconds / TICK)):
            start = EPOCH + tick * TICK
            while self._events and self._events[0][0] <= start:
                self.now, _, event = heapq.heappop(self._events)
                event()
            if tick % round(BIN / TICK) == 0:
                self.track.attempted.append(0)
                self.track.admitted.append(0)
            if tick % round(1 / TICK) == 0:
                self.track.factors.append(fmean(node.factor for node, _ in self._busy))
            self._attempts(start, tick * TICK)
        return self.track

    def _attempts(self, start: float, at: float) -> None:
        setting, track = self.setting, self.track
        mean = setting.shape.demand(at) * setting.limit * TICK / len(self._busy)
        for node, draw in self._busy:
            comes = draw(self.random, mean)
            admitted = 0
            for place in range(comes):
                self.now = start + TICK * place / comes
                admitted += node.attempt()
            track.attempted[-1] += comes
            track.admitted[-1] += admitted

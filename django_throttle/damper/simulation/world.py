"""The clock, the nodes and the network between them and the aggregator."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule
from django_throttle.damper.simulation.demand import Even, Shape, poisson
from django_throttle.damper.simulation.nodes import Aggregator, Damped, Damping, Linear, Naive, Node, Simple
from django_throttle.exceptions import InvalidSetting

EPOCH: Final = 1_800_000_003.0  # somewhere within a sub-interval
TICK: Final = 0.02
BIN: Final = 0.1  # seconds that are counted as one
JITTER: Final = 0.1  # share of the interval by which a flush is early or late
LATENCY: Final = (0.001, 0.02)  # seconds one way
CONTROLLERS: Final = ("damper", "naive", "linear")


@dataclass(frozen=True, slots=True)
class Setting:
    """One run. ``limit`` is so much a second; ``where`` the nodes that the demand is on, by number (none: all);
    ``alive`` when a node is there, from and until; ``gap`` when Redis is away, from and until; ``loss`` the share of
    flushes that is lost; ``cost`` that of one attempt.
    """

    shape: Shape
    nodes: int = 20
    limit: int = 1000
    interval: float = 2.0
    estimator: str = "fast"
    controller: str = "damper"
    where: tuple[int, ...] = ()
    alive: Sequence[tuple[int, float, float]] = ()
    gap: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    cost: int = 1
    even: bool = False
    seed: int = 1


@dataclass(slots=True)
class Track:
    """What happened in each tenth of a second: attempted and admitted cost, and the nodes' mean factor each second."""

    attempted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    by_node: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # each second
    flushes: int = 0


class World:
    """Runs one setting to its end."""

    def __init__(self, setting: Setting) -> None:
        if setting.controller not in CONTROLLERS:
            raise InvalidSetting(f"a controller is one of {', '.join(CONTROLLERS)}, not {setting.controller!r}")
        self.setting = setting
        self.now = EPOCH
        self.track = Track()
        self._random = Random(setting.seed)  # noqa: S311 - the same seed, the same run
        self._rule = Rule("account", Rate(setting.limit, 1), algorithm="damper", estimator=setting.estimator)
        self._aggregator = self._make_aggregator()
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._nodes = {number: self._make_node(number) for number in range(setting.nodes)}
        self._comes = [Even(self._random.random()) if setting.even else poisson for _ in self._nodes]

    def run(self) -> Track:
        """Every tick: what the network brings, then what clients attempt."""
        bins = round(BIN / TICK)
        ticks = round(self.setting.shape.seconds / TICK)
        for tick in range(ticks):
            start = EPOCH + tick * TICK
            while self._events and self._events[0][0] <= start:
                self.now, _, event = heapq.heappop(self._events)
                event()
            if tick % bins == 0:
                self.track.attempted.append(0)
                self.track.admitted.append(0)
            if tick % round(1 / TICK) == 0:
                self._sample()
            self._attempts(start, tick * TICK)
        return self.track

    def _sample(self) -> None:
        alive = [node for number, node in self._nodes.items() if self._is_busy(number, self.now - EPOCH)]
        self.track.factors.append(sum(node.factor for node in alive) / len(alive) if alive else 0.0)
        for number in self._nodes:
            self.track.by_node.setdefault(number, []).append((0, 0))

    def _attempts(self, start: float, at: float) -> None:
        setting, random = self.setting, self._random
        busy = [number for number in self._nodes if self._is_busy(number, at)]
        if not busy:
            return
        mean = setting.shape.demand(at) * setting.limit * TICK / setting.cost / len(busy)
        for number in busy:
            comes = self._comes[number](random, mean)
            admitted, attempt = 0, self._nodes[number].attempt
            for place in range(comes):
                self.now = start + TICK * place / comes
                if attempt(setting.cost):
                    admitted += 1
            self._note(number, comes * setting.cost, admitted * setting.cost)

    def _note(self, number: int, attempted: int, admitted: int) -> None:
        self.track.attempted[-1] += attempted
        self.track.admitted[-1] += admitted
        before = self.track.by_node[number][-1]
        self.track.by_node[number][-1] = before[0] + attempted, before[1] + admitted

    def _is_busy(self, number: int, at: float) -> bool:
        if self.setting.where and number not in self.setting.where:
            return False
        return all(since <= at < until for which, since, until in self.setting.alive if which == number)

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def _make_node(self, number: int) -> Node:
        setting = self.setting
        offset = self._random.uniform(-1e6, 1e6)
        node: Node
        if setting.controller == "damper":
            node = Damped(self._rule, lambda: self.now + offset, self._random, setting.interval, setting.nodes)
        else:
            node = Simple(self._random)
        self._at(EPOCH + self._random.uniform(0, setting.interval), lambda: self._flush(number, offset))
        return node

    def _make_aggregator(self) -> Aggregator:
        if self.setting.controller == "damper":
            return Damping()
        return (Naive if self.setting.controller == "naive" else Linear)(self.setting.limit)

    def _flush(self, number: int, offset: float) -> None:
        """A node that is gone flushes no more; what it had not told is lost, as after kill -9."""
        setting, node = self.setting, self._nodes[number]
        left = [until for which, _, until in setting.alive if which == number]
        if left and self.now - EPOCH >= max(left):
            return
        spread = setting.interval * (1 + self._random.uniform(-JITTER, JITTER))
        self._send(number, offset)
        if isinstance(node, Damped):
            node.meters.due = self.now + offset + spread
        self._at(self.now + spread, lambda: self._flush(number, offset))

    def _send(self, number: int, offset: float) -> None:
        node, setting = self._nodes[number], self.setting
        sent, sent_at = node.collect(), self.now + offset
        if not sent:
            return
        self.track.flushes += 1
        there = self.now + self._random.uniform(*LATENCY)
        lost = setting.gap[0] <= there - EPOCH < setting.gap[1] or self._random.random() < setting.loss
        if lost:
            self._at(there + 0.1, lambda: node.lose(sent))
            return

        def arrive() -> None:
            replies = self._aggregator.reply(sent, self.now)
            self._at(
                self.now + self._random.uniform(*LATENCY), lambda: self._back(number, offset, sent, replies, sent_at)
            )

        self._at(there, arrive)

    def _back(self, number: int, offset: float, sent: Any, replies: Any, sent_at: float) -> None:
        if self._nodes[number].take(sent, replies, sent_at):
            self._send(number, offset)

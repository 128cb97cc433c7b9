"""The virtual world of a simulation: clock, demand, nodes, and the network between them and the aggregator."""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import exp
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from django_throttle.core.commands import Charge
from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule
from django_throttle.damper.aggregate import KEPT, SUB, Aggregates
from django_throttle.local_limits import LocalLimits

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
    """A shape by its text, such as "step:5x"; raises ValueError for another."""
    found = _SHAPE.fullmatch(text.strip())
    two = found is not None and found[1] in ("fall", "ramp", "bursts")
    if found is None or two != (found[3] is not None):
        raise ValueError(f"demand is like {SHAPES}; not {text!r}")
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


IDENT: Final = "account:1"


class Node(Protocol):
    """Admits or refuses; ``collect`` and ``take`` are the two ends of a flush."""

    @property
    def factor(self) -> float: ...

    def attempt(self, cost: int) -> bool: ...

    def collect(self) -> Any: ...

    def take(self, sent: Any, replies: Any, sent_at: float) -> bool:
        """True when there is more to send at once."""

    def lose(self, sent: Any) -> None: ...


class Damped:
    """Ours: the very meters that a process has."""

    def __init__(self, rule: Rule, clock: Callable[[], float], random: Random, interval: float, nodes: int) -> None:
        self.limits = LocalLimits(clock, random.random, interval=interval)
        self.limits.processes = nodes
        self._charges = {cost: Charge(rule, IDENT, cost) for cost in (1,)}
        self._rule = rule
        self._factor = 0.0

    @property
    def factor(self) -> float:
        return self._factor

    def attempt(self, cost: int) -> bool:
        charge = self._charges.get(cost)
        if charge is None:
            charge = self._charges[cost] = Charge(self._rule, IDENT, cost)
        decision = self.limits.decide_damper(charge)
        self._factor = decision.outcomes[0].factor
        return decision.allowed

    def collect(self) -> Any:
        return [one for batch in self.limits.collect() for one in batch]

    def take(self, sent: Any, replies: Any, sent_at: float) -> bool:
        self.limits.take(sent, replies, sent_at)
        return any(report.sent_at is None for _, report in sent)

    def lose(self, sent: Any) -> None:
        self.limits.fail(sent)


class Told(NamedTuple):
    """What a simple controller reports: since the last flush."""

    attempted: int
    admitted: int


class Simple:
    """Refuses by the factor that the last reply told, and by nothing else."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._attempted = self._admitted = 0
        self._factor = 0.0

    @property
    def factor(self) -> float:
        return self._factor

    def attempt(self, cost: int) -> bool:
        self._attempted += cost
        passes = self._random.random() >= self._factor
        self._admitted += cost if passes else 0
        return passes

    def collect(self) -> Told:
        told = Told(self._attempted, self._admitted)
        self._attempted = self._admitted = 0
        return told

    def take(self, sent: Told, replies: float, sent_at: float) -> bool:
        self._factor = replies
        return False

    def lose(self, sent: Told) -> None:
        """What is lost is lost: it is not told again."""


class Aggregator(Protocol):
    """The far end of a flush."""

    def reply(self, sent: Any, now: float) -> Any: ...


class Damping:
    """Ours: the reference aggregator."""

    def __init__(self) -> None:
        self._now = 0.0
        self._aggregates = Aggregates(lambda: self._now)

    def reply(self, sent: Any, now: float) -> Any:
        self._now = now
        return self._aggregates.damp([report for _, report in sent])


class Mean:
    """A plain moving average over 24 seconds of what arrives, when it arrives.

    ``factor(attempted, admitted)`` computes the factor from both rates, as multiples of the limit.
    """

    def __init__(self, limit: float, factor: Callable[[float, float], float]) -> None:
        self._whole = limit * KEPT * SUB
        self._factor = factor
        self._arrived: deque[tuple[float, Told]] = deque()

    def reply(self, sent: Told, now: float) -> float:
        self._arrived.append((now, sent))
        while self._arrived[0][0] <= now - KEPT * SUB:
            self._arrived.popleft()
        attempted = sum(told.attempted for _, told in self._arrived) / self._whole
        admitted = sum(told.admitted for _, told in self._arrived) / self._whole
        return min(1.0, max(0.0, self._factor(attempted, admitted)))


def naive(attempted: float, admitted: float) -> float:
    """1 - limit ÷ attempted, from a plain average: slow, and what comes late counts late."""
    return 1 - 1 / attempted if attempted else 0.0


def linear(attempted: float, admitted: float) -> float:
    """The authors' first attempt: from nothing at the limit to everything at its double, by what was *admitted*."""
    return admitted - 1


COMPARED: Final = {"naive": naive, "linear": linear}


EPOCH: Final = 1_800_000_003.0  # somewhere within a sub-interval
TICK: Final = 0.02
BIN: Final = 0.1  # seconds that are counted as one
JITTER: Final = 0.1  # share of the interval by which a flush is early or late
LATENCY: Final = (0.001, 0.02)  # seconds one way
CONTROLLERS: Final = ("damper", *COMPARED)


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
            raise ValueError(f"a controller is one of {', '.join(CONTROLLERS)}, not {setting.controller!r}")
        self.setting = setting
        self.now = EPOCH
        self.track = Track()
        self._random = Random(setting.seed)
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
        return Mean(self.setting.limit, COMPARED[self.setting.controller])

    def _flush(self, number: int, offset: float) -> None:
        """A node that is gone flushes no more; what it had not told is lost, as after kill -9."""
        setting, node = self.setting, self._nodes[number]
        left = [until for which, _, until in setting.alive if which == number]
        if left and self.now - EPOCH >= max(left):
            return
        spread = setting.interval * (1 + self._random.uniform(-JITTER, JITTER))
        self._send(number, offset)
        if isinstance(node, Damped):
            node.limits.due = self.now + offset + spread
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

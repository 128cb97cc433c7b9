"""What decides on a node: our meters, and two controllers to compare them with."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from django_throttle.core.command import Charge
from django_throttle.core.rule import Rule
from django_throttle.damper.aggregate import Aggregates
from django_throttle.damper.estimators import KEPT, SUB
from django_throttle.damper.meters import Meters

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
        self.meters = Meters(clock, random.random, interval=interval)
        self.meters.processes = nodes
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
        decision = self.meters.decide(charge)
        self._factor = decision.outcomes[0].factor
        return decision.allowed

    def collect(self) -> Any:
        return self.meters.collect()

    def take(self, sent: Any, replies: Any, sent_at: float) -> bool:
        self.meters.take(sent, replies, sent_at)
        return any(report.sent_at is None for _, report in sent)

    def lose(self, sent: Any) -> None:
        self.meters.fail(sent)


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


class _Mean:
    """A plain moving average over 24 seconds of what arrives, when it arrives."""

    def __init__(self, limit: float) -> None:
        self.limit = limit  # a second
        self._arrived: deque[tuple[float, Told]] = deque()

    def reply(self, sent: Told, now: float) -> float:
        self._arrived.append((now, sent))
        while self._arrived[0][0] <= now - KEPT * SUB:
            self._arrived.popleft()
        attempted = sum(told.attempted for _, told in self._arrived) / (KEPT * SUB)
        admitted = sum(told.admitted for _, told in self._arrived) / (KEPT * SUB)
        return min(1.0, max(0.0, self.factor(attempted, admitted)))

    def factor(self, attempted: float, admitted: float) -> float:
        raise NotImplementedError


class Naive(_Mean):
    """1 - limit ÷ attempted, from a plain average: slow, and what comes late counts late."""

    def factor(self, attempted: float, admitted: float) -> float:
        return 1 - self.limit / attempted if attempted else 0.0


class Linear(_Mean):
    """The authors' first attempt: from nothing at the limit to everything at its double, by what was *achieved*."""

    def factor(self, attempted: float, admitted: float) -> float:
        return admitted / self.limit - 1

"""Who keeps to the limit is never refused, however late reports arrive."""

from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Rule
from django_throttle.core.commands import Charge
from django_throttle.local.damper_aggregate import SUB_INTERVAL_US, Aggregates, Allowance, Reply
from django_throttle.local.damper_meter import Bucket
from django_throttle.local.limits import LocalLimits, MeterReport
from tests.clock import START, FrozenClock

INTERVAL = 2.0
MOST_NODES = 4


class Node:
    """One process, whose clock began some time ago, and what is under way between it and the aggregator."""

    def __init__(self, clock: FrozenClock, began: float, aggregates: Aggregates) -> None:
        self.clock, self.began, self.aggregates = clock, began, aggregates
        # Nobody is lucky: whatever may be refused is.
        self.limits = LocalLimits(self.now, lambda: 0.0, interval=INTERVAL)
        self.outward: list[tuple[list[MeterReport], float]] = []
        self.homeward: list[tuple[list[MeterReport], list[Reply], float]] = []

    def now(self) -> float:
        return (self.clock.now_us - round(self.began * 1_000_000)) / 1_000_000

    def attempt(self, rule: Rule, cost: int = 1) -> bool:
        return self.limits.decide_damper(Charge(rule, "u", cost)).allowed

    def send(self) -> None:
        self.outward += [(sent, self.now()) for sent in self.limits.collect()]

    def arrive(self) -> None:
        if self.outward:
            sent, at = self.outward.pop(0)
            self.homeward.append((sent, self.aggregates.damp([report for _, report in sent]), at))

    def hear(self) -> None:
        if self.homeward:
            self.limits.take(*self.homeward.pop(0))

    def flush(self) -> None:
        self.send()
        self.arrive()
        self.hear()


class Event(NamedTuple):
    """So long after the one before, at one node: an attempt of a cost (0: none), or a step of a report."""

    after: float
    node: int
    cost: int
    step: str


AFTER = st.sampled_from([0.0, 0.0, 0.000_001, 0.01, 0.1, 0.3, 0.7, 2.0, 7.0, 40.0])
STEPS = st.sampled_from(["none", "none", "send", "arrive", "hear", "flush"])
EVENTS = st.lists(st.builds(Event, AFTER, st.integers(0, MOST_NODES - 1), st.integers(0, 7), STEPS), max_size=200)


class Conforming:
    """Lets through what keeps to the limit: so much in each sub-interval, and no burst of one node alone."""

    def __init__(self, rule: Rule) -> None:
        self.allowance = Allowance(rule.params.limit, rule.params.window)
        self.counts: Counter[int] = Counter()
        self.buckets = [Bucket(self.allowance) for _ in range(MOST_NODES)]

    def keeps(self, now_us: int, node: int, cost: int) -> bool:
        index = now_us // SUB_INTERVAL_US
        if self.buckets[node].wait(now_us / 1_000_000) or self.allowance.is_exceeded(self.counts[index] + cost):
            return False
        self.counts[index] += cost
        self.buckets[node].charge(cost)
        return True


def nodes(clock: FrozenClock) -> list[Node]:
    """They know the time exactly: by how much they are mistaken is by how much a sub-interval is."""
    aggregates = Aggregates(clock)
    found = [Node(clock, began, aggregates) for began in (0.0, START - 3.3, 12_345.678_901, -77.0)]
    for node in found:
        node.attempt(Rule("other", "1/s", algorithm="damper"))
        node.flush()
    return found


RULES = [
    Rule("account", "5/s", algorithm="damper"), Rule("account", "5/s", algorithm="damper", estimator="average"),
    Rule("account", "10/min", algorithm="damper"), Rule("account", "1000/s", algorithm="damper"),
]  # fmt: skip


@given(st.sampled_from(RULES), EVENTS, st.floats(0, 6))
def test_nothing_is_refused_within_the_limit(rule: Rule, history: list[Event], phase: float) -> None:
    clock = FrozenClock(START + phase)
    company, conforming = nodes(clock), Conforming(rule)
    for event in history:
        clock.step(event.after)
        node = company[event.node]
        if event.cost and conforming.keeps(clock.now_us, event.node, event.cost):
            assert node.attempt(rule, event.cost)
        getattr(node, event.step, lambda: None)()
        assert not any(meter.factor for meter in node.limits.cache.meters.values())

"""Looks for the history that makes a rule admit the most: what an attacker who knows the algorithm would do.

``exhaust`` tries everything, for plans so small that everything is finite; ``climb`` improves schedules at random,
for real rules. Both use the reference algorithms, on which the stores agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from django_throttle.core import Rule
from django_throttle.core.algorithms import Plan, State, StepResult
from django_throttle.core.algorithms.sliding_window import SlidingWindow
from django_throttle.core.rate import bounds, period_of
from django_throttle.local.store_time import Calendar

# 26 March 2023, the day on which European clocks go forward; a February of 28 days is near.
START = 19_442 * 86_400_000_000
ROUNDS = 100
GENES = 5
PATIENCE = 1000  # calls; enough to empty and refill the buckets that are tried here


class Client:
    """One ident under one rule, with all that it was admitted: (moment, cost)."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.state: State | None = None
        self.admitted: list[tuple[int, int]] = []
        self._calendar = Calendar()

    def ask(self, now: int, cost: int) -> StepResult:
        return self._calendar.plan_at(self.rule, now).step(self.state, now, cost, False)

    def take(self, now: int, cost: int) -> None:
        """Ask, and be charged if it passes."""
        step = self.ask(now, cost)
        if cost and step.charged_state is not None:
            self.state = step.charged_state
            self.admitted.append((now, cost))

    def take_all(self, now: int) -> None:
        """As much as there is."""
        self.take(now, self.ask(now, 0).remaining)

    def take_until(self, now: int, end: int) -> None:
        """As much as there is, again and again as soon as one more fits."""
        for _ in range(PATIENCE):
            if now >= end:
                return
            self.take_all(now)
            now += max(1, self.ask(now, 1).retry)


@dataclass(frozen=True, slots=True)
class Gene:
    """At a moment, take what is there; ``whole`` or a part of it; and go on until ``until`` when that is later."""

    at: int
    whole: bool
    until: int


def worst(admitted: list[tuple[int, int]], span: int) -> int:
    """The most in any half-open span that ends at a call."""
    inside: deque[tuple[int, int]] = deque()
    held = found = 0
    for at, cost in admitted:
        inside.append((at, cost))
        held += cost
        while inside[0][0] <= at - span:
            held -= inside.popleft()[1]
        found = max(found, held)
    return found


def climb(rule: Rule, span: int, seed: int = 1) -> int:
    """The most that some schedule was admitted in a span: schedules are drawn, and changed as long as that helps."""
    random = Random(seed)
    moments = edges(rule)
    best = 0
    for _ in range(4):
        schedule = [gene(random, moments) for _ in range(GENES)]
        score = fitness(rule, span, schedule)
        for _ in range(ROUNDS):
            changed = [*schedule]
            changed[random.randrange(GENES)] = gene(random, moments)
            found = fitness(rule, span, changed)
            if found >= score:
                schedule, score = changed, found
        best = max(best, score)
    return best


def fitness(rule: Rule, span: int, schedule: list[Gene]) -> int:
    client = Client(rule)
    now = 0
    for each in sorted(schedule, key=lambda each: each.at):
        now = max(now, each.at)
        if each.until > now:
            client.take_until(now, each.until)
            now = each.until
        elif each.whole:
            client.take_all(now)
        else:
            client.take(now, 1)
    return worst(client.admitted, span)


def gene(random: Random, moments: list[int]) -> Gene:
    """Near a moment at which something changes, up to some microseconds before or after it."""
    at = random.choice(moments) + random.choice([-3, -2, -1, -1, 0, 0, 1, random.randrange(-1000, 1000)])
    until = random.choice(moments) + random.choice([-1, 0, 1]) if random.random() < 0.2 else 0
    return Gene(at, random.random() < 0.8, until)


def edges(rule: Rule) -> list[int]:
    """The moments at which windows, sub-windows or refills begin, for two windows and a half."""
    plan, window = rule.plan, rule.rate.window_us
    if plan.name == "calendar_window":
        return sorted(calendar_edges(rule))
    step = window if plan.name.startswith("gcra") else plan.numbers[1]
    first = START - START % step
    return [first + number * step for number in range(1, 2 + 5 * window // (2 * step))]


def calendar_edges(rule: Rule) -> Iterator[int]:
    reach = 19 * rule.rate.window_us // 10
    now = START - reach
    while now < START + reach:
        _, now, _ = bounds(period_of(rule.rate) or "", rule.timezone or "UTC", now)
        yield now


def measured_share(rule: Rule) -> Fraction:
    """What a client gets that takes one unit whenever one fits, of what the rate says; the beginning aside."""
    client = Client(rule)
    begin, end, nominal = stretch(rule)
    now = begin - 20 * rule.rate.window_us
    while now < end:
        client.take(now, 1)
        now += client.ask(now, 1).retry
    return Fraction(sum(cost for at, cost in client.admitted if begin <= at < end)) / nominal


def stretch(rule: Rule) -> tuple[int, int, Fraction]:
    """From when until when to measure, and what the rate says of that time."""
    plan, window = rule.plan, rule.rate.window_us
    if plan.name == "calendar_window":
        begin, *_, end = calendar_edges(rule)
        whole = sum(1 for _ in calendar_edges(rule)) - 1
        return begin, end, Fraction(whole * rule.rate.limit)
    # As long as n sub-windows, and so many that they are as many times n + 1.
    cycle = plan.sub_window * plan.n if isinstance(plan, SlidingWindow) else window
    begin, end = START + 20 * cycle, START + (20 + 15 * (rule.resolution + 1)) * cycle
    return begin, end, Fraction((end - begin) * rule.rate.limit, window)


def exhaust(plan: Plan, span: int) -> int:
    """The most in any span under a plan of a few ticks: every cost at every tick, until no new state appears."""
    first = (8 * plan.numbers[1], None, (0,) * span)
    seen, todo, found = {first}, [first], 0
    while todo:
        now, state, past = todo.pop()
        found = max(found, sum(past))
        for charged, cost in outcomes(plan, state, now):
            after = settled(plan, charged, now + 1)
            following = (*after, (*past[1:], cost))
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return found


def outcomes(plan: Plan, state: State | None, now: int) -> Iterator[tuple[State | None, int]]:
    """What one tick may bring: nothing, or any cost that passes. Several calls are one of their sum."""
    yield state, 0
    for cost in range(1, plan.limit + 1):
        step = plan.step(state, now, cost, False)
        if step.charged_state is not None:
            yield step.charged_state, cost


def settled(plan: Plan, state: State | None, now: int) -> tuple[int, State | None]:
    """The same state with the time moved back to one that has been seen; None when it means nothing any more."""
    _, tick, *_ = plan.numbers
    by = now - now % tick - 8 * tick
    if state is None or plan.step(state, now, 0, False).reset == 0:
        return now - by, None
    if plan.name == "sliding_log":
        calls = zip(state[::2], state[1::2], strict=True)
        return now - by, tuple(part for at, cost in calls if at > now - tick for part in (at - by, cost))
    first, *rest = state
    return now - by, (first - (by // tick if plan.name == "sliding_window" else by), *rest)

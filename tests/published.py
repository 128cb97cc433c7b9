"""The table docs/bounds.inc: each rule's stated bound beside the most that a search finds.

The search is for the history that makes a rule admit the most: schedules are drawn, and changed at random as long as
that helps. It uses the reference algorithms, on which the stores agree. ``python -m tests.published`` writes the table
anew; ``tests/docs/test_bounds.py`` fails when it is not current.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any, NamedTuple

from django_throttle.core import Rule
from django_throttle.core.algorithms import State, StepResult
from django_throttle.core.algorithms.sliding_window import SlidingWindow
from django_throttle.core.descriptions import window_in_words
from django_throttle.core.rate import bounds, period_of
from django_throttle.local.store_time import Calendar
from tests.bounds import HOUR, most, share
from tests.pages import DOCS, simple_table

PRINTED = DOCS / "bounds.inc"
HEAD = ("Rule", "In any", "At most", "Found", "Share", "Measured")
SECOND = 1_000_000
MINUTE = 60 * SECOND
# 26 March 2023, the day on which European clocks go forward; a February of 28 days is near.
START = 19_442 * 86_400_000_000
ROUNDS = 100
GENES = 5
PATIENCE = 1000  # calls; enough to empty and refill the buckets that are tried here


class Row(NamedTuple):
    """A rule, the span that is looked at, and what is stated and found of both."""

    rule: Rule
    shape: str
    span: int

    @property
    def at_most(self) -> int:
        return most(self.rule, self.span)

    @property
    def share(self) -> Fraction:
        return share(self.rule)

    def __str__(self) -> str:
        return f"{self.rule.algorithm} {self.rule.rate} {self.shape} {in_words(self)}"


def row(algorithm: str, rate: str, shape: str = "", span: int | None = None, **options: Any) -> Row:
    rule = Rule("rule", rate, algorithm=algorithm, **options)
    return Row(rule, shape, span or rule.rate.window_us)


ROWS = (
    row("fixed_window", "100/min"),
    row("fixed_window", "1000/day", "UTC", timezone="UTC"),
    row("fixed_window", "1000/day", "Berlin", 23 * HOUR, timezone="Europe/Berlin"),
    row("fixed_window", "1000/day", "Berlin", 24 * HOUR, timezone="Europe/Berlin"),
    row("fixed_window", "1000/month", "", 28 * 24 * HOUR),
    row("fixed_window", "1000/month", "", 31 * 24 * HOUR),
    row("sliding_log", "100/min"),
    *(row("sliding_window", "100/min", f"n = {n}", resolution=n) for n in (1, 2, 4, 10)),
    *(
        row("sliding_window", "100/min", f"n = {n}", MINUTE * (n - 1) // n, resolution=n)
        for n in (2, 4, 10)  # one sub-window less than the window
    ),
    row("sliding_window", "100/min", "n = 10", 57 * SECOND, resolution=10),
    row("sliding_window", "5/s", "n = 1"),
    row("sliding_window", "1/min", "n = 1"),
    *(row("sliding_window", "100/min", f"strict, n = {n}", resolution=n, strict=True) for n in (1, 2, 4, 10)),
    row("gcra", "100/min", "B = 1", burst=1),
    row("gcra", "100/min", "B = 20", burst=20),
    row("gcra", "7/min", "B = 7"),
    row("token_bucket", "1000/h", "B = 50", burst=50),
    row("token_bucket", "3/min", "interval, B = 3", refill="interval"),
    row("token_bucket", "10/min", "interval, B = 25", refill="interval", burst=25),
    row("token_bucket", "10/min", "interval, B = 4", refill="interval", burst=4),
    row("leaky_bucket", "60/min", "B = 10", burst=10),
    row("leaky_bucket", "60/min", "queue, B = 10", burst=10, action="delay"),
    row("leaky_bucket", "60/min", "queue, at most 2.5 s", action="delay", max_delay=2.5),
)


class Client:
    """One ident under one rule, with all that it was admitted: (moment, cost)."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.state: State | None = None
        self.admitted: list[tuple[int, int]] = []
        self._calendar = Calendar()

    def ask(self, now: int, cost: int) -> StepResult:
        return self._calendar.params_at(self.rule, now).step(self.state, now, cost, False)

    def take(self, now: int, cost: int) -> None:
        step = self.ask(now, cost)
        if cost and step.charged_state is not None:
            self.state = step.charged_state
            self.admitted.append((now, cost))

    def take_all(self, now: int) -> None:
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
    inside: deque[tuple[int, int]] = deque()
    held = found = 0
    for at, cost in admitted:
        inside.append((at, cost))
        held += cost
        while inside[0][0] <= at - span:
            held -= inside.popleft()[1]
        found = max(found, held)
    return found


@cache
def climb(rule: Rule, span: int) -> int:
    """The most that some schedule was admitted in a span: schedules are drawn, and changed as long as that helps."""
    random = Random(1)
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
    plan, window = rule.params, rule.rate.window_us
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


@cache
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
    plan, window = rule.params, rule.rate.window_us
    if plan.name == "calendar_window":
        begin, *_, end = calendar_edges(rule)
        whole = sum(1 for _ in calendar_edges(rule)) - 1
        return begin, end, Fraction(whole * rule.rate.limit)
    # As long as n sub-windows, and so many that they are as many times n + 1.
    cycle = plan.sub_window * plan.n if isinstance(plan, SlidingWindow) else window
    begin, end = START + 20 * cycle, START + (20 + 15 * (rule.resolution + 1)) * cycle
    return begin, end, Fraction((end - begin) * rule.rate.limit, window)


def table() -> str:
    return simple_table([HEAD, *map(cells, ROWS)])


def cells(row: Row) -> tuple[str, ...]:
    rate = ", ".join(part for part in (str(row.rule.rate), row.shape) if part)
    return (
        f"``{row.rule.algorithm}`` {rate}", in_words(row), f"{row.at_most:,}", f"{climb(row.rule, row.span):,}",
        percent(row.share), percent(measured_share(row.rule)),
    )  # fmt: skip


def in_words(row: Row) -> str:
    if row.span == row.rule.rate.window_us and not row.rule.rate.monthly:
        return window_in_words(row.rule.rate)
    for unit, size in (("days", 24 * HOUR), ("hours", HOUR), ("s", SECOND)):
        if row.span % size == 0:
            return f"{row.span // size} {unit}"
    raise AssertionError("a span is a whole number of seconds")


def percent(share: Fraction) -> str:
    return f"{float(share):.1%}".replace(".0%", "%").replace("%", " %")


if __name__ == "__main__":
    PRINTED.write_text(table(), encoding="utf-8")
    print(table(), end="")

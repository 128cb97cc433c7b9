"""Meters of dampers: each counts every attempt of one ident in this process, and decides which to refuse."""

from __future__ import annotations

import secrets
from collections import deque
from itertools import count, islice
from math import ceil, exp
from typing import Final, NamedTuple

from django_throttle.core.algorithms.base import rate_of
from django_throttle.core.algorithms.damper import MAX_DAMPED
from django_throttle.core.commands import Charge
from django_throttle.core.decision import Decision, Outcome, Reason
from django_throttle.core.rule import Rule
from django_throttle.damper.aggregate import (
    ESTIMATORS,
    KEPT,
    SUB,
    SUB_US,
    Allowance,
    MeterCount,
    Reply,
    Report,
    attempted,
    factor,
    shifted,
)
from django_throttle.store_time import StoreTime, micros

FINE: Final = 0.1  # seconds; the resolution of counts while the store's time is unknown
RECENT: Final = 1.5  # seconds at least from which the recent rate is computed
LEAST: Final = 1.0  # and where the meter is younger than that


class Attempts:
    """Counts attempts by sub-interval; ``current`` is the one in progress. Times are seconds on our clock.

    Reports hold totals of sub-intervals, so a report that is lost or arrives twice changes no count.
    """

    __slots__ = (
        "_before", "_confirmed", "_early", "_index", "_last", "_marks", "_opened", "_unsent", "current", "time",
    )  # fmt: skip

    def __init__(self, time: StoreTime, now: float) -> None:
        self.time = time
        self.restart(now)

    def restart(self, now: float) -> None:
        self.current = 0
        self._index: int | None = None  # of the sub-interval in progress
        self._before = 0  # attempted until it began
        self._last = (0, 0)  # the index and number of one before it
        self._unsent: dict[int, MeterCount] = {}
        self._confirmed: MeterCount | None = None  # of the one in progress
        self._opened = now
        self._early: deque[tuple[float, int]] = deque(maxlen=round(KEPT * SUB_US / 1_000_000 / FINE))
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])  # when, attempted until then

    def roll(self, now: float) -> float:
        """Assign counts to their sub-interval; returns the moment at which to do so again."""
        offset = self.time.offset
        if offset is None:
            self._keep_early()
            self._before, self.current, self._opened = self._before + self.current, 0, now
            return now + FINE
        index = (micros(now) + offset) // SUB_US
        if self._index is None:
            self._align(index, offset)
        if index != self._index:
            self._open(index)
        return ((index + 1) * SUB_US - offset) / 1_000_000

    def unconfirmed(self, now: float) -> tuple[MeterCount, ...]:
        """The counts that the aggregator has not confirmed, once the store's time is known."""
        whole = tuple(self._unsent.values())
        if self._index is None or self.time.offset is None or not (self.current or self._confirmed):
            return whole
        left = (self._index + 1) * SUB_US - micros(now) - self.time.offset
        recent = self._recent(now)
        known = self._confirmed or MeterCount(self._index, 0, 0, 0)
        projected, pace = self.current + round(recent * max(0, left)), round(recent * SUB_US)
        current = MeterCount(self._index, self.current, projected, pace)
        return (*whole, current) if current != known else whole

    @property
    def is_confirmed(self) -> bool:
        return not self.current and not self._unsent and not self._early and self._confirmed is None

    def mark(self, now: float) -> None:
        """Note the present total, from which the recent rate is computed later."""
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT:
            self._marks.popleft()
        self._marks.append((now, self._before + self.current))

    def confirm(self, counts: tuple[MeterCount, ...]) -> None:
        """The aggregator has counted these."""
        for own in counts:
            if own.sub == self._index:
                self._confirmed = own
            elif self._unsent.get(own.sub) == own:
                del self._unsent[own.sub]

    def in_sub(self, now: float) -> int:
        """The most that this process has attempted in one of the latest sub-intervals."""
        index, number = self._last
        if self._index is None:
            return self.current + sum(count for at, count in self._early if at > now - SUB_US / 1_000_000)
        return max(self.current, number if index == self._index - 1 else 0)

    def _recent(self, now: float) -> float:
        """The recent rate, in attempts a microsecond."""
        at, number = self._marks[0]
        for mark in self._marks:
            if mark[0] <= now - RECENT:
                at, number = mark
        return (self._before + self.current - number) / max(now - at, LEAST) / 1_000_000

    def _align(self, index: int, offset: int) -> None:
        """The store's time is known now: assign the early counts to their sub-intervals."""
        self._keep_early()
        found: dict[int, int] = {}
        for at, number in self._early:
            belongs = (micros(at + FINE / 2) + offset) // SUB_US
            found[min(belongs, index)] = found.get(min(belongs, index), 0) + number
        self._early.clear()
        self._before += self.current
        self.current = found.pop(index, 0)
        self._before -= self.current
        whole = {past: MeterCount(past, number, number, 0) for past, number in found.items() if number}
        self._unsent = {past: own for past, own in whole.items() if past > index - KEPT}
        self._index = index

    def _keep_early(self) -> None:
        if self.current:
            self._early.append((self._opened, self.current))

    def _open(self, index: int) -> None:
        assert self._index is not None
        known = self._confirmed or MeterCount(self._index, 0, 0, 0)
        whole = MeterCount(self._index, self.current, self.current, known.pace)
        if whole != known:
            self._unsent[self._index] = whole
        self._last, self._confirmed = whole[:2], None
        self._before += self.current
        again = self._unsent.pop(index, None)  # our clock was corrected, and that one goes on
        self.current = again.attempted if again else 0
        self._before -= self.current
        self._unsent = {past: own for past, own in self._unsent.items() if -KEPT < past - index <= 1}
        self._index = index


# Of the limit, at once: so no process exceeds 1.5 times the limit over two seconds, chance included.
BURST_SECONDS: Final = 0.9
LEAST_BURST: Final = 10.0  # a page's few calls at once, under small limits


class Bucket:
    """A leaky bucket in one process; an attempt that finds it full is refused.

    A costly call passes like a cheap one, and is drained afterwards, within a sub-interval.
    """

    __slots__ = ("_at", "_burst", "_level", "_most", "_per_second")

    def __init__(self, allowance: Allowance) -> None:
        self._level = self._at = 0.0
        self.adopt(allowance)

    def adopt(self, allowance: Allowance) -> None:
        """Adopt another limit."""
        self._per_second = allowance.per_second
        least = min(LEAST_BURST, allowance.per_sub)
        self._burst = max(BURST_SECONDS * self._per_second, least)
        self._most = self._burst + SUB * self._per_second

    def wait(self, now: float) -> float:
        """Seconds until it has room; 0.0 when it has."""
        level = self._level - (now - self._at) * self._per_second
        self._at = now
        self._level = level = level if level > 0.0 else 0.0  # noqa: FURB136 - a call costs more than all of this
        if level < self._burst:
            return 0.0
        self._level = level = min(level, self._most)  # more only after the clock was set back
        return (level - self._burst) / self._per_second + 0.000_001

    def charge(self, cost: float) -> None:
        """Charge a call that passes; ``wait`` was called at the same moment."""
        level = self._level + cost
        self._level = level if level < self._most else self._most  # noqa: FURB136


DECAY: Final = 3.0  # seconds in which the weight of the last factor falls to a third


class Suppression:
    """The factor in force; times are seconds on our clock."""

    __slots__ = ("_allowance", "_failing_from", "_held", "_reply", "_rule", "factor")

    def __init__(self, rule: Rule) -> None:
        self._reply: Reply | None = None
        self._failing_from = float("inf")
        self.factor = 0.0
        self.adopt(rule)

    def adopt(self, rule: Rule) -> None:
        """Adopt this edition of the rule; another limit holds at once."""
        self._rule = rule
        self._allowance = Allowance(rule.plan.limit, rate_of(rule).window_us)
        self._held = self._figure(0)

    def take(self, reply: Reply) -> None:
        """Adopt the aggregator's reply."""
        self._reply, self._failing_from = reply, float("inf")
        self._held = self._figure(0)

    def fail(self, now: float, grace: float) -> None:
        """The aggregator cannot be reached; after ``grace`` seconds the process computes the factor by itself."""
        self._failing_from = min(self._failing_from, now + grace)

    @property
    def is_failing(self) -> bool:
        return self._failing_from < float("inf")

    def recompute(self, now: float, now_us: int | None, own: int, processes: int) -> None:
        """Compute the factor for now; while the store answers, never higher than its last reply makes it.

        ``now_us`` is the store's time, ``own`` what this process attempts in a sub-interval.
        """
        if self.is_failing:
            weight = exp(-max(0.0, now - self._failing_from) / DECAY)
            self.factor = weight * self._held + (1 - weight) * self._alone(own, processes)
            return
        if self._reply is not None and now_us is not None:
            self._held = min(self._held, self._figure(now_us // SUB_US - self._reply.now // SUB_US))
        self.factor = self._held

    @property
    def left(self) -> int:
        """How much of the limit was not attempted, by the last reply."""
        if self._reply is None:
            return self._allowance.limit
        attempted = max(count.attempted for count in self._reply.counts[:2])
        return 0 if self.factor else max(0, int(self._allowance.limit * (1 - attempted / self._allowance.per_sub)))

    def rest(self, now_us: int | None) -> float:
        """Seconds until what the last reply counts has expired, if nothing else happens."""
        if self._reply is None or now_us is None or not any(count.attempted for count in self._reply.counts):
            return 0.0
        _, looks_at = ESTIMATORS[self._rule.estimator]
        return max(0, (self._reply.now // SUB_US + looks_at) * SUB_US - now_us) / 1_000_000

    def _figure(self, later: int) -> float:
        """The factor by the last reply, so many sub-intervals later."""
        if self._reply is None:
            return 0.0
        found = attempted(self._rule.estimator, shifted(self._reply.counts, later), self._allowance)
        return factor(found, self._allowance.per_sub)

    def _alone(self, own: int, processes: int) -> float:
        """The factor that keeps this process to its share of the limit."""
        if self._rule.on_store_failure != "local":
            return 0.0
        return factor(own, self._allowance.per_sub / max(1, processes))


def outcome_of(rule: Rule, ident: str, left: int, wait: float, rest: float, factor: float) -> Outcome:
    """The outcome of a call that passes, or is refused and may be tried again after ``wait`` seconds.

    ``left`` of the limit was not attempted, all of it in ``rest`` seconds.
    """
    reason = Reason.SUPPRESSED if wait else Reason.WITHIN
    given = (rule.name, ident, not wait, rule.plan.limit, left, wait, rest, reason)
    return Outcome(*given, rule.is_shadow, rule.window, factor=factor, unit=rule.unit)


def decided(outcome: Outcome) -> Decision:
    """The decision on a call under this rule alone: as by ``conclude``, in a third of its time."""
    if outcome.shadow:
        return Decision(outcomes=(outcome,))
    _, _, allowed, limit, remaining, retry_after, reset_after, *_ = outcome
    return Decision(allowed, limit, remaining, retry_after, reset_after, outcome.rule, (outcome,))


RECHECK: Final = 0.25  # seconds; how often the factor is computed while the store is unavailable
NEXT: Final = float("inf")  # not before the next factor
GRACE: Final = 2.0  # flushes that may fail before the store counts as unavailable
_numbers: Final = count(1)


class Meter:
    """Decides attempts; times are seconds on our clock. ``maker`` names the process; no two meters share a name."""

    __slots__ = (
        "_maker", "_refused_for", "_refuses", "_rest", "_since", "attempts", "bucket", "factor", "ident", "name",
        "passing_decision", "passing_outcome", "processes", "rule", "seen_at", "suppression", "time", "until",
    )  # fmt: skip

    def __init__(self, rule: Rule, ident: str, maker: str, now: float, time: StoreTime) -> None:
        self.ident, self.time, self._maker = ident, time, maker
        self.rule = rule
        self.attempts = Attempts(time, now)
        self.suppression = Suppression(rule)
        self.bucket = Bucket(Allowance(rule.plan.limit, rate_of(rule).window_us))
        self.processes = 1  # live ones
        self._refused_for = -1  # milliseconds, of the last refusal
        self.until = self.seen_at = now  # from ``until`` on, roll before counting
        self._begin(now)
        self.roll(now)

    def adopt(self, rule: Rule, now: float) -> None:
        """Adopt this edition of the rule; another limit holds at once."""
        self.rule = rule
        self.suppression.adopt(rule)
        self.bucket.adopt(Allowance(rule.plan.limit, rate_of(rule).window_us))
        self._recompute(now)

    def attempt(self, now: float, cost: int, chance: float) -> float:
        """Count an attempt; returns 0.0 when it passes, else the seconds until the bucket has room, or NEXT.

        The bucket is charged with what the factor is expected to admit, so it refuses only where that is more than
        the whole limit: the stricter of the two holds, and they do not compound.
        """
        factor = self.factor
        cost = min(cost, MAX_DAMPED)
        self.attempts.current += cost
        wait = self.bucket.wait(now)
        if wait:
            return wait
        self.bucket.charge(cost * (1.0 - factor))
        return NEXT if chance < factor else 0.0

    def refuses(self, wait: float) -> Decision:
        """The decision on a refused call under this rule alone; ``wait`` is rounded to a millisecond."""
        said = ceil(wait * 1000)
        if said != self._refused_for:
            self._refused_for = said
            wait = said / 1000
            self._refuses = decided(outcome_of(self.rule, self.ident, 0, wait, max(wait, self._rest), self.factor))
        return self._refuses

    def roll(self, now: float) -> None:
        """Assign counts to their sub-interval and compute the factor."""
        self.until = self.attempts.roll(now)
        if self.suppression.is_failing:
            self.until = min(self.until, now + RECHECK)
        self._recompute(now)

    def report(self, now: float) -> Report | None:
        """The report to send; None when the aggregator knows everything, and nothing is suppressed."""
        self.roll(now)
        counts = self.attempts.unconfirmed(now)
        offset = self.time.offset
        if offset is None:
            return None if self.attempts.is_confirmed else Report(self.rule.id, self.ident, self.name, 0, None, ())
        self.attempts.mark(now)
        if not counts and not self.factor:
            return None
        if counts:
            self.seen_at = now
        return Report(self.rule.id, self.ident, self.name, micros(self._since) + offset, micros(now) + offset, counts)

    def take(self, report: Report, reply: Reply, sent: float, now: float) -> None:
        """Adopt the reply to a report that was sent at ``sent``."""
        was_set = self.time.learn(reply.now, sent, now)
        if reply.taken:
            self.attempts.confirm(report.counts)
        elif was_set or reply.reset_at > micros(self._since) + (self.time.offset or 0):
            self._begin(now)
        self.suppression.take(reply)
        self.roll(now)

    def fail(self, now: float, interval: float) -> None:
        """A report may not have arrived; its counts are sent again."""
        self.suppression.fail(now, GRACE * interval)
        self.roll(now)

    def _begin(self, now: float) -> None:
        """Count from nothing, under a new name: earlier counts are void."""
        self.name = f"{self._maker}{next(_numbers):x}"
        self._since = now
        self.attempts.restart(now)

    def _recompute(self, now: float) -> None:
        offset = self.time.offset
        now_us = None if offset is None else micros(now) + offset
        self.suppression.recompute(now, now_us, self.attempts.in_sub(now), self.processes)
        self.factor = self.suppression.factor
        left = self.suppression.left
        self._rest = self.suppression.rest(now_us)
        # Made once here, and returned many times.
        self.passing_outcome = outcome_of(self.rule, self.ident, left, 0.0, self._rest, self.factor)
        self.passing_decision = decided(self.passing_outcome)
        self._refused_for = -1


LOOKS: Final = 16  # meters among which the one to remove is chosen
IDLE: Final = 30.0  # seconds after its last attempts in which a meter is forgotten
ASKS: Final = 60.0  # so long one that suppresses keeps asking, or rare, costly calls of many processes would all pass

Key = tuple[str, str]  # rule id, ident


class MeterReport(NamedTuple):
    """A report to send, and the meter that it is from."""

    meter: Meter
    report: Report


class MeterCache:
    """Meters by rule and ident, under a name that no other process has; times are seconds on our clock."""

    __slots__ = ("_removed", "meters", "most", "name", "time")

    def __init__(self, most: int) -> None:
        self.most = most
        self.time = StoreTime()
        self.name = secrets.token_urlsafe(6)
        self.meters: dict[Key, Meter] = {}  # those that reported longest ago first
        self._removed: list[Meter] = []  # removed for lack of room, with counts that are still to be reported

    def find(self, charge: Charge, now: float) -> Meter:
        rule, ident, _ = charge
        meter = self.meters.get((rule.id, ident)) or self._add(charge, now)
        if meter.rule is not rule:
            meter.adopt(rule, now)
        if now >= meter.until:
            meter.roll(now)
        return meter

    def report(self, key: Key, now: float) -> MeterReport | None:
        """The report of this meter; None when there is nothing new, and after IDLE seconds of that it is forgotten."""
        meter = self.meters.get(key)
        if meter is None:
            return None
        sent = _sent(meter, now, asks=meter.factor > 0 and now - meter.seen_at <= ASKS)
        if sent is not None:
            self.meters[key] = self.meters.pop(key)  # the order is that of the last report
        elif now - meter.seen_at > IDLE:
            del self.meters[key]
        return sent

    def reports_of_removed(self, now: float) -> list[MeterReport]:
        """The reports of removed meters, which stay until everything is confirmed."""
        sent = [one for meter in self._removed if (one := _sent(meter, now))]
        self._removed = [meter for meter, _ in sent]
        return sent

    def _add(self, charge: Charge, now: float) -> Meter:
        if len(self.meters) >= self.most:
            oldest = self.meters.pop(self._least_used())
            if len(self._removed) < self.most and not oldest.attempts.is_confirmed:
                self._removed.append(oldest)
        meter = Meter(charge.rule, charge.ident, self.name, now, self.time.copy())
        self.meters[charge.rule.id, charge.ident] = meter
        return meter

    def _least_used(self) -> Key:
        """The one that reported longest ago, unless it suppresses: many other idents must not end a suppression."""
        found = next((key for key, meter in islice(self.meters.items(), LOOKS) if not meter.factor), None)
        return found or next(iter(self.meters))


def _sent(meter: Meter, now: float, *, asks: bool = False) -> MeterReport | None:
    if meter.attempts.is_confirmed and not asks:
        meter.attempts.mark(now)
        return None
    report = meter.report(now)
    return None if report is None else MeterReport(meter, report)

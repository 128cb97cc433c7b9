"""Meters of dampers: each counts every attempt of one ident in this process, and decides which to refuse."""

from __future__ import annotations

import secrets
from functools import lru_cache
from heapq import heapify, heappush, heappushpop
from itertools import count, islice
from math import ceil, exp, inf
from typing import Final

from django_throttle.core.algorithms.base import rate_of
from django_throttle.core.algorithms.damper import MAX_DAMPER_LIMIT
from django_throttle.core.commands import Charge
from django_throttle.core.decision import Decision, Outcome, Reason
from django_throttle.core.rule import Rule
from django_throttle.local.damper_aggregate import (
    ESTIMATORS,
    KEPT,
    NOTHING,
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
from django_throttle.local.store_time import StoreTime, micros

FINE: Final = 0.1  # seconds; the resolution of counts while the store's time is unknown
MOST_EARLY: Final = round(KEPT * SUB_US / 1_000_000 / FINE)
RECENT: Final = 1.5  # seconds at least from which the recent rate is computed
LEAST: Final = 1.0  # and where the meter is younger than that


class Attempts:
    """Counts attempts by sub-interval; ``current`` is the one in progress. Times are seconds on our clock.

    Reports hold totals of sub-intervals, so a report that is lost or arrives twice changes no count.
    """

    __slots__ = (
        "_before", "_confirmed", "_early", "_index", "_last", "_samples", "_opened", "_unsent", "current", "time",
    )  # fmt: skip

    def __init__(self, time: StoreTime, now: float) -> None:
        self.time = time
        self.restart(now)

    def restart(self, now: float) -> None:
        self.current = 0
        self._index: int | None = None  # of the sub-interval in progress
        self._before = 0  # attempted until it began
        self._last = (0, 0)  # the index and number of one before it
        self._unsent: tuple[MeterCount, ...] = ()  # of past sub-intervals
        self._confirmed: MeterCount | None = None  # of the one in progress
        self._opened = now
        self._early: tuple[tuple[float, int], ...] = ()  # when counted from, how many
        self._samples: tuple[float, ...] = (now, 0)  # when, attempted until then, and so on

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
        whole = self._unsent
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

    @property
    def unsent(self) -> int:
        """How many attempts the aggregator has not confirmed."""
        early, whole = sum([number for _, number in self._early]), sum([own.attempted for own in self._unsent])
        return early + whole + self.current

    def sample(self, now: float) -> None:
        """Note the present total, from which the recent rate is computed later."""
        kept = self._samples
        while len(kept) > 2 and kept[2] <= now - RECENT:
            kept = kept[2:]
        self._samples = (*kept, now, self._before + self.current)

    def confirm(self, counts: tuple[MeterCount, ...]) -> None:
        for own in counts:
            if own.sub == self._index:
                self._confirmed = own
        if self._unsent:
            self._unsent = tuple([own for own in self._unsent if own not in counts])

    def in_sub(self, now: float) -> int:
        """The most that this process has attempted in one of the latest sub-intervals."""
        index, number = self._last
        if self._index is None:
            return self.current + sum(count for at, count in self._early if at > now - SUB_US / 1_000_000)
        return max(self.current, number if index == self._index - 1 else 0)

    def _recent(self, now: float) -> float:
        """The recent rate, in attempts a microsecond."""
        at, number = self._samples[:2]
        for sample in zip(self._samples[::2], self._samples[1::2], strict=True):
            if sample[0] <= now - RECENT:
                at, number = sample
        return (self._before + self.current - number) / max(now - at, LEAST) / 1_000_000

    def _align(self, index: int, offset: int) -> None:
        """The store's time is known now: assign the early counts to their sub-intervals."""
        self._keep_early()
        found: dict[int, int] = {}
        for at, number in self._early:
            belongs = (micros(at + FINE / 2) + offset) // SUB_US
            found[min(belongs, index)] = found.get(min(belongs, index), 0) + number
        self._early = ()
        self._before += self.current
        self.current = found.pop(index, 0)
        self._before -= self.current
        whole = [MeterCount(past, number, number, 0) for past, number in found.items() if number]
        self._unsent = tuple([own for own in whole if own.sub > index - KEPT])
        self._index = index

    def _keep_early(self) -> None:
        if self.current:
            self._early = (*self._early[1 - MOST_EARLY :], (self._opened, self.current))

    def _open(self, index: int) -> None:
        assert self._index is not None
        known = self._confirmed or MeterCount(self._index, 0, 0, 0)
        whole = MeterCount(self._index, self.current, self.current, known.pace)
        unsent = [own for own in self._unsent if own.sub != self._index]
        if whole != known:
            unsent.append(whole)
        self._last, self._confirmed = whole[:2], None
        self._before += self.current
        # Our clock may have been corrected, and that one goes on.
        self.current = sum([own.attempted for own in unsent if own.sub == index])
        self._before -= self.current
        self._unsent = tuple([own for own in unsent if -KEPT < own.sub - index <= 1 and own.sub != index])
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
        self._per_second, self._burst, self._most = _sizes(allowance)

    def level(self, now: float) -> float:
        """How full it is, as a share of what refuses; it refuses from 1 on."""
        return (self._level - max(0.0, now - self._at) * self._per_second) / self._burst

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


@lru_cache(maxsize=1024)
def _sizes(allowance: Allowance) -> tuple[float, float, float]:
    """Of the bucket of each meter under a rule: what drains in a second, the level that refuses, the highest one."""
    per_second = allowance.per_second
    burst = max(BURST_SECONDS * per_second, min(LEAST_BURST, allowance.per_sub))
    return per_second, burst, burst + SUB * per_second


DECAY: Final = 3.0  # seconds in which the weight of the last factor falls to a third
RECHECK: Final = 0.25  # seconds; how often the factor is computed while the store is unavailable
NEXT: Final = inf  # not before the next factor
GRACE: Final = 2.0  # flushes that may fail before the store counts as unavailable
_numbers: Final = count(1)


class Meter:
    """Decides attempts; times are seconds on our clock. ``maker`` names the process; no two meters share a name."""

    __slots__ = (
        "_failing_from", "_held", "_maker", "_refused_for", "_refuses", "_reply", "_rest", "_since", "allowance",
        "attempts", "bucket", "factor", "ident", "name", "passing_decision", "passing_outcome", "processes", "rule",
        "seen_at", "time", "until",
    )  # fmt: skip

    def __init__(self, rule: Rule, ident: str, maker: str, now: float, time: StoreTime) -> None:
        self.ident, self.time, self._maker = ident, time, maker
        self.attempts = Attempts(time, now)
        self._reply: Reply | None = None
        self._failing_from = inf
        self._set_rule(rule)
        self.bucket = Bucket(self.allowance)
        self.processes = 1  # live ones
        self._refused_for = -1  # milliseconds, of the last refusal
        self.until = self.seen_at = now  # from ``until`` on, roll before counting
        self._begin(now)
        self.roll(now)

    def adopt(self, rule: Rule, now: float) -> None:
        self._set_rule(rule)
        self.bucket.adopt(self.allowance)
        self._recompute(now)

    def attempt(self, now: float, cost: int, chance: float) -> float:
        """Count an attempt; returns 0.0 when it passes, else the seconds until the bucket has room, or NEXT.

        The bucket is charged with what the factor is expected to admit, so it refuses only where that is more than
        the whole limit: the stricter of the two holds, and they do not compound.
        """
        factor = self.factor
        cost = min(cost, MAX_DAMPER_LIMIT)
        self.attempts.current += cost
        wait = self.bucket.wait(now)
        if wait:
            return wait
        self.bucket.charge(cost * (1.0 - factor))
        return NEXT if chance < factor else 0.0

    def weight(self, now: float) -> tuple[float, float]:
        """What would be forgotten with this meter: the share that it refuses, and how full its bucket is."""
        return self.factor, self.bucket.level(now)

    def refuses(self, wait: float) -> Decision:
        """The decision on a refused call under this rule alone; ``wait`` is rounded to a millisecond."""
        said = ceil(wait * 1000)
        if said != self._refused_for:
            self._refused_for = said
            wait = said / 1000
            self._refuses = decided(self._outcome(0, wait, max(wait, self._rest)))
        return self._refuses

    def roll(self, now: float) -> None:
        """Assign counts to their sub-interval and compute the factor."""
        self.until = self.attempts.roll(now)
        if self._failing_from < inf:
            self.until = min(self.until, now + RECHECK)
        self._recompute(now)

    def report(self, now: float) -> Report | None:
        """The report to send; None when the aggregator knows everything, and nothing is suppressed."""
        self.roll(now)
        counts = self.attempts.unconfirmed(now)
        offset = self.time.offset
        if offset is None:
            return None if self.attempts.is_confirmed else Report(self.rule.id, self.ident, self.name, 0, None, ())
        self.attempts.sample(now)
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
        counts = tuple([count if any(count) else NOTHING for count in reply.counts])  # most are: kept once
        self._reply, self._failing_from = reply._replace(counts=counts), inf
        self._held = self._figure(0)
        self.roll(now)

    def fail(self, now: float, interval: float) -> None:
        """A report may not have arrived; its counts are sent again.

        After GRACE intervals of that the process computes the factor by itself.
        """
        self._failing_from = min(self._failing_from, now + GRACE * interval)
        self.roll(now)

    def _begin(self, now: float) -> None:
        """Count from nothing, under a new name: earlier counts are void."""
        self.name = f"{self._maker}{next(_numbers):x}"
        self._since = now
        self.attempts.restart(now)

    def _set_rule(self, rule: Rule) -> None:
        self.rule = rule
        self.allowance = _allowance(rule.params.limit, rate_of(rule).window_us)
        self._held = self._figure(0)

    def _recompute(self, now: float) -> None:
        """Compute the factor for now; while the store answers, never higher than its last reply makes it."""
        offset = self.time.offset
        now_us = None if offset is None else micros(now) + offset
        if self._failing_from < inf:
            weight = exp(-max(0.0, now - self._failing_from) / DECAY)
            self.factor = weight * self._held + (1 - weight) * self._alone(now)
        else:
            if self._reply is not None and now_us is not None:
                self._held = min(self._held, self._figure(now_us // SUB_US - self._reply.now // SUB_US))
            self.factor = self._held
        self._rest = self._expires_in(now_us)
        # Made once here, and returned many times.
        self.passing_outcome = self._outcome(self._left(), 0.0, self._rest)
        self.passing_decision = decided(self.passing_outcome)
        self._refused_for = -1

    def _figure(self, later: int) -> float:
        """The factor by the last reply, so many sub-intervals later."""
        if self._reply is None:
            return 0.0
        found = attempted(self.rule.estimator, shifted(self._reply.counts, later), self.allowance)
        return factor(found, self.allowance.per_sub)

    def _alone(self, now: float) -> float:
        """The factor that keeps this process to its share of the limit."""
        if self.rule.on_store_failure != "local":
            return 0.0
        return factor(self.attempts.in_sub(now), self.allowance.per_sub / max(1, self.processes))

    def _left(self) -> int:
        """How much of the limit was not attempted, by the last reply."""
        if self._reply is None:
            return self.allowance.limit
        attempted = max(count.attempted for count in self._reply.counts[:2])
        return 0 if self.factor else max(0, int(self.allowance.limit * (1 - attempted / self.allowance.per_sub)))

    def _expires_in(self, now_us: int | None) -> float:
        """Seconds until what the last reply counts has expired, if nothing else happens."""
        if self._reply is None or now_us is None or not any(count.attempted for count in self._reply.counts):
            return 0.0
        _, looks_at = ESTIMATORS[self.rule.estimator]
        return max(0, (self._reply.now // SUB_US + looks_at) * SUB_US - now_us) / 1_000_000

    def _outcome(self, left: int, wait: float, rest: float) -> Outcome:
        """Of a call that passes, or may be tried again after ``wait`` seconds; all that is not ``left`` in ``rest``."""
        reason = Reason.SUPPRESSED if wait else Reason.WITHIN
        given = (self.rule.name, self.ident, not wait, self.rule.params.limit, left, wait, rest, reason)
        return Outcome(*given, self.rule.is_shadow, self.rule.window, factor=self.factor, unit=self.rule.unit)


_allowance: Final = lru_cache(maxsize=1024)(Allowance)  # one for all meters under a rule


def decided(outcome: Outcome) -> Decision:
    """The decision on a call under this rule alone: as by ``combine_outcomes``, in a third of its time."""
    if outcome.shadow:
        return Decision(outcomes=(outcome,))
    _, _, allowed, limit, remaining, retry_after, reset_after, *_ = outcome
    return Decision(allowed, limit, remaining, retry_after, reset_after, outcome.rule, (outcome,))


HALF_FULL: Final = (0.0, 0.5)  # a meter's weight: nothing is refused
REMOVED_AT_ONCE: Final = 128  # meters; of twice as many
MOST_REMOVED: Final = 1_000  # that are reported yet, and no more: each flush sends them in two round trips
IDLE: Final = 30.0  # seconds after its last attempts in which a meter is forgotten
ASKS: Final = 60.0  # so long one that suppresses keeps asking, or rare, costly calls of many processes would all pass

Key = tuple[str, str]  # rule id, ident
MeterReport = tuple[Meter, Report]  # a report to send, and whose it is


class MeterCache:
    """Meters by rule and ident, under a name that no other process has; times are seconds on our clock."""

    __slots__ = ("_removed", "meters", "most", "name", "time")

    def __init__(self, most: int) -> None:
        self.most = most
        self.time = StoreTime()
        self.name = secrets.token_urlsafe(6)
        self.meters: dict[Key, Meter] = {}  # those that reported longest ago first
        # Removed for lack of room, with counts that are still to be reported: those that had most, as a heap.
        self._removed: list[tuple[int, int, Meter]] = []

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
        found = [(known, one) for known in self._removed if (one := _sent(known[2], now))]
        self._removed = [known for known, _ in found]
        heapify(self._removed)
        return [one for _, one in found]

    def _add(self, charge: Charge, now: float) -> Meter:
        if len(self.meters) >= self.most:
            self._make_room(now)
        meter = Meter(charge.rule, charge.ident, self.name, now, self.time.copy())
        self.meters[charge.rule.id, charge.ident] = meter
        return meter

    def _make_room(self, now: float) -> None:
        """Remove the emptier half of those that reported longest ago.

        Those that suppress, or whose bucket is half full, stay for another turn of all: many other idents must not end
        that.
        """
        count = max(1, min(REMOVED_AT_ONCE, self.most // 4))
        keys = list(islice(self.meters, 2 * count))
        for place, key in enumerate(sorted(keys, key=lambda key: self.meters[key].weight(now))):
            meter = self.meters[key]
            if place < count:
                del self.meters[key]
                if not meter.attempts.is_confirmed:
                    push = heappush if len(self._removed) < MOST_REMOVED else heappushpop
                    push(self._removed, (meter.attempts.unsent, next(_numbers), meter))
            elif meter.weight(now) > HALF_FULL:
                self.meters[key] = self.meters.pop(key)


def _sent(meter: Meter, now: float, *, asks: bool = False) -> MeterReport | None:
    if meter.attempts.is_confirmed and not asks:
        meter.attempts.sample(now)
        return None
    report = meter.report(now)
    return None if report is None else (meter, report)

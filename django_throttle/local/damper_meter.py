"""Meters of dampers: each counts the attempts of an ident in this process, and decides which ones to refuse."""

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
    KEPT_SUB_INTERVALS,
    SUB_INTERVAL_SECONDS,
    SUB_INTERVAL_US,
    ZERO_COUNT,
    Allowance,
    DamperReport,
    MeterCount,
    Reply,
    attempted,
    factor,
    shifted,
)
from django_throttle.local.store_time import StoreTime, micros

EARLY_RESOLUTION_SECONDS: Final = 0.1  # of counts while the store's time is unknown
MAX_EARLY_COUNTS: Final = round(KEPT_SUB_INTERVALS * SUB_INTERVAL_US / 1_000_000 / EARLY_RESOLUTION_SECONDS)
RECENT_SECONDS: Final = 1.5  # minimum period of the recent rate
MIN_RECENT_SECONDS: Final = 1.0  # the same for a younger meter


class Attempts:
    """Counts attempts by sub-interval. Times are seconds on the clock of this process.

    Reports have totals of sub-intervals, so a report that is lost or arrives twice changes no count.
    """

    __slots__ = (
        "_before", "_confirmed", "_early", "_index", "_last", "_samples", "_opened", "_unsent", "current", "time",
    )  # fmt: skip

    def __init__(self, time: StoreTime, now: float) -> None:
        self.time = time
        self.restart(now)

    def restart(self, now: float) -> None:
        self.current = 0  #: attempts in the sub-interval in progress
        self._index: int | None = None  # of the sub-interval in progress
        self._before = 0  # attempts before the sub-interval in progress
        self._last = (0, 0)  # index and attempts of an earlier sub-interval
        self._unsent: tuple[MeterCount, ...] = ()  # of past sub-intervals
        self._confirmed: MeterCount | None = None  # of the sub-interval in progress
        self._opened = now  # begin of the early count in progress
        self._early: tuple[tuple[float, int], ...] = ()  # begin and attempts of each early count
        self._samples: tuple[float, ...] = (now, 0)  # time and attempts until then, in turn

    def roll(self, now: float) -> float:
        """Assign counts to their sub-interval. Return the time at which to do so again."""
        offset = self.time.offset
        if offset is None:
            self._keep_early()
            self._before, self.current, self._opened = self._before + self.current, 0, now
            return now + EARLY_RESOLUTION_SECONDS
        index = (micros(now) + offset) // SUB_INTERVAL_US
        if self._index is None:
            self._align(index, offset)
        if index != self._index:
            self._open(index)
        return ((index + 1) * SUB_INTERVAL_US - offset) / 1_000_000

    def unconfirmed(self, now: float) -> tuple[MeterCount, ...]:
        """Return the counts that the aggregator has not confirmed. Early counts are left out."""
        past = self._unsent
        if self._index is None or self.time.offset is None or not (self.current or self._confirmed):
            return past
        left_us = (self._index + 1) * SUB_INTERVAL_US - micros(now) - self.time.offset
        recent = self._recent(now)
        confirmed = self._confirmed or MeterCount(self._index, 0, 0, 0)
        projected, pace = self.current + round(recent * max(0, left_us)), round(recent * SUB_INTERVAL_US)
        current = MeterCount(self._index, self.current, projected, pace)
        return (*past, current) if current != confirmed else past

    @property
    def is_confirmed(self) -> bool:
        return not self.current and not self._unsent and not self._early and self._confirmed is None

    @property
    def unsent(self) -> int:
        """The number of attempts that the aggregator has not confirmed."""
        early, past = sum([number for _, number in self._early]), sum([count.attempted for count in self._unsent])
        return early + past + self.current

    def sample(self, now: float) -> None:
        """Store the current total, from which the recent rate is computed later."""
        samples = self._samples
        while len(samples) > 2 and samples[2] <= now - RECENT_SECONDS:
            samples = samples[2:]
        self._samples = (*samples, now, self._before + self.current)

    def confirm(self, counts: tuple[MeterCount, ...]) -> None:
        """Note that the aggregator has these counts."""
        for meter_count in counts:
            if meter_count.sub == self._index:
                self._confirmed = meter_count
        if self._unsent:
            self._unsent = tuple([count for count in self._unsent if count not in counts])

    def in_sub(self, now: float) -> int:
        """Return the attempts of this process in the current or the last sub-interval, whichever are more."""
        index, number = self._last
        if self._index is None:
            return self.current + sum(count for at, count in self._early if at > now - SUB_INTERVAL_US / 1_000_000)
        return max(self.current, number if index == self._index - 1 else 0)

    def _recent(self, now: float) -> float:
        """Return the recent rate in attempts per microsecond."""
        at, number = self._samples[:2]
        for sample in zip(self._samples[::2], self._samples[1::2], strict=True):
            if sample[0] <= now - RECENT_SECONDS:
                at, number = sample
        return (self._before + self.current - number) / max(now - at, MIN_RECENT_SECONDS) / 1_000_000

    def _align(self, index: int, offset: int) -> None:
        """Assign the early counts to their sub-intervals, because the store's time is known now."""
        self._keep_early()
        attempts: dict[int, int] = {}
        for at, number in self._early:
            sub = min((micros(at + EARLY_RESOLUTION_SECONDS / 2) + offset) // SUB_INTERVAL_US, index)
            attempts[sub] = attempts.get(sub, 0) + number
        self._early = ()
        self._before += self.current
        self.current = attempts.pop(index, 0)
        self._before -= self.current
        counts = [MeterCount(sub, number, number, 0) for sub, number in attempts.items() if number]
        self._unsent = tuple([count for count in counts if count.sub > index - KEPT_SUB_INTERVALS])
        self._index = index

    def _keep_early(self) -> None:
        if self.current:
            self._early = (*self._early[1 - MAX_EARLY_COUNTS :], (self._opened, self.current))

    def _open(self, index: int) -> None:
        assert self._index is not None
        confirmed = self._confirmed or MeterCount(self._index, 0, 0, 0)
        ended = MeterCount(self._index, self.current, self.current, confirmed.pace)
        unsent = [count for count in self._unsent if count.sub != self._index]
        if ended != confirmed:
            unsent.append(ended)
        self._last, self._confirmed = ended[:2], None
        self._before += self.current
        # If the clock was corrected, the sub-interval may have been counted before, and goes on.
        self.current = sum([count.attempted for count in unsent if count.sub == index])
        self._before -= self.current
        self._unsent = tuple(
            [count for count in unsent if -KEPT_SUB_INTERVALS < count.sub - index <= 1 and count.sub != index]
        )
        self._index = index


# Burst in seconds of the limit. It keeps each process to 1.5 times the limit over two seconds, including chance.
BURST_SECONDS: Final = 0.9
MIN_BURST: Final = 10.0  # calls, so that a page may send some at once under a small limit


class Bucket:
    """A leaky bucket of a process. An attempt is refused while the bucket is full.

    A costly call passes like a cheap one, and drains afterwards within a sub-interval.
    """

    __slots__ = ("_at", "_burst", "_level", "_max_level", "_per_second")

    def __init__(self, allowance: Allowance) -> None:
        self._level = self._at = 0.0
        self.adopt(allowance)

    def adopt(self, allowance: Allowance) -> None:
        self._per_second, self._burst, self._max_level = _sizes(allowance)

    def level(self, now: float) -> float:
        """Return the level as a share of the burst; attempts are refused from 1 on."""
        return (self._level - max(0.0, now - self._at) * self._per_second) / self._burst

    def wait(self, now: float) -> float:
        """Return the seconds until the bucket has room; 0.0 if it has room."""
        level = self._level - (now - self._at) * self._per_second
        self._at = now
        self._level = level = level if level > 0.0 else 0.0  # noqa: FURB136 - a call costs more than all of this
        if level < self._burst:
            return 0.0
        self._level = level = min(level, self._max_level)  # higher only after the clock was set back
        return (level - self._burst) / self._per_second + 0.000_001

    def charge(self, cost: float) -> None:
        """Charge an allowed call. Call ``wait`` with the same time before."""
        level = self._level + cost
        self._level = level if level < self._max_level else self._max_level  # noqa: FURB136


@lru_cache(maxsize=1024)
def _sizes(allowance: Allowance) -> tuple[float, float, float]:
    """Return the sizes of a bucket: units drained per second, level from which it refuses, and highest level."""
    per_second = allowance.per_second
    burst = max(BURST_SECONDS * per_second, min(MIN_BURST, allowance.per_sub))
    return per_second, burst, burst + SUB_INTERVAL_SECONDS * per_second


DECAY_SECONDS: Final = 3.0  # time in which the weight of the last factor falls to a third
RECHECK_SECONDS: Final = 0.25  # interval of computing the factor while the store is unavailable
NEXT_FACTOR: Final = inf  # wait until the next factor
GRACE_FLUSHES: Final = 2.0  # flushes that may fail before the store counts as unavailable
_numbers: Final = count(1)


class DamperMeter:
    """Counts and decides the attempts of an ident under a rule. Times are seconds on the clock of this process.

    ``process_name`` is unique to the process. Each meter has a unique name.
    """

    __slots__ = (
        "_failing_from", "_full_after", "_last_factor", "_process_name", "_refusal", "_refusal_ms", "_reply",
        "_since", "allowance", "attempts", "bucket", "factor", "ident", "name", "passing_decision", "passing_outcome",
        "processes", "rule", "seen_at", "time", "until",
    )  # fmt: skip

    def __init__(self, rule: Rule, ident: str, process_name: str, now: float, time: StoreTime) -> None:
        self.ident, self.time, self._process_name = ident, time, process_name
        self.attempts = Attempts(time, now)
        self._reply: Reply | None = None
        self._failing_from = inf
        self._set_rule(rule)
        self.bucket = Bucket(self.allowance)
        self.processes = 1  #: number of live processes
        self._refusal_ms = -1  # wait of the cached refusal, in milliseconds
        self.until = self.seen_at = now  # call ``roll`` before counting from ``until`` on
        self._begin(now)
        self.roll(now)

    def adopt(self, rule: Rule, now: float) -> None:
        self._set_rule(rule)
        self.bucket.adopt(self.allowance)
        self._recompute(now)

    def attempt(self, now: float, cost: int, chance: float) -> float:
        """Count an attempt. Return 0.0 if it is allowed, else the seconds until the bucket has room, or NEXT_FACTOR.

        The bucket is charged with the cost that the factor is expected to allow. So it refuses only if that exceeds
        the whole limit: the stricter of the two applies, and they do not compound.
        """
        factor = self.factor
        cost = min(cost, MAX_DAMPER_LIMIT)
        self.attempts.current += cost
        wait = self.bucket.wait(now)
        if wait:
            return wait
        self.bucket.charge(cost * (1.0 - factor))
        return NEXT_FACTOR if chance < factor else 0.0

    def weight(self, now: float) -> tuple[float, float]:
        """Return the importance of the meter: the share that it refuses, and the level of its bucket."""
        return self.factor, self.bucket.level(now)

    def refusal_after(self, wait: float) -> Decision:
        """Return the decision on a refused call under this rule alone. ``wait`` is rounded up to a millisecond."""
        wait_ms = ceil(wait * 1000)
        if wait_ms != self._refusal_ms:
            self._refusal_ms = wait_ms
            wait = wait_ms / 1000
            self._refusal = damper_decision(self._outcome(0, wait, max(wait, self._full_after)))
        return self._refusal

    def roll(self, now: float) -> None:
        """Assign counts to their sub-interval and compute the factor."""
        self.until = self.attempts.roll(now)
        if self._failing_from < inf:
            self.until = min(self.until, now + RECHECK_SECONDS)
        self._recompute(now)

    def report(self, now: float) -> DamperReport | None:
        """Return the report to send; None if the aggregator has all counts and nothing is suppressed."""
        self.roll(now)
        counts = self.attempts.unconfirmed(now)
        offset = self.time.offset
        if offset is None:
            if self.attempts.is_confirmed:
                return None
            return DamperReport(self.rule.id, self.ident, self.name, 0, None, ())
        self.attempts.sample(now)
        if not counts and not self.factor:
            return None
        if counts:
            self.seen_at = now
        since, sent_at = micros(self._since) + offset, micros(now) + offset
        return DamperReport(self.rule.id, self.ident, self.name, since, sent_at, counts)

    def take(self, report: DamperReport, reply: Reply, sent: float, now: float) -> None:
        """Process the reply to a report that was sent at the time ``sent``."""
        was_set = self.time.learn(reply.now, sent, now)
        if reply.accepted:
            self.attempts.confirm(report.counts)
        elif was_set or reply.reset_at > micros(self._since) + (self.time.offset or 0):
            self._begin(now)
        counts = tuple([count if any(count) else ZERO_COUNT for count in reply.counts])  # shares the common object
        self._reply, self._failing_from = reply._replace(counts=counts), inf
        self._last_factor = self._factor_after(0)
        self.roll(now)

    def fail(self, now: float, interval: float) -> None:
        """Note that a report may not have arrived; its counts are sent again.

        After GRACE_FLUSHES intervals the process computes the factor by itself.
        """
        self._failing_from = min(self._failing_from, now + GRACE_FLUSHES * interval)
        self.roll(now)

    def _begin(self, now: float) -> None:
        """Start counting from zero under a new name, because earlier counts are void."""
        self.name = f"{self._process_name}{next(_numbers):x}"
        self._since = now
        self.attempts.restart(now)

    def _set_rule(self, rule: Rule) -> None:
        self.rule = rule
        self.allowance = _allowance(rule.params.limit, rate_of(rule).window_us)
        self._last_factor = self._factor_after(0)

    def _recompute(self, now: float) -> None:
        """Compute the factor. While the store answers, the factor never exceeds that of its last reply."""
        offset = self.time.offset
        now_us = None if offset is None else micros(now) + offset
        if self._failing_from < inf:
            weight = exp(-max(0.0, now - self._failing_from) / DECAY_SECONDS)
            self.factor = weight * self._last_factor + (1 - weight) * self._local_factor(now)
        else:
            if self._reply is not None and now_us is not None:
                self._last_factor = min(
                    self._last_factor,
                    self._factor_after(now_us // SUB_INTERVAL_US - self._reply.now // SUB_INTERVAL_US),
                )
            self.factor = self._last_factor
        self._full_after = self._expires_in(now_us)
        # Made here, because they are returned many times.
        self.passing_outcome = self._outcome(self._remaining(), 0.0, self._full_after)
        self.passing_decision = damper_decision(self.passing_outcome)
        self._refusal_ms = -1

    def _factor_after(self, later: int) -> float:
        """Return the factor by the last reply, so many sub-intervals later."""
        if self._reply is None:
            return 0.0
        attempts = attempted(self.rule.estimator, shifted(self._reply.counts, later), self.allowance)
        return factor(attempts, self.allowance.per_sub)

    def _local_factor(self, now: float) -> float:
        """Return the factor that keeps this process to its share of the limit."""
        if self.rule.on_store_failure != "local":
            return 0.0
        return factor(self.attempts.in_sub(now), self.allowance.per_sub / max(1, self.processes))

    def _remaining(self) -> int:
        """Return the units of the limit that were not attempted, by the last reply."""
        if self._reply is None:
            return self.allowance.limit
        attempted = max(count.attempted for count in self._reply.counts[:2])
        return 0 if self.factor else max(0, int(self.allowance.limit * (1 - attempted / self.allowance.per_sub)))

    def _expires_in(self, now_us: int | None) -> float:
        """Return the seconds until the counts of the last reply expire, if nothing else is attempted."""
        if self._reply is None or now_us is None or not any(count.attempted for count in self._reply.counts):
            return 0.0
        _, sub_intervals = ESTIMATORS[self.rule.estimator]
        return max(0, (self._reply.now // SUB_INTERVAL_US + sub_intervals) * SUB_INTERVAL_US - now_us) / 1_000_000

    def _outcome(self, remaining: int, retry_after: float, reset_after: float) -> Outcome:
        rule = self.rule
        return Outcome(
            rule.name,
            self.ident,
            not retry_after,
            rule.params.limit,
            remaining,
            retry_after,
            reset_after,
            Reason.SUPPRESSED if retry_after else Reason.WITHIN,
            rule.is_shadow,
            rule.window,
            factor=self.factor,
            unit=rule.unit,
        )


_allowance: Final = lru_cache(maxsize=1024)(Allowance)  # one for all meters under a rule


def damper_decision(outcome: Outcome) -> Decision:
    """Return the decision on a call under a damper alone, as ``combine_outcomes`` does, in a third of its time."""
    if outcome.shadow:
        return Decision(outcomes=(outcome,))
    _, _, allowed, limit, remaining, retry_after, reset_after, *_ = outcome
    return Decision(allowed, limit, remaining, retry_after, reset_after, outcome.rule, (outcome,))


HALF_FULL_WEIGHT: Final = (0.0, 0.5)  # weight of a meter that refuses nothing and has a half full bucket
MAX_EVICTED_METERS: Final = 128  # at once, chosen from twice as many
MAX_REMOVED_METERS: Final = 1_000  # with counts to report, which each flush sends in two round trips
IDLE_SECONDS: Final = 30.0  # time after the last attempts at which a meter is removed
# How long a suppressing meter without attempts sends reports. Else rare, costly calls of many processes would all pass.
ASKING_SECONDS: Final = 60.0

Key = tuple[str, str]  # rule id, ident
MeterReport = tuple[DamperMeter, DamperReport]


class MeterCache:
    """The meters of a process by rule and ident. Times are seconds on the clock of this process."""

    __slots__ = ("_removed", "max_meters", "meters", "name", "time")

    def __init__(self, max_meters: int) -> None:
        self.max_meters = max_meters
        self.time = StoreTime()
        self.name = secrets.token_urlsafe(6)  #: unique to this process
        self.meters: dict[Key, DamperMeter] = {}  #: in the order of their last reports
        # Heap of meters removed for lack of room that have counts to report, with the numbers of these.
        self._removed: list[tuple[int, int, DamperMeter]] = []

    def find(self, charge: Charge, now: float) -> DamperMeter:
        rule, ident, _ = charge
        meter = self.meters.get((rule.id, ident)) or self._add(charge, now)
        if meter.rule is not rule:
            meter.adopt(rule, now)
        if now >= meter.until:
            meter.roll(now)
        return meter

    def report(self, key: Key, now: float) -> MeterReport | None:
        """Return the report of a meter; None if there is nothing new. Remove the meter if it is idle."""
        meter = self.meters.get(key)
        if meter is None:
            return None
        report = _report_of(meter, now, asks=meter.factor > 0 and now - meter.seen_at <= ASKING_SECONDS)
        if report is not None:
            self.meters[key] = self.meters.pop(key)  # move it to the end
        elif now - meter.seen_at > IDLE_SECONDS:
            del self.meters[key]
        return report

    def reports_of_removed(self, now: float) -> list[MeterReport]:
        """Return the reports of removed meters. A meter is dropped once all its counts are confirmed."""
        rows = [(entry, report) for entry in self._removed if (report := _report_of(entry[2], now))]
        self._removed = [entry for entry, _ in rows]
        heapify(self._removed)
        return [report for _, report in rows]

    def _add(self, charge: Charge, now: float) -> DamperMeter:
        if len(self.meters) >= self.max_meters:
            self._make_room(now)
        meter = DamperMeter(charge.rule, charge.ident, self.name, now, self.time.copy())
        self.meters[charge.rule.id, charge.ident] = meter
        return meter

    def _make_room(self, now: float) -> None:
        """Remove the less important half of the meters that reported longest ago.

        Meters that suppress, or whose bucket is half full, move to the end. So a flood of other idents does not remove
        them.
        """
        count = max(1, min(MAX_EVICTED_METERS, self.max_meters // 4))
        keys = list(islice(self.meters, 2 * count))
        for place, key in enumerate(sorted(keys, key=lambda key: self.meters[key].weight(now))):
            meter = self.meters[key]
            if place < count:
                del self.meters[key]
                if not meter.attempts.is_confirmed:
                    push = heappush if len(self._removed) < MAX_REMOVED_METERS else heappushpop
                    push(self._removed, (meter.attempts.unsent, next(_numbers), meter))
            elif meter.weight(now) > HALF_FULL_WEIGHT:
                self.meters[key] = self.meters.pop(key)


def _report_of(meter: DamperMeter, now: float, *, asks: bool = False) -> MeterReport | None:
    if meter.attempts.is_confirmed and not asks:
        meter.attempts.sample(now)
        return None
    report = meter.report(now)
    return None if report is None else (meter, report)

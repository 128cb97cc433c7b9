"""Recorder of the decisions of this process: numbers by rule and minute, the most refused idents, and a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from math import frexp
from threading import Lock
from time import perf_counter
from typing import Final, NamedTuple, TypeVar

from django.core.signals import setting_changed
from django.utils import timezone

from django_throttle.console.recording import cells, redis_keys
from django_throttle.console.recording.bounded_sample import RANKS, BoundedSample, random_rank, ranks_of
from django_throttle.console.recording.heavy_hitters import HeavyHitters
from django_throttle.console.route_costs import route_costs
from django_throttle.core import Decision
from django_throttle.core.commands import Charges, RuleSet, forget_charges
from django_throttle.core.decision import Outcome
from django_throttle.core.key import EVERYONE
from django_throttle.core.overrides import CANDIDATE_SUFFIX
from django_throttle.costs.meter import Meter
from django_throttle.identity.call import Call
from django_throttle.observe import Recorder
from django_throttle.runtime import in_child

MAX_UNCOUNTED_CALLS: Final = 500
MAX_CELLS: Final = 5000  # unsent cells of rules and minutes
MAX_RANKINGS: Final = 1000  # unsent rankings of rules and hours
#: Factor by which the share of a sample grows in a new slot, so that it recovers within a few slots after a busy one.
RELAXATION: Final = 64
MAX_TEXT_CHARS: Final = 100  # of a scope, method, event or rule in a sample


class DecisionSample(NamedTuple):
    """Decision in a sample."""

    at: float  #: in seconds since 1970
    scope: str
    method: str
    event: str
    outcome: str
    rule: str
    reason: str
    cost: int
    idents: dict[str, list[str]]  #: names of the rules that count under each ident


T = TypeVar("T")
# Charges, scope, method, events, and start and end of the call on the clock of perf_counter.
AllowedCall = tuple[Charges, str, str, tuple[str, ...], float, float]
# Decision, scope, method, events, cost, duration of the decision in seconds, and its time.
OtherCall = tuple[Decision, str, str, tuple[str, ...], int, float, datetime]
Samples = dict[tuple[str, int], BoundedSample[DecisionSample]]


@dataclass(slots=True)
class Records:
    """Records of a process."""

    cells: dict[tuple[str, int], cells.Cell] = field(default_factory=dict)  #: by rule and minute, in seconds since 1970
    rankings: dict[tuple[str, int], HeavyHitters] = field(default_factory=dict)  #: by rule and hour
    #: Samples by stratum and slot. "whole" has all calls of some idents, "refused" some refusals of all idents.
    samples: Samples = field(default_factory=dict)


class DecisionRecorder(Recorder):
    """Decisions of this process that were not sent yet. Thread-safe.

    A call adds a tuple to a list. Up to MAX_UNCOUNTED_CALLS calls are counted together, or those there are when the
    records are taken. Memory is bounded: beyond MAX_CELLS, numbers are added to an older minute of the same rule, or to
    ``OTHERS``, so that sums stay right.
    """

    def __init__(self) -> None:
        self.reset()
        in_child(self, type(self).reset)
        setting_changed.connect(self._forget)

    def reset(self) -> None:
        self._lock = Lock()
        self.reading = Lock()  #: held by ``own_records`` while it takes records
        # These lists are never replaced, because another thread may append to them at any time.
        self._allowed: list[AllowedCall] = []
        self._others: list[OtherCall] = []
        self._names: dict[RuleSet, list[tuple[str, int]]] = {}
        self._records = Records()
        self._minute = 0
        self._newest: dict[str, tuple[int, BoundedSample[DecisionSample]]] = {}  # by stratum: newest slot, its sample
        self._allowed_counts: Counter[tuple[RuleSet, tuple[int, ...], int]] = Counter()  # of this minute

    def _forget(self, *, setting: str, **_: object) -> None:
        if setting in ("DJANGO_THROTTLE", "SECRET_KEY"):
            forget_charges()  # ranks depend on the secret

    def record_allowed(self, charges: Charges, scope: str, method: str, events: tuple[str, ...], began: float) -> None:
        """Record a call that was allowed at once. ``began`` is on the clock of perf_counter."""
        allowed = self._allowed
        allowed.append((charges, scope, method, events, began, perf_counter()))
        if len(allowed) >= MAX_UNCOUNTED_CALLS:
            self._count()

    def record(self, call: Call, decision: Decision, seconds: float) -> None:
        others = self._others  # not the call itself, which references the request
        others.append((decision, call.scope, call.method, call.events, call.cost, seconds, timezone.now()))
        if len(others) >= MAX_UNCOUNTED_CALLS:
            self._count()

    def record_request(self, scope: str, meter: Meter) -> None:
        route_costs.add(scope, meter)

    def take(self) -> Records:
        """Return all records, and remove them here. The samples of this slot keep their bounds."""
        self._count()
        with self._lock:
            self._fold()
            records, self._records = self._records, Records()
            return records

    def limit(self, stratum: str, slot: int, bound: int, full: Iterable[int]) -> None:
        """Sample only ranks below the bound, without the full ranks, because all processes together have too many."""
        with self._lock:
            newest, sample = self._newest.get(stratum, (0, None))
            samples = self._records.samples.get((stratum, slot)), sample if newest == slot else None
            for current_sample in filter(None, samples):
                current_sample.limit(bound, full)

    def _count(self) -> None:
        """Count the calls in the lists, mostly by functions of Python that are written in C."""
        with self._lock:
            calls, others = _take_all(self._allowed), _take_all(self._others)
            if not (calls or others):
                return
            self._count_allowed(calls)
            for decision, scope, method, events, cost, seconds, time in others:
                if decision.outcomes:
                    at = time.timestamp()
                    self._count_other(decision, cost, seconds, int(at))
                    self._sample(decision, scope, method, events, cost, at)

    def _count_allowed(self, calls: Sequence[AllowedCall]) -> None:
        wall_time, now = timezone.now().timestamp(), perf_counter()
        minute = int(wall_time) // cells.MINUTE * cells.MINUTE
        if minute != self._minute or len(self._allowed_counts) > MAX_CELLS:
            self._fold()
            self._minute = minute
        self._allowed_counts.update(
            [(charges.rules, charges.costs, frexp(ended - began)[1]) for charges, _, _, _, began, ended in calls]
        )
        self._sample_allowed(calls, wall_time - now)

    def _count_other(self, decision: Decision, cost: int, seconds: float, at: int) -> None:
        records, bucket, minute = self._records, cells.bucket_of(seconds), at // cells.MINUTE * cells.MINUTE
        by_rule = _by_rule(decision.outcomes)
        for rule, outcome in by_rule.items():
            cell = _cell(records, rule, minute)
            for code, number in _numbers(outcome, cost, decision.degraded):
                cell[code] = cell.get(code, 0) + number
            cell[bucket] = cell.get(bucket, 0) + 1
            if rule.endswith(CANDIDATE_SUFFIX) and not outcome.shadow:
                cell[cells.ENFORCED] = cell.get(cells.ENFORCED, 0) + 1
            if outcome.allowed:
                continue
            if outcome.ident:
                _ranking(records, rule, at // cells.HOUR * cells.HOUR).add(outcome.ident)
            live = by_rule.get(rule.removesuffix(CANDIDATE_SUFFIX)) if rule.endswith(CANDIDATE_SUFFIX) else None
            if live is not None and not live.allowed:
                cell[cells.BOTH] = cell.get(cells.BOTH, 0) + 1

    def _fold(self) -> None:
        """Add the numbers of allowed calls to cells."""
        for (rules, costs, exponent), number in self._allowed_counts.items():
            bucket = cells.exponent_code(exponent)
            for name, index in self._names_of(rules):
                cell, extra = _cell(self._records, name, self._minute), (costs[index] - 1) * number
                if name.endswith(CANDIDATE_SUFFIX) and not rules.rules[index].is_shadow:
                    cell[cells.ENFORCED] = cell.get(cells.ENFORCED, 0) + number
                cell[bucket] = cell.get(bucket, 0) + number
                if extra > 0:
                    cell[cells.EXTRA] = cell.get(cells.EXTRA, 0) + extra
                elif extra:
                    cell[cells.FREE] = cell.get(cells.FREE, 0) + number
        self._allowed_counts.clear()

    def _names_of(self, rules: RuleSet) -> list[tuple[str, int]]:
        """Return the names of these rules, each with the index of its first rate, which stands for the rule."""
        names = self._names.get(rules)
        if names is None:
            if len(self._names) >= MAX_RANKINGS:
                self._names.clear()
            indexes: dict[str, int] = {}
            for index, rule in enumerate(rules.rules):
                indexes.setdefault(rule.name, index)
            names = self._names[rules] = list(indexes.items())
        return names

    def _sample_allowed(self, calls: Sequence[AllowedCall], offset: float) -> None:
        """Offer the calls to the sample that have an ident with a rank below its bound."""
        whole = self._sample_of("whole", offset + perf_counter())
        for rank, (charges, scope, method, events, began, _) in ranked(calls, whole.bound):
            idents: dict[str, list[str]] = {}
            for rule, ident in zip(charges.rules.rules, charges.idents, strict=True):
                idents.setdefault(ident, []).append(rule.name)
            event = events[0] if events else ""
            decision = DecisionSample(
                began + offset, scope, method, event, "allowed", "", "within", max(charges.costs), idents
            )
            whole.offer(rank, _shortened(decision))

    def _sample(
        self, decision: Decision, scope: str, method: str, events: tuple[str, ...], cost: int, at: float
    ) -> None:
        whole, refused = self._sample_of("whole", at), self._sample_of("refused", at)
        idents = {outcome.ident for outcome in decision.outcomes if outcome.ident}
        rank = min(ranks_of([*(idents - {EVERYONE} or idents)]), default=RANKS)
        refusal_rank = RANKS if decision.allowed else random_rank()
        if rank < whole.bound or refusal_rank < refused.bound:
            sample = _decision_sample(decision, scope, method, events, cost, at)
            whole.offer(rank, sample)
            refused.offer(refusal_rank, sample)

    def _sample_of(self, stratum: str, at: float) -> BoundedSample[DecisionSample]:
        """Return the sample of the slot of this time. In a new slot, relax the bound of the newest sample."""
        samples, slot = self._records.samples, int(at) // redis_keys.SLOT
        if (stratum, slot) not in samples:
            default = slot, BoundedSample[DecisionSample](redis_keys.MAX_RECENT_ENTRIES[stratum])
            newest, last = self._newest.get(stratum, default)
            if slot <= newest:
                sample = last.successor()
            else:
                sample = BoundedSample(last.max_entries, min(RANKS, last.bound * RELAXATION))
            samples[stratum, slot] = sample
            if slot >= newest:
                self._newest[stratum] = slot, sample
                thin_older(samples, slot)
        return samples[stratum, slot]


def thin_older(samples: Samples, slot: int) -> None:
    """Thin samples of more than an hour before this slot, and delete samples of more than a day before."""
    for stratum, number in [*samples]:
        if number < slot - redis_keys.SLOTS:
            del samples[stratum, number]
        elif number <= slot - redis_keys.RECENT_SLOTS:
            samples[stratum, number].thin(redis_keys.MAX_OLDER_ENTRIES[stratum])


def _take_all(entries: list[T]) -> list[T]:
    """Remove all entries and return them. Keep entries that another thread adds in the meantime."""
    taken = entries[: len(entries)]
    del entries[: len(taken)]
    return taken


def ranked(calls: Sequence[AllowedCall], bound: int) -> Iterable[tuple[int, AllowedCall]]:
    """Return the calls with an ident of a rank below the bound, and the lowest rank of their idents.

    The ident of everyone has a rank only for calls without another ident.
    """
    unranked = [charges for charges, *_ in calls if charges.sample_rank is None]
    ranked_idents = [({*charges.idents} - {EVERYONE}) or {*charges.idents} for charges in unranked]
    ranks = iter(ranks_of([*chain.from_iterable(ranked_idents)]))
    for charges, idents in zip(unranked, ranked_idents, strict=True):
        charges.sample_rank = min(islice(ranks, len(idents)), default=RANKS)
    return [(rank, call) for call in calls if (rank := call[0].sample_rank) is not None and rank < bound]


recorder: Final = DecisionRecorder()


def _numbers(outcome: Outcome, cost: int, degraded: bool) -> Iterator[tuple[int, int]]:
    """Yield the codes and numbers that an outcome adds to its rule's cell."""
    if not (outcome.allowed or outcome.shadow):
        yield cells.CODES[outcome.reason], 1
        return
    if cost > 1:
        yield cells.EXTRA, cost - 1
    elif cost == 0:
        yield cells.FREE, 1
    if not outcome.allowed:
        yield cells.SHADOWED, 1
    if degraded:
        yield cells.DEGRADED, 1


def _cell(records: Records, rule: str, minute: int) -> cells.Cell:
    by_key = records.cells
    cell = by_key.get((rule, minute))
    if cell is None:
        if len(by_key) >= MAX_CELLS:
            older = next((key for key in reversed(by_key) if key[0] == rule), (cells.OTHERS, minute))
            return by_key.setdefault(older, {})
        cell = by_key[rule, minute] = {}
    return cell


def _ranking(records: Records, rule: str, hour: int) -> HeavyHitters:
    rankings = records.rankings
    if (rule, hour) not in rankings and len(rankings) >= MAX_RANKINGS:
        rule = cells.OTHERS
    return rankings.setdefault((rule, hour), HeavyHitters())


def _by_rule(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """Return an outcome for each rule: the refusing one if it has several rates."""
    by_rule: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.rule not in by_rule or (by_rule[outcome.rule].allowed and not outcome.allowed):
            by_rule[outcome.rule] = outcome
    return by_rule


def _decision_sample(
    decision: Decision, scope: str, method: str, events: tuple[str, ...], cost: int, at: float
) -> DecisionSample:
    refusals = (outcome for outcome in decision.outcomes if not outcome.allowed and outcome.shadow == decision.allowed)
    refusal = next(refusals, None)
    idents: dict[str, list[str]] = {}
    for outcome in decision.outcomes:
        if outcome.ident:
            idents.setdefault(outcome.ident, []).append(outcome.rule)
    rule, reason, verdict = "", "within", "allowed"
    if refusal is not None:
        rule, reason, verdict = refusal.rule, refusal.reason.value, refusal.verdict
    event = events[0] if events else ""
    return _shortened(DecisionSample(at, scope, method, event, verdict, rule, reason, cost, idents))


def _shortened(sample: DecisionSample) -> DecisionSample:
    texts = sample.scope, sample.method, sample.event, sample.rule
    scope, method, event, rule = (text[:MAX_TEXT_CHARS] for text in texts)
    return sample._replace(scope=scope, method=method, event=event, rule=rule)

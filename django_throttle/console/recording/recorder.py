"""Counts what is decided in this process: numbers by rule and minute, the most refused idents, and a sample."""

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

from django_throttle.console.recording import cells, places
from django_throttle.console.recording.heavy_hitters import HeavyHitters
from django_throttle.console.recording.thinning import RANKS, Thinned, random_rank, ranks_of
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

MOST_WAITING: Final = 500
MOST_CELLS: Final = 5000  # of rules and minutes that were not sent
MOST_RANKINGS: Final = 1000  # of rules and hours
# How much larger the share of a sample is when a new time begins: one that was busy is forgotten in a few of them.
RELAXATION: Final = 64
LONGEST_TEXT: Final = 100  # of a scope, method, event or rule in a sample


class DecisionSample(NamedTuple):
    """A decision of a sample: ``at`` is Unix time, ``idents`` the names of the rules that count under each ident."""

    at: float
    scope: str
    method: str
    event: str
    outcome: str
    rule: str
    reason: str
    cost: int
    idents: dict[str, list[str]]


T = TypeVar("T")
# Charges, scope, method, events, and when the call began and ended on the clock of perf_counter.
PassedCall = tuple[Charges, str, str, tuple[str, ...], float, float]
# Decision, scope, method, events, cost, seconds that the decision took, and when it was made.
OtherCall = tuple[Decision, str, str, tuple[str, ...], int, float, datetime]
Samples = dict[tuple[str, int], Thinned[DecisionSample]]


@dataclass(slots=True)
class Records:
    """Records of a process: cells by rule and minute, rankings by rule and hour, both in Unix time.

    ``samples`` are by stratum and slot: "whole" has all calls of some idents, "refused" some refusals of all idents.
    """

    cells: dict[tuple[str, int], cells.Cell] = field(default_factory=dict)
    rankings: dict[tuple[str, int], HeavyHitters] = field(default_factory=dict)
    samples: Samples = field(default_factory=dict)


class DecisionRecorder(Recorder):
    """What this process has decided and not sent; added by any thread.

    A call adds one tuple to a list; what that comes to is counted for MOST_WAITING calls at once, or when it is taken.
    Everything has a bound: where there is no room for one more, numbers are added to an older minute of the same rule,
    or to ``OTHERS``, so that sums stay right.
    """

    def __init__(self) -> None:
        self.renew()
        in_child(self, type(self).renew)
        setting_changed.connect(self._forget)

    def renew(self) -> None:
        """Begin anew."""
        self._lock, self.reading = Lock(), Lock()  # the latter for who adds what it takes to what it keeps
        # The same list as long as the process lives: an append by another thread must not miss it.
        self._waiting: list[PassedCall] = []
        self._others: list[OtherCall] = []  # likewise
        self._names: dict[RuleSet, list[tuple[str, int]]] = {}
        self._records = Records()
        self._minute = 0
        self._newest: dict[str, tuple[int, Thinned[DecisionSample]]] = {}  # by stratum: the newest slot, and its sample
        self._passed: Counter[tuple[RuleSet, tuple[int, ...], int]] = Counter()  # of this minute, by power of two

    def _forget(self, *, setting: str, **_: object) -> None:
        if setting in ("DJANGO_THROTTLE", "SECRET_KEY"):
            forget_charges()  # ranks depend on the secret

    def record_allowed(self, charges: Charges, scope: str, method: str, events: tuple[str, ...], began: float) -> None:
        """Count a call that all these charges let pass at once; ``began`` is on the clock of perf_counter."""
        waiting = self._waiting
        waiting.append((charges, scope, method, events, began, perf_counter()))
        if len(waiting) >= MOST_WAITING:
            self._count()

    def record(self, call: Call, decision: Decision, seconds: float) -> None:
        """Count any other call."""
        others = self._others  # without the call, which holds the request
        others.append((decision, call.scope, call.method, call.events, call.cost, seconds, timezone.now()))
        if len(others) >= MOST_WAITING:
            self._count()

    def record_request(self, scope: str, meter: Meter) -> None:
        """Count what a request has used, for its route."""
        route_costs.add(scope, meter)

    def take(self) -> Records:
        """Return all of it, which is forgotten here; the samples of this slot go on within their bounds."""
        self._count()
        with self._lock:
            self._fold()
            taken, self._records = self._records, Records()
            return taken

    def limit(self, stratum: str, slot: int, bound: int, full: Iterable[int]) -> None:
        """Sample only ranks below the bound, and none of the full ones: all processes together have too many."""
        with self._lock:
            newest, sample = self._newest.get(stratum, (0, None))
            samples = self._records.samples.get((stratum, slot)), sample if newest == slot else None
            for current in filter(None, samples):
                current.limit(bound, full)

    def _count(self) -> None:
        """Count what waits, mostly by what Python does in C."""
        with self._lock:
            calls, others = _taken(self._waiting), _taken(self._others)
            if not (calls or others):
                return
            self._count_passed(calls)
            for decision, scope, method, events, cost, seconds, moment in others:
                if decision.outcomes:
                    at = moment.timestamp()
                    self._count_other(decision, cost, seconds, int(at))
                    self._sample(decision, scope, method, events, cost, at)

    def _count_passed(self, calls: Sequence[PassedCall]) -> None:
        wall, now = timezone.now().timestamp(), perf_counter()
        minute = int(wall) // cells.MINUTE * cells.MINUTE
        if minute != self._minute or len(self._passed) > MOST_CELLS:
            self._fold()
            self._minute = minute
        self._passed.update(
            [(charges.rules, charges.costs, frexp(ended - began)[1]) for charges, _, _, _, began, ended in calls]
        )
        self._sample_passed(calls, wall - now)

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
        """Put what has passed into cells."""
        for (rules, costs, exponent), number in self._passed.items():
            bucket = cells.place_of(exponent)
            for name, place in self._names_of(rules):
                cell, extra = _cell(self._records, name, self._minute), (costs[place] - 1) * number
                if name.endswith(CANDIDATE_SUFFIX) and not rules.rules[place].is_shadow:
                    cell[cells.ENFORCED] = cell.get(cells.ENFORCED, 0) + number
                cell[bucket] = cell.get(bucket, 0) + number
                if extra > 0:
                    cell[cells.EXTRA] = cell.get(cells.EXTRA, 0) + extra
                elif extra:
                    cell[cells.FREE] = cell.get(cells.FREE, 0) + number
        self._passed.clear()

    def _names_of(self, rules: RuleSet) -> list[tuple[str, int]]:
        """The names of these rules, and where each begins: of several rates the first stands for the rule."""
        found = self._names.get(rules)
        if found is None:
            if len(self._names) >= MOST_RANKINGS:
                self._names.clear()
            places: dict[str, int] = {}
            for place, rule in enumerate(rules.rules):
                places.setdefault(rule.name, place)
            found = self._names[rules] = list(places.items())
        return found

    def _sample_passed(self, calls: Sequence[PassedCall], offset: float) -> None:
        """Offer those calls to the sample that have an ident of a rank that is low enough."""
        whole = self._sample_of("whole", offset + perf_counter())
        for rank, (charges, scope, method, events, began, _) in ranked(calls, whole.bound):
            idents: dict[str, list[str]] = {}
            for rule, ident in zip(charges.rules.rules, charges.idents, strict=True):
                idents.setdefault(ident, []).append(rule.name)
            event = events[0] if events else ""
            seen = DecisionSample(
                began + offset, scope, method, event, "allowed", "", "within", max(charges.costs), idents
            )
            whole.offer(rank, _shortened(seen))

    def _sample(
        self, decision: Decision, scope: str, method: str, events: tuple[str, ...], cost: int, at: float
    ) -> None:
        whole, refused = self._sample_of("whole", at), self._sample_of("refused", at)
        idents = {outcome.ident for outcome in decision.outcomes if outcome.ident}
        rank = min(ranks_of([*(idents - {EVERYONE} or idents)]), default=RANKS)
        drawn = RANKS if decision.allowed else random_rank()
        if rank < whole.bound or drawn < refused.bound:
            seen = _seen(decision, scope, method, events, cost, at)
            whole.offer(rank, seen)
            refused.offer(drawn, seen)

    def _sample_of(self, stratum: str, at: float) -> Thinned[DecisionSample]:
        """Return the sample of that moment's slot. In a new slot its bound is that of the newest, relaxed."""
        samples, slot = self._records.samples, int(at) // places.SLOT
        if (stratum, slot) not in samples:
            newest, last = self._newest.get(stratum, (slot, Thinned[DecisionSample](places.MOST_RECENT[stratum])))
            sample = last.rest() if slot <= newest else Thinned(last.most, min(RANKS, last.bound * RELAXATION))
            samples[stratum, slot] = sample
            if slot >= newest:
                self._newest[stratum] = slot, sample
                thin_older(samples, slot)
        return samples[stratum, slot]


def thin_older(samples: Samples, slot: int) -> None:
    """Keep few entries of more than an hour before this slot, and none of more than a day before."""
    for stratum, number in [*samples]:
        if number < slot - places.SLOTS:
            del samples[stratum, number]
        elif number <= slot - places.RECENT_SLOTS:
            samples[stratum, number].thin(places.MOST_OLDER[stratum])


def _taken(waiting: list[T]) -> list[T]:
    """What waits, which is removed; what another thread adds meanwhile stays."""
    found = waiting[: len(waiting)]
    del waiting[: len(found)]
    return found


def ranked(calls: Sequence[PassedCall], bound: int) -> Iterable[tuple[int, PassedCall]]:
    """Return the calls with an ident of a rank below the bound, and the lowest rank of their idents.

    The ident of everybody counts only where a call has no other.
    """
    unranked = [charges for charges, *_ in calls if charges.sample_rank is None]
    own = [({*charges.idents} - {EVERYONE}) or {*charges.idents} for charges in unranked]
    ranks = iter(ranks_of([*chain.from_iterable(own)]))
    for charges, idents in zip(unranked, own, strict=True):
        charges.sample_rank = min(islice(ranks, len(idents)), default=RANKS)
    return [(rank, call) for call in calls if (rank := call[0].sample_rank) is not None and rank < bound]


recorder: Final = DecisionRecorder()


def _numbers(outcome: Outcome, cost: int, degraded: bool) -> Iterator[tuple[int, int]]:
    """What an outcome adds to its rule's cell, by code."""
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
    known = records.cells
    found = known.get((rule, minute))
    if found is None:
        if len(known) >= MOST_CELLS:
            older = next((key for key in reversed(known) if key[0] == rule), (cells.OTHERS, minute))
            return known.setdefault(older, {})
        found = known[rule, minute] = {}
    return found


def _ranking(records: Records, rule: str, hour: int) -> HeavyHitters:
    rankings = records.rankings
    if (rule, hour) not in rankings and len(rankings) >= MOST_RANKINGS:
        rule = cells.OTHERS
    return rankings.setdefault((rule, hour), HeavyHitters())


def _by_rule(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """One outcome for each rule: of several rates the one that refuses."""
    found: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.rule not in found or (found[outcome.rule].allowed and not outcome.allowed):
            found[outcome.rule] = outcome
    return found


def _seen(decision: Decision, scope: str, method: str, events: tuple[str, ...], cost: int, at: float) -> DecisionSample:
    outcomes = decision.outcomes
    refusing = [one for one in outcomes if not one.allowed and one.shadow == decision.allowed]
    said = refusing[0] if refusing else outcomes[0]
    idents: dict[str, list[str]] = {}
    for one in outcomes:
        if one.ident:
            idents.setdefault(one.ident, []).append(one.rule)
    rule, reason = (said.rule, said.reason.value) if refusing else ("", "within")
    verdict = said.verdict if refusing else "allowed"
    event = events[0] if events else ""
    return _shortened(DecisionSample(at, scope, method, event, verdict, rule, reason, cost, idents))


def _shortened(seen: DecisionSample) -> DecisionSample:
    scope, method, event, rule = (text[:LONGEST_TEXT] for text in (seen.scope, seen.method, seen.event, seen.rule))
    return seen._replace(scope=scope, method=method, event=event, rule=rule)

"""Queries of records of all processes, or of this process with a memory store. They raise StoreError."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.utils import timezone

from django_throttle.console.recording import own_records, redis_keys
from django_throttle.console.recording.bounded_sample import RANKS
from django_throttle.console.recording.cells import HOUR, Minute, minute_of, number_at, total, unpacked
from django_throttle.console.recording.flush import Sending, packed, state_of
from django_throttle.console.recording.heavy_hitters import HeavyHitters
from django_throttle.console.recording.recorder import MAX_TEXT_CHARS
from django_throttle.console.recording.redis_keys import HOURS, MINUTES, Span
from django_throttle.core.overrides import candidate_name
from django_throttle.core.texts import translatable
from django_throttle.explain.refusals import Refusal
from django_throttle.stores import AnyStore, RedisStore
from django_throttle.stores.redis.failures import raise_first
from django_throttle.stores.redis.transport import batches

TAG: Final = re.compile(r"[0-9a-f]{8}(?:[0-9a-f]{8})?")


@dataclass(frozen=True, slots=True)
class Recorded(Refusal):
    """Decision in a sample. The outcome may also be "allowed". Then the rule is "" and the reason "within".

    ``tags`` has ident hashes by the name of each rule, or idents with RECORD_IDENTS.
    """

    tag: str  #: of the ident under ``rule``, or under the first rule
    cost: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled decisions of a period, in the order of their times."""

    whole: list[Recorded]  #: all calls of a share of the idents
    refused: list[Recorded]  #: a share of the refusals of all idents
    shares: Mapping[str, float]  #: shares of "whole" and "refused"
    cut: int = 0  #: number of callers in ``whole`` whose later calls are left out, because there were too many


def minutes(
    store: AnyStore, since: datetime, until: datetime, rules: Iterable[str] | None = None
) -> dict[str, list[Minute]]:
    """Return the decisions of each rule by minute, in the last 24 hours. Minutes without a call are left out."""
    return _cells(store, MINUTES, since, until, rules)


def hours(
    store: AnyStore, since: datetime, until: datetime, rules: Iterable[str] | None = None
) -> dict[str, list[Minute]]:
    """Return the decisions of each rule by hour, in the last 30 days. Hours without a call are left out."""
    return _cells(store, HOURS, since, until, rules)


def recorded_rules(store: AnyStore, since: datetime) -> list[str]:
    """Return the sorted names of rules that have decided calls since then."""
    if not store.is_remote:
        return sorted({rule for rule, at in own_records.current().cells if at >= since.timestamp()})
    reply = store.call("recorded_rules", [store.process_key("rec:rules")], [int(since.timestamp()) // HOUR * HOUR])
    return sorted([_bytes(name).decode("utf-8", "surrogatepass") for name in reply])


def most_refused(store: AnyStore, rule: str, hours: int = 1) -> list[tuple[str, int, int]]:
    """Return the most refused idents of a rule in the last hours: tag, number of refusals, and its maximal error."""
    this_hour, merged = int(timezone.now().timestamp()) // HOUR * HOUR, HeavyHitters()
    starts = [this_hour - HOUR * age for age in range(hours)]
    for ranking in _rankings(store, rule, starts):
        merged.merge(ranking)
    return merged.largest()


def recent(store: AnyStore, ident: str, limit: int = 20, scope: str = "") -> list[Recorded]:
    """Return recent refusals of an ident, the latest first. The tag of a log line or 16 hex digits may be the ident.

    Only refusals in ``scope`` are returned, unless it is empty.
    """
    tag, end = redis_keys.hashed(ident), timezone.now()
    sampled = sample(store, end - timedelta(days=1), end)
    refusals = [*sampled.refused, *(decision for decision in sampled.whole if decision.outcome != "allowed")]
    unique = {
        (refusal.at, refusal.scope, refusal.method, refusal.rule, refusal.tag): refusal
        for refusal in refusals
        if (not scope or refusal.scope == scope[:MAX_TEXT_CHARS])
        and any(_is_tag_of(recorded_tag, ident, tag) for recorded_tag in refusal.tags.values())
    }
    return sorted(unique.values(), key=lambda refusal: refusal.at, reverse=True)[:limit]


def _is_tag_of(recorded_tag: str, ident: str, tag: str) -> bool:
    """Return True if the recorded tag is that of an ident, which may itself be the beginning of a tag."""
    if recorded_tag in (ident, tag):
        return True
    is_tag = TAG.fullmatch(ident) is not None
    return is_tag and (recorded_tag.startswith(ident) or redis_keys.hashed(recorded_tag).startswith(ident))


def _cells(
    store: AnyStore, span: Span, since: datetime, until: datetime, rules: Iterable[str] | None
) -> dict[str, list[Minute]]:
    first, end = int(since.timestamp()) // span.cell * span.cell, until.timestamp()
    names = recorded_rules(store, since) if rules is None else list(dict.fromkeys(rules))
    if not store.is_remote:
        own_cells = own_records.cells(span.cell)
        cells = {name: sorted((at, cell) for (rule, at), cell in own_cells.items() if rule == name) for name in names}
    else:
        cells = _fetch_cells(store, span, first, end, names)
    return {name: [minute_of(at, cell) for at, cell in cells[name] if first <= at < end] for name in names}


def _fetch_cells(
    store: RedisStore, span: Span, first: int, end: float, names: Sequence[str]
) -> dict[str, list[tuple[int, dict[int, int]]]]:
    starts = range(first // span.key * span.key, max(first, int(end)) + 1, span.key)
    keys = [(name, start) for name in names for start in starts]
    cells: dict[str, list[tuple[int, dict[int, int]]]] = {name: [] for name in names}
    calls: list[Sending] = [("read_cells", [store.process_key(span.name(*key))], []) for key in keys]
    for (name, start), reply in zip(keys, _replies(store, calls), strict=True):
        fields = {int(field) * span.cell: cell for field, cell in zip(reply[::2], reply[1::2], strict=True)}
        # Fields beyond the span are rankings.
        cells[name] += [(start + at, unpacked(_bytes(cell))) for at, cell in sorted(fields.items()) if at < span.key]
    return cells


def _replies(store: RedisStore, calls: Sequence[Sending]) -> Iterator[Any]:
    for batch in batches(calls):
        replies = store.pipeline(batch)
        raise_first([reply for reply in replies if isinstance(reply, Exception)])
        yield from replies


def _rankings(store: AnyStore, rule: str, starts: Sequence[int]) -> Iterator[HeavyHitters]:
    if not store.is_remote:
        own_rankings = own_records.current().rankings
        for start in starts:
            if ranking := own_rankings.get((rule, start)):
                counts = {redis_keys.ranking_tag(ident): count for ident, count in ranking.counts.items()}
                yield HeavyHitters(counts, ranking.error)
        return
    calls = []
    for start in starts:
        keys = map(store.process_key, (redis_keys.ranking_name(rule, start), HOURS.name(rule, start)))
        calls.append(("read_ranking", list(keys), [redis_keys.ranking_field(start)]))
    yield from map(_ranking, map(_bytes, _replies(store, calls)))


def _ranking(packed: bytes) -> HeavyHitters:
    """Return a ranking from the encoding of record.lua, where the length of an ident precedes it."""
    counts: dict[str, int] = {}
    error, at = number_at(packed, 0)
    while at < len(packed):
        count, at = number_at(packed, at)
        length, at = number_at(packed, at)
        counts[redis_keys.unpacked_tag(packed[at : at + length])] = count
        at += length
    return HeavyHitters(counts, error)


def sample(store: AnyStore, since: datetime, until: datetime) -> Sample:
    """Return the sampled decisions of a period within the last 24 hours."""
    strata, shares, cut = {}, {}, {}
    first, end = since.timestamp(), until.timestamp()
    for stratum in redis_keys.STRATA:
        bound, full, entries = _entries(store, stratum, since, until)
        shares[stratum] = bound / RANKS
        decisions = [(rank, _recorded(entry, RANKS / bound)) for rank, entry in entries if rank < bound]
        in_period = [
            (rank, decision)
            for rank, decision in decisions
            if decision is not None and first <= decision.at.timestamp() < end
        ]
        strata[stratum] = sorted([decision for _, decision in in_period], key=lambda decision: decision.at)
        cut[stratum] = len(full.intersection([rank for rank, _ in in_period]))
    return Sample(strata["whole"], strata["refused"], shares, cut["whole"])


def _entries(
    store: AnyStore, stratum: str, since: datetime, until: datetime
) -> tuple[int, set[int], list[tuple[int, bytes]]]:
    """Return the lowest bound of the slots, which applies to all, their full ranks, and their entries with ranks."""
    first = max(since.timestamp(), timezone.now().timestamp() - redis_keys.SLOTS * redis_keys.SLOT)
    slots = range(int(first) // redis_keys.SLOT, int(until.timestamp()) // redis_keys.SLOT + 1)
    if not store.is_remote:
        samples = [
            (state, [(rank, packed(decision)) for rank, decision in entries])
            for state, entries in own_records.samples(stratum, slots)
        ]
    else:
        names = [store.process_key(redis_keys.sample_name(stratum, slot)) for slot in slots]
        calls: list[Sending] = [("read_sample", [name, f"{name}:level"], []) for name in names]
        replies = [[*map(_bytes, reply)] for reply in _replies(store, calls)]
        samples = [
            (state_of(state), [(int.from_bytes(entry[:4], "big"), entry[4:]) for entry in entries])
            for state, *entries in replies
        ]
    bounds = [state[0] for state, _ in samples]
    full = {rank for state, _ in samples for rank in state[1:]}
    return min(bounds, default=RANKS), full, [entry for _, entries in samples for entry in entries]


def _recorded(entry: bytes, weight: float) -> Recorded | None:
    try:
        at, scope, method, event, outcome, rule, reason, cost, idents = json.loads(entry)
        tags = {name: tag for tag, names in idents.items() for name in names}
        tag = tags.get(rule) or next(iter(idents), "")
        time = datetime.fromtimestamp(at, UTC)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None  # not written by this package
    return Recorded(time, scope, method, event, rule, reason, outcome, tags, weight, tag, cost)


def _bytes(reply: object) -> bytes:
    return reply if isinstance(reply, bytes) else str(reply).encode("utf-8", "surrogateescape")


class SharedRefusals(NamedTuple):
    """Refusals by one rule, of the calls for which it decides."""

    calls: int
    refused: int

    @property
    def in_words(self) -> str:
        values = {"refused": self.refused, "calls": self.calls}
        if not self.calls:
            return translatable("{refused:,} of {calls:,}", **values)
        return translatable("{refused:,} of {calls:,}, {share:.1%}", share=self.refused / self.calls, **values)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a candidate with its live rule."""

    calls: int
    both: int  #: calls that both would refuse
    only_live: int  #: calls that only the live rule would refuse
    only_candidate: int  #: calls that only the candidate would refuse
    of_live: SharedRefusals
    of_candidate: SharedRefusals
    #: Beginning of each minute, and the calls that the live rule and the candidate would refuse.
    points: tuple[tuple[datetime, int, int], ...]
    #: Tags of the idents that the candidate would refuse most, and the number of refusals.
    affected: tuple[tuple[str, int], ...]

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each number, for a table."""
        yield translatable("Calls"), translatable("{:,}", self.calls)
        yield translatable("Both would refuse"), translatable("{:,}", self.both)
        yield translatable("Only the live rule would"), translatable("{:,}", self.only_live)
        yield translatable("Only the candidate would"), translatable("{:,}", self.only_candidate)
        yield translatable("Refused where the live rule holds"), self.of_live.in_words
        yield translatable("Refused where the candidate holds"), self.of_candidate.in_words

    def as_json(self) -> dict[str, object]:
        return {
            **{name: getattr(self, name) for name in ("calls", "both", "only_live", "only_candidate")},
            "live_holds": self.of_live._asdict(),
            "candidate_holds": self.of_candidate._asdict(),
            "minutes": [{"at": at.isoformat(), "live": live, "candidate": own} for at, live, own in self.points],
            "affected": [{"tag": tag, "refused": count} for tag, count in self.affected],
        }


def compare_candidate(store: AnyStore, live_name: str, since: datetime, until: datetime) -> Comparison:
    """Compare a live rule with its candidate, over the minutes in which the candidate decided. Raise StoreError."""
    name = candidate_name(live_name)
    cells = minutes(store, since, until, [live_name, name])
    candidate_minutes = {minute.at: minute for minute in cells.get(name, [])}
    live_minutes = {minute.at: minute for minute in cells.get(live_name, []) if minute.at in candidate_minutes}
    candidate, live = total(candidate_minutes.values()), total(live_minutes.values())
    ranking = most_refused(store, name)
    # A ranking is of an hour. If it has more refusals than the candidate, an earlier candidate of this rule made some.
    is_of_candidate = sum(count - error for _, count, error in ranking) <= _refusals(candidate)
    return Comparison(
        calls=candidate.calls,
        both=candidate.both,
        only_live=max(0, _refusals(live) - candidate.both),
        only_candidate=max(0, _refusals(candidate) - candidate.both),
        of_live=SharedRefusals(candidate.calls - candidate.enforced, sum(live.refused.values())),
        of_candidate=SharedRefusals(candidate.enforced, sum(candidate.refused.values())),
        points=tuple(
            [(at, _refusals(live_minutes.get(at)), _refusals(minute)) for at, minute in candidate_minutes.items()]
        ),
        affected=tuple((tag, count) for tag, count, _ in ranking) if is_of_candidate else (),
    )


def _refusals(minute: Minute | None) -> int:
    """Return the number of calls that a rule refused, or would have refused as a shadow rule."""
    return 0 if minute is None else minute.shadowed + sum(minute.refused.values())

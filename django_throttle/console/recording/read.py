"""Reads what was recorded, of all processes; raises StoreError. Of a store in memory, what this process recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.utils import timezone

from django_throttle.console.recording import own_records, places
from django_throttle.console.recording.cells import HOUR, Minute, minute_of, number_at, total, unpacked
from django_throttle.console.recording.flush import Sending, packed, state_of
from django_throttle.console.recording.heavy_hitters import HeavyHitters
from django_throttle.console.recording.places import HOURS, MINUTES, Span
from django_throttle.console.recording.recorder import MAX_TEXT_CHARS
from django_throttle.console.recording.thinning import RANKS
from django_throttle.core.overrides import candidate_name
from django_throttle.core.texts import translatable
from django_throttle.explain.refusals import Refusal
from django_throttle.stores import AnyStore, RedisStore
from django_throttle.stores.redis.failures import raise_first
from django_throttle.stores.redis.transport import batches

TAG: Final = re.compile(r"[0-9a-f]{8}(?:[0-9a-f]{8})?")


@dataclass(frozen=True, slots=True)
class Recorded(Refusal):
    """One decision of a sample. ``tag`` stands for the ident that counts under ``rule``, or under the first rule.

    ``outcome`` is "allowed", "refused" or "shadowed"; ``rule`` and ``reason`` explain a refusal. ``tags`` has the tag
    by the name of each rule. ``weight`` is the number of decisions that this one represents. With RECORD_IDENTS, tags
    are idents.
    """

    tag: str
    cost: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Decisions of a period, in their order, and the share at which each stratum was kept.

    ``whole`` has all calls of some callers: a share ``shares["whole"]`` of all idents, each with every call.
    ``refused`` has a share ``shares["refused"]`` of the refusals of all idents. ``records`` has the decisions of
    ``whole`` that were not refused, and ``refused``: their weights add up to about all decisions. ``cut`` is the number
    of callers in ``whole`` that had too many calls, so that later ones are left out.
    """

    whole: list[Recorded]
    refused: list[Recorded]
    shares: Mapping[str, float]
    cut: int = 0

    @property
    def records(self) -> list[Recorded]:
        passed = [one for one in self.whole if one.outcome != "refused"]
        return sorted(passed + self.refused, key=lambda one: one.at)


def minutes(
    store: AnyStore, since: datetime, until: datetime, rules: Iterable[str] | None = None
) -> dict[str, list[Minute]]:
    """Return the decisions of each rule by the minute, in the last 24 hours; minutes without a call are left out."""
    return _cells(store, MINUTES, since, until, rules)


def hours(
    store: AnyStore, since: datetime, until: datetime, rules: Iterable[str] | None = None
) -> dict[str, list[Minute]]:
    """The same by the hour, of the last 30 days."""
    return _cells(store, HOURS, since, until, rules)


def recorded_rules(store: AnyStore, since: datetime) -> list[str]:
    """The names of rules that decided anything since then, in order."""
    if not store.is_remote:
        return sorted({rule for rule, at in own_records.current().cells if at >= since.timestamp()})
    reply = store.call("recorded_rules", [store.process_key("rec:rules")], [int(since.timestamp()) // HOUR * HOUR])
    return sorted([_bytes(found).decode("utf-8", "surrogatepass") for found in reply])


def most_refused(store: AnyStore, rule: str, hours: int = 1) -> list[tuple[str, int, int]]:
    """The idents that a rule refused most in this hour and those before, most first: tag, count, what it may lack."""
    now, whole = int(timezone.now().timestamp()) // HOUR * HOUR, HeavyHitters()
    starts = [now - HOUR * age for age in range(hours)]
    for ranking in _rankings(store, rule, starts):
        whole.merge(ranking)
    return whole.largest()


def recent(store: AnyStore, ident: str, limit: int = 20, scope: str = "") -> list[Recorded]:
    """Return recent refusals of an ident, the latest first. The tag of a log line or 16 hex digits may be the ident.

    Only refusals in ``scope`` are returned, unless it is empty.
    """
    asked, end = {ident, places.hashed(ident)}, timezone.now()
    sampled = sample(store, end - timedelta(days=1), end)
    found = {
        (one.at, one.scope, one.method, one.rule, one.tag): one
        for one in [*sampled.refused, *(one for one in sampled.whole if one.outcome != "allowed")]
        if (not scope or one.scope == scope[:MAX_TEXT_CHARS])
        and any(_is_asked(tag, asked, ident) for tag in one.tags.values())
    }
    return sorted(found.values(), key=lambda one: one.at, reverse=True)[:limit]


def _is_asked(tag: str, asked: set[str], ident: str) -> bool:
    if tag in asked:
        return True
    return bool(TAG.fullmatch(ident)) and (tag.startswith(ident) or places.hashed(tag).startswith(ident))


def _cells(
    store: AnyStore, span: Span, since: datetime, until: datetime, rules: Iterable[str] | None
) -> dict[str, list[Minute]]:
    first, end = int(since.timestamp()) // span.cell * span.cell, until.timestamp()
    names = recorded_rules(store, since) if rules is None else list(dict.fromkeys(rules))
    if not store.is_remote:
        found = own_records.cells(span.cell)
        cells = {name: sorted((at, cell) for (rule, at), cell in found.items() if rule == name) for name in names}
    else:
        cells = _fetched(store, span, first, end, names)
    return {name: [minute_of(at, cell) for at, cell in cells[name] if first <= at < end] for name in names}


def _fetched(
    store: RedisStore, span: Span, first: int, end: float, names: Sequence[str]
) -> dict[str, list[tuple[int, dict[int, int]]]]:
    starts = range(first // span.key * span.key, max(first, int(end)) + 1, span.key)
    asked = [(name, start) for name in names for start in starts]
    cells: dict[str, list[tuple[int, dict[int, int]]]] = {name: [] for name in names}
    calls: list[Sending] = [("read_cells", [store.process_key(span.name(*one))], []) for one in asked]
    for (name, start), reply in zip(asked, _replies(store, calls), strict=True):
        fields = {int(field) * span.cell: cell for field, cell in zip(reply[::2], reply[1::2], strict=True)}
        # After the cells of a day are its rankings.
        cells[name] += [(start + at, unpacked(_bytes(cell))) for at, cell in sorted(fields.items()) if at < span.key]
    return cells


def _replies(store: RedisStore, calls: Sequence[Sending]) -> Iterator[Any]:
    for batch in batches(calls):
        replies = store.pipeline(batch)
        raise_first([reply for reply in replies if isinstance(reply, Exception)])
        yield from replies


def _rankings(store: AnyStore, rule: str, starts: Sequence[int]) -> Iterator[HeavyHitters]:
    if not store.is_remote:
        own = own_records.current().rankings
        for start in starts:
            if ranking := own.get((rule, start)):
                yield HeavyHitters(
                    {places.ranked_tag(one): count for one, count in ranking.counts.items()}, ranking.error
                )
        return
    calls = []
    for start in starts:
        keys = map(store.process_key, (places.ranking_name(rule, start), HOURS.name(rule, start)))
        calls.append(("read_ranking", list(keys), [places.ranking_field(start)]))
    yield from map(_ranking, map(_bytes, _replies(store, calls)))


def _ranking(packed: bytes) -> HeavyHitters:
    """A ranking as record.lua wrote it; an ident has its length before it."""
    counts: dict[str, int] = {}
    error, at = number_at(packed, 0)
    while at < len(packed):
        count, at = number_at(packed, at)
        length, at = number_at(packed, at)
        counts[places.long_of(packed[at : at + length])] = count
        at += length
    return HeavyHitters(counts, error)


def sample(store: AnyStore, since: datetime, until: datetime) -> Sample:
    """Decisions from then until then, of the last 24 hours."""
    strata, shares, cut = {}, {}, {}
    first, end = since.timestamp(), until.timestamp()
    for stratum in places.STRATA:
        bound, full, entries = _entries(store, stratum, since, until)
        shares[stratum] = bound / RANKS
        decisions = [(rank, _recorded(entry, RANKS / bound)) for rank, entry in entries if rank < bound]
        kept = [(rank, one) for rank, one in decisions if one is not None and first <= one.at.timestamp() < end]
        strata[stratum] = sorted([one for _, one in kept], key=lambda one: one.at)
        cut[stratum] = len(full.intersection([rank for rank, _ in kept]))
    return Sample(strata["whole"], strata["refused"], shares, cut["whole"])


def _entries(
    store: AnyStore, stratum: str, since: datetime, until: datetime
) -> tuple[int, set[int], list[tuple[int, bytes]]]:
    """Return the lowest bound of any slot, which holds for all; all full ranks; and the entries with their ranks."""
    first = max(since.timestamp(), timezone.now().timestamp() - places.SLOTS * places.SLOT)
    slots = range(int(first) // places.SLOT, int(until.timestamp()) // places.SLOT + 1)
    if not store.is_remote:
        samples = [
            (state, [(rank, packed(seen)) for rank, seen in entries])
            for state, entries in own_records.samples(stratum, slots)
        ]
    else:
        names = [store.process_key(places.sample_name(stratum, slot)) for slot in slots]
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
        when = datetime.fromtimestamp(at, UTC)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None  # a foreign value
    return Recorded(when, scope, method, event, rule, reason, outcome, tags, weight, tag, cost)


def _bytes(found: object) -> bytes:
    return found if isinstance(found, bytes) else str(found).encode("utf-8", "surrogateescape")


__all__ = ["Minute", "Recorded", "Sample", "hours", "minutes", "most_refused", "recent", "recorded_rules", "sample"]


class SharedRefusals(NamedTuple):
    """The calls for which one of both rules holds, and how many of them it refused."""

    calls: int
    refused: int

    @property
    def in_words(self) -> str:
        told = {"refused": self.refused, "calls": self.calls}
        if not self.calls:
            return translatable("{refused:,} of {calls:,}", **told)
        return translatable("{refused:,} of {calls:,}, {share:.1%}", share=self.refused / self.calls, **told)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Calls that both saw, and those that either would refuse; what was really refused is said by halves.

    ``points`` has for each minute when it began, and how many calls the live rule and the candidate would refuse.
    ``affected`` are the tags of the idents that the candidate would refuse most, with how often.
    """

    calls: int
    both: int
    only_live: int
    only_candidate: int
    of_live: SharedRefusals
    of_candidate: SharedRefusals
    points: tuple[tuple[datetime, int, int], ...]
    affected: tuple[tuple[str, int], ...]

    def rows(self) -> Iterator[tuple[str, str]]:
        """Each number with its name, for a table."""
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


def compared(store: AnyStore, live: str, since: datetime, until: datetime) -> Comparison:
    """Both rules over the same calls, of the minutes in which the candidate counted. Raises StoreError."""
    beside = candidate_name(live)
    found = minutes(store, since, until, [live, beside])
    ours = {one.at: one for one in found.get(beside, [])}
    theirs = {one.at: one for one in found.get(live, []) if one.at in ours}
    candidate, rule = total(ours.values()), total(theirs.values())
    return Comparison(
        calls=candidate.calls,
        both=candidate.both,
        only_live=max(0, _refusing(rule) - candidate.both),
        only_candidate=max(0, _refusing(candidate) - candidate.both),
        of_live=SharedRefusals(candidate.calls - candidate.enforced, sum(rule.refused.values())),
        of_candidate=SharedRefusals(candidate.enforced, sum(candidate.refused.values())),
        points=tuple([(at, _refusing(theirs.get(at)), _refusing(one)) for at, one in ours.items()]),
        affected=tuple((tag, count) for tag, count, _ in most_refused(store, beside)),
    )


def _refusing(minute: Minute | None) -> int:
    """How many calls the rule refused, or would have."""
    return 0 if minute is None else minute.shadowed + sum(minute.refused.values())

"""Records of this process without a Redis, in bounded memory."""

from __future__ import annotations

from typing import Final

from django.utils import timezone

from django_throttle.console.recording.bounded_sample import RANKS, BoundedSample
from django_throttle.console.recording.cells import Cell, add
from django_throttle.console.recording.heavy_hitters import HeavyHitters
from django_throttle.console.recording.recorder import DecisionSample, Records, recorder, thin_older
from django_throttle.console.recording.redis_keys import DAY, MAX_RECENT_ENTRIES, SLOT

MAX_CELLS: Final = 20_000

_kept = Records()


def reset() -> None:
    """Remove all records, for tests."""
    global _kept
    recorder.reset()
    _kept = Records()


def current() -> Records:
    """Return a copy of all cells and rankings."""
    with recorder.reading:
        _take()
        return Records(
            {key: dict(cell) for key, cell in _kept.cells.items()},
            {key: HeavyHitters(ranking.counts, ranking.error) for key, ranking in _kept.rankings.items()},
        )


def samples(stratum: str, slots: range) -> list[tuple[list[int], list[tuple[int, DecisionSample]]]]:
    """Return the state and the entries of the sample of a stratum in each of these slots."""
    with recorder.reading:
        _take()
        by_slot = [sample for slot in slots if (sample := _kept.samples.get((stratum, slot))) is not None]
        return [([sample.bound, *sample.full], sample.entries.copy()) for sample in by_slot]


def _take() -> None:
    new = recorder.take()
    for key, cell in new.cells.items():
        add(_kept.cells.setdefault(key, {}), cell)
    for key, ranking in new.rankings.items():
        if (kept_ranking := _kept.rankings.get(key)) is None:
            _kept.rankings[key] = ranking
        else:
            kept_ranking.merge(ranking)
    for key, sample in new.samples.items():
        kept_sample = _kept.samples.setdefault(key, BoundedSample(MAX_RECENT_ENTRIES[key[0]]))
        kept_sample.limit(sample.bound)
        for entry in sample.entries:
            kept_sample.offer(*entry)
        kept_sample.limit(RANKS, sample.full)
    _prune()


def _prune() -> None:
    now = timezone.now().timestamp()
    for entries in (_kept.cells, _kept.rankings):
        for key in [key for key in entries if key[1] < now - DAY - 3600]:
            del entries[key]
        while len(entries) > MAX_CELLS:
            del entries[next(iter(entries))]
    thin_older(_kept.samples, int(now) // SLOT)


def cells(length: int) -> dict[tuple[str, int], Cell]:
    """Return cells of this length in seconds, by rule and beginning."""
    merged: dict[tuple[str, int], Cell] = {}
    for (rule, minute), cell in current().cells.items():
        add(merged.setdefault((rule, minute // length * length), {}), cell)
    return merged

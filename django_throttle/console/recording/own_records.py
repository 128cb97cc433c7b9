"""What this process has recorded, where there is no Redis to keep it: for as long as it lives, within bounds."""

from __future__ import annotations

from typing import Final

from django.utils import timezone

from django_throttle.console.recording.cells import Cell, add
from django_throttle.console.recording.heavy_hitters import HeavyHitters
from django_throttle.console.recording.places import DAY, MAX_RECENT_ENTRIES, SLOT
from django_throttle.console.recording.recorder import DecisionSample, Records, recorder, thin_older
from django_throttle.console.recording.thinning import RANKS, BoundedSample

MAX_CELLS: Final = 20_000

_kept = Records()


def forget() -> None:
    """Begin anew, as a test does."""
    global _kept
    recorder.reset()
    _kept = Records()


def current() -> Records:
    """Return a copy of all numbers, up to now."""
    with recorder.reading:
        _take()
        return Records(
            {key: dict(cell) for key, cell in _kept.cells.items()},
            {key: HeavyHitters(ranking.counts, ranking.error) for key, ranking in _kept.rankings.items()},
        )


def samples(stratum: str, slots: range) -> list[tuple[list[int], list[tuple[int, DecisionSample]]]]:
    """Return the state and the entries of a stratum in each of these slots, up to now."""
    with recorder.reading:
        _take()
        kept = [sample for slot in slots if (sample := _kept.samples.get((stratum, slot))) is not None]
        return [([sample.bound, *sample.full], sample.entries.copy()) for sample in kept]


def _take() -> None:
    new = recorder.take()
    for key, cell in new.cells.items():
        add(_kept.cells.setdefault(key, {}), cell)
    for key, ranking in new.rankings.items():
        if (known := _kept.rankings.get(key)) is None:
            _kept.rankings[key] = ranking
        else:
            known.merge(ranking)
    for key, sample in new.samples.items():
        ours = _kept.samples.setdefault(key, BoundedSample(MAX_RECENT_ENTRIES[key[0]]))
        ours.limit(sample.bound)
        for entry in sample.entries:
            ours.offer(*entry)
        ours.limit(RANKS, sample.full)
    _prune()


def _prune() -> None:
    now = timezone.now().timestamp()
    for of in (_kept.cells, _kept.rankings):
        for key in [key for key in of if key[1] < now - DAY - 3600]:
            del of[key]
        while len(of) > MAX_CELLS:
            del of[next(iter(of))]
    thin_older(_kept.samples, int(now) // SLOT)


def cells(length: int) -> dict[tuple[str, int], Cell]:
    """By rule and the beginning of cells of this length, in seconds."""
    found: dict[tuple[str, int], Cell] = {}
    for (rule, minute), cell in current().cells.items():
        add(found.setdefault((rule, minute // length * length), {}), cell)
    return found

"""What this process has recorded, where there is no Redis to keep it: for as long as it lives, within bounds."""

from __future__ import annotations

from copy import copy
from typing import Final

from django.utils import timezone

from django_throttle.recording.cells import Cell, add
from django_throttle.recording.heavy_hitters import HeavyHitters
from django_throttle.recording.places import DAY
from django_throttle.recording.recorder import Records, Seen, recorder
from django_throttle.recording.thinning import Thinned

MOST_CELLS: Final = 20_000
MOST_SAMPLED: Final = 2000


def _empty() -> Records:
    return Records(whole=Thinned(MOST_SAMPLED), refused=Thinned(MOST_SAMPLED))


_kept = _empty()


def forget() -> None:
    """Begin anew, as a test does."""
    global _kept
    recorder.renew()
    _kept = _empty()


def current() -> Records:
    """A copy of all of it, up to now."""
    with recorder.reading:
        new = recorder.take()
        for key, cell in new.cells.items():
            add(_kept.cells.setdefault(key, {}), cell)
        for key, ranking in new.rankings.items():
            if (known := _kept.rankings.get(key)) is None:
                _kept.rankings[key] = ranking
            else:
                known.merge(ranking)
        for ours, theirs in ((_kept.whole, new.whole), (_kept.refused, new.refused)):
            ours.raise_to(theirs.level)
            for entry in theirs.entries:
                ours.offer(*entry)
        _prune()
        return Records(
            {key: dict(cell) for key, cell in _kept.cells.items()},
            {key: HeavyHitters(ranking.counts, ranking.error) for key, ranking in _kept.rankings.items()},
            _copy(_kept.whole),
            _copy(_kept.refused),
        )


def _copy(sample: Thinned[Seen]) -> Thinned[Seen]:
    copied = copy(sample)
    copied.entries = sample.entries.copy()
    return copied


def _prune() -> None:
    oldest = timezone.now().timestamp() - DAY
    for of in (_kept.cells, _kept.rankings):
        for key in [key for key in of if key[1] < oldest - 3600]:
            del of[key]
        while len(of) > MOST_CELLS:
            del of[next(iter(of))]
    for sample in (_kept.whole, _kept.refused):
        sample.entries = [pair for pair in sample.entries if pair[1].at >= oldest]


def cells(length: int) -> dict[tuple[str, int], Cell]:
    """By rule and the beginning of cells of this length, in seconds."""
    found: dict[tuple[str, int], Cell] = {}
    for (rule, minute), cell in current().cells.items():
        add(found.setdefault((rule, minute // length * length), {}), cell)
    return found

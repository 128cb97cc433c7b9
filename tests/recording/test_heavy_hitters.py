"""Rankings: what they promise of counts, whatever the order and however many there are."""

from __future__ import annotations

import random

import pytest

from django_throttle.recording.heavy_hitters import KEPT, SLACK, HeavyHitters


@pytest.mark.parametrize("processes", [1, 5])
def test_counts_lack_no_more_than_they_say_and_that_has_a_bound(processes: int) -> None:
    draw = random.Random(11)
    true: dict[str, int] = {}
    whole, parts = HeavyHitters(), [HeavyHitters() for _ in range(processes)]
    for _ in range(30_000):
        ident = f"user:{int(draw.paretovariate(0.6)) % 100_000}"
        true[ident] = true.get(ident, 0) + 1
        draw.choice(parts).add(ident)
    for part in parts:
        assert len(part.counts) <= KEPT * SLACK
        whole.merge(part)
    found = {ident: count for ident, count, _ in whole.largest()}
    assert len(found) <= KEPT
    assert 0 < whole.error <= 30_000 / (KEPT + 1)
    for ident, number in true.items():
        assert number - whole.error <= found.get(ident, 0) <= number
    assert next(iter(found)) == max(true, key=lambda one: true[one])

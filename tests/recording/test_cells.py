"""Cells: how they are added up, told as percentiles, and read from Redis."""

from __future__ import annotations

import random

import pytest

from django_throttle.recording.cells import (
    LONGEST,
    TIMES,
    minute_of,
    percentile,
    unpacked,
)
from django_throttle.recording.heavy_hitters import KEPT, SLACK, HeavyHitters


@pytest.mark.parametrize(
    ("packed", "cell"),
    [
        (b"", {}),
        (b"\x05", {0: 5}),
        (b"\x00\x02\x05\xc8\x01", {2: 5, 3: 200}),
        (b"\x7f\x80\x01\x00\x1e\x80\x80\x01", {0: 127, 1: 128, 32: 16384}),
        (b"\xff\xff\xff\xff\xff\xff\xff\x0f", {0: 2**53 - 1}),
    ],
)
def test_a_cell_is_read(packed: bytes, cell: dict[int, int]) -> None:
    assert unpacked(packed) == cell


@pytest.mark.parametrize("foreign", [b"foreign", b"\x00", b"\x00\xff", b"\x00" * 999, b"\xff" * 99_999])
def test_a_foreign_value_does_no_harm(foreign: bytes) -> None:
    cell = unpacked(foreign)
    assert all(0 <= code <= TIMES + LONGEST for code in cell)
    assert percentile(minute_of(0, cell).times, 0.99) >= 0


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

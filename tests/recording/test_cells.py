"""Cells: how they are added up, told as percentiles, and read from Redis."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from django_throttle.recording.cells import (
    ALLOWED,
    CODES,
    EXTRA,
    LONGEST,
    TIMES,
    bucket_of,
    minute_of,
    percentile,
    unpacked,
)
from django_throttle.recording.cells import total as added


@pytest.mark.parametrize(
    ("packed", "cell"),
    [
        (b"\x80", {}),
        (b"\x82\x02\x05\x20\xcc\xc8", {2: 5, 32: 200}),
        (b"\x81\x03\xff", {3: -1}), (b"\x81\x02\xcd\x01\x00", {2: 256}),
        (b"\x81\x02\xce\x00\x01\x00\x00", {2: 65536}),
        (b"\x81\x02\xcf" + (2**53).to_bytes(8), {2: 2**53}),
        (b"\x81\x02\xd3" + (2**40).to_bytes(8), {2: 2**40}),
        (b"\xde\x00\x01\x02\x03", {2: 3}),
        (b"", {}), (b"foreign", {}), (b"\x82\x02\x05", {}), (b"\x81\x02\xcd\x01", {}), (b"\x81\x02\xa1x", {}),
    ],
)  # fmt: skip
def test_a_cell_is_read_and_a_foreign_value_is_empty(packed: bytes, cell: dict[int, int]) -> None:
    assert unpacked(packed) == cell


def test_a_percentile_is_off_by_less_than_a_factor_of_two() -> None:
    seconds = [0.000_001 * 1.03**step for step in range(500)]
    times: dict[int, int] = {}
    for one in seconds:
        times[bucket_of(one) - TIMES] = times.get(bucket_of(one) - TIMES, 0) + 1
    for share in (0.5, 0.9, 0.99):
        assert 0.5 < percentile(times, share) / seconds[int(500 * share) - 1] < 2
    assert percentile({}, 0.99) == 0
    assert (bucket_of(-1), bucket_of(10.0**12)) == (TIMES, TIMES + LONGEST)


def test_cells_are_added_up() -> None:
    at = 1_700_000_040
    one = minute_of(at, {ALLOWED: 2, EXTRA: 3, next(iter(CODES.values())): 4, TIMES + 7: 6})
    whole = added([one, one])
    assert (whole.at, whole.allowed, whole.cost, whole.calls) == (datetime.fromtimestamp(at, UTC), 4, 10, 12)
    assert (one.allowed, one.times, whole.times) == (2, {7: 6}, {7: 12})
    assert whole.as_json()["refused"] == whole.refused == {"within": 8}
    assert added([]).calls == 0

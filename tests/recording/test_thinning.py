"""Samples of bounded size: their share is known, whatever was offered."""

from __future__ import annotations

import pytest

from django_throttle.recording.thinning import HIGHEST, Thinned, level_of, random_level


def test_half_of_all_have_each_next_level() -> None:
    levels = [level_of(f"user:{number}") for number in range(20_000)]
    for level in range(5):
        assert sum(one >= level for one in levels) == pytest.approx(20_000 / 2**level, rel=0.12)
    assert sum(random_level() >= 2 for _ in range(20_000)) == pytest.approx(5000, rel=0.12)
    assert level_of("\ud800 lone") == level_of("\ud800 lone") <= HIGHEST


def test_a_sample_keeps_all_of_its_level_and_says_its_share() -> None:
    sample: Thinned[str] = Thinned(100)
    for number in range(10_000):
        for _ in range(3):
            sample.offer(level_of(f"user:{number}"), f"user:{number}")
    assert 20 < len(sample.entries) <= 100
    expected = [f"user:{number}" for number in range(10_000) if level_of(f"user:{number}") >= sample.level]
    assert sorted({one for _, one in sample.entries}) == sorted(expected)
    assert len(sample.entries) * 2**sample.level == pytest.approx(30_000, rel=0.5)


def test_more_of_the_highest_level_than_there_is_room_is_lost_and_counted() -> None:
    sample: Thinned[int] = Thinned(10)
    for number in range(25):
        sample.offer(HIGHEST, number)
    assert (len(sample.entries), sample.lost) == (10, 15)
    sample.offer(0, 1)
    assert len(sample.entries) == 10

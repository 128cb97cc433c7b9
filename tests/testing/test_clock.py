"""The clock that stands still until it is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from django_throttle.testing import FrozenClock


def test_it_stands_still() -> None:
    clock = FrozenClock()
    assert clock() == clock() == datetime(2023, 11, 16, tzinfo=UTC).timestamp()


def test_it_goes_on_and_back_without_losing_a_microsecond() -> None:
    clock = FrozenClock(0)
    for _ in range(1000):
        clock.tick(0.000001)
    assert clock() == 0.001
    clock.tick(-0.0005)
    assert clock() == 0.0005


@pytest.mark.parametrize(
    "moment",
    [1_700_000_000, 1_700_000_000.0, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)],
    ids=["int", "float", "datetime"],
)
def test_it_stands_at_any_moment(moment: float | datetime) -> None:
    clock = FrozenClock()
    clock.move_to(moment)
    assert clock() == FrozenClock(moment)() == 1_700_000_000


def test_a_time_zone_counts() -> None:
    east = timezone(timedelta(hours=2))
    assert FrozenClock(datetime(2024, 1, 1, 2, tzinfo=east))() == FrozenClock(datetime(2024, 1, 1, tzinfo=UTC))()


def test_a_moment_without_a_time_zone_is_none() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        FrozenClock(datetime(2024, 1, 1))  # noqa: DTZ001 (that is the point)

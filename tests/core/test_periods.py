"""Calendar periods hold the moment that they are asked about, around every change of the clocks too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from django_throttle.core.rate import HOUR, bounds

MINUTE = 60
DAY = 86_400
# Two hours at once; an offset of 12:45; half an hour.
ZONES = ("Antarctica/Troll", "Pacific/Chatham", "Australia/Lord_Howe")


def changes(zone: ZoneInfo) -> Iterator[int]:
    """The hours of 2025 and 2026, in seconds since the epoch, in which the clocks of a zone change."""
    start = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp())
    before = None
    for moment in range(start, start + 730 * DAY, 3600):
        offset = datetime.fromtimestamp(moment, zone).utcoffset()
        if before not in (None, offset):
            yield moment
        before = offset


def moments(zone: ZoneInfo) -> list[int]:
    """Two days around each change, in microseconds: every seven minutes, and each side of every quarter."""
    found: list[int] = []
    for change in changes(zone):
        for steps, aside in ((7 * MINUTE, 5), (15 * MINUTE, 0), (15 * MINUTE, -1)):
            found += [at * 1_000_000 + aside for at in range(change - 2 * DAY, change + 2 * DAY, steps)]
    return found


@pytest.mark.parametrize("name", ZONES)
def test_an_hour_holds_now_and_is_an_hour(name: str) -> None:
    zone, asked = ZoneInfo(name), moments(ZoneInfo(name))
    assert len(asked) > 3000
    for now in asked:
        start, end, next_end = bounds("hour", name, now)
        assert start <= now < end, now
        assert (end - start, next_end - end) == (HOUR, HOUR)
        assert datetime.fromtimestamp(now // 1_000_000, zone).minute == (now - start) // 60_000_000


@pytest.mark.parametrize("period", ["day", "week", "month"])
@pytest.mark.parametrize("name", ZONES)
def test_a_longer_period_holds_now_and_the_next_begins_as_it_ends(name: str, period: str) -> None:
    zone = ZoneInfo(name)
    for now in moments(zone)[::5]:
        start, end, next_end = bounds(period, name, now)
        assert start <= now < end < next_end, now
        assert bounds(period, name, end)[:2] == (end, next_end)
        begins = datetime.fromtimestamp(start // 1_000_000, zone)
        assert (begins.hour, begins.minute, begins.second) == (0, 0, 0)

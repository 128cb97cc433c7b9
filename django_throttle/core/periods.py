"""Calendar periods: when an hour, day, week or month of a time zone begins and ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django_throttle.core.rate import Rate
from django_throttle.exceptions import InvalidRule

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
HOUR: Final = 3_600_000_000
_PERIODS: Final[dict[float, str]] = {3600: "hour", 86_400: "day", 604_800: "week"}

Bounds = tuple[int, int, int]  # where this period begins and ends, and where the next one ends


def period_of(rate: Rate) -> str | None:
    """The calendar period that a rate counts: hour, day, week or month; None for any other window."""
    return "month" if rate.monthly else _PERIODS.get(rate.window)


@lru_cache(maxsize=64)
def zone(name: str) -> tzinfo:
    """The time zone of that name; raises InvalidRule when there is none."""
    if name == "UTC":
        return UTC  # known even where no time zone database is installed
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidRule(f"there is no time zone {name!r}; write one like Europe/Berlin", "timezone") from error


def bounds(period: str, zone_name: str, now: int) -> Bounds:
    """The bounds of the period that holds ``now``, in microseconds since the epoch. Weeks begin on Monday."""
    where = zone(zone_name)
    if period == "hour":
        return _hours(now, where)
    start = _begin(period, (_EPOCH + now * _MICROSECOND).astimezone(where))
    middle = _next(period, start)
    return _stamp(start), _stamp(middle), _stamp(_next(period, middle))


def _hours(now: int, where: tzinfo) -> Bounds:
    """Hours by the offset in force now, so that the one that a clock change repeats is two."""
    offset = ((_EPOCH + now * _MICROSECOND).astimezone(where).utcoffset() or timedelta(0)) // _MICROSECOND
    start = now - (now + offset) % HOUR
    return start, start + HOUR, start + 2 * HOUR


def _begin(period: str, moment: datetime) -> datetime:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def _next(period: str, start: datetime) -> datetime:
    if period == "month":
        return (start + timedelta(days=31)).replace(day=1)
    return start + timedelta(days=7 if period == "week" else 1)


def _stamp(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND

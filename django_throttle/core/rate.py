"""Rates (a limit per window), and the calendar periods of time zones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django_throttle.core.exceptions import InvalidRate, InvalidRule
from django_throttle.core.texts import translatable

# Integers of header fields have 15 digits (RFC 9651, 3.3.1). Lua adds several of these numbers exactly.
MAX_LIMIT: Final = 999_999_999_999_999
MAX_WINDOW: Final = 366 * 86_400
MIN_WINDOW: Final = 0.001
UNAFFORDABLE_COST: Final = MAX_LIMIT + 1  # a cost that no rule allows; larger ones are treated alike


class Unit(NamedTuple):
    """A unit of time."""

    short: str  #: written after a number: "5m"
    milliseconds: int
    single: str  #: written without a number: "min"
    word: str
    spellings: str  #: accepted in rates


TIME_UNITS: Final = (  # in descending order
    Unit("w", 604_800_000, "week", "week", "w week weeks"),
    Unit("d", 86_400_000, "day", "day", "d day days"),
    Unit("h", 3_600_000, "hour", "hour", "h hr hour hours"),
    Unit("m", 60_000, "min", "minute", "m min mins minute minutes"),
    Unit("s", 1000, "s", "second", "s sec secs second seconds"),
    Unit("ms", 1, "ms", "millisecond", "ms msec millisecond milliseconds"),
)
_UNIT_OF_SPELLING: Final = {spelling: unit for unit in TIME_UNITS for spelling in unit.spellings.split()}
MONTH: Final = "month"
# The longest month, which is the window of a monthly budget in header fields and keys.
_MONTH_SECONDS: Final = 31 * 86_400
_SHAPE: Final = re.compile(r"([0-9]{1,30})/([0-9]{0,11})([a-z]{1,12})")
_HELP: Final = translatable("write a rate like 100/min, 5/10m, 10/s or 1000/day")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``limit`` units in ``window`` seconds.

    Raises InvalidRate unless ``limit`` is a whole number from 1 to 999,999,999,999,999. The same applies to a
    ``window`` that is not from a millisecond to 366 days, in whole milliseconds.
    """

    limit: int
    window: float
    monthly: bool = False  #: True for a calendar month, whose length varies

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= MAX_LIMIT:
            raise InvalidRate(
                translatable(
                    "a limit must be a whole number from 1 to {most:,}, not {limit!r}", most=MAX_LIMIT, limit=self.limit
                )
            )
        if isinstance(self.window, bool) or not isinstance(self.window, (int, float)):
            raise InvalidRate(translatable("a window must be a number of seconds, not {window!r}", window=self.window))
        if not MIN_WINDOW <= self.window <= MAX_WINDOW:  # also refuses NaN
            raise InvalidRate(
                translatable(
                    "a window is from {least} to {most} seconds, not {window!r}",
                    least=MIN_WINDOW,
                    most=MAX_WINDOW,
                    window=self.window,
                )
            )
        if self.window_us % 1000 or self.window_us / 1_000_000 != self.window:
            raise InvalidRate(
                translatable(
                    "a window must be a whole number of milliseconds, not {window!r} seconds", window=self.window
                )
            )

    @classmethod
    def parse(cls, text: str, *, calendar: bool = False, typed: str | None = None) -> Rate:
        """Parse a text such as ``"100/min"``: a limit, a slash, an optional multiple and a unit from ms to week.

        ``calendar`` allows ``"1000/month"``, too. Raise InvalidRate for any other text. The message quotes ``typed``,
        by default the text. ``Rate.parse(str(rate)) == rate`` for every parsed rate.
        """
        match = _SHAPE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            quoted = _shortened(text if typed is None else typed)
            if re.search("[0-9][.,][0-9]", quoted):
                advice = translatable("the number must be whole: write 1000/min, or 1/2m for one in two minutes")
            elif typed is None and ";" in str(text):
                advice = translatable('write several as rates=["5/min", "100/day"]')
            else:
                advice = _HELP
            raise InvalidRate(translatable("{text} is not a rate: {help}", text=quoted, help=advice))
        limit, multiple, name = match.groups()
        if calendar and name == MONTH and not multiple:
            return cls(int(limit), _MONTH_SECONDS, monthly=True)
        if name in ("month", "months", "year", "years"):
            is_calendar = name == MONTH and not multiple
            advice = translatable("set algorithm to fixed_window, or {help}", help=_HELP) if is_calendar else _HELP
            raise InvalidRate(translatable("a {name} has no fixed length: {advice}", name=name, advice=advice))
        if name not in _UNIT_OF_SPELLING:
            raise InvalidRate(translatable("{name!r} is not a unit of time: {help}", name=name, help=_HELP))
        unit = _UNIT_OF_SPELLING[name]
        milliseconds = int(multiple or 1) * unit.milliseconds
        return cls(int(limit), milliseconds / 1000 if unit is TIME_UNITS[-1] else milliseconds // 1000)

    @property
    def window_us(self) -> int:
        return round(self.window * 1_000_000)

    def __str__(self) -> str:
        if self.monthly:
            return f"{self.limit}/{MONTH}"
        count, unit = self.in_units
        return f"{self.limit}/{unit.single}" if count == 1 else f"{self.limit}/{count}{unit.short}"

    @property
    def in_units(self) -> tuple[int, Unit]:
        """The window in the largest unit of which it is a multiple: the number and the unit."""
        milliseconds = self.window_us // 1000
        unit = next(unit for unit in TIME_UNITS if milliseconds % unit.milliseconds == 0)
        return milliseconds // unit.milliseconds, unit


class RateLimit(int):
    """The limit of a rule that has a rate. The type marks it as derived, also after ``dataclasses.replace``."""

    __slots__ = ()


def _shortened(text: object) -> str:
    escaped = repr(text)
    return escaped if len(escaped) <= 60 else escaped[:57] + "..."


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
HOUR: Final = 3_600_000_000
_PERIODS: Final[dict[float, str]] = {3600: "hour", 86_400: "day", 604_800: "week"}

Bounds = tuple[int, int, int]  # begin and end of a period, and end of the next period


def period_of(rate: Rate) -> str | None:
    """Return the calendar period of a rate: hour, day, week or month; None for any other window."""
    return "month" if rate.monthly else _PERIODS.get(rate.window)


@lru_cache(maxsize=64)
def zone(name: str) -> tzinfo:
    """Return the time zone of this name. Raise InvalidRule if there is none."""
    if name == "UTC":
        return UTC  # works without a time zone database
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        fault = translatable("there is no time zone {name!r}; write one like Europe/Berlin", name=name)
        raise InvalidRule(fault, "timezone") from error


def bounds(period: str, zone_name: str, now: int) -> Bounds:
    """Return the bounds of the period at ``now``, in microseconds since the epoch. Weeks begin on Monday."""
    timezone = zone(zone_name)
    if period == "hour":
        return _hour_bounds(now, timezone)
    start = _begin(period, (_EPOCH + now * _MICROSECOND).astimezone(timezone))
    end = _next(period, start)
    return _microseconds(start), _microseconds(end), _microseconds(_next(period, end))


def _hour_bounds(now: int, timezone: tzinfo) -> Bounds:
    """Return the bounds of the hour by the current offset from UTC. An hour repeated by a clock change counts twice."""
    offset = ((_EPOCH + now * _MICROSECOND).astimezone(timezone).utcoffset() or timedelta(0)) // _MICROSECOND
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


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND

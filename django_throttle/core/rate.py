"""Rates (a limit per window), and the calendar periods of time zones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django_throttle.core.exceptions import InvalidRate, InvalidRule
from django_throttle.core.texts import gettext_lazy

# A header field's integer has 15 digits (RFC 9651, 3.3.1), and Lua adds up several of these without losing one.
MAX_LIMIT: Final = 999_999_999_999_999
MAX_WINDOW: Final = 366 * 86_400
MIN_WINDOW: Final = 0.001
TOO_COSTLY: Final = MAX_LIMIT + 1  # a cost that no rule allows; larger ones are treated alike


class Unit(NamedTuple):
    """A unit of time: as it is written after a number, and without one, and all that may be typed for it."""

    short: str
    milliseconds: int
    single: str
    word: str
    typed: str


UNITS: Final = (  # the largest first
    Unit("w", 604_800_000, "week", "week", "w week weeks"),
    Unit("d", 86_400_000, "day", "day", "d day days"),
    Unit("h", 3_600_000, "hour", "hour", "h hr hour hours"),
    Unit("m", 60_000, "min", "minute", "m min mins minute minutes"),
    Unit("s", 1000, "s", "second", "s sec secs second seconds"),
    Unit("ms", 1, "ms", "millisecond", "ms msec millisecond milliseconds"),
)
_TYPED: Final = {typed: unit for unit in UNITS for typed in unit.typed.split()}
MONTH: Final = "month"
# The longest month: the window that header fields and keys of a monthly budget have.
_MONTH_SECONDS: Final = 31 * 86_400
_SHAPE: Final = re.compile(r"([0-9]{1,30})/([0-9]{0,11})([a-z]{1,12})")
_HELP: Final = gettext_lazy("write a rate like 100/min, 5/10m, 10/s or 1000/day")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``limit`` cost in any ``window`` seconds.

    Raises InvalidRate unless ``limit`` is a whole number from 1 to 999,999,999,999,999 and ``window`` is from
    a millisecond to 366 days, in whole milliseconds. ``monthly`` marks a calendar month, whose length varies.
    """

    limit: int
    window: float
    monthly: bool = False

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= MAX_LIMIT:
            raise InvalidRate(
                gettext_lazy(
                    "a limit must be a whole number from 1 to {most:,}, not {limit!r}", most=MAX_LIMIT, limit=self.limit
                )
            )
        if isinstance(self.window, bool) or not isinstance(self.window, (int, float)):
            raise InvalidRate(gettext_lazy("a window must be a number of seconds, not {window!r}", window=self.window))
        if not MIN_WINDOW <= self.window <= MAX_WINDOW:  # also refuses NaN
            raise InvalidRate(
                gettext_lazy(
                    "a window is from {least} to {most} seconds, not {window!r}",
                    least=MIN_WINDOW,
                    most=MAX_WINDOW,
                    window=self.window,
                )
            )
        if self.window_us % 1000 or self.window_us / 1_000_000 != self.window:
            raise InvalidRate(
                gettext_lazy(
                    "a window must be a whole number of milliseconds, not {window!r} seconds", window=self.window
                )
            )

    @classmethod
    def parse(cls, text: str, *, calendar: bool = False, typed: str | None = None) -> Rate:
        """Read ``"100/min"``: a limit, a slash, an optional multiple and a unit from ms to week.

        With ``calendar``, ``"1000/month"`` too. Raises InvalidRate for anything else, which quotes what was
        ``typed`` where that is given;
        ``Rate.parse(str(rate)) == rate`` for every parsed rate.
        """
        match = _SHAPE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            several = gettext_lazy('write several as rates=["5/min", "100/day"]')
            advice = several if typed is None and ";" in str(text) else _HELP
            shown = _shortened(text if typed is None else typed)
            if re.search("[0-9][.,][0-9]", shown):
                advice = gettext_lazy("the number must be whole: write 1000/min, or 1/2m for one in two minutes")
            raise InvalidRate(gettext_lazy("{text} is not a rate: {help}", text=shown, help=advice))
        limit, multiple, name = match.groups()
        if calendar and name == MONTH and not multiple:
            return cls(int(limit), _MONTH_SECONDS, monthly=True)
        if name in ("month", "months", "year", "years"):
            by_calendar = name == MONTH and not multiple
            advice = gettext_lazy("set algorithm to fixed_window, or {help}", help=_HELP) if by_calendar else _HELP
            raise InvalidRate(gettext_lazy("a {name} has no fixed length: {advice}", name=name, advice=advice))
        if name not in _TYPED:
            raise InvalidRate(gettext_lazy("{name!r} is not a unit of time: {help}", name=name, help=_HELP))
        milliseconds = int(multiple or 1) * _TYPED[name].milliseconds
        return cls(int(limit), milliseconds / 1000 if name in UNITS[-1].typed.split() else milliseconds // 1000)

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
        """The window as a number of the largest unit of which it is a multiple."""
        milliseconds = self.window_us // 1000
        unit = next(unit for unit in UNITS if milliseconds % unit.milliseconds == 0)
        return milliseconds // unit.milliseconds, unit


class RateLimit(int):
    """The limit of a rule that has a rate; ``dataclasses.replace`` passes it on as if it were given."""

    __slots__ = ()


def _shortened(text: object) -> str:
    shown = repr(text)  # what is not printable is escaped
    return shown if len(shown) <= 60 else shown[:57] + "..."


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
        fault = gettext_lazy("there is no time zone {name!r}; write one like Europe/Berlin", name=name)
        raise InvalidRule(fault, "timezone") from error


def bounds(period: str, zone_name: str, now: int) -> Bounds:
    """The bounds of the period that holds ``now``, in microseconds since the epoch. Weeks begin on Monday."""
    where = zone(zone_name)
    if period == "hour":
        return _hours(now, where)
    start = _begin(period, (_EPOCH + now * _MICROSECOND).astimezone(where))
    middle = _next(period, start)
    return _stamp(start), _stamp(middle), _stamp(_next(period, middle))


def _hours(now: int, where: tzinfo) -> Bounds:
    """The hour by the present offset from UTC, so that an hour that a clock change repeats is two."""
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

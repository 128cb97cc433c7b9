"""Rates: read strictly, written so that they can be read again, and the calendar periods of those that have one."""

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Rate
from django_throttle.core.rate import HOUR, MAX_LIMIT, MAX_WINDOW, bounds
from django_throttle.exceptions import InvalidRate

DAY = 86_400

GOOD = {
    "100/min": (100, 60), "5/10m": (5, 600), "10/s": (10, 1), "1/20s": (1, 20), "1000/day": (1000, DAY),
    "1/ms": (1, 0.001), "7/250ms": (7, 0.25), "3/2msec": (3, 0.002), "3/1500milliseconds": (3, 1.5),
    "1/sec": (1, 1), "1/2secs": (1, 2), "1/second": (1, 1), "1/30seconds": (1, 30), "1/m": (1, 60),
    "1/2mins": (1, 120), "1/minute": (1, 60), "1/15minutes": (1, 900), "1/h": (1, 3600), "1/hr": (1, 3600),
    "1/hour": (1, 3600), "1/12hours": (1, 43_200), "1/d": (1, DAY), "1/7days": (1, 7 * DAY), "1/w": (1, 7 * DAY),
    "1/week": (1, 7 * DAY), "1/2weeks": (1, 14 * DAY), "1/366d": (1, 366 * DAY), "007/01s": (7, 1),
    f"{MAX_LIMIT}/s": (MAX_LIMIT, 1),
}  # fmt: skip
BAD = [
    "", "100", "100/", "/min", "min", "100/1", "100/m/s", "100//m", "100/min/", "100 / min", " 100/min", "100/min ",
    "100/min\n", "100/MIN", "100/fortnight", "100/mi", "100/0s", "100/-1s", "0/min", "-1/min", "+1/min", "1.5/min",
    "1/1.5s", "1e3/s", "1_000/s", "nan/s", "inf/s", "0x10/s", "10/month", "10/months", "10/year",
    "\uff11\uff10/min", "\u0661/min",  # full-width digits are digits to int(), and so are Arabic ones
    f"{MAX_LIMIT + 1}/s", "1/367d", "1/53w", "9" * 16 + "/s", "1/" + "9" * 10 + "s", "9" * 1_000_000, "1/s" * 1000,
    None, 100, 1.5, True, b"100/min", ("100", "min"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), GOOD.items())
def test_reads(text: str, expected: tuple[int, float]) -> None:
    rate = Rate.parse(text)
    assert (rate.limit, rate.window) == expected


@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text)[:30])
def test_refuses(text: object) -> None:
    with pytest.raises(InvalidRate) as caught:
        Rate.parse(text)
    assert len(str(caught.value)) < 200  # a client's megabyte does not reach the log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ten a minute", "write a rate like 100/min"),
        ("５/分", r"^'５/分' is not a rate: write a rate like 100/min"),
        ("5/min;100/day", r"""write several as rates=\["5/min", "100/day"\]"""),
        ("1,000/min", "^'1,000/min' is not a rate: the number must be whole: write 1000/min"),
        ("1.000/min", "the number must be whole: write 1000/min"),
        ("0,5/min", "the number must be whole: write 1000/min"),
        ("x" * 58, f"^'{'x' * 58}' is not a rate"),
        ("x" * 59, rf"^'{'x' * 56}\.\.\. is not a rate"),
        ("10/month", "month has no fixed length: set algorithm to fixed_window, or write"),
    ],
)
def test_an_error_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(InvalidRate, match=message):
        Rate.parse(text)


def test_a_month_is_a_rate_where_a_calendar_counts() -> None:
    rate = Rate.parse("10/month", calendar=True)
    assert str(rate) == "10/month" and Rate.parse(str(rate), calendar=True) == rate != Rate.parse("10/31d")
    for text in ("10/2month", "10/months", "10/year"):
        with pytest.raises(InvalidRate, match="write a rate like"):
            Rate.parse(text, calendar=True)


@pytest.mark.parametrize("limit", [0, -1, MAX_LIMIT + 1, 2**63, 1.0, "5", True, None, float("nan")])
def test_limit_is_a_whole_number_in_range(limit: object) -> None:
    with pytest.raises(InvalidRate):
        Rate(limit, 60)


@pytest.mark.parametrize(
    "window", [0, -1, 0.0009, 0.0015, 1.0000004, MAX_WINDOW + 1, float("nan"), float("inf"), True, "60", None, 10**400]
)
def test_window_is_a_number_in_range(window: object) -> None:
    with pytest.raises(InvalidRate):
        Rate(5, window)


@given(
    limit=st.integers(1, MAX_LIMIT),
    count=st.integers(1, 366),
    unit=st.sampled_from(["ms", "s", "sec", "m", "min", "h", "hours", "d", "day", "w", "weeks"]),
)
def test_what_is_read_is_written_and_read_again(limit: int, count: int, unit: str) -> None:
    text = f"{limit}/{count}{unit}"
    try:
        rate = Rate.parse(text)
    except InvalidRate:
        assert unit in ("w", "weeks") and count > 52
        return
    assert Rate.parse(str(rate)) == rate
    assert str(Rate.parse(str(rate))) == str(rate)
    assert rate.window_us == round(rate.window * 1_000_000)


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("100/60s", "100/min"), ("5/600s", "5/10m"), ("1/24h", "1/day"), ("1/14d", "1/2w"), ("1/1000ms", "1/s"),
        ("2/90s", "2/90s"), ("3/1500ms", "3/1500ms"),
    ],
)  # fmt: skip
def test_is_written_in_the_largest_unit_that_divides(text: str, shortest: str) -> None:
    assert str(Rate.parse(text)) == shortest


# Two hours at once; an offset of 12:45; half an hour.
@pytest.mark.parametrize("name", ["Antarctica/Troll", "Pacific/Chatham", "Australia/Lord_Howe"])
def test_a_period_holds_now_and_the_next_begins_as_it_ends(name: str) -> None:
    """Two days around each change of the clocks in 2025, with the microseconds on both sides of each quarter."""
    zone, start = ZoneInfo(name), int(datetime(2025, 1, 1, tzinfo=UTC).timestamp())
    offsets = [datetime.fromtimestamp(at, zone).utcoffset() for at in range(start, start + 365 * DAY, HOUR // 10**6)]
    changes = [start + 3600 * hour for hour, (one, other) in enumerate(pairwise(offsets), 1) if one != other]
    assert len(changes) == 2
    for change in changes:
        for now in (at * 10**6 + aside for at in range(change - DAY, change + DAY, 900) for aside in (-1, 0)):
            begin, end, next_end = bounds("hour", name, now)
            assert begin <= now < end
            assert (end - begin, next_end - end) == (HOUR, HOUR)
            assert datetime.fromtimestamp(now // 10**6, zone).minute == (now - begin) // 60_000_000
            for period in ("day", "week", "month"):
                begin, end, next_end = bounds(period, name, now)
                assert begin <= now < end < next_end
                assert bounds(period, name, end)[:2] == (end, next_end)
                begins = datetime.fromtimestamp(begin // 10**6, zone)
                assert (begins.hour, begins.minute, begins.second) == (0, 0, 0)

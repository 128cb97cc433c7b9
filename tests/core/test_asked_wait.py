"""The wait that an answer of somebody else's server asks of its clients, however it says so."""

import time

import httpx
import pytest

from django_throttle.core.asked_wait import asked_wait
from django_throttle.core.headers import HEADER_VERSIONS, Policy, rate_limit

NOW = 1_760_000_000.0  # Thu, 09 Oct 2025 08:53:20 GMT
LATER = "Thu, 09 Oct 2025 08:54:00 GMT"


def wait(status: int, **fields: str) -> float:
    return asked_wait(status, httpx.Headers({name.replace("_", "-"): text for name, text in fields.items()}), NOW)


PAST = "Wed, 08 Oct 2025 08:53:20 GMT"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("30", 30.0), (" 30 ", 30.0), ("0", 0.0), ("1.5", 1.5), ("999999999", 999_999_999.0)),
        *((LATER, 40.0), (PAST, 0.0), ("Thu Oct  9 08:54:00 2025", 40.0), ("Thursday, 09-Oct-25 08:54:00 GMT", 40.0)),
        *((f"12, {LATER}", 40.0), (f"{LATER},50", 50.0), ("12,", 12.0), ("soon, 12", 12.0), (f"{PAST}, {LATER}", 40.0)),
        *(("120, 60", 120.0), ("1.5,2 ", 2.0), ("2025-10-09T08:54:00Z", 40.0), ("2025-10-09 10:54:00+02:00", 40.0)),
        *(("2025-10-09T08:54:00", 40.0), ("2025-10-09", 0.0)),
        *(("1760000060", 60.0), ("1760000000.5", 0.5), ("1000000000", 0.0), ("1760000000", 0.0)),
        *(("1760000060000", 60.0), ("1759999999999", 0.0), ("1760000060000000", 60.0), ("1760000060000000000", 60.0)),
    ],
)
def test_seconds_dates_and_moments(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert (wait(503, Retry_After=text), wait(429, Retry_After=text)) == (seconds, seconds or 1.0)
        quota = {"RateLimit-Remaining": "0", "RateLimit-Reset": text}
        assert asked_wait(200, httpx.Headers(quota), NOW) == seconds
        assert asked_wait(429, httpx.Headers(quota), NOW) == (seconds or 1.0)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", [LATER, "1760000040", "1760000040000"])
def test_a_moment_is_read_by_the_servers_own_clock(text: str) -> None:
    assert wait(429, Retry_After=text, Date="Thu, 09 Oct 2025 08:53:50 GMT") == 10.0
    assert wait(429, Retry_After=text, Date="gibberish") == 40.0
    assert wait(429, Retry_After=text, Date="Thu, 09 Oct 2025 09:00:00 GMT") == 1.0


@pytest.mark.parametrize(
    "text", ["soon", "-5", "1e3", "", "Thu, 99 Oct 2025 08:53:20 GMT", "\x00", "1" * 9 + "x", ",soon,"]
)
def test_what_makes_no_sense_asks_for_what_the_status_does(text: str) -> None:
    assert (wait(503, Retry_After=text), wait(429, Retry_After=text)) == (0.0, 1.0)


def test_other_answers_ask_for_nothing_and_a_long_number_is_a_number() -> None:
    assert wait(200) == wait(503) == wait(301, Retry_After="30") == 0.0
    assert wait(429, Retry_After="9" * 5000) == float("inf")


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"RateLimit": '"a";r=0;t=7'}, 7.0),
        ({"RateLimit": '"a";r=0;t=7, "b";r=0;t=9'}, 9.0),
        ({"RateLimit": '"a";r=1;t=7'}, 0.0),
        ({"RateLimit": '"a,b;r=0;\\"t=8";r=0;t=7'}, 7.0),
        ({"RateLimit": '"a";t=7;r=0;pk=:cGF0:'}, 7.0),
        ({"RateLimit": ' "a" ; r=0 ; t=7 '}, 7.0),
        ({"RateLimit": '"a";r=0', "RateLimit-Policy": '"b";q=1;w=5, "a";q=10;w=60'}, 60.0),
        ({"RateLimit": '"a";r=0'}, 0.0),
        ({"RateLimit": '"a";r=0;t=1760000009'}, 9.0),
        ({"RateLimit": "limit=10, remaining=0, reset=1760000006"}, 6.0),
        ({"RateLimit": "limit=10, remaining=0, reset=6"}, 6.0),
        ({"RateLimit": "limit=10, remaining=2, reset=6"}, 0.0),
        ({"RateLimit-Limit": "10", "RateLimit-Remaining": "0", "RateLimit-Reset": "4"}, 4.0),
        ({"RateLimit-Remaining": "1", "RateLimit-Reset": "4"}, 0.0),
        ({"RateLimit": '"a;r=0;t=7'}, 0.0),
        ({"RateLimit": ",,;;=,"}, 0.0),
        # Made to be slow: a field is read once from its beginning to its end.
        *(({"RateLimit": text, "RateLimit-Policy": text}, 0.0) for text in ('"' * 100_000, '\\"' * 50_000)),
        *(({"RateLimit": text, "RateLimit-Policy": text}, 0.0) for text in ('"\\' * 50_000, ",;" * 50_000)),
        ({"RateLimit": '"a";r=0;t=' + "9" * 99_999}, float("inf")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_quotas_of_which_nothing_is_left(fields: dict[str, str], seconds: float) -> None:
    assert asked_wait(200, httpx.Headers(fields), NOW) == seconds


@pytest.mark.parametrize("version", HEADER_VERSIONS)
def test_what_this_package_writes_is_read(version: str) -> None:
    policies = (Policy('we "call", it', 10, 0, 60, 33, 33.0), Policy("other", 10, 5, 60, 40, 40.0))
    expected = 33.0 if version != "off" else 0.0
    assert asked_wait(200, httpx.Headers(rate_limit(policies, version)), NOW) == expected

"""Access logs: each line of the formats that servers write is a call, at its time."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from django_throttle.access_log import Call, read

LOG = Path(__file__).parents[2] / "shared" / "data" / "access.log.gz"
AT = 1_431_857_103.0  # 2015-05-17 10:05:03 UTC
COMBINED = '192.0.2.7 - {} [17/May/2015:12:05:03 +0200] "GET /a?b=1 HTTP/1.1" 200 203023 "-" "Mozilla/5.0"'
CALL = Call(AT, "192.0.2.7", "", "GET", "/a", "", 200)


def calls_of(tmp_path: Path, *lines: str) -> list[Call]:
    (tmp_path / "log").write_text("\n".join(lines))
    found = read(str(tmp_path / "log"))
    assert (found.unread, found.first_unread) == (0, None)
    return found.calls


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (COMBINED.format("-"), CALL),
        (COMBINED.format("anna"), CALL._replace(user="anna")),
        ("example.org:443 " + COMBINED.format("-"), CALL),
        (COMBINED.format("-").replace("192.0.2.7", "::1"), CALL._replace(address="::1")),
        (COMBINED.format("-").partition(' "-"')[0], CALL),  # the common format
        (COMBINED.format("-").replace("GET /a?b=1 HTTP/1.1", r"\x16\x03"), CALL._replace(method="", path="")),
        ('{"time": 1431857103, "remote_addr": "192.0.2.7", "request": "GET /a?b=1 HTTP/1.1", "status": "200"}', CALL),
        ('{"msec": "1431857103.000", "ip": "192.0.2.7", "method": "get", "uri": "/a", "status": 200}', CALL),
        ('{"ts": 1431857103000, "ip": "192.0.2.7", "method": "GET", "path": "/a", "status": 200}', CALL),
        ('{"@timestamp": "2015-05-17T12:05:03+02:00", "client_ip": "192.0.2.7", "user": 42, "scope": "search"}',
         Call(AT, "192.0.2.7", "42", "", "", "search", 0)),
        ('{"time": "2015-05-17 10:05:03", "address": "192.0.2.7"}', Call(AT, "192.0.2.7", "", "", "", "", 0)),
    ],
)  # fmt: skip
def test_a_line(tmp_path: Path, line: str, expected: Call) -> None:
    assert calls_of(tmp_path, line) == [expected]


def test_calls_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    line = '{{"time": {}, "ip": "192.0.2.7", "path": "/{}"}}'
    found = calls_of(tmp_path, line.format(1e9 + 2, 1), line.format(1e9, 2), "", line.format(1e9 + 2, 3))
    assert [call.path for call in found] == ["/2", "/1", "/3"]


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        COMBINED.format("-").replace("May", "Mai"),
        '{"ip": "192.0.2.7"}',
        '{"time": true, "ip": "192.0.2.7"}',
        '{"time": 1e300, "ip": "192.0.2.7"}',
        '{"time": 1431857103, "ip": "192.0.2.7", "status": "no"}',
        '{"time": 1431857103}',
        "{" * 60_000,
        '{"time": ' + "[" * 60_000,
        "\x00" * 200_000,
    ],
)
def test_what_is_no_call_is_counted_and_shown(tmp_path: Path, line: str) -> None:
    (tmp_path / "log").write_text("\n".join([COMBINED.format("-"), line, COMBINED.format("-")]))
    found = read(str(tmp_path / "log"))
    assert found.calls == [CALL, CALL] and found.unread >= 1 and found.first_unread == (2, line.strip()[:200])


def test_a_compressed_log_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(gzip.compress(COMBINED.format("-").encode()))
    shares: list[float] = []
    assert read(str(tmp_path / "log")).calls == [CALL]
    found = read(str(LOG), shares.append)
    assert len(found.calls) == 10_000 and found.unread == 0
    assert shares == sorted(shares) and 0 < shares[0] <= 1


def test_half_an_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(gzip.compress(COMBINED.format("-").encode())[:-10])
    with pytest.raises(EOFError):
        read(str(tmp_path / "log"))

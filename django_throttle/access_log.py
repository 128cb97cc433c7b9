"""Reads calls from an access log: the combined or common format of web servers, or an object of JSON on each line."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from sys import intern, stdin
from typing import Any, Final, NamedTuple

NUMBER: Final = re.compile(r"\d{9,}(\.\d+)?")
GZIP: Final = b"\x1f\x8b"
MAX_LINE: Final = 65_536  # bytes; what is longer is cut, and most likely not understood
# A virtual host may stand in front, as in Apache's vhost_combined. Clients choose the request and what follows: each
# pattern takes no longer than the length of the line.
COMBINED: Final = re.compile(r'(?:\S+:\d+ )?(\S+) \S+ (.*?) \[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "')
STATUS: Final = re.compile(r'" (\d{3}) ')
REQUEST: Final = re.compile(r"([A-Z]+) (\S+)")
MONTHS: Final = {
    name: f"{number:02}"
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)  # noqa: SIM905
}
# The names that servers and log libraries give to a fact, the first that is there counts.
TIME: Final = ("time", "timestamp", "@timestamp", "ts", "msec", "time_iso8601", "time_local")
ADDRESS: Final = ("remote_addr", "address", "client_ip", "remote_ip", "ip", "client")
USER: Final = ("user", "remote_user", "user_id")
METHOD: Final = ("method", "request_method")
PATH: Final = ("path", "uri", "request_uri", "url")


class Call(NamedTuple):
    """One line: when, in seconds since 1970, and what it says of the call; "" and 0 for what it does not say."""

    at: float
    address: str
    user: str
    method: str
    path: str
    scope: str
    status: int


class AccessLog(NamedTuple):
    """The calls of a log in the order of their times, and the numbers and texts of the lines that are none."""

    calls: list[Call]
    unread: int
    first_unread: tuple[int, str] | None


def read(path: str, progress: Callable[[float], None] = lambda share: None) -> AccessLog:
    """Read a log, compressed by gzip or not; "-" is standard input. Raises OSError, and EOFError for half an archive.

    ``progress`` is told the share that has been read, where the size is known.
    """
    calls: list[Call] = []
    unread, first = 0, None
    with open(stdin.fileno() if path == "-" else path, "rb", closefd=path != "-") as file:
        size = 0 if path == "-" else Path(path).stat().st_size
        for number, line in enumerate(_lines(file), 1):
            if number % 8192 == 0 and size:
                progress(min(1.0, file.tell() / size))
            text = line.decode(errors="replace").strip()
            try:
                calls.append(_of_json(text) if text.startswith("{") else _of_combined(text))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                if text:
                    unread, first = unread + 1, first or (number, text[:200])
    calls.sort(key=lambda call: call.at)
    return AccessLog(calls, unread, first)


def _lines(file: io.BufferedReader) -> Iterator[bytes]:
    found: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == GZIP else file
    while line := found.readline(MAX_LINE):
        yield line
        while len(line) == MAX_LINE and not line.endswith(b"\n"):  # the rest of it is no line of its own
            line = found.readline(MAX_LINE)


def _of_combined(text: str) -> Call:
    begin = COMBINED.match(text)
    status = begin and STATUS.search(text, begin.end() - 1)
    if begin is None or status is None:
        raise ValueError("a line of the combined format has an address, a time, a request and a status")
    address, user, time = begin.groups()
    request = REQUEST.match(text, begin.end(), status.start())
    method, path = request.groups() if request else ("", "")
    return _call(_clf_seconds(time), address, "" if user == "-" else user, method, path, "", int(status[1]))


def _of_json(text: str) -> Call:
    line = json.loads(text)
    method, _, path = str(line.get("request") or "").partition(" ")
    address, user = _text(_first(line, ADDRESS)), _text(_first(line, USER))
    if not address and not user:
        raise ValueError("a line of JSON has an address or a user")
    return _call(
        _seconds(_first(line, TIME)),
        address,
        user,
        _text(_first(line, METHOD)) or method,
        _text(_first(line, PATH)) or path.partition(" ")[0],
        _text(line.get("scope")),
        int(line.get("status") or 0),
    )


def _call(
    at: float, address: str, user: str, method: str | None, path: str | None, scope: str, status: int
) -> Call:  # a million of them: equal texts are one
    where = (path or "").partition("?")[0]
    return Call(at, intern(address), intern(user), intern((method or "").upper()), intern(where), intern(scope), status)


def _first(line: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((line[name] for name in names if line.get(name) not in (None, "", "-")), None)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _seconds(time: Any) -> float:
    """Seconds since 1970: a number of them, or of milliseconds; a text in ISO 8601, of UTC without a zone, or CLF's."""
    if isinstance(time, str):
        if "/" in time:
            return _clf_seconds(time)
        if not NUMBER.fullmatch(time):
            found = datetime.fromisoformat(time)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        time = float(time)
    if type(time) not in (int, float) or not 0 <= time < 1e14:
        raise ValueError("this is no time")
    return time / 1000 if time > 1e11 else float(time)


@lru_cache(maxsize=65_536)
def _clf_seconds(time: str) -> float:
    """Of "17/May/2015:10:05:03 +0000"."""
    day, month, year, clock, zone = time[:2], MONTHS[time[3:6]], time[7:11], time[12:20], time[21:]
    return datetime.fromisoformat(f"{year}-{month}-{day}T{clock}{zone}").timestamp()

"""Reader of access logs in the formats of common servers, or in lines of JSON."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from sys import intern, stdin
from typing import Any, Final, NamedTuple

from django_throttle.identity.address import parse

UNIX_TIME: Final = re.compile(r"\d{9,}(\.\d+)?")
GZIP_MAGIC: Final = b"\x1f\x8b"
MAX_LINE_BYTES: Final = 65_536  # longer lines are cut, and most likely not understood
# Clients choose the request and the rest of the line. Each pattern takes linear time.
# Hypercorn's logger puts a time, its process and a level first, and daphne leaves the time zone out.
COMBINED: Final = re.compile(
    r'(?:\[[^\]]*\] \[\d+\] \[[A-Z]+\] )?(.*?) \[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d)( [+-]\d{4})?\] "'
)
STATUS_IN_LINE: Final = re.compile(r'(?<!\\)" (\d{3}) ')
REQUEST: Final = re.compile(r"([A-Z][A-Z-]*) (\S+)")
ISO_TIME: Final = r"\d{4}-\d\d-\d\dT[\d:.]+Z"
# https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html; classic load
# balancers have no type.
BALANCER: Final = re.compile(
    rf'(?:(?:https?|h2|grpcs|wss?) +)?({ISO_TIME}) \S+ (\S+)(?: \S+){{4}} (\d{{3}}|-)(?: \S+){{3}} "([^"]*)"'
)
# Rest of such a line up to the start of the request. The line is written when the response, or the WebSocket, ends.
CREATED: Final = re.compile(rf' "[^"]*"(?: \S+){{3}}(?: "[^"]*"){{3}} ?\S+ ({ISO_TIME}) ')
# https://docs.haproxy.org/3.2/configuration.html#8.2.3: syslog's words, then the client. In captured headers, between
# braces, and in the request, quotes and braces are escaped by #, and syslog-ng puts a backslash before quotes (8.6).
HAPROXY: Final = re.compile(
    r'([^"]*?) \[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d)(\.\d+)?\] \S+ [^\s/]+/\S+ (?:-?\d+/){4}\+?-?\d+ (-?\d+) '
    r'\+?\d+(?: \S+){3} (?:\d+/){4}\+?\d+ \d+/\d+ (?:\{[^{}]*\} ){0,2}\\?"'
)
# https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage#default-format-string.
# Envoy escapes nothing. A line with more quotes is not read, because a client may have sent them.
ENVOY: Final = re.compile(
    rf'\[({ISO_TIME})\] "([A-Z][A-Z-]*) (\S+) HTTP/[\d.]+" (\d+) \S+ \d+ \d+ \d+ (?:\d+|-) "([^"]*)"(?: "[^"]*"){{4}}'
)
# https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html, in the W3C's extended
# format: https://www.w3.org/TR/WD-logfile.html. Lines that begin with # name the fields of the other lines.
DIRECTIVE: Final = re.compile(r"#(Version|Fields|Software|Start-Date|End-Date|Date|Remark): *(.*)")
METHOD_NAME: Final = re.compile("[A-Z][A-Z-]*")
TIME_TAKEN: Final = re.compile(r"\d{1,9}(?:\.\d+)?")  # seconds
SLASHED_DATE: Final = re.compile(r"(\d{4})/(\d\d)/(\d\d) ")
MONTHS: Final = {
    name: f"{number:02}"
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)  # noqa: SIM905
}
# Names of fields by servers and log libraries, in the order of precedence.
TIME_FIELDS: Final = (
    "StartUTC", "StartLocal", "time", "timestamp", "@timestamp", "ts", "msec", "time_iso8601", "time_local",
    "EdgeStartTimestamp",
)  # fmt: skip
ADDRESS_FIELDS: Final = (
    "client_ip", "remote_addr", "address", "remote_ip", "ip", "client", "ClientHost", "ClientAddr", "ClientIP",
    "remoteIp",
)  # fmt: skip
USER_FIELDS: Final = ("user", "remote_user", "user_id", "ClientUsername")
METHOD_FIELDS: Final = ("method", "request_method", "RequestMethod", "ClientRequestMethod", "requestMethod")
PATH_FIELDS: Final = ("path", "uri", "request_uri", "url", "RequestPath", "ClientRequestURI", "requestUrl")
STATUS_FIELDS: Final = (
    "status", "status_code", "response_status", "response_code", "http_status", "statusCode", "DownstreamStatus",
    "elb_status_code", "EdgeResponseStatus", "response", "code",
)  # fmt: skip
EMPTY_VALUES: Final = (None, "", "-", "AnonymousUser")  # the last is the text of Django's AnonymousUser
STATUS_CODE: Final = re.compile(r"0+|[1-5]\d\d")  # 0 if the client has gone before the response
LEVEL_FIELDS: Final = ("level", "levelname", "severity")
MESSAGE_FIELDS: Final = ("message", "msg", "logger", "event")
# Caddy's logger of requests. Other loggers repeat failed requests.
CADDY_LOGGER: Final = "http.log.access"


class LoggedCall(NamedTuple):
    """Call of a line. Fields that the line does not have are "" or 0."""

    at: float  #: in seconds since 1970
    address: str
    user: str
    method: str
    path: str
    scope: str
    status: int


class AccessLog(NamedTuple):
    """Calls of a log, in the order of their times."""

    calls: list[LoggedCall]
    unread: int  #: number of lines that are no calls
    first_unread: tuple[int, str] | None  #: number and text of the first such line


def read(path: str, progress: Callable[[float], None] = lambda share: None) -> AccessLog:
    """Read a log, which may be compressed by gzip; "-" is standard input.

    Raise OSError if the log cannot be read, and EOFError if compressed data end too early.
    ``progress`` is called with the share that was read, if the size is known.
    """
    calls: list[LoggedCall] = []
    fields: list[str] = []
    unread, first = 0, None
    with open(stdin.fileno() if path == "-" else path, "rb", closefd=path != "-") as file:
        size = 0 if path == "-" else Path(path).stat().st_size
        for number, line in enumerate(_lines(file), 1):
            if number % 8192 == 0 and size:
                progress(min(1.0, file.tell() / size))
            text = line.decode(errors="replace").strip()
            if directive := DIRECTIVE.match(text):
                fields = directive[2].split() if directive[1] == "Fields" else fields
                continue
            try:
                calls.append(_call_of(text, fields))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                if text:
                    unread, first = unread + 1, first or (number, text[:200])
    calls.sort(key=lambda call: call.at)
    return AccessLog(calls, unread, first)


def _lines(file: io.BufferedReader) -> Iterator[bytes]:
    log: gzip.GzipFile | io.BufferedReader = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == GZIP_MAGIC else file
    while line := log.readline(MAX_LINE_BYTES):
        yield line
        while len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):  # skip the rest of the line
            line = log.readline(MAX_LINE_BYTES)


def _call_of(text: str, fields: Sequence[str]) -> LoggedCall:
    """Return the call of a line. Raise an error if the line is no call.

    ``fields`` are the names of the fields in lines separated by tabs.
    """
    if text.startswith("{"):
        return _of_json(text)
    if fields and "\t" in text:
        return _of_cloudfront(dict(zip(fields, text.split("\t"), strict=True)))
    if begin := BALANCER.match(text):
        return _of_balancer(text, begin)
    if line := ENVOY.fullmatch(text):
        return _of_envoy(*line.groups())
    if begin := HAPROXY.match(text):
        return _of_haproxy(text, begin)
    return _of_combined(text)


def _of_combined(text: str) -> LoggedCall:
    begin = COMBINED.match(text)
    status = begin and STATUS_IN_LINE.search(text, begin.end() - 1)
    request = begin and status and REQUEST.match(text, begin.end(), status.start())
    if begin is None or status is None or request is None:
        raise ValueError("a line of the combined format has an address, a time, a request and a status")
    address, user = _address_and_user(begin[1])
    return _call(
        _clf_seconds(begin[2] + (begin[3] or " +0000")), address, user, request[1], request[2], "", int(status[1])
    )


def _address_and_user(text: str) -> tuple[str, str]:
    """Return the address and the user from the text before the time.

    The name of the virtual host may come first or second. It may be an address: if four words or more begin with two
    addresses, the second is the client's.
    """
    if "," in text.partition(" ")[0]:
        raise ValueError("of several addresses only the proxy knows the client's")
    words = text.split(" ", 3)
    if words[1:] and parse(words[1]) is not None and (len(words) == 4 or parse(words[0]) is None):
        words = text.split(" ", 4)[1:]
    address, ident, *rest = words
    if ident != "-" and parse(address) is None:
        raise ValueError("a line of the combined format begins with an address")
    user = " ".join(rest).removeprefix("- ") if rest else "-"
    return address, "" if user == "-" else user


def _of_balancer(text: str, begin: re.Match[str]) -> LoggedCall:
    ended, address, status, line = begin.groups()
    request = REQUEST.match(line)
    if request is None:
        raise ValueError("this is no request")
    created = CREATED.match(text, begin.end())
    at = _seconds(created[1] if created else ended)
    return _call(at, address, "", request[1], request[2], "", 0 if status == "-" else int(status))


def _of_haproxy(text: str, begin: re.Match[str]) -> LoggedCall:
    head, moment, fraction, status = begin.groups()
    address, _, port = head.rpartition(" ")[2].rpartition(":")
    request = REQUEST.match(text, begin.end())
    if request is None or address in ("", "unix") or not port.isdecimal():
        raise ValueError("a line of HAProxy has an address and a request")
    at = _clf_seconds(f"{moment} +0000") + float(fraction or 0)
    path = request[2].rstrip('\\"').replace("#", "%")
    return _call(at, address, "", request[1], path, "", 0 if status == "-1" else _status(status))


def _of_envoy(moment: str, method: str, path: str, status: str, address: str) -> LoggedCall:
    if address in ("", "-"):
        raise ValueError("the default format of Envoy has no address but that of X-Forwarded-For")
    return _call(_seconds(moment), address, "", method, path, "", _status(status))


def _of_cloudfront(line: Mapping[str, str]) -> LoggedCall:
    """Return a call with its start time. The line has the time when the response, or the WebSocket, ended."""
    address, method, path = line["c-ip"], line["cs-method"], line["cs-uri-stem"]
    taken = line.get("time-taken", "-").replace("-", "0")
    if not (METHOD_NAME.fullmatch(method) and TIME_TAKEN.fullmatch(taken)) or "-" in (address, path):
        raise ValueError("a line of CloudFront has an address and a request")
    at = _seconds(f"{line['date']} {line['time']}") - float(taken)
    return _call(at, address, "", method, path, "", _status(line.get("sc-status", "-").replace("-", "0")))


def _status(text: str) -> int:
    if not STATUS_CODE.fullmatch(text):
        raise ValueError("a status has three digits")
    return int(text)


def _of_json(text: str) -> LoggedCall:
    line = json.loads(text)
    inner = [line[name] for name in ("request", "response", "httpRequest") if isinstance(line.get(name), dict)]
    if inner and not str(line.get("logger", CADDY_LOGGER)).startswith(CADDY_LOGGER):
        raise ValueError("this line of Caddy is no request")
    for call in inner:
        line = {**line, **call}
    request_line = line.get("request")
    request = REQUEST.match(request_line) if isinstance(request_line, str) else None
    method, path = request.groups() if request else ("", "")
    address, user = _text(_first(line, ADDRESS_FIELDS)), _text(_first(line, USER_FIELDS))
    status = next((int(line[name]) for name in STATUS_FIELDS if STATUS_CODE.fullmatch(str(line.get(name)))), None)
    if status is None and _first(line, ("status",)) is not None:
        raise ValueError("a status has three digits")
    method, path = _text(_first(line, METHOD_FIELDS)) or method, _text(_first(line, PATH_FIELDS)) or path
    scope = _text(line.get("scope"))
    is_message = status is None and _first(line, LEVEL_FIELDS) is not None
    if is_message or (not (method or path or scope) and _first(line, (*LEVEL_FIELDS, *MESSAGE_FIELDS)) is not None):
        raise ValueError("this is a message of a program, and no request")
    if not (method or path) and any(name in line for name in ("request", *METHOD_FIELDS, *PATH_FIELDS)):
        raise ValueError("what the client sent is no request")
    return _call(_seconds(_first(line, TIME_FIELDS)), address, user, method, path, scope, status or 0)


def _call(at: float, address: str, user: str, method: str, path: str, scope: str, status: int) -> LoggedCall:
    """Return a call. Intern its texts, because a log may have a million calls."""
    path = path.partition("?")[0]
    if "://" in path:
        path = "/" + path.partition("://")[2].partition("/")[2]
    parsed = parse(address)
    if parsed is None and ("," in address or not user):
        raise ValueError("a call has a user, or one address; of several only the proxy knows the client's")
    name = "" if parsed is None else str(parsed)
    return LoggedCall(at, intern(name), intern(user), intern(method.upper()), intern(path), intern(scope), status)


def _first(line: Mapping[str, object], names: tuple[str, ...]) -> object:
    for name in names:
        value = line.get(name)
        if value not in EMPTY_VALUES and not isinstance(value, dict):
            return value
    return None


def _text(value: object) -> str:
    if isinstance(value, list | bool):
        raise TypeError("this is neither a text nor a number")
    return "" if value is None else str(value)


def _seconds(time: Any) -> float:
    """Return a time in seconds since 1970.

    A number may be in seconds, milliseconds, microseconds or nanoseconds. A text may be in ISO 8601, or the format of
    CLF or Caddy. Without a time zone it is in UTC.
    """
    if isinstance(time, str):
        if SLASHED_DATE.match(time):
            time = time.replace("/", "-", 2)
        if "/" in time:
            return _clf_seconds(time)
        if not UNIX_TIME.fullmatch(time):
            parsed = datetime.fromisoformat(time)
            return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        time = float(time)
    if type(time) not in (int, float) or not 0 <= time < 1e20:
        raise ValueError("this is no time")
    for unit in (1e9, 1e6, 1e3):
        if time > 1e8 * unit:
            return float(time / unit)
    return float(time)


@lru_cache(maxsize=65_536)
def _clf_seconds(time: str) -> float:
    """Return the seconds of a time such as "17/May/2015:10:05:03 +0000"."""
    day, month, year, clock, zone = time[:2], MONTHS[time[3:6]], time[7:11], time[12:20], time[21:]
    return datetime.fromisoformat(f"{year}-{month}-{day}T{clock}{zone}").timestamp()

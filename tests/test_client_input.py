"""Texts and structures from clients are bounded before code of more than linear cost reads them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import HttpRequest
from django.test import RequestFactory

from django_throttle.console import access_log
from django_throttle.contrib.graphql import operation_cost
from django_throttle.contrib.logins import UNCLEAR, login_name
from django_throttle.core.asked_wait import asked_wait
from django_throttle.identity import client_address

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
MARKS = "a" + "\u0301\u0327" * 16_000
LINE = '192.0.2.7 - - [17/May/2015:12:05:03 +0200] "GET /'
HAPROXY = " [17/May/2015:10:05:03.000] f b/s 0/0/0/0/0 200 0 - - ---- 0/0/0/0/0 0/0 {"
ENVOY = '[2015-05-17T10:05:03.000Z] "GET / HTTP/2" 200 - 1 1 1 1 "'
MANY: dict[str, Any] = {
    "list of objects": "[" + "{}," * 800_000 + "{}]",
    "variables": json.dumps({"query": "query($v: V) { a(v: $v) }", "variables": {"v": [1] * 400_000}}),
}


def post(body: str, kind: str = JSON) -> HttpRequest:
    return RequestFactory().generic("POST", "/", body.encode(), content_type=kind)


def quick(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns; it must take a small part of the seconds that the unbounded work would."""
    took = []
    for _ in range(3):  # the least is that of a machine that does nothing else
        began = time.process_time()
        answer = work()
        took.append(time.process_time() - began)
    assert min(took) < 0.5
    return answer


@pytest.mark.parametrize(
    "request_",
    [
        post(json.dumps({"username": MARKS}, ensure_ascii=False)[:65_000]),
        post(json.dumps({"username": MARKS[:12_000]})),
        post(urlencode({"username": MARKS[:5_000]}), FORM),
        post(json.dumps({"username": "a" * 513})),
    ],
    ids=["json", "escaped", "form", "long"],
)
@pytest.mark.parametrize("as_typed", [False, True])
def test_a_login_name_has_a_longest(request_: HttpRequest, as_typed: bool) -> None:
    assert quick(lambda: login_name(request_, as_typed=as_typed)) == UNCLEAR


@pytest.mark.parametrize("body", MANY.values(), ids=MANY)
@pytest.mark.parametrize("kind", [JSON, "multipart"])
def test_json_of_graphql_has_so_many_values_at_most(body: str, kind: str, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10_000_000
    request = post(body) if kind == JSON else RequestFactory().post("/", {"operations": body})
    if kind != JSON:
        _ = request.POST  # which Django reads for the view, too
    assert quick(lambda: operation_cost(request)) == 10**15


def test_a_long_text_in_a_variable_is_one_value() -> None:
    query = "query($text: String) { a(text: $text) { b } }"
    for text in ("a,[{" * 100_000, '\\",[{' * 100_000, "\\" * 100_001):
        body = json.dumps({"query": query, "variables": {"text": text}})
        assert quick(lambda body=body: operation_cost(post(body))) == 3


@pytest.mark.parametrize(
    "line",
    [
        LINE + "a" * 60_000, LINE + '"' * 60_000, LINE + '" ' * 30_000, "a:1" * 20_000, "a - " + " [" * 30_000,
        HAPROXY * 700, HAPROXY + "{a" * 30_000, ENVOY + "a" * 60_000, ENVOY + '" "' * 20_000,
    ],
    ids=["path", "quotes", "apart", "colons", "brackets", "moments", "braces", "addresses", "fields"],
)  # fmt: skip
def test_a_line_of_a_log_takes_no_longer_than_its_length(line: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{line}\n" * 3)
    log = quick(lambda: access_log.read(str(tmp_path / "log")))
    assert (log.calls, log.unread) == ([], 3)


def test_what_a_client_writes_into_a_line_is_no_other_status(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LINE + '" 200 5 "-" "x" 404 y"\n' + LINE + 'a"b HTTP/1.1" 403 5 "-" "x"\n')
    log = access_log.read(str(tmp_path / "log"))
    assert [(call.path, call.status) for call in log.calls] == [("/", 200), ('/a"b', 403)]


def test_the_rest_of_a_line_that_is_too_long_is_no_line(tmp_path: Path) -> None:
    begin = LINE + 'HTTP/1.1" 200 5 "-" "'
    forged = LINE.replace("192.0.2.7", "192.0.2.8") + '" 200 5 '
    (tmp_path / "log").write_text(
        begin + "a" * (access_log.MAX_LINE_BYTES - len(begin)) + forged + "\n" + forged + "\n"
    )
    addresses = [call.address for call in access_log.read(str(tmp_path / "log")).calls]
    assert addresses == ["192.0.2.7", "192.0.2.8"]


@pytest.mark.parametrize(
    "text",
    ['for="' + '\\"' * 30_000, "for=a;" * 10_000 + "!", " " * 60_000 + "!", "1" * 60_000, ",".join(["[" * 60] * 1000)],
    ids=["escapes", "pairs", "spaces", "digits", "brackets"],
)
@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For"])
def test_forwarding_headers(text: str, header: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"TRUSTED_PROXIES": 1, "PROXY_HEADER": header}
    request = RequestFactory().get("/", headers={header: text}, REMOTE_ADDR="192.0.2.7")
    assert quick(lambda: client_address(request)) == "192.0.2.7"


@pytest.mark.parametrize("text", ['"' + "\\a" * 30_000, '"a' * 30_000, 'a"\\' * 30_000, ";" * 60_000, "9" * 60_000])
def test_what_another_server_asks_for(text: str) -> None:
    names = ("Retry-After", "RateLimit", "RateLimit-Policy", "Date")
    quick(lambda: asked_wait(429, dict.fromkeys(names, text), 0.0))

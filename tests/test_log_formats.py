"""Logs of public servers, each as its documentation has it; lines that are no requests; logs without statuses."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_throttle.access_log import Call, read

AT = 1_431_857_103.0  # 2015-05-17 10:05:03 UTC
COMBINED = '192.0.2.7 - {} [17/May/2015:12:05:03 +0200] "GET /a?b=1 HTTP/1.1" 200 203023 "-" "Mozilla/5.0"'
CALL = Call(AT, "192.0.2.7", "", "GET", "/a", "", 200)

BALANCED = (
    " app/my-lb/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.000 0.001 0.000 {} 200 34 366 "
    '"GET https://shop.example:443/a?b=1 HTTP/1.1" "Mozilla/5.0"'
)
CREATED = ' - - arn:aws:x "Root=1" "-" "-" 0 2015-05-17T10:05:03.000000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-"'
CADDY = (
    '{{"level":"info","ts":{},"logger":"http.log.access.log0","msg":"handled request","request":{{'
    '"remote_ip":"10.0.0.9","remote_port":"41342","client_ip":"192.0.2.7","proto":"HTTP/2.0","method":"GET","host":"shop.example","uri":"/a?b=1",'
    '"headers":{{}}}},"bytes_read":0,"user_id":"","duration":0.0009,"size":109,"status":200,"resp_headers":{{}}}}'
)
TRAEFIK = (
    '{"ClientAddr":"192.0.2.7:51234","ClientHost":"192.0.2.7","ClientPort":"51234","ClientUsername":"-",'
    '"DownstreamStatus":200,"Duration":5000000,"OriginStatus":0,"RequestMethod":"GET","RequestPath":"/a?b=1",'
    '"StartUTC":"2015-05-17T10:05:03.000000004Z","level":"info","msg":"","time":"2015-05-17T10:05:08Z"}'
)
TRAEFIK_TEXT = COMBINED.format("-") + ' 17 "api@docker" "http://10.0.0.1:80" 5ms'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("example.org " + COMBINED.format("anna"), CALL._replace(user="anna")),
        ("_ " + COMBINED.format("-").replace("192.0.2.7", "::1"), CALL._replace(address="::1")),
        (COMBINED.format("-").replace("192.0.2.7 ", "192.0.2.7 example.org "), CALL),
        (COMBINED.format("-").replace("192.0.2.7", "host.example"), CALL._replace(address="host.example")),
        (COMBINED.format("-").replace("/a?b=1", "https://shop.example:8443/a?b=1"), CALL),
        (COMBINED.format("-").replace("/a?b=1", r'/a\" 500 "'), CALL._replace(path=r"/a\"")),
        ("https 2015-05-17T10:05:09.000000Z" + BALANCED.format(200) + CREATED, CALL),
        ("h2 2015-05-17T10:05:03.000000Z" + BALANCED.format("-"), CALL._replace(status=0)),
        ("2015-05-17T10:05:03.000000Z" + BALANCED.format(200) + " - -", CALL),
        (CADDY.format("1431857103.0"), CALL),
        (CADDY.format('"2015/05/17 10:05:03.000"'), CALL),
        (CADDY.format(1431857103 * 10**9).replace('"remote_ip":"10.0.0.9",', ""), CALL),
        (CADDY.format(1431857103).replace('"status":200', '"status":0'), CALL._replace(status=0)),
        (TRAEFIK, CALL),
        (TRAEFIK.replace('"ClientHost":"192.0.2.7",', ""), CALL),
        (TRAEFIK_TEXT, CALL),
        *(
            (f'{{"time": 1431857103, "ip": "192.0.2.7", "request": "GET /a HTTP/1.1", {status}}}', CALL)
            for status in ('"response": 200', '"status_code": "200"', '"response": {"status": 200}')
        ),
    ],
)
def test_a_line(tmp_path: Path, line: str, expected: Call) -> None:
    (tmp_path / "log").write_text(line)
    log = read(str(tmp_path / "log"))
    assert (log.calls, log.unread) == ([expected], 0)


@pytest.mark.parametrize(
    "line",
    [
        COMBINED.format("-").replace("GET /a?b=1 HTTP/1.1", r"\x16\x03\x01"),
        COMBINED.format("-").replace("GET /a?b=1 HTTP/1.1", "-").replace(" 200 ", " 408 "),
        "203.0.113.9, " + COMBINED.format("-"),
        '{"time": 1431857103, "client_ip": "203.0.113.9, 192.0.2.7", "path": "/", "status": 200}',
        '{"time": 1431857103, "remote_addr": "192.0.2.7", "request": "", "status": 400}',
        '{"time": 1431857103, "level": "INFO", "ip": "192.0.2.7", "user": "anna", "message": "hello"}',
        CADDY.format(1431857103).replace("http.log.access.log0", "http.log.error"),
        '{"level":"info","ts":1431857103,"logger":"admin.api","method":"POST","uri":"/load","remote_ip":"127.0.0.1"}',
        "http 2015-05-17T10:05:03.000000Z"
        + BALANCED.format(400).replace("GET https://shop.example:443/a?b=1 HTTP/1.1", "- http://lb:80- -"),
        '{"level":"error","msg":"EntryPoint doesn\'t exist","time":"2015-05-17T10:05:08Z"}',
    ],
)
def test_what_is_no_request_is_reported(tmp_path: Path, line: str) -> None:
    (tmp_path / "log").write_text("\n".join([COMBINED.format("-"), line]))
    log = read(str(tmp_path / "log"))
    assert (log.calls, log.first_unread) == ([CALL], (2, line[:200]))


def test_a_log_without_statuses_is_no_number_for_rules_that_need_them(tmp_path: Path) -> None:
    rules, log, out, errors = tmp_path / "try.json", tmp_path / "log", io.StringIO(), io.StringIO()
    counted = {"rate": "1/min", "key": "ip", "count_on": [401]}
    lines = [{"time": 1e9 + number, "ip": "192.0.2.7", "method": "POST", "path": "/"} for number in range(5)]
    log.write_text("\n".join(map(json.dumps, lines)))

    def told(**given: Any) -> Any:
        rules.write_text(json.dumps(given))
        call_command("throttle_backtest", str(rules), "--log", str(log), "--json", stdout=out, stderr=errors)
        return {name: one["refused"] for name, one in json.loads(out.getvalue())["rules"].items()}

    with pytest.raises(CommandError, match="has no rule that can be replayed"):
        told(counted=counted)
    assert "counted is left out: the log does not say how requests were answered" in errors.getvalue()
    assert told(counted=counted, plain={"rate": "2/min", "key": "ip"}) == {"plain": 3}
    out.truncate(out.seek(0))
    lines = [{**line, "response": 401 if number else 0} for number, line in enumerate(lines)]
    log.write_text("\n".join(map(json.dumps, lines)))
    assert told(counted=counted) == {"counted": 4}
    assert "1 call has no status" in errors.getvalue()

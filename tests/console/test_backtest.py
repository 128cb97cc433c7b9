"""Rules replayed over calls, which access logs have too: what they would have refused, exactly."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.urls import path

from django_throttle.console.access_log import LoggedCall, read
from django_throttle.console.backtest import RecordedCalls, replay, why_not
from django_throttle.core import Rule

urlpatterns = [path("b/<int:number>", lambda request, number: HttpResponse(), name="things")]
CALL = LoggedCall(1e9, "192.0.2.7", "", "GET", "/a", "", 200)


def refused(*calls: LoggedCall, together: bool = False, **rules: dict[str, Any]) -> dict[str, dict[str, int]]:
    made = [Rule.from_options(name, options) for name, options in rules.items()]
    return {name: dict(one.idents) for name, one in replay(made, calls, together=together).items()}


def test_each_rule_by_itself_or_all_together() -> None:
    one, two = {"rate": "2/min", "key": "ip"}, {"rate": "3/min", "key": "ip"}
    calls = [CALL._replace(at=1e9 + number) for number in range(5)]
    assert refused(*calls, one=one, two=two) == {"one": {IP: 3}, "two": {IP: 2}}
    assert refused(*calls, together=True, one=one, two=two) == {"one": {IP: 3}, "two": {}}
    shadow = {**one, "action": "shadow"}  # it records, and stands in nobody's way
    assert refused(*calls, together=True, one=shadow, two=two) == {"one": {IP: 3}, "two": {IP: 2}}
    calls = [CALL._replace(at=1e9 + number, status=status) for number, status in enumerate((304, 304, 200, 200))]
    assert refused(*calls, one={"rate": "1/min", "key": "ip", "refund_on": ["304"]}) == {"one": {IP: 1}}


ANNA, SEARCH = CALL._replace(user="anna"), CALL._replace(scope="search", method="POST")
IP = "ip:192.0.2.7"


@pytest.mark.parametrize(
    ("calls", "options", "found"),
    [
        ([ANNA, ANNA, CALL], {"key": "user"}, ["user:anna"]),
        ([ANNA, ANNA, CALL, CALL], {"key": "user_or_ip"}, ["user:anna", IP]),
        ([ANNA, ANNA, CALL], {"key": "user+ip"}, [f"user+ip:user:anna+{IP}"]),
        ([ANNA, CALL], {"key": "everyone"}, ["everyone"]),
        ([ANNA, ANNA, CALL, CALL], {"key": "ip", "audience": ["anonymous"]}, [IP]),
        ([SEARCH, SEARCH, CALL, CALL], {"key": "ip", "scopes": ["search"]}, [IP]),
        ([SEARCH, SEARCH, CALL, CALL], {"key": "ip", "methods": ["POST"]}, [IP]),
        ([CALL._replace(address=f"2001:db8::{n}") for n in (1, 2)], {"key": "ip"}, ["ip:2001:db8::/64"]),
        ([ANNA._replace(address="")] * 2, {"key": "ip"}, []),
    ],
)
def test_who_is_counted_and_where(calls: list[LoggedCall], options: dict[str, Any], found: list[str]) -> None:
    assert refused(*calls, rule={"rate": "1/min", **options}) == {"rule": dict.fromkeys(found, 1)}


def test_the_scope_of_a_path_is_that_of_its_view(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    calls = [CALL, CALL._replace(path="/b/1"), CALL._replace(path="/b/2"), CALL._replace(path="/c")]
    all_of = {"rate": "1/min", "key": "ip"}
    things, nowhere = {**all_of, "scopes": ["things"]}, {**all_of, "scopes": ["404"]}
    counts = refused(*calls, one=all_of, things=things, nowhere=nowhere)
    assert counts == {"one": {IP: 3}, "things": {IP: 1}, "nowhere": {IP: 1}}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rate": "1/s", "events": ["message"]}, "its events"),
        ({"limit": 5, "algorithm": "concurrency", "events": ["connection"]}, "its events"),
        ({"rate": "1/s", "algorithm": "damper"}, "by chance"),
        ({"rate": "1/s", "unit": "bytes"}, "cost"),
        ({"rate": "1/s", "key": "session"}, "the session"),
        ({"rate": "1/s", "key": "tests.callers.key"}, "functions"),
        ({"rate": "1/s", "audience": ["group:vip"]}, "group:vip"),
    ],
)
def test_what_cannot_be_replayed(options: dict[str, Any], why: str) -> None:
    assert why in (why_not(Rule.from_options("one", options)) or "")
    assert why_not(Rule("one", "1/s", key="user_or_ip", audience=("anonymous",))) is None


def test_what_is_recorded_cannot_tell_everything() -> None:
    some = RecordedCalls([], 0.5)
    everyone = Rule("a", "1/s", key="everyone")
    assert "50% of the callers" in str(some.why_not(everyone)) and RecordedCalls([], 1.0).why_not(everyone) is None
    assert "staff" in str(some.why_not(Rule("a", "1/s", audience=("staff",))))
    assert "cost" in str(some.why_not(Rule("a", "9/s", cost=2)))
    there = [
        RecordedCalls([], 1.0, **options).what_is_there for options in ({"decisions": 7}, {"others": {"send": 2}}, {})
    ]
    assert ["made 7 decisions" in there[0], "other events (send)" in there[1], there[2]] == [True, True, ""]


LOG = Path(__file__).parents[3] / "shared" / "data" / "access.log.gz"
AT = 1_431_857_103.0  # 2015-05-17 10:05:03 UTC
COMBINED = '192.0.2.7 - {} [17/May/2015:12:05:03 +0200] "GET /a?b=1 HTTP/1.1" 200 203023 "-" "Mozilla/5.0"'
LINE = LoggedCall(AT, "192.0.2.7", "", "GET", "/a", "", 200)
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
HAPROXY = (
    "Feb  6 12:14:14 localhost haproxy[14389]: 192.0.2.7:33317 [17/May/2015:10:05:03.000] http-in static/srv1 "
    '10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {{shop.example|Mozilla/5.0 (X11)}} {{}} "{}"'
)
ENVOY = (
    '[2015-05-17T10:05:03.000Z] "GET /a?b=1 HTTP/2" 200 - 154 0 226 100 "192.0.2.7" "nsq2http" '
    '"cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "shop.example" "tcp://10.0.2.1:80"'
)
CLOUDFRONT = "\n".join(
    [
        "#Version: 1.0",
        "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status time-taken",
        "2015-05-17 10:05:04 LAX1 392 192.0.2.7 GET d1.cloudfront.net /a 200 1.000".replace(" ", "\t"),
    ]
)
HYPERCORN = "[2015-05-17 12:05:03 +0200] [42] [INFO] " + COMBINED.format("-").replace("192.0.2.7", "192.0.2.7:50000")
DAPHNE = '192.0.2.7:50000 - - [17/May/2015:10:05:03] "GET /a?b=1" 200 5'
CLOUDFLARE = (
    '{"ClientIP": "192.0.2.7", "ClientRequestMethod": "GET", "ClientRequestURI": "/a?b=1", "EdgeResponseStatus": 200, '
    '"EdgeStartTimestamp": 1431857103000000000}'
)
GOOGLE = (
    '{"httpRequest": {"requestMethod": "GET", "requestUrl": "https://shop.example/a", "status": 200, '
    '"remoteIp": "192.0.2.7"}, "severity": "INFO", "timestamp": "2015-05-17T10:05:03Z"}'
)
TRAEFIK_TEXT = COMBINED.format("-") + ' 17 "api@docker" "http://10.0.0.1:80" 5ms'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (COMBINED.format("-").partition(' "-"')[0], LINE),  # common
        ("example.org:443 " + COMBINED.format("-"), LINE),
        ('{"msec": "1431857103.000", "ip": "192.0.2.7", "method": "get", "uri": "/a", "status": 200}', LINE),
        ('{"ts": 1431857103000, "ip": "192.0.2.7", "method": "GET", "path": "/a", "status": 200}', LINE),
        ('{"@timestamp": "2015-05-17T12:05:03+02:00", "client_ip": "192.0.2.7", "user": 42, "scope": "search"}',
         LoggedCall(AT, "192.0.2.7", "42", "", "", "search", 0)),
        ('{"time": "2015-05-17 10:05:03", "address": "192.0.2.7"}', LoggedCall(AT, "192.0.2.7", "", "", "", "", 0)),
        ("example.org " + COMBINED.format("anna"), LINE._replace(user="anna")),
        ("_ " + COMBINED.format("-").replace("192.0.2.7", "::1"), LINE._replace(address="::1")),
        (COMBINED.format("-").replace("192.0.2.7 ", "192.0.2.7 example.org "), LINE),
        ("10.0.0.1 " + COMBINED.format("anna"), LINE._replace(user="anna")),  # the virtual host is an address
        ("10.0.0.1:443 " + COMBINED.format("-"), LINE),
        (COMBINED.format("anna").replace("192.0.2.7", "unix:"), LINE._replace(address="", user="anna")),
        (COMBINED.format("-").replace("/a?b=1", "https://shop.example:8443/a?b=1"), LINE),
        (COMBINED.format("-").replace("/a?b=1", r'/a\" 500 "'), LINE._replace(path=r"/a\"")),
        ("https 2015-05-17T10:05:09.000000Z" + BALANCED.format(200) + CREATED, LINE),
        ("h2 2015-05-17T10:05:03.000000Z" + BALANCED.format("-"), LINE._replace(status=0)),
        ("2015-05-17T10:05:03.000000Z" + BALANCED.format(200) + " - -", LINE),
        (CADDY.format("1431857103.0"), LINE),
        (CADDY.format('"2015/05/17 10:05:03.000"'), LINE),
        (CADDY.format('"17/May/2015:12:05:03 +0200"'), LINE),
        (CADDY.format(1431857103 * 10**9).replace('"remote_ip":"10.0.0.9",', ""), LINE),
        (CADDY.format(1431857103).replace('"status":200', '"status":0'), LINE._replace(status=0)),
        (TRAEFIK, LINE),
        *((line, LINE) for line in (HYPERCORN, DAPHNE, CLOUDFLARE, GOOGLE)),
        (TRAEFIK.replace('"ClientHost":"192.0.2.7",', ""), LINE),
        (TRAEFIK_TEXT, LINE),
        (HAPROXY.format("GET /a?b=1 HTTP/1.1"), LINE),
        (HAPROXY.format("GET https://shop.example/a HTTP/2.0").partition("]: ")[2].replace("{} ", ""), LINE),
        (HAPROXY.format("GET /a").replace("192.0.2.7", "2001:db8::1"), LINE._replace(address="2001:db8::1")),
        (HAPROXY.format("GET /#C3#A9 HTTP/1.1").replace(" 200 ", " -1 ").replace("/109", "/+109").replace('"', r"\""),
         LINE._replace(path="/%C3%A9", status=0)),
        (ENVOY, LINE),
        (ENVOY.replace(" 200 - 154 0 226 100 ", " 0 DC 154 0 226 - "), LINE._replace(status=0)),
        (CLOUDFRONT, LINE),
        (CLOUDFRONT.replace("\t200\t", "\t000\t").replace("1.000", "-"), LINE._replace(at=AT + 1, status=0)),
        *(
            (f'{{"time": 1431857103, "ip": "192.0.2.7", "request": "GET /a HTTP/1.1", {status}}}', LINE)
            for status in ('"response": 200', '"status_code": "200"', '"response": {"status": 200}')
        ),
    ],
)  # fmt: skip
def test_a_line(tmp_path: Path, line: str, expected: LoggedCall) -> None:
    (tmp_path / "log").write_text(line)
    log = read(str(tmp_path / "log"))
    assert (log.calls, log.unread) == ([expected], 0)


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
        *(
            f'{{"time": 1431857103, "path": "/", "status": 200, "user": "AnonymousUser", "remote_addr": {address}}}'
            for address in ('"unix:"', '"@"', '"unknown"', "true", "1", '["192.0.2.7"]')
        ),
        *(COMBINED.format("-").replace("192.0.2.7", name) for name in ("host.example", "example.org:443 a.example")),
        "{" * 60_000,
        '{"time": ' + "[" * 60_000,
        "\x00" * 200_000,
        COMBINED.format("-").replace("GET /a?b=1 HTTP/1.1", r"\x16\x03\x01"),
        COMBINED.format("-").replace("GET /a?b=1 HTTP/1.1", "-").replace(" 200 ", " 408 "),
        "203.0.113.9, " + COMBINED.format("-"),
        *(f"{before} {COMBINED.format('anna')}" for before in ("Nov 28 04:00:00 web nginx:", "web-1  |", "web-1 |")),
        '{"time": 1431857103, "client_ip": "203.0.113.9, 192.0.2.7", "path": "/", "status": 200}',
        '{"time": 1431857103, "remote_addr": "192.0.2.7", "request": "", "status": 400}',
        '{"time": 1431857103, "level": "INFO", "ip": "192.0.2.7", "user": "anna", "message": "hello"}',
        '{"time": 1431857103, "level": "ERROR", "logger": "django.request", "status_code": 500, "user": "anna"}',
        '{"time": 1431857103, "message": "Internal Server Error: /search", "status_code": 500, "user": "anna"}',
        CADDY.format(1431857103).replace("http.log.access.log0", "http.log.error"),
        '{"level":"info","ts":1431857103,"logger":"admin.api","method":"POST","uri":"/load","remote_ip":"127.0.0.1"}',
        "http 2015-05-17T10:05:03.000000Z"
        + BALANCED.format(400).replace("GET https://shop.example:443/a?b=1 HTTP/1.1", "- http://lb:80- -"),
        '{"level":"error","msg":"EntryPoint doesn\'t exist","time":"2015-05-17T10:05:08Z"}',
        *(HAPROXY.format(request) for request in ("<BADREQ>", "")),
        HAPROXY.format("GET / HTTP/1.1").replace("192.0.2.7", "unix"),
        "haproxy[6103]: 192.0.2.7:56059 [17/May/2015:10:05:03.380] frt/f1: Connection error during SSL handshake",
        "haproxy[14387]: 192.0.2.7:33313 [17/May/2015:10:05:03.443] fnt bck/srv1 0/0/5007 212 -- 0/0/0/0/3 0/0",
        ENVOY.replace('"192.0.2.7"', '"-"'),
        ENVOY.replace('"192.0.2.7"', '"203.0.113.9, 192.0.2.7"'),
        ENVOY.replace('"192.0.2.7"', '"203.0.113.9" "x, 192.0.2.7"'),
        ENVOY.replace("GET /a?b=1", "- -"),
        CLOUDFRONT.splitlines()[2],  # nothing says what the fields are
    ],
)
def test_what_is_no_request_is_counted_and_shown(tmp_path: Path, line: str) -> None:
    (tmp_path / "log").write_text("\n".join([COMBINED.format("-"), line, COMBINED.format("-")]))
    log = read(str(tmp_path / "log"))
    assert log.calls == [LINE, LINE] and log.unread >= 1 and log.first_unread == (2, line.strip()[:200])


@pytest.mark.parametrize(
    ("change", "by"),
    [("\tLAX1", ""), ("192.0.2.7", "-"), ("GET", "-"), ("/a", "-"), ("200", "no"), ("10:05:04", "-"), ("1.000", "nan")],
)
def test_a_line_of_cloudfront_that_is_no_request(tmp_path: Path, change: str, by: str) -> None:
    *directives, line = CLOUDFRONT.splitlines()
    (tmp_path / "log").write_text("\n".join([*directives, line, line.replace(change, by), *directives, line]))
    log = read(str(tmp_path / "log"))
    assert (log.calls, log.unread, log.first_unread and log.first_unread[0]) == ([LINE, LINE], 1, 4)


def test_calls_come_in_the_order_of_their_times_from_a_compressed_log_too(tmp_path: Path) -> None:
    line = '{{"time": {}, "ip": "192.0.2.7", "path": "/{}"}}'
    lines = [line.format(1e9 + 2, 1), line.format(1e9, 2), "", line.format(1e9 + 2, 3)]
    (tmp_path / "log").write_text("\n".join(lines))
    assert [call.path for call in read(str(tmp_path / "log")).calls] == ["/2", "/1", "/3"]
    (tmp_path / "log").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert [call.path for call in read(str(tmp_path / "log")).calls] == ["/2", "/1", "/3"]


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
    plain = {"rate": "2/min", "key": "ip"}
    assert told(counted=counted, plain=plain, typo={**plain, "scopes": ["serach"]}) == {"plain": 3}
    assert "typo is left out: it counts none of the calls" in errors.getvalue()
    with pytest.raises(CommandError, match="has no rule that can be replayed"):
        told(typo={**plain, "scopes": ["serach"]})
    out.truncate(out.seek(0))
    lines = [{**line, "response": 401 if number else 0} for number, line in enumerate(lines)]
    log.write_text("\n".join(map(json.dumps, lines)))
    assert told(counted=counted) == {"counted": 4}
    assert "1 call has no status" in errors.getvalue()

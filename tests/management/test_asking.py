"""The commands that only look: throttle_explain, throttle_costs, throttle_inspect and so on."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import translation

from django_throttle import limiter, rulebook
from django_throttle.connections import overview
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.console.models import ThrottleCandidate
from django_throttle.console.recording import RecordFlusher, own_records, recorder
from django_throttle.console.route_costs import CostFlusher, route_costs
from django_throttle.costs.meter import MEASURES
from django_throttle.identity.call import Call
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.local.open_sockets import open_sockets
from django_throttle.management.commands import throttle_inspect
from django_throttle.models import ThrottleOverride, ThrottleRule
from django_throttle.observe.reports import ident_for_logs
from django_throttle.stores import MemoryStore, RedisStore, get_store
from tests.connections.evictions import redis_store, sockets
from tests.console.conftest import By
from tests.console.test_backtest import COMBINED, LOG
from tests.console.test_route_costs import used
from tests.doors import BOTH, REDIS, Enforce
from tests.inside import count_in
from tests.management.shell import run
from tests.servers import RedisServer, need_file

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own_records.reset()  # what other tests of this process have recorded: after many, few refusals are sampled
    monkeypatch.setattr("django_throttle.management.commands.throttle_explain.ANSWER_SECONDS", 0.0)


def explain(line: str) -> str:
    return run(f"throttle_explain {line}")


def refuse(ident: str, scope: str = "search", store: Any = None) -> None:
    while limiter.decide(Call(scope, ("request",), KnownCaller(ident), method="POST")).allowed:
        pass
    if isinstance(store, RedisStore):
        RecordFlusher(store)()


@pytest.mark.parametrize("scope", ["serach", "search", "unlike", "room.5"])
def test_a_scope_that_nothing_has_is_told_beside_the_answer(
    enforce: Enforce, capsys: pytest.CaptureFixture[str], scope: str
) -> None:
    enforce(api={"rate": "2/min", "scopes": ["search", "room.*"]})
    call_command("throttle_explain", "ip:192.0.2.1", scope=scope, json=True)
    told = capsys.readouterr()
    assert json.loads(told.out)["ident"] == "ip:192.0.2.1"
    near = "; did you mean 'search'?" if scope == "serach" else ""
    assert told.err == (f"nothing has the scope {scope!r}{near}\n" if scope in ("serach", "unlike") else "")


@BOTH
def test_in_words_and_in_the_json_that_is_promised(enforce: Enforce, django_user_model: Any) -> None:
    sockets = {"limit": 5, "algorithm": "concurrency", "scopes": ["search"]}
    enforce(api={"rate": "2/min", "scopes": ["search"], "key": "user"}, sockets=sockets)
    ident = f"user:{django_user_model.objects.create_user('anna').pk}"
    before = json.loads(explain(f"{ident} --scope search --json"))
    assert (before["would"], before["recent"]) == ("allowed", [])
    refuse(ident)
    found = json.loads(explain("anna --scope search --method post --json"))
    assert (found["ident"], found["reference"], found["would"]) == (ident, ident_for_logs(ident), "refused")
    (rule,) = found["rules"]
    assert (rule["name"], rule["limit"], rule["used"], rule["remaining"], rule["override"]) == ("api", 2, 2, 0, None)
    assert 0 < rule["reset_after"] <= 120
    assert found["connections"]["open"] == 0
    assert json.loads(explain("anna --scope 404 --json"))["rules"] == []
    assert json.loads(explain(f"{ident_for_logs(ident)} --json"))["ident"] == ident, "a log line leads to a user"
    first, row, second, third, *recent = explain("anna --scope search --method POST").splitlines()
    assert f". A POST to search by {ident} would be refused by rule 'api': 2 of 2 used, free in" in first
    assert row == f"  User {ident.removeprefix('user:')}, anna"
    assert second.startswith("  refused  api: 2 of 2 used") and ", counted over 60 s, full again in" in second
    assert third == "  -        sockets: it counts open WebSockets"
    assert all("to search by rule 'api' (over the limit)" in line for line in recent)


@REDIS
def test_records_are_read_while_redis_takes_no_writes(
    enforce: Enforce, redis_server: RedisServer, admin_client: Any, tmp_path: Path
) -> None:
    store, rules = enforce(api={"rate": "2/min"}), tmp_path / "rules.json"
    refuse("ip:192.0.2.1", store=store)
    rules.write_text(json.dumps({"api": {"rate": "1/min"}}))
    with redis_server.client() as client:
        client.replicaof("127.0.0.1", 1)
        try:
            assert "'api': 3 calls, 33.3% refused" in run("throttle_overview")
            assert "api: 2 refused (66.7%), of 1 identity" in run(f"throttle_backtest {rules} --recorded hour")
            for page in ("overview", "costs"):
                answer = admin_client.get(reverse(f"admin:django_throttle_{page}"))
                assert (answer.status_code, answer.context["failure"]) == (200, "")
            with pytest.raises(CommandError, match="write against a read only replica"):
                explain("ip:192.0.2.1")  # no call could be counted
        finally:
            client.replicaof("NO", "ONE")


@BOTH
def test_what_was_refused_is_told_in_the_reader_s_language_and_in_json_by_names(enforce: Enforce) -> None:
    store = enforce(api={"rate": "2/min"})
    for _ in range(3):  # calls of a decorated function
        limiter.decide(Call("api", (), KnownCaller("ip:192.0.2.1"), rule="api"))
    refuse("ip:192.0.2.1", "x\n  refused\x1b[2J", store)
    with translation.override("de"):
        told, found = explain("ip:192.0.2.1"), json.loads(explain("ip:192.0.2.1 --json"))
    assert "abgelehnt: 1 Anfrage an x\\n  refused\\x1b[2J durch Regel 'api' (über dem Limit), 2" in told
    assert all(map(str.isprintable, told.splitlines())), "a scope that a client chose adds no line"
    assert {(one["event"], one["reason"]) for one in found["recent"]} == {("request", "exceeded"), ("", "exceeded")}


def test_overrides_and_open_sockets_are_told_and_refusals_of_a_tag_that_nobody_has(enforce: Enforce) -> None:
    enforce(api={"limit": 1, "algorithm": "concurrency", "key": "ip"}, two={"rate": "2/min"}, DATABASE_RULES=True)
    ThrottleOverride.objects.create(kind="ip", value="192.0.2.1", effect="exempt", reason="ours")
    rulebook.refresh()
    open_sockets.clear()
    sockets(("a", "ip:192.0.2.1"))
    output = explain("192.0.2.1")
    open_sockets.clear()
    assert " for Address 192.0.2.1: exempt from every rule, without an end: ours\n  open sockets: 1" in output, output
    refuse("ip:192.0.2.9")
    tag = ident_for_logs("ip:192.0.2.9")
    assert (
        f"by rule two. No user, row, open socket or override that is known has the reference {tag}.\n  refused: 1"
        in explain(tag)
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nobody", "No user has the id, name or e-mail address 'nobody'"),
        ("usr:42", "'usr' is no kind of identity; did you mean 'user'? Write one like user:42"),
        ("tenant:", "'tenant' is only the kind of an identity."),
        ("00000000", "has the reference 00000000"),
        ("everyone --method PSOT", "there is no method 'PSOT'; did you mean 'POST'?"),
        ("everyone --event dance", "the event is one of request,"),
    ],
)
def test_it_says_plainly_what_is_wrong(enforce: Enforce, typed: str, said: str) -> None:
    enforce(api={"rate": "2/min"})
    with pytest.raises(CommandError, match=re.escape(said)):
        explain(typed)


@pytest.fixture
def store(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> RedisStore:
    found = redis_store(redis_url)
    count_in(found, monkeypatch)
    route_costs.take()
    return found


def test_the_dearest_routes(store: RedisStore) -> None:
    assert run("throttle_costs") == "No requests were measured in the last 24 hours.\n"
    for queries in (2, 2, 2, 6):
        route_costs.add("orders", used(queries, 1500, 0.25, 20_480))
    route_costs.add("search", used(3, seconds=2.0))
    CostFlusher(store)()
    first, head, queries, rows, *_ = run("throttle_costs --by rows").splitlines()
    assert first == "orders: 4 requests"
    assert head.split() == ["mean", "50", "%", "95", "%", "99", "%"]
    assert queries.split() == ["queries", "3", "2", "6", "6"]
    assert rows.split()[:2] == ["rows", "1,500"]
    most = run("throttle_costs --by db_ms --most 1")
    assert most.startswith("search: 1 request\n") and "orders" not in most
    with pytest.raises(CommandError, match="from 1, not '0'"):
        run("throttle_costs --most 0")
    told = json.loads(run("throttle_costs --json --by queries"))
    (orders,) = (route for route in told["routes"] if route["scope"] == "orders")
    assert (told["hours"], orders["calls"], orders["db_ms"]["mean"]) == (24, 4, 250)
    assert orders["queries"] == {"mean": 3, "p50": 2, "p95": 6, "p99": 6}
    assert set(orders) == {"scope", "calls", *MEASURES}


def test_who_has_how_many_sockets(store: RedisStore, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_sockets.clear()
    overview.clear_overviews()
    monkeypatch.setattr(throttle_inspect, "ANSWER_SECONDS", 0.3)
    get_user_model().objects.create_user("anna", pk=1)
    stores = (store, redis_store(redis_url))
    for each in stores:
        Reconciler(each).beat()
    sockets(("a", "user:1"), ("b", "user:1"), ("c", "user:2"))
    first, second, _ = run("throttle_inspect").splitlines()
    assert first == "0 sockets open in 2 processes"
    assert "has not answered (it has no sockets, or is too busy); 0 leases" in second
    for each in stores:
        SocketControl(each)()
    overview.clear_overviews()
    lines = run("throttle_inspect").splitlines()
    assert lines[0] == "6 sockets open in 2 processes"  # both are this process
    assert lines[1].endswith(": 3 sockets open; 0 leases, of these and of requests in flight")
    assert lines[3:] == ["      4  user:1  User 1, anna  (in 2 processes)", "      2  user:2  (in 2 processes)"]
    assert run("throttle_inspect --most 1").splitlines()[3:] == ["      4  user:1  User 1, anna  (in 2 processes)"]
    open_sockets.clear()


SAMPLE = {f"each{n}": {"rate": f"{n}/min", "algorithm": "sliding_log", "key": "ip"} for n in (60, 20, 10)}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def replay(tmp_path: Path) -> Any:
    def replay(rules: Any, *arguments: str, log: Path = LOG, to: io.StringIO | None = None) -> tuple[str, str]:
        (tmp_path / "rules.json").write_text(rules if isinstance(rules, str) else json.dumps(rules))
        out, errors = io.StringIO(), to or io.StringIO()
        given = [str(tmp_path / "rules.json"), *(() if "--recorded" in arguments else ("--log", str(log))), *arguments]
        call_command("throttle_backtest", *given, stdout=out, stderr=errors, no_color=True)
        return out.getvalue(), errors.getvalue()

    return replay


def test_as_json_and_in_words_with_progress(replay: Any) -> None:
    need_file(LOG)
    out, errors = replay(SAMPLE, "--json", to=Terminal())
    # A window of the last minute, counted in a few lines of Python over the same log, gives these numbers.
    refused = {"each60": (87, 2), "each20": (931, 50), "each10": (1729, 79)}
    rules = {name: {"refused": number, "idents": idents} for name, (number, idents) in refused.items()}
    assert (json.loads(out), errors) == ({"calls": 10_000, "rules": rules}, "")
    out, errors = replay({"each60": SAMPLE["each60"]}, "--most", "1", to=Terminal())
    assert out.splitlines() == [
        "10,000 calls, from 2015-05-17 10:05:00 to 2015-05-20 21:05:59 UTC",
        "each60: 87 refused (0.9%), of 2 identities",
        "       72  ip:75.97.9.59",
    ]
    assert "\rreading  [" in errors
    assert json.loads(replay(SAMPLE, "--json", "--together")[0])["rules"]["each60"]["refused"] == 0


def test_what_it_cannot_read_or_leaves_out(replay: Any, tmp_path: Path) -> None:
    sockets = {"limit": 5, "algorithm": "concurrency", "events": ["connection"]}
    (tmp_path / "empty").write_text("nothing\n")
    for rules, log, said in (
        (SAMPLE, Path("/no/such"), r"cannot read '/no/such': No such file"),
        (SAMPLE, tmp_path / "empty", "the log has no calls"),
        ({"sockets": sockets}, LOG, "no rule that can be replayed"),
        ({"api": {"rat": "1/min"}}, LOG, "did you mean 'rate'"),
        ("{", LOG, "is not JSON"),
    ):
        with pytest.raises(CommandError, match=said):
            replay(rules, log=log)
    with pytest.raises(CommandError, match=r"cannot read .*rules.json.*: No such file"):
        call_command("throttle_backtest", str(tmp_path / "no" / "rules.json"), "--log", str(LOG))
    (tmp_path / "log").write_text(f"{COMBINED.format('-')}\n{COMBINED.format('-')}\nnothing\n")
    rules = {"off": {"rate": "1/min", "key": "ip", "enabled": False}, "sockets": sockets}
    out, errors = replay(rules, log=tmp_path / "log")
    assert out.splitlines()[1:] == ["off: 1 refused (50.0%), of 1 identity", "        1  ip:192.0.2.7"]
    assert errors.splitlines() == [  # and progress is for terminals
        "sockets is left out: its events are not those of requests",
        "1 line not understood, the first is line 3: 'nothing'",
    ]


def test_what_the_site_recorded(replay: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = {"rate": "5/hour", "events": ["message"]}
    settings.DJANGO_THROTTLE = {"RULES": {"api": {"rate": "5/hour"}, "talk": talk}}
    own_records.reset()
    count_in(MemoryStore(), monkeypatch)
    rules = {"strict": {"rate": "2/hour", "algorithm": "sliding_log"}}
    for event, said in (("", "that time$"), ("message", r"that time\. .* \(message\), which are")):
        if event:
            limiter.decide(Call("chat", (event,), KnownCaller("ip:192.0.2.1")))
        with pytest.raises(CommandError, match=f"no requests were recorded in {said}"):
            replay(rules, "--recorded", "hour")
    for _ in range(4):
        limiter.decide(Call("search", ("request",), KnownCaller("ip:192.0.2.1"), method="GET"))
    assert replay(rules, "--recorded", "hour")[0].splitlines()[:2] == [
        "4 calls, all those of 100.00% of the callers",
        "strict: 2 refused (50.0%), of 1 identity",
    ]
    strict = {"refused": 2, "idents": 1, "estimate": {"refused": 2, "low": 2, "high": 2}}
    told = json.loads(replay(rules, "--recorded", "hour", "--json")[0])
    assert told == {"calls": 4, "rules": {"strict": strict}, "share": 1.0, "cut": 0}
    own_records.reset()


def test_each_candidate_is_compared_with_its_rule(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {}, "REDIS": redis_url, "DEADLINE": 5.0}
    recorder.take()
    assert run("throttle_candidates") == "There are no candidates.\n"
    ThrottleRule.objects.create(name="api", rate="5/s")
    row = ThrottleCandidate.from_row(ThrottleRule(name="api", rate="3/s"), "api", "anna")
    row.share = 0.1
    row.save()
    rulebook.refresh()
    for _ in range(4):
        limiter.decide(Call("page", ("request",), By("user:1"), ident="user:1"))
    RecordFlusher(get_store())()
    said = run("throttle_candidates", "api")
    assert said.startswith("api: each user or address: 3 requests per second, enforced for 0.1 of all\n")
    assert "  Calls: 4\n  Both would refuse: 0\n" in said
    (found,) = json.loads(run("throttle_candidates", "--json"))
    assert (found["name"], found["share"], found["starts_at"], found["calls"]) == ("api", 0.1, None, 4)
    with pytest.raises(CommandError, match="There is no rule 'other'"):
        run("throttle_candidates", "other", "--json")
    row.delete()
    assert run("throttle_candidates", "api", "--json") == "[]\n"
    settings.DJANGO_THROTTLE = {"STORE": "memory"}
    with pytest.raises(CommandError, match="only each process knows"):
        run("throttle_candidates")

"""A62 and A63: nothing that is written tells who called, and no number of callers makes logs or metrics grow."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from prometheus_client import REGISTRY, generate_latest

from django_throttle import agent, observe, rulebook, stores
from django_throttle.contrib import prometheus
from django_throttle.core.decision import Outcome, Reason, combine_outcomes
from django_throttle.exceptions import InvalidSetting
from django_throttle.identity import AsgiCaller
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter, decide
from django_throttle.observe import reports
from django_throttle.observe.metrics import DECISIONS
from django_throttle.runtime import LogThrottle
from tests.servers import RedisServer

EMAIL = "canary.person@example.com"
ADDRESS = "198.51.100.77"
TOKEN = "canary-token-5b1f"
SESSION = "canarysession0123456789abcdefghij"
PASSWORD = "canary-redis-password"
CANARIES = (EMAIL, "canary.person", ADDRESS, TOKEN, SESSION, PASSWORD)
HERE = "tests.faults.test_privacy"
HOOKS = ["django_throttle.contrib.prometheus.count"]
ROUNDS = 4


class Session(dict[str, str]):
    session_key = SESSION


def email(request: Any) -> str:
    return str(request.user.email)


def token(subject: Any) -> str | None:
    return subject.headers.get("X-Api-Key") if isinstance(subject, HttpRequest) else None


def signed_in(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        request.user = SimpleNamespace(pk=7, email=EMAIL, is_authenticated=True, is_active=True)  # type: ignore[assignment]
        request.session = Session(signed="in")  # type: ignore[assignment]
        return get_response(request)

    return middleware


urlpatterns = [path("page", lambda request: HttpResponse("fine"), name="page")]
BY = {
    "users": f"{HERE}.email",
    "addresses": "ip",
    "tokens": f"{HERE}.token",
    "sessions": "session",
    "tenants": "tenant",
}


def rules(policy: str = "local") -> dict[str, Any]:
    rate = {"rate": f"{ROUNDS - 2}/hour", "on_store_failure": policy}
    return {
        **{name: {**rate, "key": key, "scopes": [name, "page"], "action": "shadow"} for name, key in BY.items()},
        "page": {**rate, "key": f"{HERE}.email", "scopes": ["page"]},
        "sockets": {"limit": 1, "algorithm": "concurrency", "events": ["connection"], "key": "ip", "scopes": ["chat"]},
    }


class Everything(logging.Handler):
    """Each record with all that any formatter could make of it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter("%(name)s %(message)s").format(record))
        self.lines.append(repr(record.__dict__))


@pytest.fixture
def log() -> Iterator[Everything]:
    root, everything = logging.getLogger(), Everything()
    before = root.level
    root.addHandler(everything)
    root.setLevel(logging.DEBUG)
    yield everything
    root.removeHandler(everything)
    root.setLevel(before)


@pytest.fixture
def guarded(servers: None) -> Iterator[RedisServer]:
    """A Redis with a password, whose dump hides nothing by compressing it."""
    with RedisServer("--rdbcompression", "no") as server:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        yield server


@pytest.fixture
def enforce(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    settings.ROOT_URLCONF = HERE
    settings.MIDDLEWARE = [f"{HERE}.signed_in", "django_throttle.middleware.ThrottleMiddleware"]
    monkeypatch.setattr(reports, "refusal_throttle", LogThrottle(seconds=10))

    def enforce(address: str, policy: str = "local", **others: Any) -> None:
        settings.DJANGO_THROTTLE = {
            "REDIS": address, "RULES": rules(policy), "DATABASE_RULES": False,
            "TENANT": f"{HERE}.token", "HOOKS": HOOKS, "DEADLINE": 2.0, "PROCESS_TTL": 1.0, **others,
        }  # fmt: skip

    return enforce


def visit_every_door() -> list[str]:
    client = Client(REMOTE_ADDR=ADDRESS, HTTP_X_API_KEY=TOKEN, raise_request_exception=False)
    seen = []
    for where in ("/page", "/nowhere"):
        for _ in range(ROUNDS):
            answer = client.get(where)
            seen.append(f"{answer.status_code} {dict(answer.headers)} {answer.text}")
    with socket() as allowed:
        seen.append(f"socket: {allowed}")
    return seen


@contextmanager
def socket() -> Iterator[bool]:
    """A socket that is open meanwhile, and another that is not let in; says whether the first one was."""
    scope = {"type": "websocket", "path": "/", "headers": [], "client": (ADDRESS, 5), "user": None}
    first, second = (decide(Call("chat", ("connect", "connection"), AsgiCaller(scope))) for _ in range(2))
    assert not second.allowed
    yield first.allowed
    Limiter([], stores.get_store()).release(first.lease)


def hits(texts: list[str]) -> list[str]:
    return [f"{canary}: …{text[:300]}" for text in texts for canary in CANARIES if canary in text]


@pytest.mark.row("A62")
@pytest.mark.agent
@pytest.mark.row("R12")
def test_nothing_written_names_a_caller(guarded: RedisServer, enforce: Callable[..., None], log: Everything) -> None:
    address = f"redis://:{PASSWORD}@127.0.0.1:{guarded.port}/0"
    enforce(address)
    seen = visit_every_door()
    assert not any(text.startswith("500") for text in seen)
    assert any(text.startswith("429") for text in seen) and any(text.startswith("200") for text in seen)
    with guarded.client(password=PASSWORD) as client, socket() as allowed:
        assert allowed
        assert client.dbsize() >= len(BY)
        client.save()
    dump = (guarded.folder / "dump.rdb").read_bytes().decode("latin-1")
    assert len(dump) > 500
    assert hits([dump]) == []
    for policy in ("allow", "deny", "local"):  # the same with a Redis that refuses the password, and with none at all
        enforce(f"redis://:{PASSWORD}-is-wrong@127.0.0.1:{guarded.port}/0", policy)
        seen += visit_every_door()
    guarded.kill()
    enforce(address, "deny")
    seen += visit_every_door()
    agent.stop()
    metrics = generate_latest(REGISTRY).decode()
    assert 'cause="config"' in metrics and 'cause="unavailable"' in metrics
    assert sum("refused by rule" in line for line in log.lines) >= 3
    assert any("Redis does not answer" in line for line in log.lines)
    assert hits(log.lines) == []
    assert hits(metrics.splitlines()) == []
    assert hits(seen) == []


@pytest.mark.row("A62")
@pytest.mark.django_db  # Django's own checks ask the database what it can do, the first time in a process
def test_a62_settings_that_are_wrong_do_not_show_the_password(log: Everything, enforce: Callable[..., None]) -> None:
    from django.core.checks import run_checks

    for address in (
        f"http://:{PASSWORD}@host/0",
        f"redis+cluster://:{PASSWORD}@host/7",
        f"redis://:{PASSWORD}@host:x/0",
    ):
        enforce(address)
        assert hits([str(message) for message in run_checks()]) == []
        with pytest.raises(InvalidSetting) as raised:
            stores.get_store()
        assert hits([str(raised.value), repr(raised.value)]) == []
    assert hits(log.lines) == []


class TestA63:
    """100,000 callers and paths, with control characters in them, and refusals in a row."""

    @pytest.fixture(autouse=True)
    def in_memory(self, settings: Any, enforce: Callable[..., None]) -> None:
        enforce("unused", STORE="memory")
        for known in (prometheus.counts.series_cache, prometheus.counts.rules, prometheus.counters[DECISIONS]):
            known.clear()
        rulebook.current()

    def lines(self, log: Everything) -> list[str]:
        return [line for line in log.lines if line.startswith("django")]

    @pytest.mark.row("A63")
    def test_a63_metrics_and_lines_do_not_grow_with_callers(self, log: Everything, figure: Any) -> None:
        names = [f"rule {number}" for number in range(5)]
        caller = AsgiCaller({"type": "http", "headers": [], "client": (ADDRESS, 5)})
        for number in range(100_000 // len(names)):
            call = Call(f"/path/{number}\nERROR forged", ("request",), caller)
            outcomes = tuple(
                Outcome(name, f"user:{number}\n", False, 9, 0, 1.0, 1.0, Reason.EXCEEDED, number % 2 == 0)
                for name in names
            )
            observe.report(call, combine_outcomes(outcomes))
        metrics = generate_latest(REGISTRY).decode().splitlines()
        series = [line for line in metrics if line.startswith("django_throttle_decisions_total")]
        figure("series of 5 rules", len(series))
        figure("lines", len(self.lines(log)))
        assert len(series) == len(names) * 2 <= len(names) * 6 * 3
        assert sum(float(line.rsplit(" ", 1)[1]) for line in series) == 100_000
        assert len(self.lines(log)) <= 2 * len(names)
        assert all("\n" not in line for line in log.lines)

    @pytest.mark.row("A63")
    def test_a63_django_writes_no_line_for_each_either(self, log: Everything) -> None:
        client = Client(REMOTE_ADDR=ADDRESS)
        answers = [client.get(f"/page?{number}%0aERROR") for number in range(200)]
        assert sum(answer.status_code == 429 for answer in answers) >= 195
        assert [line for line in self.lines(log) if "Too Many Requests" in line] == []
        assert len(self.lines(log)) <= 2 * len(rules())
        assert client.get("/nowhere").status_code == 404
        assert any("Not Found" in line for line in self.lines(log)), "what others refuse is logged as ever"

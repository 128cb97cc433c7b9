"""Transports for httpx: turns under a rule over all processes, and what the other side asks."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from django_throttle.contrib.httpx import AsyncThrottledTransport, CallRefused, ThrottledTransport
from django_throttle.core import Rule
from django_throttle.exceptions import Refused, ThrottleError
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from tests.inside import commands_to, count_in
from tests.servers import free_port, wait_until

Rules = Callable[..., Any]
LOG = {"algorithm": "sliding_log"}
QUEUE = {"algorithm": "leaky_bucket", "action": "delay", "max_delay": 60}
SLOT = {"limit": 1, "algorithm": "concurrency", "events": ["inflight"]}


CLOCKS = 0.02  # seconds by which the clocks of Redis and of a process may differ over a test


class OtherSide(ThreadingHTTPServer):
    """``arrivals`` are the moments at which calls came; each takes its answer from ``answers``, at last plain 200s."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.arrivals: list[float] = []
        self.bodies: list[bytes] = []  # that were sent
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.go_on = threading.Event()  # answers wait for it
        self.go_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def leads(self, *turns: float) -> list[float]:
        """By how much each call came before its turn; late ones are no fault of who sent them."""
        return [turn - came for turn, came in zip(turns, sorted(self.arrivals), strict=True) if came < turn - CLOCKS]


class _Handler(BaseHTTPRequestHandler):
    server: OtherSide

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        while self.headers.get("Transfer-Encoding") and (size := int(self.rfile.readline(), 16)):
            body += self.rfile.read(size + 2)[:size]
        self.server.arrivals.append(time.monotonic())
        self.server.bodies.append(body)
        status, fields = self.server.answers.pop(0) if self.server.answers else (200, {})
        self.server.go_on.wait(30)
        self.send_response_only(status)
        for name, text in {"Content-Length": "2", **fields}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_GET  # noqa: N815  (http.server's name)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def other(redis_url: str) -> Iterator[OtherSide]:
    with OtherSide() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


def client(**options: Any) -> httpx.Client:
    return httpx.Client(transport=ThrottledTransport("crm", **options))


def aclient(**options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=AsyncThrottledTransport("crm", **options))


@pytest.fixture
def rules(request: pytest.FixtureRequest, redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Rules:
    """Puts rules in force: async clients count in Redis, sync ones in memory, ``away`` where no Redis answers."""

    def enforce(away: bool = False, **given: Any) -> Any:
        settings.DJANGO_THROTTLE = {"RULES": given, "DATABASE_RULES": False}
        store: Any = MemoryStore()
        if away:
            store = RedisStore(f"redis://127.0.0.1:{free_port()}/0", deadline=0.2)
        elif "ask" not in request.fixturenames or request.node.callspec.params["ask"] == "async":
            store = RedisStore(redis_url, deadline=5.0)
        count_in(store, monkeypatch)
        return store

    return enforce


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes calls one after another; what came of each is returned."""
    is_sync = request.param == "sync"

    async def later(parts: Iterator[bytes]) -> Any:
        for part in parts:
            yield part

    def make_calls(url: str, calls: int = 1, body: Any = None, **options: Any) -> list[Any]:
        found: list[Any] = []
        with asyncio.Runner() as runner:
            finish = (lambda answer: answer) if is_sync else runner.run
            caller: Any = client(**options) if is_sync else aclient(**options)
            for _ in range(calls):
                content = body() if callable(body) else body
                if callable(body) and not is_sync:
                    content = later(content)
                try:
                    found.append(finish(caller.post(url, content=content)))
                except CallRefused as error:
                    found.append(error)
            finish(caller.close() if is_sync else caller.aclose())
        return found

    return make_calls


class TestTurns:
    @pytest.mark.usefixtures("servers")
    def test_a_call_waits_for_its_turn(self, rules: Rules, ask: Any, other: OtherSide) -> None:
        rules(crm={"rate": "2/s", **LOG})
        start = time.monotonic()
        assert [answer.status_code for answer in ask(other.url, 5)] == [200] * 5
        assert not other.leads(start, start, start + 1, start + 1, start + 2)

    @pytest.mark.parametrize(("rate", "kind", "wait"), [("1/min", LOG, 60), ("2/min", QUEUE, 25)])
    def test_but_no_longer_than_max_wait(
        self, rules: Rules, ask: Any, other: OtherSide, rate: str, kind: Any, wait: int
    ) -> None:
        rules(crm={"rate": rate, **kind})
        start = time.monotonic()
        answer, error = ask(other.url, 2, max_wait=5)
        elapsed = time.monotonic() - start
        assert answer.status_code == 200
        assert isinstance(error, httpx.TransportError) and isinstance(error, ThrottleError)
        assert isinstance(error.__cause__, Refused) and error.__cause__.decision is error.decision
        assert abs(error.decision.retry_after - wait) <= elapsed and error.request.url == other.url
        assert str(error).startswith("not sent: a call to 127.0.0.1 under rule 'crm' has its turn in ")

    def test_a_call_that_waits_is_no_refused_call(self, rules: Rules, ask: Any, other: OtherSide) -> None:
        counted = {"rates": ["1/min", "100/h"], "algorithm": "fixed_window", "count_denied": True}
        limiter = Limiter([Rule.from_options("crm", counted)], rules(crm=counted))
        assert isinstance(ask(other.url, 2, max_wait=0)[1], CallRefused)
        assert [outcome.remaining for outcome in limiter.peek("host:127.0.0.1", cost=0).outcomes] == [0, 99]

    @pytest.mark.parametrize("ident", [None, lambda request: request.headers.get("account")])
    def test_each_ident_has_a_count(self, rules: Rules, other: OtherSide, ident: Any) -> None:
        rules(crm={"rate": "1/min", **LOG})
        there = other.url.replace("127.0.0.1", "localhost")
        with client(max_wait=0, **({"ident": ident} if ident else {})) as caller:
            if ident:
                assert [caller.get(other.url).status_code for _ in range(3)] == [200] * 3, "None is not limited"
            assert caller.get(other.url, headers={"account": "a"}).status_code == 200
            assert caller.get(there, headers={"account": "b"}).status_code == 200
            with pytest.raises(CallRefused):
                caller.get(there, headers={"account": "b"})
        rules(crm={"rate": "1/min", "methods": ["POST"], **LOG})
        with client(max_wait=0, ident="posts") as caller:
            assert [caller.get(other.url).status_code for _ in range(3)] == [200] * 3, "not limited"
            assert caller.post(other.url).status_code == 200
            with pytest.raises(CallRefused):
                caller.post(other.url)

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            *(({"rule": wrong}, TypeError) for wrong in ("", None)),
            *(({"ident": wrong}, TypeError) for wrong in ("", 5, asyncio.sleep)),
            *(({"max_wait": wrong}, ValueError) for wrong in (-1, "5")),
            *(({"retries": wrong}, ValueError) for wrong in (None, -1, 1.5)),
            *(({"longest_pause": wrong}, ValueError) for wrong in (float("nan"), float("inf"), 1e9)),
        ],
    )
    def test_options_that_make_no_sense(self, given: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            ThrottledTransport(**{"rule": "crm", **given})


class TestWhatTheOtherSideAsks:
    @pytest.mark.parametrize(
        "answer",
        [
            (503, {"Retry-After": "1"}),
            (429, {}),
            (429, {"Retry-After": "1785000001", "Date": "Sat, 25 Jul 2026 17:20:00 GMT"}),
            (200, {"RateLimit": '"burst";r=0;t=1', "RateLimit-Policy": '"burst";q=10;w=1'}),
        ],
    )
    def test_is_heeded(self, rules: Rules, ask: Any, other: OtherSide, answer: Any) -> None:
        rules(crm={"rate": "100/s"})
        other.answers = [answer]
        assert [each.status_code for each in ask(other.url, 3, longest_pause=0.1)] == [answer[0], 200, 200]
        assert other.arrivals[1] - other.arrivals[0] >= 0.1 - CLOCKS

    @pytest.mark.parametrize("away", [False, True])
    def test_is_refused_where_it_is_longer_than_a_call_waits(
        self, rules: Rules, ask: Any, other: OtherSide, away: bool
    ) -> None:
        rules(away, crm={"rate": "100/s", "on_store_failure": "allow"})
        other.answers = [(429, {"Retry-After": "30"})]
        first, second = ask(other.url, 2, max_wait=5)
        assert first.status_code == 429 and 28 < second.decision.retry_after <= 30
        assert second.decision.rule == "crm" and len(other.arrivals) == 1

    async def test_calls_whose_turn_came_meanwhile_take_a_new_one(self, rules: Rules, other: OtherSide) -> None:
        rules(crm={"rate": "20/s", **QUEUE})
        other.answers = [(429, {"Retry-After": "1"})]
        async with aclient(longest_pause=0.2) as caller:
            answers = await asyncio.gather(*(caller.get(other.url) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429]
        first = min(other.arrivals)
        assert not other.leads(first, first + 0.2, first + 0.25)

    @pytest.mark.parametrize(
        "fields",
        [
            {"Retry-After": "31536000"},
            {"RateLimit": '"a";r=0;t=99999999999999999'},
            {"Retry-After": "1785000060", "Date": "Sat, 25 Jul 2020 17:20:00 GMT"},
        ],
    )
    def test_a_year_is_capped_and_said(
        self, rules: Rules, other: OtherSide, caplog: pytest.LogCaptureFixture, fields: dict[str, str], monkeypatch: Any
    ) -> None:
        monkeypatch.setattr("django_throttle.runtime.LogThrottle.try_acquire", lambda *_: True)
        store = rules(crm={"rate": "100/s"})
        other.answers = [(429, fields)]
        with caplog.at_level(logging.WARNING), client(max_wait=0, longest_pause=60) as caller:
            caller.get(other.url)
            with pytest.raises(CallRefused) as refused:
                caller.get(other.url)
        assert 58 < (refused.value.decision.retry_after or 0) <= 60
        assert "calls continue after 60 s (longest_pause)" in caplog.text and "127.0.0.1" not in caplog.text
        keys = list(store.transport.client.scan_iter(f"{store.prefix}:*"))
        assert keys and all(0 < store.transport.client.pttl(key) <= 120_000 for key in keys)

    def test_retries_are_for_those_who_ask_for_them(self, rules: Rules, ask: Any, other: OtherSide) -> None:
        rules(crm={"rate": "100/s"})
        other.answers = [(429, {"Retry-After": "0"}), (503, {"Retry-After": "1"})]
        (answer,) = ask(other.url, body=b"whole", retries=2, longest_pause=0.1)
        assert answer.status_code == 200 and answer.content == b"ok"
        assert other.bodies == [b"whole"] * 3
        first, second, third = other.arrivals
        assert second - first >= 0.1 - CLOCKS and third - second >= 0.1 - CLOCKS
        other.answers = [(429, {"Retry-After": "30"})]
        (answer,) = ask(other.url, retries=5, max_wait=2)
        assert answer.status_code == 429 and answer.content == b"ok", "it would wait too long"

    def test_a_body_that_can_be_sent_once_is_sent_once(self, rules: Rules, ask: Any, other: OtherSide) -> None:
        rules(crm={"rate": "100/s"})
        other.answers = [(429, {"Retry-After": "0"})]
        (answer,) = ask(other.url, body=lambda: iter([b"in ", b"parts"]), retries=2)
        assert answer.status_code == 429 and other.bodies == [b"in parts"]


class TestSlots:
    def test_are_held_until_the_answer_is_closed(self, rules: Rules, other: OtherSide) -> None:
        rules(crm=SLOT)
        with client(max_wait=0) as caller:
            with caller.stream("GET", other.url) as answer:
                with pytest.raises(CallRefused):
                    caller.get(other.url)
                assert answer.read() == b"ok"
            assert caller.get(other.url).status_code == 200

    def test_go_back_at_once_where_the_answer_is_loaded(self, rules: Rules) -> None:
        rules(crm=SLOT)
        cache = httpx.MockTransport(lambda request: httpx.Response(200, text="cached"))
        with client(max_wait=0, transport=cache) as caller:
            assert [caller.get("http://crm.example/").text for _ in range(2)] == ["cached"] * 2

    async def test_go_back_when_the_call_is_cancelled(self, rules: Rules, other: OtherSide, monkeypatch: Any) -> None:
        commands = commands_to(rules(crm=SLOT), monkeypatch)
        other.go_on.clear()
        async with aclient(max_wait=30) as caller:
            under_way = asyncio.ensure_future(caller.get(other.url))
            await asyncio.to_thread(wait_until, lambda: other.arrivals)
            asked = len(commands)
            waits = asyncio.ensure_future(caller.get(other.url))
            await asyncio.to_thread(wait_until, lambda: len(commands) > asked)
            for each in (waits, under_way):
                each.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await each
            other.go_on.set()
            assert (await caller.get(other.url)).status_code == 200


def test_what_a_process_hears_holds_back_the_others(
    rules: Rules, other: OtherSide, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules(crm={"rate": "1000/s"})
    other.answers = [(429, {"Retry-After": "60"})]
    with client() as first, client(max_wait=1) as second:
        assert first.get(other.url).status_code == 429
        count_in(RedisStore(redis_url, deadline=5.0), monkeypatch)  # as another process does
        with pytest.raises(CallRefused) as refused:
            second.get(other.url)
    assert 30 < (refused.value.decision.retry_after or 0) <= 60 and len(other.arrivals) == 1

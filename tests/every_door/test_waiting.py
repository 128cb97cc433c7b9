"""A rule of action "delay": the doors' entrance waits for the call's turn."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_finished, request_started
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.core import Rule
from django_throttle.decorators import throttle
from django_throttle.limiter import Limiter, adecide, decide
from django_throttle.stores import MemoryStore, RedisStore, get_store
from tests.clock import FrozenClock
from tests.crew import Crew
from tests.doors import build
from tests.inside import count_in
from tests.servers import slack
from tests.sockets.guarded import becomes

QUEUE = {"rate": "20/s", "burst": 3, "algorithm": "leaky_bucket", "action": "delay", "max_delay": 1, "key": "everyone"}
SLOW = {"rate": "1/30s", "max_delay": 60}
CALLS = {"rate": "9/h", "algorithm": "fixed_window", "key": "everyone"}
CAP = {"limit": 5, "algorithm": "concurrency", "key": "everyone"}


Wait = Callable[..., float | None]
BOTH = pytest.mark.parametrize("wait", ["memory", "redis"], indirect=True)


class Somebody:
    def ident(self, key: str) -> str:
        return "somebody"


@pytest.fixture(autouse=True)
def rules(settings: Any, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock) -> Callable[..., None]:
    """Rules in force on a clock that stands still; what they delay takes the time that it takes."""

    def enforce(**options: Any) -> None:
        queue = {**QUEUE, "events": ["request", "connect"], **options}
        settings.DJANGO_THROTTLE = {"RULES": {"queue": queue, "cap": CAP}, "AGENT": False, "DATABASE_RULES": False}
        count_in(MemoryStore(clock), monkeypatch)

    enforce()
    return enforce


@pytest.fixture
def wait(request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock) -> Wait:
    """Makes a call that need not really wait; returns for how long it was to wait."""
    queue = {**QUEUE, **SLOW, "max_delay": 600, "burst": 20, "events": ["request", "connect"]}
    rules = {"queue": queue, "cap": {**CAP, "limit": 20}, "calls": {**CALLS, "events": ["request"]}}
    settings.DJANGO_THROTTLE = {"RULES": rules, "AGENT": False, "DATABASE_RULES": False}
    count_in(build(request, clock), monkeypatch)

    def wait(on_loop: bool, *, gives_up: bool = False, then: Callable[[], object] = bool) -> float | None:
        waits: list[float] = []
        facts = Facts("any", ("request", "connection"), Somebody())

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            then()
            if gives_up:
                raise SystemExit

        async def asleep(seconds: float) -> None:
            waits.append(seconds)
            await asyncio.to_thread(then)
            if gives_up:
                raise asyncio.CancelledError

        with monkeypatch.context() as patch:
            patch.setattr(limiter, "time", SimpleNamespace(sleep=sleep))
            patch.setattr(limiter, "asyncio", SimpleNamespace(sleep=asleep))
            with suppress(SystemExit, asyncio.CancelledError):
                asyncio.run(adecide(facts)) if on_loop else decide(facts)
        return waits[0] if waits else 0

    return wait


def test_a_synchronous_call_waits_for_its_turn_and_a_full_queue_refuses() -> None:
    started = time.monotonic()
    decisions = [decide(Facts("any", ("request",), Somebody())) for _ in range(3)]
    assert all(decision.allowed for decision in decisions)
    assert time.monotonic() - started >= sum(decision.delay for decision in decisions) > 0
    assert not decide(Facts("any", ("request",), Somebody())).allowed


async def test_asynchronous_calls_wait_side_by_side() -> None:
    await rulebook.acurrent()  # the first reading would shuffle them
    started = time.monotonic()
    decisions = await asyncio.gather(*(adecide(Facts("any", ("request",), Somebody())) for _ in range(5)))
    assert [decision.allowed for decision in decisions] == [True, True, True, False, False]
    assert [round(decision.delay, 2) for decision in decisions[:3]] == [0.0, 0.05, 0.1]
    assert time.monotonic() - started >= decisions[2].delay


async def test_asking_only_does_not_wait(rules: Callable[..., None]) -> None:
    rules(**SLOW)
    await adecide(Facts("any", ("request",), Somebody()))
    decision = await asyncio.wait_for(adecide(Facts("any", ("request",), Somebody()), commit=False), 10)
    assert decision.delay == 30


@pytest.mark.parametrize("at", ["time.sleep", "django_throttle.observe.reports.tell"])
def test_who_is_ended_while_waiting_holds_nothing(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker does that has taken too long."""

    def end(*_: object) -> None:
        raise SystemExit

    facts = Facts("any", ("connect", "connection"), Somebody())
    first = decide(facts)
    monkeypatch.setattr(at, end)
    with pytest.raises(SystemExit):
        decide(facts)
    assert first.lease is not None
    assert len(get_store().leases) == 1


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
@BOTH
class TestGivingUp:
    """Whoever goes away while waiting gives the turn back, where nobody waits behind it."""

    def test_the_last_gives_its_turn_to_whoever_comes_next(self, wait: Wait, on_loop: bool) -> None:
        assert wait(on_loop) == 0
        assert wait(on_loop, gives_up=True) == 30
        assert wait(on_loop, gives_up=True) == 30
        assert len(get_store().leases) == 1

    def test_nobody_else_moves(self, wait: Wait, on_loop: bool) -> None:
        assert wait(on_loop) == 0
        assert wait(on_loop, gives_up=True, then=lambda: wait(on_loop)) == 30
        assert wait(on_loop) == 90

    def test_what_else_it_was_charged_stays(self, wait: Wait, on_loop: bool) -> None:
        for _ in range(4):
            wait(on_loop, gives_up=True)
        assert Limiter([Rule("calls", **CALLS)], get_store()).peek("somebody").remaining == 5


async def test_who_gives_up_waiting_holds_nothing(rules: Callable[..., None]) -> None:
    rules(**SLOW)
    facts = Facts("any", ("connect", "connection"), Somebody())
    await adecide(facts)
    assert len(get_store().leases) == 1
    waiting = asyncio.create_task(adecide(facts))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(get_store().leases) == 2
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(get_store().leases) == 1
    assert (await adecide(facts, commit=False)).delay == 30, "its turn is free"


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_what_would_wait_for_longer_than_max_delay_is_refused_and_nothing_else(
    store: str, clock: FrozenClock, request: pytest.FixtureRequest
) -> None:
    counted = MemoryStore(clock) if store == "memory" else RedisStore(request.getfixturevalue("redis_url"), clock=clock)
    limiter = Limiter([Rule("queue", "4/s", burst=50, algorithm="leaky_bucket", action="delay", max_delay=2)], counted)
    waits = [decision.delay if decision.allowed else None for decision in map(limiter.acquire, ["somebody"] * 12)]
    assert waits == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, None, None, None]
    refused = limiter.acquire("somebody")
    assert refused.retry_after == 0.25
    clock.now_us += 249_999
    assert not limiter.acquire("somebody").allowed
    clock.now_us += 1
    assert limiter.acquire("somebody").delay == 2


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_a_call_waits_for_its_first_unit_whatever_it_costs(
    store: str, clock: FrozenClock, request: pytest.FixtureRequest
) -> None:
    counted = MemoryStore(clock) if store == "memory" else RedisStore(request.getfixturevalue("redis_url"), clock=clock)
    rule = Rule("queue", "4/s", burst=50, algorithm="leaky_bucket", action="delay", max_delay=2, cost=3)
    limiter = Limiter([rule], counted)
    waits = [decision.delay if decision.allowed else None for decision in map(limiter.acquire, ["somebody"] * 4)]
    assert waits == [0, 0.75, 1.5, None]
    clock.now_us += 250_000
    assert limiter.acquire("somebody").delay == 2


def line_up(number: int, url: str, calls: int) -> list[tuple[float, float, float]]:
    """When each call came, when it went, and for how long it was to wait."""
    rule = Rule("queue", "100/s", burst=500, algorithm="leaky_bucket", action="delay", key="everyone")
    told: list[tuple[float, float, float]] = []
    with override_settings(DJANGO_THROTTLE={"REDIS": url, "DATABASE_RULES": False, "AGENT": False, "DEADLINE": 10}):
        before = rulebook.pin(rulebook.Snapshot([rule]))
        try:
            for _ in range(calls):
                came = time.time()
                decision = decide(Facts("any", ("request",), Somebody()))
                told.append((came, time.time(), decision.delay))
        finally:
            rulebook.pin(before)
    return told


def test_the_order_of_arrival_over_processes(redis_url: str) -> None:
    """Each of them goes at its own moment, a hundredth of a second after another, in the order in which they came."""
    crew = Crew(6)
    try:
        told = [one for some in crew.run(line_up, redis_url, 20) for one in some]
    finally:
        crew.close()
    turns = sorted((came, came + delay, went) for came, went, delay in told)
    assert all(went >= turn for _, turn, went in turns), "nobody goes early"
    moments = sorted(turn for _, turn, _ in turns)
    assert len(moments) == 120
    assert moments[-1] - moments[0] >= 119 * 0.01 - 0.05
    gone = sorted(went for *_, went in turns)
    spread = gone[-1] - gone[0]
    print(f"120 calls of 6 processes at 100/s took {spread:.3f} s")
    assert 1.19 * 0.96 <= spread <= 1.19 + slack(1.0)
    # Who comes a turn's length after another, and a round trip, goes after it.
    for (came, turn, _), (later, its_turn, _) in itertools.combinations(turns, 2):
        assert its_turn > turn or later - came < slack(0.05)


async def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


urlpatterns = [
    path("middleware", plain, name="any"),
    path("decorated", throttle("queue")(plain), name="other"),
]


@pytest.mark.parametrize("where", ["middleware", "decorated"])
async def test_a_client_that_leaves_while_it_waits(
    wait: Wait, settings: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
    for signal in (request_started, request_finished):
        monkeypatch.setattr(signal, "send", lambda **_: None)  # there is no database here
        monkeypatch.setattr(signal, "asend", AsyncMock())
    limit = Limiter([rule for rule in (await rulebook.acurrent()).rules if rule.name == "queue"], get_store())
    scope = {"type": "http", "method": "GET", "path": f"/{where}", "headers": [], "query_string": b"", "client": None}
    assert (await limit.aacquire("everyone")).allowed
    line = ApplicationCommunicator(ASGIHandler(), {**scope, "http_version": "1.1", "server": ("testserver", 80)})
    await line.send_input({"type": "http.request", "body": b"", "more_body": False})
    await becomes(lambda: limit.peek("everyone").remaining == 18)
    await line.send_input({"type": "http.disconnect"})
    await becomes(lambda: limit.peek("everyone").remaining == 19)
    await line.wait(10)

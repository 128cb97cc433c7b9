"""Rules of action "delay" beyond what holds at each entry point: several callers, processes, and clients that leave."""

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
from django.test import override_settings

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.core import Rule
from django_throttle.limiter import Limiter, adecide, decide
from django_throttle.stores import MemoryStore, RedisStore, get_store
from tests.callers import SameByEveryKey
from tests.clock import FrozenClock
from tests.crew import Crew
from tests.doors import BOTH, Enforce
from tests.entry_points import site
from tests.servers import Stopwatch, slack
from tests.sockets.guarded import becomes

QUEUE = {
    "rate": "1/30s",
    "burst": 20,
    "algorithm": "leaky_bucket",
    "action": "delay",
    "max_delay": 600,
    "key": "everyone",
}
CAP = {"limit": 20, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}
CALLS = {"rate": "9/h", "algorithm": "fixed_window", "key": "everyone"}
Wait = Callable[..., float]


def call() -> Facts:
    return Facts("any", ("request", "inflight"), SameByEveryKey())


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Makes a call that need not really wait; returns for how long it was to wait."""

    def wait(on_loop: bool, *, gives_up: bool = False, then: Callable[[], object] = bool) -> float:
        waits: list[float] = []

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
                asyncio.run(adecide(call())) if on_loop else decide(call())
        return waits[0] if waits else 0

    return wait


@BOTH
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
class TestGivingUp:
    """Who goes away while waiting gives the turn back, where nobody waits behind it."""

    def test_the_last_gives_its_turn_to_whoever_comes_next(self, enforce: Enforce, wait: Wait, on_loop: bool) -> None:
        enforce(queue=QUEUE, cap=CAP, calls=CALLS)
        assert wait(on_loop) == 0
        assert [wait(on_loop, gives_up=True) for _ in range(3)] == [30] * 3
        assert len(get_store().leases) == 1
        assert Limiter([Rule("calls", **CALLS)], get_store()).peek("user:1").remaining == 5, "other charges stay"

    def test_nobody_else_moves(self, enforce: Enforce, wait: Wait, on_loop: bool) -> None:
        enforce(queue=QUEUE)
        assert wait(on_loop) == 0
        assert wait(on_loop, gives_up=True, then=lambda: wait(on_loop)) == 30
        assert wait(on_loop) == 90


async def test_asynchronous_calls_wait_side_by_side(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(queue=QUEUE | {"burst": 3})
    await rulebook.acurrent()  # the first reading would shuffle them
    arrived, everybody = [], asyncio.Event()

    async def asleep(seconds: float) -> None:
        arrived.append(seconds)
        if len(arrived) == 2:
            everybody.set()
        await everybody.wait()

    monkeypatch.setattr(limiter, "asyncio", SimpleNamespace(sleep=asleep))
    async with asyncio.timeout(20):
        decisions = await asyncio.gather(*(adecide(call()) for _ in range(5)))
    assert [decision.delay for decision in decisions if decision.allowed] == [0, 30, 60]
    assert (await adecide(call(), commit=False)).allowed is False, "asking only does not wait"


async def test_a_wait_takes_its_time(enforce: Enforce) -> None:
    """By the real clocks, for once."""
    enforce(queue=QUEUE | {"rate": "50/s"})
    began = time.monotonic()
    assert (decide(call()).delay, decide(call()).delay, (await adecide(call())).delay) == (0, 0.02, 0.04)
    assert time.monotonic() - began >= 0.06


def test_who_is_ended_while_the_call_is_reported_holds_nothing(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise SystemExit

    enforce(queue=QUEUE, cap=CAP)
    decide(call())
    monkeypatch.setattr(limiter, "time", SimpleNamespace(sleep=bool))
    monkeypatch.setattr("django_throttle.observe.reports.tell", end)
    with pytest.raises(SystemExit):
        decide(call())
    assert len(get_store().leases) == 1


@pytest.mark.parametrize("store", ["memory", "redis"])
@pytest.mark.parametrize(
    ("cost", "expected"), [(1, [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, None, None]), (3, [0, 0.75, 1.5, None])]
)
def test_a_call_whose_first_unit_would_wait_for_longer_than_max_delay_is_refused(
    store: str, cost: int, expected: list[float | None], clock: FrozenClock, request: pytest.FixtureRequest
) -> None:
    counted = MemoryStore(clock) if store == "memory" else RedisStore(request.getfixturevalue("redis_url"), clock=clock)
    rule = Rule("queue", "4/s", burst=50, algorithm="leaky_bucket", action="delay", max_delay=2, cost=cost)
    limiter = Limiter([rule], counted)
    waits = [decision.delay if decision.allowed else None for decision in map(limiter.acquire, ["us"] * len(expected))]
    assert waits == expected
    assert limiter.acquire("us").retry_after == 0.25
    clock.now_us += 249_999
    assert not limiter.acquire("us").allowed
    clock.now_us += 1
    assert limiter.acquire("us").delay == 2


def line_up(number: int, url: str, calls: int) -> list[tuple[float, float, float]]:
    """When each call came, when it went, and for how long it was to wait."""
    rule = Rule("queue", "100/s", burst=500, algorithm="leaky_bucket", action="delay", key="everyone")
    found: list[tuple[float, float, float]] = []
    with override_settings(DJANGO_THROTTLE={"REDIS": url, "DATABASE_RULES": False, "AGENT": False, "DEADLINE": 10}):
        before = rulebook.pin(rulebook.Snapshot([rule]))
        try:
            for _ in range(calls):
                came = time.time()
                decision = decide(call())
                found.append((came, time.time(), decision.delay))
        finally:
            rulebook.pin(before)
    return found


def test_the_order_of_arrival_over_processes(redis_url: str, servers: None, stopwatch: type[Stopwatch]) -> None:
    """Each of them goes at its own moment, a hundredth of a second after another, in the order in which they came."""
    crew = Crew(6)
    try:
        found = [each for calls in crew.run(line_up, redis_url, 20) for each in calls]
    finally:
        crew.close()
    turns = sorted((came, came + delay, went) for came, went, delay in found)
    assert all(went >= turn for _, turn, went in turns), "nobody goes early"
    moments = sorted(turn for _, turn, _ in turns)
    assert len(moments) == 120
    assert moments[-1] - moments[0] >= 119 * 0.01 - 0.05
    # Who comes a turn's length after another, and a round trip, goes after it.
    for (came, turn, _), (later, its_turn, _) in itertools.combinations(turns, 2):
        assert its_turn > turn or later - came < slack(0.05)


@pytest.mark.parametrize("path", ["/async-middleware/ok", "/async-decorated/ok"])
async def test_a_client_that_leaves_while_it_waits(
    enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = site.__name__, site.MIDDLEWARE
    for signal in (request_started, request_finished):
        monkeypatch.setattr(signal, "send", lambda **_: None)  # there is no database here
        monkeypatch.setattr(signal, "asend", AsyncMock())
    store = enforce(api=QUEUE)
    limit = Limiter([Rule("api", **QUEUE)], store)
    assert (await limit.aacquire("everyone")).allowed
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "client": None}
    line = ApplicationCommunicator(ASGIHandler(), {**scope, "http_version": "1.1", "server": ("testserver", 80)})
    await line.send_input({"type": "http.request", "body": b"", "more_body": False})
    await becomes(lambda: limit.peek("everyone").remaining == 18)
    await line.send_input({"type": "http.disconnect"})
    await becomes(lambda: limit.peek("everyone").remaining == 19)
    await line.wait(10)

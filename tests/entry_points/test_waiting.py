"""Rules of action "delay" beyond what holds at each entry point: several callers, and clients that leave."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_finished, request_started

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.core import Rule
from django_throttle.limiter import Limiter, adecide, decide
from tests.callers import SameByEveryKey
from tests.doors import Enforce
from tests.entry_points import site
from tests.sockets.guarded import becomes

TURNS = {"rate": "1/30s", "burst": 3, "algorithm": "leaky_bucket", "action": "delay", "max_delay": 600}
QUEUE = {**TURNS, "key": "everyone"}
CAP = {"limit": 20, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}


def call() -> Facts:
    return Facts("any", ("request", "inflight"), SameByEveryKey())


async def test_asynchronous_calls_wait_side_by_side(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(queue=QUEUE)
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

    store = enforce(queue=QUEUE, cap=CAP)
    decide(call())
    monkeypatch.setattr(limiter, "time", SimpleNamespace(sleep=bool))
    monkeypatch.setattr("django_throttle.observe.reports.tell", end)
    with pytest.raises(SystemExit):
        decide(call())
    assert len(store.leases) == 1


@pytest.mark.parametrize("path", ["/async-middleware/ok", "/async-decorated/ok"])
async def test_a_client_that_leaves_while_it_waits(
    enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = site.__name__, site.MIDDLEWARE
    for signal in (request_started, request_finished):
        monkeypatch.setattr(signal, "send", lambda **_: None)  # there is no database here
        monkeypatch.setattr(signal, "asend", AsyncMock())
    limit = Limiter([Rule("api", **QUEUE)], enforce(api=QUEUE))
    assert (await limit.aacquire("everyone")).allowed
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "client": None}
    line = ApplicationCommunicator(ASGIHandler(), {**scope, "http_version": "1.1", "server": ("testserver", 80)})
    await line.send_input({"type": "http.request", "body": b"", "more_body": False})
    await becomes(lambda: limit.peek("everyone").remaining == 1)
    await line.send_input({"type": "http.disconnect"})
    await becomes(lambda: limit.peek("everyone").remaining == 2)
    await line.wait(10)

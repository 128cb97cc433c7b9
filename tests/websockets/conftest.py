"""Rules in force, edits of them, time that passes at once, and servers that are ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from django_throttle import rulebook
from django_throttle.core import Override, Rule
from django_throttle.rulebook import Snapshot
from django_throttle.websockets.settings import LADDER
from tests.clock import LoopClock
from tests.servers import RedisServer
from tests.websockets.guarded import live_enforcer
from tests.websockets.servers import Server, serving

enforce_live = pytest.fixture(live_enforcer)
CLOCKS = [
    *(
        f"django_throttle.websockets.{module}.monotonic"
        for module in ("connection", "messages", "error_frames", "limits")
    ),
    *(f"django_throttle.identity.{module}.monotonic" for module in ("caller", "keys")),
    "django_throttle.websockets.limits.perf_counter",
]


@pytest.fixture
async def loop_clock() -> AsyncIterator[LoopClock]:
    """The waits of sockets are over at once; the clock of the store stands still meanwhile."""
    with pytest.MonkeyPatch.context() as patch:  # until the loop ends, which waits for its threads by the true time
        yield LoopClock(asyncio.get_running_loop(), patch, *CLOCKS)


@pytest.fixture
def never_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets stay open, however many messages are refused."""
    monkeypatch.setitem(LADDER, "close", 0)


@pytest.fixture
def change() -> Iterator[Callable[..., None]]:
    """Puts other rules in force, as an edit does; the former ones come back."""
    before = rulebook.current() and rulebook.pin(None)
    rulebook.pin(before)

    def pin(*rules: Rule, overrides: tuple[Override, ...] = (), **options: Any) -> None:
        rulebook.pin(Snapshot(rules, overrides=overrides, **options))

    yield pin
    rulebook.pin(before)


@pytest.fixture
def serve(servers: None, redis_server: RedisServer, tmp_path: Any) -> Iterator[Callable[..., list[Server]]]:
    with serving(redis_server, tmp_path) as start:
        yield start

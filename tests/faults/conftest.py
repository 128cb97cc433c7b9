"""A Redis that may be hung, killed and starved, and callers of both drivers with a watch in hand."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from django_throttle.core import Decision, Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from testproject.check.standstill import elapsed
from tests.conftest import immortal_keys
from tests.proxy import Proxy
from tests.servers import RedisServer, slack

DEADLINE = 0.1
# What design and faults.md allow one decision, whatever Redis does.
BOUND = slack(DEADLINE + 0.05)


@pytest.fixture
def server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server
        server.resume()
        assert immortal_keys(server) == []


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as between:
        yield between


@dataclass
class KeyedCaller:
    """One limiter, called on one driver; ``slowest`` is the longest that a call took, in seconds."""

    limiter: Limiter
    run: Callable[[Any], Any] | None
    slowest: float = 0.0

    @property
    def store(self) -> Any:
        return self.limiter.store

    def surely(self, verb: str = "acquire", ident: str = "user:1") -> Decision:
        """A call that has all the time that a busy machine may need."""
        usual, self.store.transport.seconds = self.store.transport.seconds, 5.0
        try:
            return self(verb, ident)
        finally:
            self.store.transport.seconds = usual

    def __call__(self, verb: str = "acquire", ident: str = "user:1") -> Decision:
        started = time.monotonic()
        try:
            if self.run is None:
                return getattr(self.limiter, verb)(ident)  # type: ignore[no-any-return]
            return self.run(getattr(self.limiter, f"a{verb}")(ident))  # type: ignore[no-any-return]
        finally:
            self.slowest = max(self.slowest, elapsed(started))


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest) -> Iterator[Callable[..., KeyedCaller]]:
    """``caller(url, rule, …)``: with the default deadline, on either driver."""

    def make(url: str, *rules: Rule, **options: Any) -> KeyedCaller:
        limiter = Limiter(rules, RedisStore(url, **{"deadline": DEADLINE, **options}))
        made.append(limiter)
        return KeyedCaller(limiter, None if request.param == "sync" else runner.run)

    made: list[Limiter] = []  # a store's async connections are closed with the loop, so it must live as long
    with asyncio.Runner() as runner:
        yield make


def used(server: RedisServer, rule: Rule, ident: str = "user:1") -> int:
    decision = Limiter([rule], RedisStore(server.url, deadline=5.0)).peek(ident)
    assert not decision.degraded
    return int(decision.limit or 0) - int(decision.remaining or 0)

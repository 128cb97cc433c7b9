"""Many processes on one key: exactly the limit passes, with every algorithm that promises it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.crew import Crew, hammer
from tests.forks import holds_in_child

PROCESSES = 8
CALLS = 500
LIMIT = 100

# Windows and intervals so long that nothing comes free while the test runs, whenever it runs.
EXACT = [
    Rule("fixed", f"{LIMIT}/366d", algorithm="fixed_window"), Rule("sliding", f"{LIMIT}/366d"),
    Rule("sliding in 12", f"{LIMIT}/366d", resolution=12), Rule("strict", f"{LIMIT}/h", strict=True, resolution=4),
    Rule("gcra", f"{LIMIT}/366d", algorithm="gcra"), Rule("bucket", "1/h", algorithm="token_bucket", burst=LIMIT),
    Rule("leaky", f"{LIMIT}/366d", algorithm="leaky_bucket", action="delay"),
    Rule("interval", f"{LIMIT}/366d", algorithm="token_bucket", refill="interval"),
    Rule("log", f"{LIMIT}/h", algorithm="sliding_log"), Rule("sockets", limit=LIMIT, algorithm="concurrency"),
]  # fmt: skip


@pytest.mark.row("F52")
@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
def test_exactly_the_limit_passes(rule: Rule, crew: Crew, redis_url: str, figure: Callable[..., None]) -> None:
    told = crew.run(hammer, redis_url, rule, "user:1", CALLS)
    figure(f"passed of {PROCESSES * CALLS:,} on one server, limit {LIMIT},", sum(allowed for allowed, _ in told))
    assert sum(degraded for _, degraded in told) == 0
    assert sum(allowed for allowed, _ in told) == LIMIT


@pytest.mark.row("F50")
def test_a_fork_does_not_share_its_parent_s_connections(redis_url: str, servers: None) -> None:
    limiter = Limiter([Rule("fixed", "1000/366d", algorithm="fixed_window")], RedisStore(redis_url, deadline=10.0))
    store: Any = limiter.store

    def use() -> int:
        decisions = [limiter.acquire("user:1") for _ in range(20)]
        assert not any(decision.degraded for decision in (*decisions, asyncio.run(limiter.aacquire("user:1"))))
        return int(store.transport.client.client_id())

    parent = use()
    assert all(holds_in_child(lambda: use() != parent) for _ in range(2))
    assert use() == parent
    assert limiter.peek("user:1").remaining == 1000 - 4 * 21

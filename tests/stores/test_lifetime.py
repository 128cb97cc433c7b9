"""By the server's clock a key lives until all of it is free again, rounded up to a millisecond and no longer."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.core import Decision, Rate, Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.servers import RedisServer

WINDOWS = (0.003, 1.5)
OPTIONS: dict[str, dict[str, Any]] = {
    "fixed_window": {},
    "sliding_window": {"resolution": 4},
    "sliding_log": {},
    "gcra": {},
    "token_bucket": {"refill": "interval"},
}


def lifetimes(server: RedisServer, limiter: Limiter, calls: int) -> list[tuple[Decision, int]]:
    """Each call's decision, and the time to live in milliseconds that its script gave the key, which had none."""
    found: list[tuple[Decision, int]] = []
    limiter.peek("user:1")  # the script is there
    with server.client() as client, server.client() as keys, client.monitor() as monitor:
        for _ in range(calls):
            for key in keys.scan_iter():
                keys.persist(key)
            decision = limiter.acquire("user:1")
            if not decision.allowed:
                continue
            while not (given := _lifetime(monitor.next_command())):
                pass
            found.append((decision, given))
    return found


def _lifetime(seen: dict[str, Any]) -> int:
    words = seen["command"].split(" ") if seen["client_type"] == "lua" else [""]
    return int(words[-1]) if words[0].upper() in ("SET", "PEXPIRE") else 0


@pytest.mark.row("A20")
@pytest.mark.parametrize("algorithm", OPTIONS)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_key_outlives_what_it_counts(
    algorithm: str, window: float, redis_url: str, redis_server: RedisServer
) -> None:
    rule = Rule("rule", Rate(1000, window), algorithm=algorithm, **OPTIONS[algorithm])
    found = lifetimes(redis_server, Limiter([rule], RedisStore(redis_url, deadline=5.0)), 60)
    assert len(found) > 50
    for decision, given in found:
        due = round(decision.reset_after * 1_000_000)
        assert due <= given * 1000 < max(due, 1000) + 1000

"""While Redis is away a process starts from what it was last told; what it admits is charged without its callers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.core.commands import charges_of
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.proxy import Proxy
from tests.servers import RedisServer

API = Rule("api", "10/hour")
ALGORITHMS = ("fixed_window", "sliding_log", "sliding_window", "token_bucket", "leaky_bucket", "gcra")


@pytest.fixture
def proxy(redis_url: str, redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as between:
        yield between


def passed(limiter: Limiter, ident: str, times: int) -> list[bool]:
    """Whether each call that passed did so by this process alone."""
    decisions = [limiter.acquire(ident) for _ in range(times)]
    return [decision.degraded for decision in decisions if decision.allowed]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("processes", "used", "alone"), [(1, 7, 3), (2, 7, 3), (2, 3, 5), (1, 10, 0)])
def test_it_starts_from_what_the_store_said_was_left(
    proxy: Proxy, algorithm: str, processes: int, used: int, alone: int
) -> None:
    """That, or the share of this process where it is less."""
    store = RedisStore(proxy.url, deadline=5.0, processes=processes)
    rule = Rule("api", "10/hour", algorithm=algorithm)
    limiter = Limiter([rule], store)
    assert passed(limiter, "user:1", used) == [False] * used
    proxy.set("refuse")
    assert passed(limiter, "user:1", 12) == [True] * alone
    assert store.fallback.owes(charges_of(rule, "user:1", 1)) == bool(alone), "what was refused is not charged"
    assert len(passed(limiter, "user:2", 12)) == 10 // processes, "of whom nothing was said"


def test_what_it_admitted_is_charged_though_nobody_asks_again(proxy: Proxy, redis_url: str) -> None:
    """Of more idents than travel in one pipeline, by the work that the background thread repeats."""
    store = RedisStore(proxy.url, deadline=5.0)
    limiter, idents = Limiter([API], store), [f"user:{number}" for number in range(250)]
    proxy.set("refuse")
    assert all(passed(limiter, ident, 2) == [True, True] for ident in idents)
    proxy.set("pass")
    Reconciler(store).resend()
    elsewhere = Limiter([API], RedisStore(redis_url, deadline=5.0))
    assert {elsewhere.peek(ident).remaining for ident in idents} == {8}
    Reconciler(store).resend()
    assert {elsewhere.peek(ident).remaining for ident in idents} == {8}, "once"

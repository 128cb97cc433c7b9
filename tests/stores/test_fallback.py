"""While Redis is away a process starts from what it was last told; what it admits is charged without its callers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.core.commands import charges_of
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.fallback import Admitted, AllAdmitted
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


@pytest.mark.parametrize(("processes", "turns"), [(1, [4, 5, 6, 7, 8]), (2, [4, 6, 8])])
def test_a_queue_goes_on_after_the_turns_that_the_store_has_given(
    proxy: Proxy, redis_url: str, processes: int, turns: list[int]
) -> None:
    """At this process's share of the rate, and no longer than the share of the queue; in minutes here."""
    rule = Rule("reports", "60/hour", algorithm="leaky_bucket", action="defer", max_queue=8)
    store = RedisStore(proxy.url, deadline=5.0, processes=processes)
    limiter = Limiter([rule], store)
    assert passed(limiter, "user:1", 4) == [False] * 4
    proxy.set("refuse")
    decisions = [limiter.acquire("user:1") for _ in range(7)]
    assert [round(one.outcomes[0].put_off / 60) for one in decisions if one.allowed] == turns
    last = next(one for one in reversed(decisions) if one.allowed)
    assert last.paid is not None
    assert store.execute(last.paid._replace(decide=last.paid.decide._replace(whole=True)).receipt) == 1
    assert round(limiter.acquire("user:1").outcomes[0].put_off / 60) == turns[-1], "the last turn was given back"
    proxy.set("pass")
    Reconciler(store).resend()
    assert Limiter([rule], RedisStore(redis_url, deadline=5.0)).peek("user:1").remaining < 9 - 4 - len(turns) + 1


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


def test_what_is_owed_is_kept_by_rule() -> None:
    """Under several rules, with states of several lengths."""
    admitted = AllAdmitted()
    rules = [Rule(name, "10/h", algorithm=name) for name in ALGORITHMS]
    owed = [Admitted(rule, rule.plan, tuple(range(number)), number) for number, rule in enumerate(rules)]
    admitted.put("user:1", owed)
    admitted.put("user:2", owed[2:])
    assert (admitted.of("user:1"), admitted.of("user:2"), admitted.of("user:3")) == (owed, owed[2:], [])
    admitted.drop("user:1")
    assert (list(admitted), admitted.of("user:2")) == (["user:2"], owed[2:])
    admitted.drop("user:2")
    assert not admitted

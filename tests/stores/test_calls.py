"""What one call, or one turn of a loop, may ask for: many charges, dear ones, leases, nothing that was cancelled."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from django_throttle import event_loop
from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.batch import MOST
from tests.stores.conftest import evaluations

# More than a byte counts.
MANY = [Rule(f"r{i}", rates=tuple(f"{j + 2}/{j + 1}h" for j in range(10))) for i in range(26)]
LOG = Rule("log", "10000/hour", algorithm="sliding_log")
CAP = Rule("cap", limit=37, algorithm="concurrency")


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_more_charges_than_a_byte_counts(kind: str, request: pytest.FixtureRequest) -> None:
    limiter = Limiter(MANY, MemoryStore() if kind == "memory" else request.getfixturevalue("store"))
    decisions = [limiter.acquire("user:1"), asyncio.run(limiter.aacquire("user:1")), limiter.acquire("user:1")]
    assert [(decision.allowed, decision.degraded) for decision in decisions] == [
        (True, False),
        (True, False),
        (False, False),
    ]
    assert [outcome.remaining for outcome in decisions[1].outcomes] == [*range(10)] * 26


async def together(limiter: Limiter, *idents: str) -> None:
    """What comes next in one turn waits for its end: a call that came alone would be sent at once."""
    await asyncio.gather(*map(limiter.aacquire, idents))


async def test_what_was_cancelled_in_the_same_turn_is_not_sent(store: RedisStore) -> None:
    limiter = Limiter([Rule("rule", "10/hour")], store)
    await together(limiter, "user:1", "user:2")
    tasks = [asyncio.create_task(limiter.aacquire("user:1")) for _ in range(4)]

    async def cancel() -> None:
        for task in tasks[:3]:
            task.cancel()

    await asyncio.gather(*tasks, asyncio.create_task(cancel()), return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True, True, True, False]
    assert (await limiter.apeek("user:1")).remaining == 8


async def test_dear_calls_share_a_batch(store: RedisStore, client: Redis) -> None:
    """A log has an entry for each call, whatever it costs."""
    limiter = Limiter([LOG], store)
    await together(limiter, "user:0", "other:0")
    before = evaluations(client)
    decisions = await asyncio.gather(*(limiter.aacquire(f"user:{number}", 9_000) for number in range(4)))
    assert [decision.remaining for decision in decisions] == [999, 1000, 1000, 1000]
    await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(MOST)))
    assert evaluations(client) - before == 2


async def test_rules_weigh_too(store: RedisStore, client: Redis) -> None:
    limiter = Limiter([Rule(f"r{number}", "10/hour") for number in range(20)], store)
    await together(limiter, "user:0", "other:0")
    before = evaluations(client)
    await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(50)))
    assert evaluations(client) - before == 50 * 20 // MOST


async def test_a_storm_of_connections_travels_in_batches(store: RedisStore, client: Redis) -> None:
    limiter = Limiter([CAP], store)
    await together(limiter, "user:0", "other:0")
    before = evaluations(client)
    decisions = await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(500)))
    assert all(decision.allowed and not decision.degraded for decision in decisions)
    assert not store.breaker.is_failing
    assert evaluations(client) - before <= 2 * 500 // MOST, "announced and decided, a hundred at a time"
    assert len(store.leases) == 502
    held = client.smembers(store.process_key(f"held:{store.leases.uid}"))
    assert len(held) == 501
    assert (await limiter.apeek("user:499")).remaining == 36


async def test_of_a_storm_under_one_ident_exactly_the_limit_passes(store: RedisStore) -> None:
    limiter = Limiter([CAP], store)
    decisions = await asyncio.gather(*(limiter.aacquire("user:1") for _ in range(500)))
    assert sum(decision.allowed for decision in decisions) == len(store.leases) == 37
    assert not any(decision.degraded for decision in decisions)
    assert not store.breaker.is_failing
    await asyncio.gather(*(limiter.arelease(decision.lease) for decision in decisions))
    assert ((await limiter.apeek("user:1")).remaining, len(store.leases)) == (37, 0)


@pytest.mark.parametrize("turns", range(1, 9))
async def test_a_lease_whose_taker_was_cancelled_goes_back_however_late_it_arrives(
    turns: int, redis_url: str, client: Redis
) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    limiter, reconciler = Limiter([CAP], store), Reconciler(store, lambda gone: None)
    tasks = [asyncio.create_task(limiter.aacquire("user:1")) for _ in range(5)]
    for _ in range(turns):  # until it is packed, connecting, sent, …
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    reconciler.resend()  # the agent gives back while the loop has not even sent it
    assert await limiter.aacquire("user:2")
    while event_loop.background_tasks:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.001)
    reconciler.resend()
    assert client.zcard(f"{store.key(CAP.id, 'user:1')}:{store.leases.uid}") == 0

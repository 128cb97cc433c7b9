"""Decisions asked for in one turn of an event loop travel as one script call, and each is decided by itself."""

import asyncio

import pytest
from redis import Redis

from django_throttle import runtime
from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.redis.batch import MAX_BATCH_CHARGES
from tests.servers import slack
from tests.stores.conftest import evaluations

RULES = [
    Rule("bucket", "100/hour", algorithm="gcra"), Rule("window", "50/hour"),
    Rule("log", "30/hour", algorithm="sliding_log"), Rule("quota", "1000/month", algorithm="fixed_window"),
]  # fmt: skip
LOG = Rule("log", "10000/hour", algorithm="sliding_log")
CAP = Rule("cap", limit=37, algorithm="concurrency")
# More charges than a byte counts.
MANY = [Rule(f"r{i}", rates=tuple(f"{j + 2}/{j + 1}h" for j in range(10))) for i in range(26)]


@pytest.mark.parametrize(
    ("rules", "cost", "calls", "batches"),
    [
        (RULES[:1], 1, 2 * MAX_BATCH_CHARGES + 1, 3),
        ([Rule(f"r{number}", "10/hour") for number in range(20)], 1, 50, 50 * 20 // MAX_BATCH_CHARGES),
        ([LOG], 9_000, 4, 1),  # a log has an entry for each call, whatever it costs
    ],
    ids=["calls", "rules", "costs"],
)
async def test_a_batch_is_bounded(
    rules: list[Rule], cost: int, calls: int, batches: int, store: RedisStore, client: Redis
) -> None:
    limiter = Limiter(rules, store)
    await asyncio.gather(*map(limiter.aacquire, ("other:0", "other:1")))
    before = evaluations(client)
    decisions = await asyncio.gather(*(limiter.aacquire(f"user:{number}", cost) for number in range(calls)))
    assert evaluations(client) - before == batches
    assert all(decision.allowed and not decision.degraded for decision in decisions)


async def test_a_batch_that_fails_is_one_failure(servers: None) -> None:
    store = RedisStore("redis://127.0.0.1:1/0")
    limiter = Limiter([Rule("open", "1/hour", on_store_failure="allow")], store)
    decisions = await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(50)))
    assert all(decision.allowed and decision.degraded for decision in decisions)
    assert not store.breaker.is_open
    for _ in range(4):
        await limiter.aacquire("user:1")
    assert store.breaker.is_open


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_more_charges_than_a_byte_counts(kind: str, request: pytest.FixtureRequest) -> None:
    limiter = Limiter(MANY, MemoryStore() if kind == "memory" else request.getfixturevalue("store"))
    decisions = [limiter.acquire("user:1"), asyncio.run(limiter.aacquire("user:1")), limiter.acquire("user:1")]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert not any(decision.degraded for decision in decisions)
    assert [outcome.remaining for outcome in decisions[1].outcomes] == [*range(10)] * 26


@pytest.mark.parametrize("turns", range(1, 9))
async def test_a_lease_whose_taker_was_cancelled_goes_back_however_late_it_arrives(
    turns: int, store: RedisStore, client: Redis
) -> None:
    limiter, reconciler = Limiter([CAP], store), Reconciler(store, lambda gone: None)
    tasks = [asyncio.create_task(limiter.aacquire("user:1")) for _ in range(5)]
    for _ in range(turns):  # until it is packed, connecting, sent, …
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    reconciler.resend()  # the agent gives back while the loop has not even sent it
    assert await limiter.aacquire("user:2")
    async with asyncio.timeout(slack(10)):
        while beside := [task for task in runtime.background_tasks if task in asyncio.all_tasks()]:
            await asyncio.wait(beside)
    reconciler.resend()
    assert client.zcard(f"{store.key(CAP.id, 'user:1')}:{store.leases.uid}") == 0

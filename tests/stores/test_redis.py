"""What only the Redis store can get wrong: scripts, foreign values, immortal keys, round trips, records of an ident."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from redis import Redis

from django_throttle.core import Charge, Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.commands import Pause
from django_throttle.core.decide import decide_charges
from django_throttle.core.io import run
from django_throttle.limiter import Limiter
from django_throttle.stores import AnyStore, MemoryStore, RedisStore
from django_throttle.stores.base import BlockingIo
from django_throttle.stores.redis import context
from django_throttle.stores.redis import store as redis_store
from django_throttle.stores.redis.packing import RecordLayout
from django_throttle.stores.refusal_cache import NoRefusalCache
from tests.clock import FrozenClock
from tests.records import kept_id, of_rule, records, written
from tests.servers import RedisServer, wait_until
from tests.stores.conftest import CAP, RATES, commands, put_foreign


@pytest.mark.row("F21")
def test_lost_scripts_cost_one_more_round_trip_and_no_call_twice(acquire: Any, client: Redis, figure: Any) -> None:
    leases = set()
    for left in range(9, -1, -1):
        client.script_flush()
        decision = acquire(*RATES[:4], CAP)
        assert (decision.remaining, decision.degraded) == (left, False)
        leases.add(decision.lease)
    assert len(leases) == 10
    assert not acquire(*RATES[:4]).allowed
    client.script_flush()
    client.config_resetstat()
    counted = [acquire(RATES[-1]).remaining for _ in range(2)]
    found = commands(client)
    figure("round trips of two calls, the first without its script,", found["evalsha"] + found["eval"])
    assert (found["evalsha"], found["eval"], counted) == (2, 1, [6, 5])


@pytest.mark.parametrize("rule", [RATES[0], CAP], ids=lambda rule: rule.name)
def test_any_reply_ends_a_row_of_failures(rule: Rule, acquire: Callable[..., Any], store: RedisStore) -> None:
    store.breaker.failed()
    assert acquire(rule).allowed and not store.breaker.is_failing


@pytest.mark.row("F28")
def test_five_mixed_rules_are_one_command(acquire: Callable[..., Any], client: Redis, figure: Any) -> None:
    rules = [*RATES[:4], CAP]
    acquire(*rules)  # loads the script, says that this process lives
    client.config_resetstat()
    for _ in range(3):
        assert acquire(*rules).allowed
    found = commands(client)
    figure("looks at the clock in three calls of five rules each", found["time"])
    assert found["evalsha"] == 3 and found["time"] == 3, "one call, one look at the clock"


@pytest.mark.row("A35")
@pytest.mark.parametrize("cost", [float("nan"), float("-inf"), -1])
def test_the_script_itself_refuses_a_cost_that_is_none(cost: Any, store: RedisStore, client: Redis) -> None:
    rule = Rule("fixed", "10/h", on_store_failure="deny")
    assert run(decide_charges(BlockingIo(store), (Charge(rule, "user:1", cost),))).unavailable
    assert client.dbsize() == 0


@pytest.mark.row("A59")
def test_no_text_becomes_part_of_a_script(store: RedisStore, client: Redis) -> None:
    def scripts() -> int:
        return int(client.info("memory")["number_of_cached_scripts"])

    assert Limiter([Rule("api", "5/h"), CAP], store).acquire("user:1").allowed
    before = scripts()
    for text in ("]] redis.call('FLUSHALL') --", "'..redis.call('FLUSHALL')..'", "%s {0} ${x}"):
        for ident in ("user:1", text):
            assert Limiter([Rule(text, "5/h"), CAP], store).acquire(ident).allowed
    assert scripts() == before
    assert Limiter([Rule("api", "5/h")], store).peek("user:1").remaining == 4


def test_stores_with_other_prefixes_secrets_and_databases_do_not_meet(redis_url: str) -> None:
    limiters = [
        Limiter([Rule("one", "1/h")], RedisStore(redis_url.removesuffix("/0") + database, deadline=5.0, **options))
        for database, options in (("/0", {}), ("/0", {"prefix": "other"}), ("/0", {"secret": "other"}), ("/1", {}))
    ]
    for allowed in (True, False):
        assert [limiter.acquire("user:1").allowed for limiter in limiters] == [allowed] * 4


FOREIGN = ["", "nan", "-5:3", "1:2:3:4:5:6:7:8:9", "9" * 17 + ":1", "\xff\x00", {"tokens": "5"}, ["a", "b"]]
OF_ANY_TYPE = pytest.mark.parametrize("value", ["abc", {"tokens": "5"}, ["a", "b"]], ids=["text", "hash", "list"])


@pytest.mark.row("F25", "F26")
@pytest.mark.parametrize(
    ("rule", "value"),
    [(rule, value) for at, value in enumerate(FOREIGN) for rule in (RATES[at % 5], RATES[(at + 2) % 5])],
    ids=lambda value: value.name if isinstance(value, Rule) else ascii(value),
)
def test_a_foreign_value_counts_as_nothing_and_is_replaced(
    rule: Rule, value: Any, store: RedisStore, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, key = Limiter([rule], store), store.counter_key(rule, "user:1")
    put_foreign(client, key, value)
    first = limiter.acquire("user:1")
    assert (first.allowed, first.degraded, first.remaining) == (True, False, rule.params.limit - 1)
    assert "1 invalid counts in Redis were reset" in caplog.text
    caplog.clear()
    assert limiter.acquire("user:1").remaining == rule.params.limit - 2
    assert caplog.text == "" and client.pttl(key) > 0


@pytest.mark.row("F26")
@pytest.mark.parametrize(("expires", "number"), [(2**52, 2.0**52), (2**53 + 1, 0.0), (2**56 - 1, 999999999.0)])
@pytest.mark.parametrize("rule", RATES, ids=lambda rule: rule.name)
def test_a_value_from_the_far_future_locks_out_for_no_longer_than_the_window(
    rule: Rule, expires: int, number: float, store: RedisStore, client: Redis
) -> None:
    number = number if RecordLayout.of(rule.params).is_large else int(min(number, 2**32 - 1))
    client.set(store.counter_key(rule, "user:1"), written(of_rule(rule, expires, number)), px=60_000)
    decision = Limiter([rule], store).acquire("user:1")
    assert not decision.degraded
    assert decision.retry_after is not None and decision.retry_after <= 2 * 3600


@OF_ANY_TYPE
async def test_a_foreign_lease_index_is_replaced_and_fails_no_other_call(
    value: Any, store: RedisStore, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, index = Limiter([CAP], store), store.key(CAP.id, "user:1")
    put_foreign(client, index, value)
    assert [limiter.acquire("user:1").remaining for _ in range(2)] == [9, 8]
    put_foreign(client, f"{index}:{store.leases.uid}", value)
    decisions = await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(1, 20)))
    assert not any(decision.degraded for decision in decisions)
    assert {decision.remaining for decision in decisions} == {9}
    assert "1 invalid counts in Redis were reset" in caplog.text


@pytest.mark.row("F24")
@pytest.mark.parametrize("rule", [*RATES, CAP], ids=lambda rule: rule.name)
def test_an_immortal_key_gets_a_ttl_at_the_next_touch(rule: Rule, store: RedisStore, client: Redis) -> None:
    limiter = Limiter([rule], store)
    store.refusal_cache = NoRefusalCache()  # every call is to reach Redis
    limiter.acquire("user:1")
    refusals = 1 if rule is not CAP else 0  # which touch no lease
    for left in range(limiter.peek("user:1").remaining or 0, -refusals, -1):
        keys = [key for key in client.scan_iter("dt:*") if "{p}" not in key]
        for key in keys:
            assert client.persist(key)
        assert limiter.acquire("user:1").allowed is (left > 0)
        assert all(0 < client.pttl(key) <= 2 * 3600_000 + 5000 for key in keys)


@pytest.mark.row("F49")
def test_a_hundred_event_loops_leave_one_client_and_no_connection(
    store: RedisStore, client: Redis, figure: Callable[..., None]
) -> None:
    limiter = Limiter([Rule("many", "1000/h", algorithm="fixed_window")], store)
    base = len(client.client_list())
    decisions = [async_to_sync(limiter.aacquire)("user:1") for _ in range(100)]
    assert [decision.remaining for decision in decisions] == list(range(999, 899, -1))
    figure("clients kept of 100 event loops", len(store.transport.loops.by_loop))
    assert len(store.transport.loops.by_loop) <= 1
    wait_until(lambda: len(client.client_list()) <= base)  # fewer when an earlier test's are collected


def test_the_servers_clock_counts_unless_another_is_given(redis_url: str, client: Redis, clock: FrozenClock) -> None:
    seconds, microseconds = client.time()
    reset = Limiter([RATES[0]], RedisStore(redis_url, deadline=5.0)).acquire("user:1").reset_after
    left = 3600 - (seconds + microseconds / 1_000_000) % 3600
    assert abs(reset - left) < 5 or abs(reset - left) > 3595
    assert Limiter([RATES[0]], RedisStore(redis_url, clock=clock, deadline=5.0)).acquire("user:2").reset_after == 3600.0


@pytest.mark.row("F60")
def test_versions_that_store_values_in_another_way_share_none(store: RedisStore, monkeypatch: Any, caplog: Any) -> None:
    older = [Limiter([Rule(**each)], store) for each in NAMED]
    for name, algorithm in ALGORITHMS.items():
        monkeypatch.setitem(ALGORITHMS, name, replace(algorithm, layout="999"))
    newer = [Limiter([Rule(**each)], store) for each in NAMED]
    for pair in zip(older, newer, strict=True):
        decisions = [limiter.acquire("user:1") for _ in range(20) for limiter in pair]
        assert sum(decision.allowed for decision in decisions) == 20
        assert not any(decision.degraded for decision in decisions)
    assert caplog.text == ""


NAMED: list[dict[str, Any]] = [
    *({"name": name, "rate": "10/366d", "algorithm": name} for name in ("fixed_window", "sliding_window", "gcra")),
    {"name": "sliding_log", "rate": "10/h", "algorithm": "sliding_log"},
    {"name": "concurrency", "limit": 10, "algorithm": "concurrency"},
]


@pytest.fixture
def stores(redis_url: str, clock: FrozenClock) -> tuple[MemoryStore, RedisStore]:
    return MemoryStore(clock), RedisStore(redis_url, clock=clock, deadline=20.0)


@pytest.fixture
def raw(redis_server: RedisServer) -> Any:
    with redis_server.client(decode_responses=False) as client:
        client.flushall()
        yield client


def test_records_are_dropped_as_they_run_out(stores: Any, raw: Redis, clock: FrozenClock) -> None:
    store = stores[1]
    rules = [Rule(f"rule {at}", f"10/{10 + at}s", algorithm="gcra") for at in range(8)]
    asked = Rule("asked", "1000/day", algorithm="gcra")
    for rule in rules:
        Limiter([rule], store).acquire("user:1", 10)
    for gone in range(9):
        for _ in range(2):
            assert Limiter([asked], store).acquire("user:1").allowed
            value: Any = raw.get(store.key("", "user:1"))
            kept = [kept_id(rule.id) for rule in (asked, *reversed(rules[gone:]))]
            assert list(records(value, clock.now_us)) == kept, "of one value"
        clock.step(10 if gone == 0 else 1)


FIXED, GCRA = {"algorithm": "fixed_window"}, {"algorithm": "gcra"}


KINDS: Any = [
    {"rate": "97/h", "algorithm": "gcra"}, {"rate": "7/2s", "resolution": 5},
    {"limit": 3, "algorithm": "concurrency"}, {"rate": "7/2s", "algorithm": "sliding_log"}, {"rate": "10/min"},
    {"rate": "9000000000/min", "resolution": 3, "strict": True},
    {"rate": "3/min", "algorithm": "token_bucket", "refill": "interval"},
    {"rate": "10/month", "algorithm": "fixed_window"},
]  # fmt: skip


def test_calls_under_different_rules_travel_as_one(stores: Any, raw: Redis) -> None:
    kinds = [RATES, RATES[:1], [CAP], [Rule(f"rule {at}", **KINDS[at]) for at in (3, 7, 4)]]
    calls = [(rules, f"user:{at}", at) for at in range(4) for rules in kinds]

    async def together(store: AnyStore) -> list[Any]:
        decisions = [Limiter(rules, store).aacquire(ident, cost) for rules, ident, cost in calls]
        return [(decision.allowed, decision.remaining) for decision in await asyncio.gather(*decisions)]

    here, _ = (asyncio.run(together(store)) for store in stores)  # announces what takes leases
    raw.config_resetstat()
    here, there = (asyncio.run(together(store)) for store in stores)
    assert there == here
    assert commands(raw)["evalsha"] == 1


@pytest.mark.parametrize(("number", "most"), [(9, 1000), (70, 1000), (33, 32), (70, 32)])
def test_any_number_of_rules_is_decided_as_one(
    number: int, most: int, stores: Any, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the most of a call in parts: what is granted in vain is given back, and a bucket is full a little later."""
    for module in (redis_store, context):
        monkeypatch.setattr(module, "MAX_CALL_CHARGES", most)
    kinds: Any = [{}, GCRA, {"resolution": 3}, {"algorithm": "sliding_log"}, FIXED]
    rules = [Rule(f"rule {at}", f"{20 + at}/h", **kinds[at % 5]) for at in range(number - 1)]
    limiters = [Limiter([*rules, Rule("least", "4/min", **GCRA)], store) for store in stores]
    for _ in range(7):
        here, there = (limiter.acquire("user:1") for limiter in limiters)
        assert (here.allowed, here.rule, here.remaining) == (there.allowed, there.rule, there.remaining)
        assert number > most or here == there
        clock.step(1.5)
    assert not here.allowed
    here, there = limiters[0].peek("user:1"), asyncio.run(limiters[1].apeek("user:1"))
    assert number > most or here == there


SECOND = 1_000_000


def left(store: AnyStore, lasts: float = 0, ident: str = "host:a") -> float:
    return store.execute(Pause("name", ident, round(lasts * SECOND))) / SECOND


def test_it_lasts_until_the_latest_moment_that_was_said(each_store: AnyStore, clock: FrozenClock) -> None:
    assert left(each_store) == 0
    assert left(each_store, 30) == 30
    clock.to(10)
    assert left(each_store) == left(each_store, 5) == 20
    assert left(each_store, 40.5) == 40.5
    clock.to(50)
    assert left(each_store) == 0.5
    assert left(each_store, ident="host:b") == 0
    clock.to(51)
    assert left(each_store) == 0
    assert left(each_store, 1) == 1


@pytest.mark.parametrize(
    "rule",
    [
        Rule("name", rates=["5/min", "50/h"]),
        Rule("name", "100/s", algorithm="damper"),
        Rule("name", limit=5, algorithm="concurrency"),
    ],
    ids=lambda rule: rule.algorithm,
)
def test_a_reset_ends_it(each_store: AnyStore, rule: Rule) -> None:
    left(each_store, 30)
    left(each_store, 30, ident="host:b")
    assert Limiter([rule], each_store).reset("host:a") == 1
    assert (left(each_store), left(each_store, ident="host:b")) == (0, 30)

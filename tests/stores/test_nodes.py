"""A Cluster's redirects and failures, and a Sentinel's answers, one by one: nodes that say what they are told to."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot

from django_throttle.connections import reconcile
from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Decision, Rule
from django_throttle.core.commands import CallNext, Charge, Charges, Decide, DecideLocally, Enlist, Evict, StoreCommand
from django_throttle.exceptions import Cause
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.redis import cluster
from tests.clock import FrozenClock
from tests.proxy import Proxy
from tests.servers import RedisServer, wait_until
from tests.stand_in import StandIn, as_reply
from tests.stores.conftest import CAP, RATES, decide, different_slots, evaluations

HALF = 8192
RULE = Rule("api", "10/hour", on_store_failure="allow")
NARROW = Rule("narrow", "1/366d", algorithm="fixed_window")
BOTH = pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])


@pytest.fixture
def nodes(redis_url: str, redis_server: RedisServer) -> Iterator[list[StandIn]]:
    both = [StandIn(redis_server.port) for _ in range(2)]
    serve(both, [(0, HALF - 1, both[0]), (HALF, 2 * HALF - 1, both[1])])
    yield both
    for each in both:
        each.close()


def serve(nodes: list[StandIn], ranges: list[tuple[int, int, StandIn]]) -> None:
    for node in nodes:
        node.always["CLUSTER"] = as_reply([[first, last, ["127.0.0.1", of.port, "id"]] for first, last, of in ranges])


def over(nodes: list[StandIn], **options: Any) -> RedisStore:
    return RedisStore(f"redis+cluster://127.0.0.1:{nodes[0].port}?protocol=2", **{"deadline": 5.0, **options})


def idents_of(store: RedisStore) -> list[str]:
    found = {key_slot(store.key("", ident).encode()) // HALF: ident for ident in map("user:{}".format, range(40))}
    return [found[0], found[1]]


def caller(store: RedisStore, on_loop: bool) -> Callable[[str], Decision]:
    limiter = Limiter([RULE], store)
    return (lambda ident: asyncio.run(limiter.aacquire(ident))) if on_loop else limiter.acquire


@BOTH
@pytest.mark.parametrize(
    ("error", "first", "second"),
    [
        ("MOVED {slot} 127.0.0.1:{other}", ["EVALSHA"], ["EVALSHA"]),
        ("ASK {slot} 127.0.0.1:{other}", ["EVALSHA"], ["ASKING", "EVALSHA"]),
        ("ASK {slot} :{other}", ["EVALSHA"], ["ASKING", "EVALSHA"]),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ["EVALSHA"] * 2, []),
        ("ERR Script attempted to access a non local key in a cluster node", ["EVALSHA"] * 2, []),
        ("NOSCRIPT No matching script.", ["EVALSHA", "EVAL"], []),
    ],
    ids=lambda value: str(value).partition(" ")[0],
)
def test_a_redirect_is_followed(
    error: str, first: list[str], second: list[str], on_loop: bool, nodes: list[StandIn]
) -> None:
    store = over(nodes)
    ident, call = idents_of(store)[0], caller(store, on_loop)
    assert call(ident).remaining == 9
    for node in nodes:
        node.seen.clear()
    text = error.format(slot=key_slot(store.key("", ident).encode()), other=nodes[1].port)
    nodes[0].next["EVALSHA"] = [f"-{text}\r\n".encode()]
    if text.startswith("MOVED"):  # else a busy machine reads the map again, as it is old by then
        serve(nodes, [(0, 2 * HALF - 1, nodes[1])])
    decision = call(ident)
    assert (decision.degraded, decision.remaining) == (False, 8)
    assert [name for name in nodes[0].seen if name in ("ASKING", "EVALSHA", "EVAL")] == first
    assert [name for name in nodes[1].seen if name in ("ASKING", "EVALSHA", "EVAL")] == second


def test_a_script_that_derives_keys_waits_until_its_slot_has_moved(nodes: list[StandIn]) -> None:
    store = over(nodes)
    ident = idents_of(store)[0]
    ask = f"-ASK {key_slot(store.key('', ident).encode())} 127.0.0.1:{nodes[1].port}\r\n".encode()
    commands: list[StoreCommand[Any]] = [Enlist("rule", ident, "run", b"", 1000, is_first=False, max_waiting=5)]
    for command in [*commands, CallNext("rule", ident), Evict(Charge(CAP, ident, 1), "~a")]:
        nodes[0].next["EVALSHA"] = [ask]
        store.execute(command)
    assert "ASKING" not in nodes[1].seen


@BOTH
def test_a_slot_that_nobody_serves_opens_no_breaker(on_loop: bool, nodes: list[StandIn]) -> None:
    store = over(nodes)
    (ident, other), call = idents_of(store), caller(store, on_loop)
    nodes[0].always["EVALSHA"] = nodes[0].always["EVAL"] = b"-CLUSTERDOWN Hash slot not served\r\n"
    assert [call(ident).degraded for _ in range(8)] == [True] * 8
    assert not any(breaker.is_failing for breaker in store.transport.breakers)
    assert not call(other).degraded
    del nodes[0].always["EVALSHA"], nodes[0].always["EVAL"]
    assert call(ident).remaining == 9


@BOTH
def test_the_map_of_another_node_counts_once_one_has_gone(
    on_loop: bool, nodes: list[StandIn], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "LEARN_INTERVAL", 0.0)
    store = over(nodes)
    (ident, other), call = idents_of(store), caller(store, on_loop)
    assert [call(ident).remaining, call(other).remaining] == [9, 9]
    nodes[1].close()
    failed = [call(other).degraded for _ in range(8)]
    assert failed == [True] * 8 and "does not answer" in caplog.text
    assert call(ident).remaining == 8, "the other node goes on"
    serve(nodes, [(0, 2 * HALF - 1, nodes[0])])
    assert call(other).remaining == 8
    assert store.transport.failovers == 1


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
@BOTH
def test_where_to_ask_is_learned_for_the_next_call_if_it_takes_longer_than_one(
    on_loop: bool, kind: str, nodes: list[StandIn]
) -> None:
    with Proxy(nodes[0].port, "delay", 0.06) as far, asyncio.Runner() as runner:
        serve(nodes, [(0, 2 * HALF - 1, far)])
        nodes[0].always["SENTINEL"] = to_primary(far.port, 1)
        hosts = f"127.0.0.1:{far.port},127.0.0.1:{far.port}"
        store = RedisStore(f"redis+{kind}://{hosts}{'/dt' * (kind == 'sentinel')}?protocol=2", deadline=0.15)
        limiter = Limiter([RULE], store)
        call = (lambda: runner.run(limiter.aacquire("user:1"))) if on_loop else lambda: limiter.acquire("user:1")
        assert call().degraded
        wait_until(lambda: not call().degraded)
        nodes[0].always["SENTINEL"] = to_primary(nodes[1].port, 2)
        wait_until(lambda: store.transport.check_primary() or store.transport.failovers == (kind == "sentinel"))


@BOTH
def test_without_any_map_the_policy_decides(on_loop: bool, nodes: list[StandIn]) -> None:
    store = over(nodes)
    nodes[0].always["CLUSTER"] = b"-ERR This instance has cluster support disabled\r\n"
    decision = caller(store, on_loop)("user:1")
    assert (decision.degraded, decision.allowed) == (True, True)
    assert nodes[0].seen.count("EVALSHA") == 0


@pytest.mark.row("F38")
@BOTH
@pytest.mark.parametrize("rule", [*RATES, CAP], ids=lambda rule: rule.name)
def test_what_another_slot_refuses_charges_nothing(
    rule: Rule, on_loop: bool, nodes: list[StandIn], client: Redis, clock: FrozenClock
) -> None:
    ours, oracle = over(nodes, clock=clock), MemoryStore(clock=clock)
    idents = different_slots(ours, 3)
    charges = tuple(Charge(rule, ident, 1) for ident in idents[:2])
    for step in range(6):
        lease = f"lease{step}" if rule.holds_slots else None
        narrow = (Charge(NARROW, idents[2], 1),) if step in (1, 3, 4) else ()
        if step == 3:
            client.script_flush()  # how a slot stands is asked once more after a refund that needs its script
        decisions = [decide(store, on_loop, *charges, *narrow, lease=lease) for store in (ours, oracle)]
        assert decisions[0] == decisions[1], step
        assert decisions[0].allowed is (step not in (3, 4))
        clock.step(0.05)
    stands = [decide(store, on_loop, *charges, commit=False) for store in (ours, oracle)]
    assert stands[0] == stands[1]


@BOTH
def test_a_cluster_that_knows_no_process_gives_it_no_slot(on_loop: bool, nodes: list[StandIn]) -> None:
    store = over(nodes)
    at = key_slot(store.process_key("live").encode()) // HALF
    nodes[at].always["EVALSHA"] = b"-OOM command not allowed\r\n"
    decision = decide(store, on_loop, Charge(CAP, idents_of(store)[1 - at], 1), lease="a")
    assert (decision.degraded, decision.cause) == (True, Cause.SERVER_STATE)
    assert "EVALSHA" not in nodes[1 - at].seen


def test_who_waits_for_a_slot_pauses_between_attempts_within_the_deadline(
    nodes: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, pauses = over(nodes, deadline=1.125), list[float]()
    nodes[0].always["EVALSHA"] = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
    monkeypatch.setattr(cluster, "PAUSE_SECONDS", 0.25)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append))
    assert Limiter([RULE], store).acquire(idents_of(store)[0]).degraded
    assert pauses == [0.25] * 4 + [0.125]


@BOTH
@pytest.mark.parametrize("rule", [replace(RULE, on_store_failure="deny"), replace(CAP, on_store_failure="deny")])
def test_what_a_slot_has_granted_goes_back_where_another_fails(rule: Rule, on_loop: bool, nodes: list[StandIn]) -> None:
    store = over(nodes)
    charges = [Charge(rule, ident, 1) for ident in idents_of(store)]
    assert not decide(store, on_loop, *charges, lease="a").degraded
    nodes[1].next["EVALSHA"] = [b"-CLUSTERDOWN Hash slot not served\r\n"]
    assert decide(store, on_loop, *charges, lease="b").degraded
    Reconciler(store).resend()
    assert decide(store, on_loop, *charges, commit=False).remaining == 9


@pytest.mark.parametrize("in_cluster", [True, False])
def test_evicted_leases_are_sent_again_a_part_each_beat_in_a_cluster(
    in_cluster: bool, nodes: list[StandIn], redis_url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "CLUSTER_PAIRS", 1)
    store = over(nodes) if in_cluster else RedisStore(redis_url, deadline=5.0)
    reconciler, idents = Reconciler(store), idents_of(store)
    for ident in idents:
        decide(store, False, Charge(CAP, ident, 1), lease=ident)
    keys = [store.key(CAP.id, ident) for ident in idents]
    client.delete(*keys)
    for count in (1, 2) if in_cluster else (2, 2):
        reconciler.check_all()
        while reconciler.resend() is not None:
            pass
        assert client.exists(*keys) == count
    reconciler.check_all()
    assert reconciler.resend() is None, "nothing is missing"
    before = evaluations(client)
    assert (reconciler.resend(), evaluations(client)) == (None, before), "and nothing is left to do"


@pytest.mark.parametrize(
    "reply", [b"-OOM command not allowed\r\n", b"$3\r\nabc\r\n", b"$16\r\n................\r\n", b""]
)
async def test_a_reply_that_decides_nothing_leaves_all_that_wait_for_it_to_the_policy(
    reply: bytes, nodes: list[StandIn]
) -> None:
    store = RedisStore(f"redis://127.0.0.1:{nodes[0].port}/0?protocol=2", deadline=5.0)
    limiter = Limiter([RULE, Rule("other", "20/hour", on_store_failure="allow")], store)
    assert not limiter.acquire("user:1").degraded
    nodes[0].next["EVALSHA"] = [reply] * 2
    decisions = [limiter.acquire("user:1"), *await asyncio.gather(*(limiter.aacquire("user:1") for _ in range(3)))]
    assert [(each.degraded, each.allowed) for each in decisions] == [(True, True)] * 4
    assert (await limiter.aacquire("user:1")).remaining == 8


def to_primary(port: int, epoch: int, flags: str = "master") -> bytes:
    return as_reply(["ip", "127.0.0.1", "port", str(port), "flags", flags, "config-epoch", str(epoch)])


@pytest.mark.row("F34")
@BOTH
def test_the_server_that_the_sentinels_name_is_asked(on_loop: bool, nodes: list[StandIn]) -> None:
    (first, second), sentinels = nodes, [StandIn(nodes[0].port) for _ in range(2)]
    sentinels[0].always["SENTINEL"] = b"-NOPERM this user has no permissions to run the 'sentinel' command\r\n"
    sentinels[1].always["SENTINEL"] = to_primary(first.port, 1)
    hosts = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
    store = RedisStore(f"redis+sentinel://{hosts}/dt?protocol=2", deadline=5.0)
    with asyncio.Runner() as runner:
        limiter = Limiter([RULE], store)

        def call() -> Decision:
            return runner.run(limiter.aacquire("user:1")) if on_loop else limiter.acquire("user:1")

        assert call().degraded
        sentinels[0].always["SENTINEL"] = b"-ERR No such master with that name\r\n"
        assert [call().remaining for _ in range(2)] == [9, 8]
        sentinels[0].always["SENTINEL"] = to_primary(second.port, 2)
        Reconciler(store).beat()
        assert store.transport.failovers == 1
        first.seen.clear()
        assert call().remaining == 7
        assert ("EVALSHA" in second.seen, "EVALSHA" in first.seen) == (True, False)
        second.next["EVALSHA"] = [b"-READONLY You can't write against a read only replica.\r\n"]
        assert [call().degraded for _ in range(2)] == [True, False]
        for sentinel in sentinels:
            sentinel.close()
        Reconciler(store).beat()
        assert not call().degraded, "who is connected needs no Sentinel"


@BOTH
def test_what_is_owed_is_charged_in_the_round_trip_of_a_decision_over_several_slots(
    nodes: list[StandIn], monkeypatch: pytest.MonkeyPatch, on_loop: bool
) -> None:
    store, trips = over(nodes), list[object]()
    first, second = (Charge(RULE, ident, 1) for ident in idents_of(store))
    store.execute(DecideLocally(Decide(Charges.of((first._replace(cost=3),)))))
    name = "asend_all" if on_loop else "send_all"
    usual = getattr(store.transport, name)
    monkeypatch.setattr(store.transport, name, lambda *calls: trips.append(calls) or usual(*calls))
    decision = decide(store, on_loop, first, second)
    assert [outcome.remaining for outcome in decision.outcomes] == [6, 9]
    assert len(trips) == 1

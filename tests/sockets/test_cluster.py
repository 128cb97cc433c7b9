"""Sockets on a real Redis Cluster: the user of a socket, its address and the orders for its process in three slots."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from django_throttle.core import Lease, Rule
from django_throttle.core.commands import charge
from django_throttle.limiter import Limiter, decide_flow
from django_throttle.publishing.groups import LocalMembers, MemberCounts, MemberReporter, group_ident
from django_throttle.stores import RedisStore
from django_throttle.stores.base import run
from tests.conftest import immortal_keys
from tests.connections.evictions import Door, lease_of, lose, redis_store
from tests.fleet import READY, RedisCluster
from tests.servers import RedisServer, wait_until

HELD: dict[str, Any] = {"algorithm": "concurrency", "events": ("connection",)}
CAP, AT_ADDRESS = 5, 8
USERS = Rule("users", limit=CAP, key="user", **HELD)
PLACES = Rule("places", limit=1000, key="ip", **HELD)
NARROW = Rule("narrow", limit=AT_ADDRESS, key="ip", **HELD)
TABS = Rule("tabs", limit=3, key="user", at_limit="evict_oldest", **HELD)
HOME = "ip:203.0.113.9"


class Process(Door):
    """A process with sockets of one address: the first rule counts their user, the second one the address."""

    def _flow(self, ident: str, socket: bool, cost: int = 1) -> Any:
        idents = (ident, HOME)
        charges = tuple(charge(rule, name, cost) for rule, name in zip(self.rules, idents, strict=True))
        return decide_flow(charges, self.store, socket=socket)

    def at_address(self) -> int:
        return Door(self.store, self.rules[1]).count(HOME)

    def close(self, *leases: Lease | None) -> None:
        for lease in filter(None, leases):
            Limiter(self.rules, self.store).release(lease)


@pytest.fixture(scope="module")
def cluster(servers: None) -> Iterator[RedisCluster]:
    with RedisCluster(0) as servers_of_slots:
        yield servers_of_slots
        for node in servers_of_slots.nodes:
            assert immortal_keys(node) == []
            with node.client() as client:
                assert "CROSSSLOT" not in str(client.info("errorstats"))


def processes(cluster: RedisCluster, *rules: Rule, number: int = 2) -> list[Process]:
    cluster.flush()
    return [Process(redis_store(cluster.url), *rules) for _ in range(number)]


def apart(store: RedisStore, *keys: str) -> bool:
    return len({key_slot(key.encode()) for key in keys}) == len(keys)


async def at_once(pair: list[Process], *users: str) -> list[tuple[Process, Lease]]:
    """Return the leases of 100 handshakes of each user in each process, before any of which was decided."""
    calls = [(process, process.aopen(user)) for process in pair for user in users for _ in range(100)]
    decisions = await asyncio.gather(*(call for _, call in calls))
    return [(process, made.lease) for (process, _), made in zip(calls, decisions, strict=True) if made.lease]


async def test_simultaneous_handshakes_are_let_in_to_the_cap(cluster: RedisCluster) -> None:
    first, second = pair = processes(cluster, USERS, PLACES)
    store: Any = first.store
    assert apart(store, store.key(USERS.id, "user:1"), store.key(PLACES.id, HOME), store.process_key("live"))
    opened = await at_once(pair, "user:1")
    assert (len(opened), second.count(), second.at_address()) == (CAP, CAP, CAP)
    for process, lease in opened:
        process.close(lease)
    assert (first.count(), first.at_address()) == (0, 0)


@pytest.mark.parametrize("is_lost", [False, True], ids=["at once", "after a lost reply"])
def test_a_newcomer_closes_the_oldest_of_another_process(
    cluster: RedisCluster, monkeypatch: Any, is_lost: bool
) -> None:
    first, second = processes(cluster, TABS, PLACES)
    leases = [lease_of(first.open()) for _ in range(3)]
    with monkeypatch.context() as broken:
        if is_lost:
            lose(second, broken)
        assert second.open().allowed is not is_lost
    second.reconciler().resend()
    assert first.closed() == leases[:1]
    assert (second.count(), second.at_address()) == (3 - is_lost, 4 - is_lost), "until the oldest has closed"


def test_members_of_a_group_are_added_up(cluster: RedisCluster, settings: Any) -> None:
    news = {"rate": "10/s", "events": ["publish"], "key": "everyone"}
    settings.DJANGO_THROTTLE = {"RULES": {"news": news}, "DATABASE_RULES": False, "AGENT": False}
    name, onlooker, *others = group_ident("default", "news"), *processes(cluster, TABS, PLACES, number=3)
    counts, members = MemberCounts(LocalMembers()), [LocalMembers(), LocalMembers()]
    assert run(counts.of(name, onlooker.store), onlooker.store) == 0
    for process, mine, channels in zip(others, members, ("abc", "de"), strict=True):
        for channel in channels:
            mine.add(name, channel)
        MemberReporter(process.store, mine)()
    assert run(MemberCounts(LocalMembers()).of(name, onlooker.store), onlooker.store) == 5


def serves(node: RedisServer) -> bool:
    with node.client() as client:
        return "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO"))


def test_a_node_that_starts_anew_is_told_what_it_has_lost_and_the_dead_are_swept(cluster: RedisCluster) -> None:
    dead, living = processes(cluster, TABS, PLACES)
    users = [f"user:{number}" for number in range(30, 40)]
    reconciler = dead.reconciler()
    for user in users:
        lease_of(dead.open(user))
    reconciler.beat()
    store: Any = living.store
    nodes = {user: cluster.owner(store.key(TABS.id, user)) for user in users}
    crashed = next(node for node in nodes.values() if node is not cluster.owner(store.process_key("live")))
    crashed.restart()
    wait_until(lambda: serves(crashed), timeout=READY)

    def is_told() -> bool:
        reconciler.beat()
        reconciler.resend()
        return [living.count(user) for user in users] == [1] * 10

    wait_until(is_told, timeout=READY)
    assert living.at_address() == 10
    records, uid = living.reconciler().records, dead.store.leases.uid
    assert records.beat((), [uid]).claimed == [uid]
    assert sum(records.sweep(uid)) == 20
    assert [living.count(user) for user in users] == [0] * 10
    assert living.at_address() == 0

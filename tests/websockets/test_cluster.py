"""Sockets on a real Redis Cluster: the user of a socket, its address and the orders for its process in three slots."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from django_throttle.core import Rule
from django_throttle.core.commands import Charge, charge
from django_throttle.limiter import Limiter
from tests.conftest import immortal_keys
from tests.connections.evictions import Door, lease_of, redis_store
from tests.fleet import READY, RedisCluster
from tests.servers import RedisServer, wait_until

HELD: dict[str, Any] = {"algorithm": "concurrency", "events": ("connection",)}
CAP = 5
USERS = Rule("users", limit=CAP, key="user", **HELD)
PLACES = Rule("places", limit=1000, key="ip", **HELD)
TABS = Rule("tabs", limit=3, key="user", at_limit="evict_oldest", **HELD)
HOME = "ip:203.0.113.9"


class Process(Door):
    """A process with sockets of one address: the first rule counts their user, the second one the address."""

    def _charges(self, ident: str) -> tuple[Charge, ...]:
        return tuple(charge(rule, name, 1) for rule, name in zip(self.rules, (ident, HOME), strict=True))

    def at_address(self) -> int:
        return Door(self.store, self.rules[1]).count(HOME)


@pytest.fixture(scope="module")
def cluster(servers: None) -> Iterator[RedisCluster]:
    with RedisCluster(0) as nodes_of_slots:
        yield nodes_of_slots
        for node in nodes_of_slots.nodes:
            assert immortal_keys(node) == []
            with node.client() as client:
                assert "CROSSSLOT" not in str(client.info("errorstats"))


def processes(cluster: RedisCluster, *rules: Rule, number: int = 2) -> list[Process]:
    cluster.flush()
    return [Process(redis_store(cluster.url), *rules) for _ in range(number)]


async def test_simultaneous_handshakes_are_let_in_to_the_cap(cluster: RedisCluster) -> None:
    first, second = pair = processes(cluster, USERS, PLACES)
    store: Any = first.store
    keys = store.key(USERS.id, "user:1"), store.key(PLACES.id, HOME), store.process_key("live")
    assert len({key_slot(key.encode()) for key in keys}) == 3
    opened = [made.lease for made in await asyncio.gather(*(each.aopen() for each in pair * 100)) if made.lease]
    assert (len(opened), second.count(), second.at_address()) == (CAP, CAP, CAP)
    for lease, process in itertools.product(opened, pair):
        Limiter(process.rules, process.store).release(lease)
    assert (first.count(), first.at_address()) == (0, 0)


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

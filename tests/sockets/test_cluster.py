"""Sockets on a real Redis Cluster: whom a socket counts for is in several slots, and its process' orders in another."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from redis.crc import key_slot

from django_throttle.core import Rule
from django_throttle.publishing.groups import LocalMembers, MemberCounts, group_ident
from django_throttle.stores import RedisStore
from django_throttle.stores.base import run
from tests.conftest import immortal_keys
from tests.connections.evictions import Door, lose
from tests.fleet import READY, RedisCluster
from tests.inside import evictions_fail
from tests.servers import RedisServer, wait_until
from tests.sockets import guarded
from tests.sockets.worker import ADDRESS, GROUP, QUICK, SECRET, Worker, started

CAP, AT_ADDRESS, FRAMES = 5, 8, 100
HELD: dict[str, Any] = {"algorithm": "concurrency", "events": ["connection"]}
RATE: dict[str, Any] = {"algorithm": "fixed_window", "events": ["message"]}
RULES: dict[str, dict[str, Any]] = {
    "sockets": {**HELD, "limit": CAP, "scopes": ["chat"], "key": "user"},
    "addresses": {**HELD, "limit": AT_ADDRESS, "scopes": ["chat"], "key": "ip"},
    "users": {**HELD, "limit": CAP, "scopes": ["wide"], "key": "user"},
    "places": {**HELD, "limit": 1000, "scopes": ["wide"], "key": "ip"},
    "tabs": {**HELD, "limit": 3, "scopes": ["tabs"], "key": "user", "at_limit": "evict_oldest"},
    "homes": {**HELD, "limit": 100, "scopes": ["tabs"], "key": "ip"},
    "frames": {**RATE, "rate": f"{FRAMES}/h", "scopes": ["tabs", "chat"], "key": "user"},
    "traffic": {**RATE, "rate": "100000/h", "key": "ip"},
    "news": {**RATE, "rate": "13/h", "events": ["publish"], "key": "everyone"},
    "newsmen": {**RATE, "rate": "1000/h", "events": ["publish"], "key": "user"},
}
HOME = f"ip:{ADDRESS}"
pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(0) as servers:
        yield servers
        for node in servers.nodes:
            assert immortal_keys(node) == []
            with node.client() as client:
                assert "CROSSSLOT" not in str(client.info("errorstats"))


@pytest.fixture(scope="module")
def workers(cluster: RedisCluster) -> Iterator[list[Worker]]:
    with started(*(Worker(REDIS=cluster.url, RULES=RULES) for _ in range(3))) as workers:
        yield workers


@pytest.fixture
def pair(workers: list[Worker]) -> Iterator[list[Worker]]:
    """Two processes, in which nothing is left open afterwards."""
    yield workers[:2]
    for worker in workers[:2]:
        worker.ask("shut")


@pytest.fixture
def store(cluster: RedisCluster) -> RedisStore:
    """The store of another process, in which nothing is held."""
    return RedisStore(cluster.url, secret=SECRET, deadline=5.0)


def used(store: RedisStore, name: str, ident: str) -> int:
    return guarded.used(store, ident, Rule.from_options(name, RULES[name]))


def size(store: RedisStore) -> int:
    return run(MemberCounts(LocalMembers()).of(group_ident("default", GROUP), store), store)


def at_once(workers: list[Worker], **arguments: Any) -> list[int]:
    """Return the answers to the same handshakes in all processes at the same time."""
    for worker in workers:
        worker.say("open", **arguments)
    return [code for worker in workers for code in worker.hear()]


def apart(store: RedisStore, *idents: str) -> bool:
    return len({key_slot(store.key("rule", ident).encode()) for ident in idents}) == len(idents)


def serves(node: RedisServer) -> bool:
    with node.client() as client:
        return "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO"))


def test_simultaneous_handshakes_are_let_in_to_the_cap(pair: list[Worker], store: RedisStore) -> None:
    """Of each socket one rule counts the user, another the address: two slots, which decide apart."""
    assert apart(store, "user:1", HOME, store.process_key("live"))
    codes = at_once(pair, user="1", times=100, scope="wide")
    assert (codes.count(0), codes.count(4430)) == (CAP, 200 - CAP)
    assert used(store, "users", "user:1") == used(store, "places", HOME) == CAP
    for worker in pair:
        worker.ask("shut")
    wait_until(lambda: used(store, "users", "user:1") == used(store, "places", HOME) == 0)


def test_where_both_slots_are_narrow_there_are_never_more_and_no_slot_is_lost(
    pair: list[Worker], store: RedisStore
) -> None:
    """Two may refuse one another, each holding what the other lacks; who comes after them is let in."""
    users = ("2", "3", "4")
    codes = [code for user in users for code in at_once(pair, user=user, times=30)]
    assert 0 < codes.count(0) <= AT_ADDRESS

    def is_full() -> bool:
        codes.extend(worker.ask("open", user=user)[0] for user in users for worker in pair)
        return codes.count(0) == AT_ADDRESS

    wait_until(is_full)  # a refusal is remembered for a moment
    assert at_once(pair, user="2", times=CAP).count(0) == 0
    assert used(store, "addresses", HOME) == AT_ADDRESS
    assert sum(used(store, "sockets", f"user:{user}") for user in users) == AT_ADDRESS


@pytest.mark.parametrize("fault", ["none", "a reply is lost", "the newcomer dies"])
def test_a_newcomer_closes_the_oldest_of_another_process(
    pair: list[Worker], store: RedisStore, monkeypatch: Any, fault: str
) -> None:
    """A process asks in one slot, and orders in another; where it fails in between, who sweeps it does so instead."""
    user = {"none": "5", "a reply is lost": "14", "the newcomer dies": "15"}[fault]
    assert apart(store, f"user:{user}", store.process_key("live"))
    assert pair[0].ask("open", user=user, times=3, scope="tabs") == [0, 0, 0]
    door = Door(store, Rule.from_options("tabs", RULES["tabs"]))
    with monkeypatch.context() as broken:
        if fault == "none":
            assert pair[1].ask("open", user=user, scope="tabs") == [0]
        elif fault == "a reply is lost":
            lose(door, broken)
            assert not door.open(f"user:{user}").allowed
        else:
            evictions_fail(broken)
            assert door.open(f"user:{user}").allowed
    if fault == "a reply is lost":
        door.reconciler().resend()
    wait_until(lambda: pair[0].ask("ended") == [["evicted", 4430]], every=0.05)
    assert used(store, "tabs", f"user:{user}") == (3 if fault == "none" else 2)


def test_what_is_bought_ahead_and_not_used_goes_back_to_both_slots(pair: list[Worker], store: RedisStore) -> None:
    address = "198.51.100.2"
    for worker, total in zip(pair, (40, 80), strict=True):
        worker.ask("open", user="9", scope="tabs", address=address)
        assert worker.ask("send", times=40) == 40
        wait_until(lambda: used(store, "frames", "user:9") == total == used(store, "traffic", f"ip:{address}"))  # noqa: B023
    passed = sum(pair[0].ask("send", times=1) for _ in range(FRAMES - 80 + 1))
    assert passed == FRAMES - 80
    wait_until(lambda: used(store, "frames", "user:9") == FRAMES == used(store, "traffic", f"ip:{address}"))


def test_a_publication_costs_one_and_one_for_each_member_in_all_processes(
    pair: list[Worker], store: RedisStore
) -> None:
    """Twice six of thirteen pass, under rules of two slots."""
    pair[0].ask("open", user="12", times=3, scope=GROUP)
    pair[1].ask("open", user="12", times=2, scope=GROUP)
    wait_until(lambda: size(store) == 5)
    answers = [worker.ask("publish", publisher="user:13") for worker in (*pair, pair[1])]
    assert answers == [[True], [True], [False, 5, "news"]]
    wait_until(lambda: [worker.ask("heard", text=GROUP) for worker in pair] == [[1, 1, 1], [1, 1]])
    assert used(store, "news", "everyone") == used(store, "newsmen", "user:13") == 12
    pair[0].ask("close", times=2)
    wait_until(lambda: size(store) == 3)


def test_a_node_that_starts_anew_is_told_what_it_has_lost(
    pair: list[Worker], store: RedisStore, cluster: RedisCluster
) -> None:
    """It was away for so short a time that nobody took over, and processes are known elsewhere."""
    users = [f"{number}" for number in range(30, 40)]
    for worker in pair:
        assert [worker.ask("open", user=user, scope="tabs") for user in users] == [[0]] * 10
    nodes = {user: cluster.owner(store.key("rule", f"user:{user}")) for user in users}
    crashed = next(node for node in nodes.values() if node is not cluster.owner(store.process_key("live")))
    crashed.restart()
    wait_until(lambda: serves(crashed), timeout=READY)  # it takes its time until it serves its slots
    lost = [user for user in users if nodes[user] is crashed]
    wait_until(lambda: [used(store, "tabs", f"user:{user}") for user in lost] == [2] * len(lost), timeout=20)
    assert used(store, "homes", HOME) == 20


def test_a_killed_process_is_swept_by_the_command(
    workers: list[Worker], store: RedisStore, cluster: RedisCluster, settings: Any
) -> None:
    """Its slots of every node at once, its members of groups when it has been silent for long enough."""
    doomed = workers[2]
    users = [f"{number}" for number in range(20, 30)]
    assert [doomed.ask("open", user=user, scope="tabs") for user in users] == [[0]] * 10
    assert doomed.ask("open", user="20", times=2, scope=GROUP) == [0, 0]
    wait_until(lambda: size(store) == 2)
    assert len({cluster.owner(store.key("rule", f"user:{user}")).port for user in users}) == 3
    doomed.kill()
    settings.DJANGO_THROTTLE = {**QUICK, "REDIS": cluster.url, "KEY_SECRET": SECRET, "AGENT": False}
    out = io.StringIO()
    call_command("refresh_connections", "--once", stdout=out)
    freed = re.search(r", (\d+) freed", out.getvalue())
    assert freed and int(freed[1]) == 20, out.getvalue()
    assert [used(store, "tabs", f"user:{user}") for user in users] == [0] * 10
    assert used(store, "homes", HOME) == 0
    wait_until(lambda: size(store) == 0)

"""Sockets on a real Redis Cluster: whom a socket counts for is in several slots, and its process' orders in another."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from redis.crc import key_slot

from django_throttle.connections.overview import Overview, look
from django_throttle.core import Rule
from django_throttle.core.control_messages import CLOSE, CLOSED, ControlMessage
from django_throttle.limiter import Limiter
from django_throttle.publishing.groups import LocalMembers, MemberCounts, group_ident
from django_throttle.stores import RedisStore
from django_throttle.stores.base import run
from testproject.check.standstill import elapsed
from tests.conftest import immortal_keys
from tests.connections.evictions import Door, lose
from tests.databases import new_database
from tests.fleet import READY, RedisCluster
from tests.inside import evictions_fail
from tests.servers import RedisServer, slack, wait_until
from tests.sockets.worker import ADDRESS, GROUP, QUICK, SECRET, Worker

CAP, AT_ADDRESS, FRAMES, NEWS = 5, 8, 100, 13
HELD: dict[str, Any] = {"algorithm": "concurrency", "events": ["connection"]}
RULES: dict[str, dict[str, Any]] = {
    "sockets": {**HELD, "limit": CAP, "scopes": ["chat"], "key": "user"},
    "addresses": {**HELD, "limit": AT_ADDRESS, "scopes": ["chat"], "key": "ip"},
    "users": {**HELD, "limit": CAP, "scopes": ["wide"], "key": "user"},
    "places": {**HELD, "limit": 1000, "scopes": ["wide"], "key": "ip"},
    "tabs": {**HELD, "limit": 3, "scopes": ["tabs"], "key": "user", "at_limit": "evict_oldest"},
    "homes": {**HELD, "limit": 100, "scopes": ["tabs"], "key": "ip"},
    "few": {"rate": "20/h", "events": ["message"], "scopes": ["few"], "key": "user", "algorithm": "fixed_window"},
    "frames": {
        "rate": f"{FRAMES}/h",
        "scopes": ["tabs", "chat"],
        "events": ["message"],
        "key": "user",
        "algorithm": "fixed_window",
    },
    "traffic": {"rate": "100000/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"},
    "news": {"rate": f"{NEWS}/h", "events": ["publish"], "key": "everyone", "algorithm": "fixed_window"},
    "newsmen": {"rate": "1000/h", "events": ["publish"], "key": "user", "algorithm": "fixed_window"},
}
PAUSE = 1.2  # a socket that has asked ten times waits for up to a second
WITHIN = slack(1.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(0) as servers:
        yield servers
        for node in servers.nodes:
            assert immortal_keys(node) == []
            with node.client() as client:
                assert "CROSSSLOT" not in str(client.info("errorstats"))


@pytest.fixture(scope="module")
def started(cluster: RedisCluster, tmp_path_factory: Any) -> Iterator[list[Worker]]:
    given = {"REDIS": cluster.url, "RULES": RULES}
    with new_database(tmp_path_factory.mktemp("cluster")) as database:
        workers = [Worker(database, DATABASE_RULES=True, **given) for _ in range(2)] + [Worker(**given)]
        try:
            for worker in workers:
                assert worker.hear() == "ready"
            workers[0].ask("migrate")
            yield workers
        finally:
            for worker in workers:
                worker.kill()


@pytest.fixture
def pair(started: list[Worker]) -> Iterator[list[Worker]]:
    """Two processes, in which nothing is left open afterwards."""
    yield started[:2]
    for worker in started[:2]:
        worker.ask("shut")


@pytest.fixture
def store(cluster: RedisCluster) -> RedisStore:
    """Another process, in which nobody holds anything."""
    return RedisStore(cluster.url, secret=SECRET, deadline=5.0)


def used(store: RedisStore, name: str, ident: str) -> int:
    """What is counted under a rule."""
    decision = Limiter([Rule.from_options(name, RULES[name])], store).peek(ident)
    assert decision.limit is not None and decision.remaining is not None and not decision.degraded
    return decision.limit - decision.remaining


def size(store: RedisStore) -> int:
    return run(MemberCounts(LocalMembers()).of(group_ident("default", GROUP), store), store)


def at_once(workers: list[Worker], **arguments: Any) -> list[list[int]]:
    """The same handshakes in all processes at the same time."""
    for worker in workers:
        worker.say("open", **arguments)
    return [worker.hear() for worker in workers]


def apart(store: RedisStore, *idents: str) -> bool:
    return len({key_slot(store.key("rule", ident).encode()) for ident in idents}) == len(idents)


def serves(node: RedisServer) -> bool:
    with node.client() as client:
        return "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO"))


class TestCaps:
    """Of each socket one rule counts the user, another the address: two slots, which decide apart."""

    def test_simultaneous_handshakes_are_let_in_to_the_cap(self, pair: list[Worker], store: RedisStore) -> None:
        assert apart(store, "user:1", f"ip:{ADDRESS}", store.process_key("live"))
        told = [code for codes in at_once(pair, user="1", times=100, scope="wide") for code in codes]
        assert (told.count(0), told.count(4430)) == (CAP, 200 - CAP)
        assert used(store, "users", "user:1") == used(store, "places", f"ip:{ADDRESS}") == CAP
        for worker in pair:
            worker.ask("shut")
        wait_until(lambda: used(store, "users", "user:1") == used(store, "places", f"ip:{ADDRESS}") == 0)

    def test_where_both_slots_are_narrow_there_are_never_more_and_no_slot_is_lost(
        self, pair: list[Worker], store: RedisStore
    ) -> None:
        """Two may refuse one another, each holding what the other lacks; who comes after them is let in."""
        told = []
        for user in ("2", "3", "4"):
            pair[0].say("open", user=user, times=30)
            pair[1].say("open", user=user, times=30)
            told += [code for worker in pair for code in worker.hear()]
        at_once_open = told.count(0)
        assert 0 < at_once_open <= AT_ADDRESS
        for user in ("2", "3", "4"):
            for worker in pair:
                told += [worker.ask("open", user=user)[0] for _ in range(CAP)]
        print(f"{at_once_open} of {AT_ADDRESS} were let in at once, {told.count(0)} in the end")
        assert told.count(0) == AT_ADDRESS == used(store, "addresses", f"ip:{ADDRESS}")
        assert sum(used(store, "sockets", f"user:{user}") for user in "234") == AT_ADDRESS


class TestEviction:
    def test_a_newcomer_closes_the_oldest_of_another_process(self, pair: list[Worker], store: RedisStore) -> None:
        assert pair[0].ask("open", user="5", times=3, scope="tabs") == [0, 0, 0]
        began = time.monotonic()
        assert pair[1].ask("open", user="5", scope="tabs") == [0]
        wait_until(lambda: pair[0].ask("ended") == [["evicted", 4430]])
        assert elapsed(began) < WITHIN
        assert (pair[0].ask("count"), pair[1].ask("count")) == (2, 1)
        wait_until(lambda: used(store, "homes", f"ip:{ADDRESS}") == 3)
        assert used(store, "tabs", "user:5") == 3

    def test_many_at_once(self, pair: list[Worker], store: RedisStore) -> None:
        told = at_once(pair, user="6", times=40, scope="tabs")
        wait_until(lambda: sum(worker.ask("count") for worker in pair) <= 3, timeout=WITHIN)
        left = sum(worker.ask("count") for worker in pair)
        print(f"{sum(codes.count(0) for codes in told)} of 80 were let in, {left} are left")
        assert left > 0
        wait_until(lambda: used(store, "homes", f"ip:{ADDRESS}") == left)
        assert used(store, "tabs", "user:6") == left

    def test_a_reply_that_was_lost(self, pair: list[Worker], store: RedisStore, monkeypatch: Any) -> None:
        """The newcomer knows of nobody to be closed; its process asks, in one slot, and orders, in another."""
        door = self.crowded(pair, store, "14")
        with monkeypatch.context() as broken:
            lose(door, broken)
            assert not door.open("user:14").allowed
        began = time.monotonic()
        door.reconciler().resend()
        wait_until(lambda: pair[0].ask("ended") == [["evicted", 4430]])
        assert elapsed(began) < WITHIN
        assert used(store, "tabs", "user:14") == 2

    def test_a_newcomer_that_dies_before_it_orders_anything(
        self, pair: list[Worker], store: RedisStore, monkeypatch: Any
    ) -> None:
        """Whoever sweeps it does so in its place."""
        door = self.crowded(pair, store, "15")
        began = time.monotonic()
        evictions_fail(monkeypatch)
        assert door.open("user:15").allowed
        wait_until(lambda: pair[0].ask("ended") == [["evicted", 4430]], every=0.05)
        took = elapsed(began)
        print(f"closed {took:.2f} s after the last sign of life of the newcomer's process")
        assert took < QUICK["PROCESS_TTL"] + QUICK["BEAT_INTERVAL"] + WITHIN
        assert used(store, "tabs", "user:15") == 2

    @staticmethod
    def crowded(pair: list[Worker], store: RedisStore, user: str) -> Door:
        """The door of a third process, at which there is no room."""
        assert apart(store, f"user:{user}", store.process_key("live"))
        assert pair[0].ask("open", user=user, times=3, scope="tabs") == [0, 0, 0]
        return Door(store, Rule.from_options("tabs", RULES["tabs"]))


class TestOrders:
    def test_an_operator_sees_what_is_open_and_closes_it(self, pair: list[Worker], store: RedisStore) -> None:
        for worker in pair:
            assert worker.ask("open", user="7", times=2) == [0, 0]
        assert pair[1].ask("send", times=3) == 3
        seen: list[Overview] = []

        def all_are_seen() -> bool:
            seen.append(look(store, '"user:7"'))
            return seen[-1].open == 4

        wait_until(all_are_seen, every=0.05)
        (ident,) = [one for one in seen[-1].idents if one.shown == "user:7"]
        assert (ident.open, ident.processes) == (4, 2)
        (busy,) = [one for one in seen[-1].connections if one.received]
        assert (busy.uid, busy.received, busy.sent) == (pair[1].ask("uid"), 3, 3)
        began = time.monotonic()
        store.control.give((ControlMessage(CLOSE, uid=busy.uid, socket=busy.id, why=CLOSED),))
        wait_until(lambda: pair[1].ask("ended") == [["closed", 4410]])
        assert elapsed(began) < WITHIN
        began = time.monotonic()
        store.control.give((ControlMessage(CLOSE, ident="user:7", why=CLOSED),))
        wait_until(lambda: [worker.ask("count") for worker in pair] == [0, 0])
        assert elapsed(began) < WITHIN
        wait_until(lambda: used(store, "sockets", "user:7") == used(store, "addresses", f"ip:{ADDRESS}") == 0)

    def test_a_block_closes_what_is_open(self, pair: list[Worker], store: RedisStore) -> None:
        address = "198.51.100.1"
        for worker in pair:
            assert worker.ask("open", user="8", address=address) == [0]
        began = time.monotonic()
        pair[0].ask("block", address=address)
        wait_until(lambda: [worker.ask("ended") for worker in pair] == [[["blocked", 4403]]] * 2)
        assert elapsed(began) < WITHIN
        assert pair[1].ask("open", user="8", address=address) == [4403]
        wait_until(lambda: used(store, "sockets", "user:8") == 0)


class TestBudgets:
    def test_what_is_bought_ahead_and_not_used_goes_back_to_both_slots(
        self, pair: list[Worker], store: RedisStore
    ) -> None:
        address = "198.51.100.2"
        for worker in pair:
            worker.ask("open", user="9", scope="tabs", address=address)
            worker.say("send", times=FRAMES, quiet=PAUSE)
        through = [worker.hear() for worker in pair]
        assert sum(through) == FRAMES == used(store, "frames", "user:9")
        wait_until(lambda: used(store, "traffic", f"ip:{address}") == FRAMES)
        for worker in pair:
            worker.ask("shut")
        pair[0].ask("open", user="10", scope="tabs", address=address)
        assert pair[0].ask("send", times=40) == 40
        pair[0].ask("shut")
        wait_until(lambda: used(store, "frames", "user:10") == 40)
        wait_until(lambda: used(store, "traffic", f"ip:{address}") == FRAMES + 40)

    def test_a_reset_reaches_open_sockets(self, pair: list[Worker], store: RedisStore) -> None:
        pair[1].ask("open", user="11", scope="few")
        assert pair[1].ask("send", times=21) == 20
        assert pair[1].ask("send", times=1) == 0
        began = time.monotonic()
        assert Limiter([Rule.from_options("few", RULES["few"])], store).reset("user:11") == 1
        wait_until(lambda: pair[1].ask("send", times=1) == 1)
        assert elapsed(began) < WITHIN


class TestPublishing:
    def test_it_costs_one_and_one_for_each_member_in_all_processes(self, pair: list[Worker], store: RedisStore) -> None:
        """Twice six of thirteen pass, under rules of two slots."""
        pair[0].ask("open", user="12", times=3, scope=GROUP)
        pair[1].ask("open", user="12", times=2, scope=GROUP)
        wait_until(lambda: size(store) == 5)
        assert [worker.ask("publish", publisher="user:13") for worker in (*pair, pair[1])] == [
            [True], [True], [False, 5, "news", False],
        ]  # fmt: skip
        assert [worker.ask("told", text="news") for worker in pair] == [[1, 1, 1], [1, 1]]
        assert used(store, "news", "everyone") == used(store, "newsmen", "user:13") == 12
        began = time.monotonic()
        pair[0].ask("close", times=2)
        wait_until(lambda: size(store) == 3)
        assert elapsed(began) < WITHIN


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
    began = time.monotonic()
    lost = [user for user in users if nodes[user] is crashed]
    wait_until(lambda: [used(store, "tabs", f"user:{user}") for user in lost] == [2] * len(lost), timeout=20)
    print(f"{2 * len(lost)} of 20 sockets were lost, and counted again after {elapsed(began):.2f} s")
    assert elapsed(began) < QUICK["BEAT_INTERVAL"] + slack(1.0)
    assert used(store, "homes", f"ip:{ADDRESS}") == 20


def test_a_killed_process_is_swept_by_the_command(
    started: list[Worker], store: RedisStore, cluster: RedisCluster, settings: Any
) -> None:
    """Its slots of every node at once, its members of groups when it has been silent for long enough."""
    doomed = started[2]
    users = [f"{number}" for number in range(20, 30)]
    assert [doomed.ask("open", user=user, scope="tabs") for user in users] == [[0]] * 10
    assert doomed.ask("open", user="20", times=2, scope=GROUP) == [0, 0]
    wait_until(lambda: size(store) == 2)
    keys = [store.key("rule", f"user:{user}") for user in users]
    assert len({cluster.owner(key).port for key in keys}) == 3
    doomed.kill()
    began = time.monotonic()
    settings.DJANGO_THROTTLE = {**QUICK, "REDIS": cluster.url, "KEY_SECRET": SECRET, "AGENT": False}
    out = io.StringIO()
    call_command("refresh_connections", "--once", stdout=out)
    freed = re.search(r", (\d+) freed", out.getvalue())
    assert freed and int(freed[1]) == 20, out.getvalue()
    assert [used(store, "tabs", f"user:{user}") for user in users] == [0] * 10
    assert used(store, "homes", f"ip:{ADDRESS}") == 0
    wait_until(lambda: size(store) == 0)
    print(f"members of a killed process were gone after {elapsed(began):.2f} s")
    assert elapsed(began) < QUICK["PROCESS_TTL"] + slack(1.0)

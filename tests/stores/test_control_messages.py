"""Control messages reach their process once, whatever fails; evictions take one socket each, never one too many."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.core import Lease, Rule
from django_throttle.core.commands import Evict
from django_throttle.core.control_messages import CLOSE, CLOSED, RESET, ControlMessage
from django_throttle.core.decide import release_lease
from django_throttle.exceptions import Cause, InvalidRule, StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import run
from django_throttle.stores.control_messages import TTL_MS
from tests.connections.evictions import Door, lease_of, redis_store
from tests.inside import evictions_fail
from tests.servers import Proxy, RedisServer, free_port

Pair = tuple[RedisStore, RedisStore]


class TestOnTheWay:
    @pytest.fixture
    def pair(self, redis_url: str) -> Pair:
        """Two processes that Redis knows."""
        stores = redis_store(redis_url), redis_store(redis_url)
        for store in stores:
            Reconciler(store).beat()
        return stores

    def test_one_for_a_process_is_for_nobody_else_and_comes_once(self, pair: Pair) -> None:
        one, two = pair
        message = ControlMessage(CLOSE, uid=two.leases.uid, lease="~abc", why=CLOSED)
        one.control.give((message,))
        assert not one.control.fetch()
        assert list(two.control.fetch()) == [message._replace(uid="")]
        assert not two.control.fetch()

    def test_one_for_all_is_for_everyone_that_lives(self, pair: Pair) -> None:
        one, _ = pair
        one.control.give((ControlMessage(RESET, ident="user:1"),))
        for store in pair:
            (message,) = store.control.fetch()
            assert (message.kind, message.ident, message.tag) == (RESET, "", one.control.tag("user:1"))

    def test_redis_never_hears_of_an_ident(self, pair: Pair, redis_server: RedisServer) -> None:
        one, _ = pair
        Limiter([Rule("api", "5/min")], one).reset("user:canary")
        with redis_server.client() as client:
            lists = {key: client.lrange(key, 0, -1) for key in client.keys("*:orders:*")}
            assert len(lists) == 2 and "canary" not in str(lists)

    def test_a_reply_that_was_lost_loses_no_message(self, pair: Pair, monkeypatch: Any) -> None:
        one, two = pair
        one.control.give((ControlMessage(CLOSE, uid=two.leases.uid, lease="~abc"),))
        call = two.call

        def lost(*args: Any) -> Any:
            call(*args)
            raise StoreError(Cause.UNAVAILABLE)

        with monkeypatch.context() as broken:
            broken.setattr(two, "call", lost)
            with pytest.raises(StoreError):
                two.control.fetch()
        assert [message.lease for message in two.control.fetch()] == ["~abc"]

    def test_what_was_found_is_not_lost_when_there_is_more(self, pair: Pair, monkeypatch: Any) -> None:
        one, two = pair
        one.control.give(ControlMessage(CLOSE, uid=two.leases.uid, lease=f"~{number}") for number in range(1100))
        call, calls = two.call, []

        def flaky(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == 2:
                raise StoreError(Cause.UNAVAILABLE)
            return call(*args)

        monkeypatch.setattr(two, "call", flaky)
        heard = [message.lease for _ in range(2) for message in two.control.fetch()]
        assert heard == [f"~{number}" for number in range(1100)]

    def test_nothing_is_lost_when_the_uid_is_replaced(self, pair: Pair) -> None:
        """What came last under the old one, and what is the same under the new one."""
        one, two = pair
        message, last = ControlMessage(RESET, ident="user:1"), ControlMessage(RESET, ident="user:2")
        one.control.give((message,))
        assert len(two.control.fetch()) == 1
        one.control.give((last,))
        two.leases.renew()
        Reconciler(two).beat()
        one.control.give((message,))
        assert [given.tag for given in two.control.fetch()] == [one.control.tag("user:2"), one.control.tag("user:1")]
        assert not two.control.fetch()

    def test_a_message_of_an_older_version_is_about_whoever_is_there(
        self, pair: Pair, redis_server: RedisServer
    ) -> None:
        one, _ = pair
        with redis_server.client() as client:
            client.rpush(one.process_key(f"orders:{one.leases.uid}"), '{"kind":"reset","tag":"abc"}')
        before = time.monotonic()
        assert list(one.control.fetch().values()) >= [before]
        assert not one.control.fetch()

    def test_when_it_was_given_is_known_whatever_the_clock_does(self, pair: Pair, redis_server: RedisServer) -> None:
        one, two = pair
        before = time.monotonic()
        one.control.give((ControlMessage(RESET, ident="user:1"),))
        given = time.monotonic()
        time.sleep(0.1)
        asked = time.monotonic()
        (at,) = two.control.fetch().values()
        round_trip = time.monotonic() - asked
        assert before - 0.01 <= at <= given + round_trip + 0.01
        with redis_server.client() as client:  # by a clock that has gone back since
            client.rpush(one.process_key(f"orders:{two.leases.uid}"), '{"kind":"reset","at":9999999999999999}')
        (at,) = two.control.fetch().values()
        assert at <= time.monotonic()
        with redis_server.client() as client:  # and by one that a server which has taken over is an hour ahead of
            client.rpush(one.process_key(f"orders:{two.leases.uid}"), '{"kind":"reset","ident":"user:2","at":1}')
        (at,) = two.control.fetch().values()
        assert at >= before - TTL_MS / 1000
        assert not two.control.fetch()

    def test_whoever_sends_hears_that_a_node_is_away(self, pair: Pair, monkeypatch: Any) -> None:
        """In a Cluster that is told in place of the reply; the message is sent later all the same."""
        one, two = pair
        with monkeypatch.context() as broken:
            broken.setattr(one.transport, "send_all", lambda calls, *_: [ConnectionError("away") for _ in calls])
            with pytest.raises(StoreError, match="away"):
                one.control.give((ControlMessage(CLOSE, uid=two.leases.uid, lease="~abc"),))
        one.control.resend()
        assert [message.lease for message in two.control.fetch()] == ["~abc"]

    def test_what_redis_does_not_take_is_sent_again(self, pair: Pair) -> None:
        one, two = pair
        away = redis_store(f"redis://127.0.0.1:{free_port()}/0", deadline=0.2)
        with suppress(StoreError):
            away.control.give((ControlMessage(CLOSE, uid=two.leases.uid, lease="~abc"),))
        with pytest.raises(StoreError):
            away.control.resend()
        away.transport = one.transport
        for _ in range(2):
            away.control.resend()
        assert [message.lease for message in two.control.fetch()] == ["~abc"]

    def test_nobody_s_list_grows_without_end(self, pair: Pair, redis_server: RedisServer) -> None:
        one, two = pair
        key = one.process_key(f"orders:{two.leases.uid}")
        with redis_server.client() as client:
            client.rpush(key, *(json.dumps({"kind": "reset", "tag": str(number)}) for number in range(10_000)))
            one.control.give(ControlMessage(CLOSE, uid=two.leases.uid, lease=f"~{number}") for number in range(10))
            one.control.give((ControlMessage(RESET, ident="user:1"),))
            assert client.llen(key) == 10_000
            assert len(two.control.fetch()) == 10_000
            assert not two.control.fetch()

    @pytest.mark.parametrize("nonsense", ["", "{", "[]", "5", '{"kind": "close"}', '{"a": 1}', '{"kind": "dance"}'])
    def test_nonsense_is_passed_over(self, pair: Pair, nonsense: str, redis_server: RedisServer) -> None:
        one, _ = pair
        one.leases.hold("rule", "user:1", "~abc")
        with redis_server.client() as client:
            client.rpush(one.process_key(f"orders:{one.leases.uid}"), nonsense)
        for _ in range(2):
            SocketControl(one)()
        assert not one.control.fetch()

    def test_a_foreign_value_in_the_way_is_replaced(self, pair: Pair, redis_server: RedisServer) -> None:
        one, two = pair
        with redis_server.client() as client:
            client.set(one.process_key(f"orders:{two.leases.uid}"), "what?")
            assert not two.control.fetch()
            client.set(one.process_key(f"orders:{two.leases.uid}"), "what?")
            one.control.give(
                (ControlMessage(CLOSE, uid=two.leases.uid, lease="~abc"), ControlMessage(RESET, ident="user:1"))
            )
        assert len(two.control.fetch()) == 2

    def test_where_no_socket_is_open_nothing_is_asked(self, pair: Pair, redis_server: RedisServer) -> None:
        one, _ = pair
        work = SocketControl(one)
        with redis_server.client() as client:
            before = client.info("commandstats")
            for _ in range(5):
                work()
            assert client.info("commandstats").get("cmdstat_evalsha") == before.get("cmdstat_evalsha")
            one.leases.hold("rule", "user:1", "~abc")
            asked = client.info("stats")["total_commands_processed"]
            for _ in range(5):
                work()
            # Our own two questions are among them, and what a script does counts too: LRANGE.
            assert client.info("stats")["total_commands_processed"] - asked <= 5 * 2 + 2


OLDEST = Rule("sockets", limit=3, algorithm="concurrency", at_limit="evict_oldest")
IDLE = Rule("sockets", limit=3, algorithm="concurrency", at_limit="evict_idle")
MakeDoor = Callable[..., Door]


@pytest.fixture(params=["memory", "redis"])
def make_door(request: pytest.FixtureRequest, settings: Any) -> MakeDoor:
    def make(*rules: Rule) -> Door:
        if request.param == "memory":
            return Door(MemoryStore(), *rules)
        return Door(redis_store(request.getfixturevalue("redis_url")), *rules)

    return make


@pytest.fixture
def site(redis_url: str) -> MakeDoor:
    """Doors of several processes on one Redis."""
    return lambda *rules: Door(redis_store(redis_url), *(rules or (OLDEST,)))


class TestWhoGoes:
    def test_the_one_silent_for_longest(self, make_door: MakeDoor) -> None:
        door = make_door(IDLE)
        first, second, third = (lease_of(door.open()) for _ in range(3))
        heard(door, first, third)
        assert lease_of(door.open())
        assert door.closed() == [second]
        assert lease_of(door.open())
        assert door.closed() == [first]

    def test_many_where_the_limit_was_lowered(self, make_door: MakeDoor) -> None:
        door = make_door(OLDEST)
        leases = [lease_of(door.open()) for _ in range(3)]
        door.rules = (Rule("sockets", limit=1, algorithm="concurrency", at_limit="evict_oldest"),)
        assert lease_of(door.open())
        assert (door.count(), door.closed()) == (1, leases)


def heard(door: Door, *leases: str) -> None:
    """A frame came in, now."""
    now = time.monotonic()
    for number, lease in enumerate(leases):
        for rule in door.rules:
            door.store.leases.touch(rule.id, "user:1", lease, now + number)
            if isinstance(door.store, RedisStore):
                args = (door.store.now_arg(), door.store.leases.uid, lease, -number)
                door.store.call("touch", (door.store.key(rule.id, "user:1"),), args)


class TestOtherProcesses:
    def test_the_message_reaches_whoever_holds_it_and_nobody_else(self, site: MakeDoor) -> None:
        one, two, three = site(), site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        (newcomer,) = [lease_of(two.open())]
        assert (two.closed(), three.closed()) == ([], [])
        (message,) = one.messages()
        assert (message.lease, message.why, message.rule, message.limit) == (leases[0], "evicted", "sockets", 3)
        assert one.messages() == []
        assert two.store.leases.is_held(OLDEST.id, "user:1", newcomer)
        assert one.count() == two.count() == 3

    def test_the_oldest_of_all(self, site: MakeDoor) -> None:
        one, two, three = doors = site(), site(), site()
        leases = [lease_of(door.open()) for door in (one, two, one)]
        for expected in ([leases[:1], []], [[], leases[1:2]], [leases[2:], []]):
            assert lease_of(three.open())
            assert [door.closed() for door in doors] == [*expected, []]

    def test_the_one_silent_for_longest_of_all(self, site: MakeDoor) -> None:
        one, two, three = doors = site(IDLE), site(IDLE), site(IDLE)
        leases = [lease_of(door.open()) for door in (one, two, two)]
        heard(one, leases[0])
        heard(two, leases[1])
        for expected in ([[], leases[2:]], [leases[:1], []], [[], leases[1:2]]):
            newcomer = lease_of(three.open())
            heard(three, newcomer)
            assert [door.closed() for door in doors] == [*expected, []]

    def test_its_process_does_not_bring_it_back(self, site: MakeDoor) -> None:
        one, two = site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        two.open()
        reconciler = one.reconciler()
        one.store.leases.send_again([(OLDEST.id, "user:1")])
        for work in (reconciler.resend, reconciler.beat, reconciler.extend, reconciler.resend):
            work()
            assert one.count() == 3
        assert set(one.gone) == {leases[0]}

    def test_nor_under_a_new_uid(self, site: MakeDoor) -> None:
        one, two = site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        two.open()
        dead = two.reconciler().records.beat((), [one.store.leases.uid])
        assert sum(two.reconciler().records.sweep(*dead.claimed)) == 2
        one.reconciler().beat()
        assert (two.count(), one.gone) == (3, [leases[0]])

    def test_what_was_never_heard_of_is_learnt_when_keys_are_extended(self, site: MakeDoor) -> None:
        """The message was lost with its list."""
        one, two = site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        two.open()
        one.messages()
        reconciler = one.reconciler()
        reconciler.extend()
        reconciler.resend()
        assert one.gone == [leases[0]]

    def test_once_it_has_closed_nothing_is_left_of_it(self, site: MakeDoor, redis_server: RedisServer) -> None:
        one, two = site(), site()
        decisions = [one.open() for _ in range(3)]
        decisions += [two.open()]
        key = f"{one.store.key(OLDEST.id, 'user:1')}:!"  # type: ignore[union-attr]
        with redis_server.client() as client:
            assert client.zcard(key) == 1
            for door, decision in zip((one, one, one, two), decisions, strict=True):
                run(release_lease(decision.lease), door.store)
            assert (client.exists(key), one.count()) == (0, 0)

    def test_a_dead_process_is_taken_from_too(self, site: MakeDoor) -> None:
        one, two = site(), site()
        for _ in range(3):
            one.open()
        two.open()
        swept = two.reconciler().records.beat((), [one.store.leases.uid]).claimed
        assert [sum(two.reconciler().records.sweep(uid)) for uid in swept] == [2]
        assert two.count() == 1


class TestWhenItFails:
    def test_a_message_that_was_not_sent_is_sent_later(self, site: MakeDoor, monkeypatch: Any) -> None:
        one, two = site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        with monkeypatch.context() as broken:
            evictions_fail(broken)
            assert two.open().allowed
        assert one.closed() == []
        two.store.control.resend()
        two.store.control.resend()
        assert one.closed() == leases[:1]

    def test_without_the_store_nobody_is_evicted(self, servers: None) -> None:
        with RedisServer() as server:
            door = Door(redis_store(server.url, deadline=0.5), OLDEST)
            for _ in range(3):
                door.open()
            server.kill()
            decision = door.open()
            assert (decision.allowed, decision.degraded, len(door.store.leases)) == (False, True, 3)

    def test_what_another_rule_refuses_after_all_is_given_back(self, make_door: MakeDoor, monkeypatch: Any) -> None:
        door = make_door(OLDEST, Rule("four", "4/min", algorithm="fixed_window"))
        for _ in range(3):
            door.open()
        rate = Door(door.store, Rule("four", "4/min", algorithm="fixed_window"))
        execute = door.store.execute

        def overtaken(command: Any) -> Any:
            reply = execute(command)
            if isinstance(command, Evict):
                assert rate.open().allowed
            return reply

        monkeypatch.setattr(door.store, "execute", overtaken)
        assert not door.open().allowed
        monkeypatch.undo()
        assert (door.count(), len(door.store.leases)) == (2, 2 + isinstance(door.store, RedisStore))

    async def test_cancelled_at_any_moment(self, proxied: tuple[RedisServer, Proxy]) -> None:
        """Whatever the newcomer had by then goes back; nobody is above the cap meanwhile."""
        server, proxy = proxied
        site, slow = Door(redis_store(server.url), OLDEST), Door(redis_store(proxy.url), OLDEST)
        for _ in range(3):
            await site.aopen()
        await slow.aopen("user:2")
        proxy.delay = 0.02
        for step in range(0, 150, 5):
            task = asyncio.ensure_future(slow.aopen())
            await asyncio.sleep(step / 1000)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert site.count() <= 3
            if not isinstance(outcome, BaseException):
                await asyncio.to_thread(run, release_lease(outcome.lease), slow.store)
        proxy.delay = 0.0
        await asyncio.sleep(0.1)
        slow.reconciler().resend()
        kept = {lease for leases in site.store.leases.holdings().values() for lease in leases}
        gone = set(site.closed())
        assert site.count() == len(kept - gone)
        assert slow.store.leases.holdings().keys() == {(OLDEST.id, "user:2")}


@pytest.fixture
def proxied(redis_url: str, redis_server: RedisServer) -> Any:
    with Proxy(redis_server.port) as proxy:
        yield redis_server, proxy


class TestStorm:
    async def test_two_hundred_at_once_are_never_above_the_cap(self, site: MakeDoor) -> None:
        doors, onlooker = [site() for _ in range(4)], site()
        await asyncio.gather(*(door.aopen("user:2") for door in doors))  # known to Redis
        counts, stopped = [], threading.Event()

        def watch() -> None:
            while not stopped.is_set():
                counts.append(onlooker.count())

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            decisions = await asyncio.gather(*(doors[number % 4].aopen() for number in range(200)))
        finally:
            stopped.set()
            watching.join()
        allowed = [decision for decision in decisions if decision.allowed]
        closed = [lease for door in doors for lease in door.closed()]
        print(f"{len(allowed)} of 200 let in, {len(closed)} made room; highest of {len(counts)} counts: {max(counts)}")
        assert max(counts) == onlooker.count() == 3
        assert len(closed) == len(set(closed)), "nobody is evicted twice"
        for decision in allowed:
            if lease_of(decision) in closed:
                for door in doors:
                    run(release_lease(decision.lease), door.store)
        assert onlooker.count() == len({lease_of(decision) for decision in allowed} - set(closed)) > 0


@pytest.mark.parametrize(
    "options",
    [
        {"rate": "1/min", "at_limit": "evict_oldest"},
        {"limit": 1, "algorithm": "concurrency", "at_limit": "evict"},
        {"limit": 1, "algorithm": "concurrency", "at_limit": None},
    ],
    ids=str,
)
def test_senseless(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRule) as wrong:
        Rule("sockets", **options)
    assert wrong.value.option == "at_limit"


def test_a_lease_that_nobody_holds_is_given_back_all_the_same(site: MakeDoor) -> None:
    door = site()
    run(release_lease(Lease("~nobody", ((OLDEST.id, "user:1"),))), door.store)
    assert door.count() == 0

"""Control messages in Redis: each reaches the process that it is for, once, whatever fails on the way."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest

from django_throttle.connections.control import SocketControl
from django_throttle.connections.reconcile import Refresher
from django_throttle.core import Rule
from django_throttle.core.commands import CLOSE, CLOSED, RESET, ControlMessage
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.control import TTL_MS
from tests.connections.evictions import redis_store
from tests.servers import RedisServer, free_port

Pair = tuple[RedisStore, RedisStore]


class TestOnTheWay:
    @pytest.fixture
    def pair(self, redis_url: str) -> Pair:
        """Two processes that Redis knows."""
        stores = redis_store(redis_url), redis_store(redis_url)
        for store in stores:
            Refresher(store).beat()
        return stores

    def test_one_for_a_process_is_for_nobody_else_and_comes_once(self, pair: Pair) -> None:
        one, two = pair
        order = ControlMessage(CLOSE, uid=two.leases.uid, lease="~abc", why=CLOSED)
        one.control.give((order,))
        assert not one.control.fetch()
        assert list(two.control.fetch()) == [order._replace(uid="")]
        assert not two.control.fetch()

    def test_one_for_all_is_for_everyone_that_lives(self, pair: Pair) -> None:
        one, _ = pair
        one.control.give((ControlMessage(RESET, ident="user:1"),))
        for store in pair:
            (order,) = store.control.fetch()
            assert (order.kind, order.ident, order.tag) == (RESET, "", one.control.tag("user:1"))

    def test_redis_never_hears_of_an_ident(self, pair: Pair, redis_server: RedisServer) -> None:
        one, _ = pair
        Limiter([Rule("api", "5/min")], one).reset("user:canary")
        with redis_server.client() as client:
            lists = {key: client.lrange(key, 0, -1) for key in client.keys("*:orders:*")}
            assert len(lists) == 2 and "canary" not in str(lists)

    def test_a_reply_that_was_lost_loses_no_order(self, pair: Pair, monkeypatch: Any) -> None:
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
        assert [order.lease for order in two.control.fetch()] == ["~abc"]

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
        heard = [order.lease for _ in range(2) for order in two.control.fetch()]
        assert heard == [f"~{number}" for number in range(1100)]

    def test_nothing_is_lost_when_the_uid_is_replaced(self, pair: Pair) -> None:
        """What came last under the old one, and what is the same under the new one."""
        one, two = pair
        order, last = ControlMessage(RESET, ident="user:1"), ControlMessage(RESET, ident="user:2")
        one.control.give((order,))
        assert len(two.control.fetch()) == 1
        one.control.give((last,))
        two.leases.renew()
        Refresher(two).beat()
        one.control.give((order,))
        assert [given.tag for given in two.control.fetch()] == [one.control.tag("user:2"), one.control.tag("user:1")]
        assert not two.control.fetch()

    def test_an_order_of_an_older_version_is_about_whoever_is_there(
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

    def test_whoever_orders_hears_that_a_node_is_away(self, pair: Pair, monkeypatch: Any) -> None:
        """In a Cluster that is told in place of the reply; the order is given later all the same."""
        one, two = pair
        with monkeypatch.context() as broken:
            broken.setattr(one.transport, "send_all", lambda calls, *_: [ConnectionError("away") for _ in calls])
            with pytest.raises(StoreError, match="away"):
                one.control.give((ControlMessage(CLOSE, uid=two.leases.uid, lease="~abc"),))
        one.control.resend()
        assert [order.lease for order in two.control.fetch()] == ["~abc"]

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
        assert [order.lease for order in two.control.fetch()] == ["~abc"]

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

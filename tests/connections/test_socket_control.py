"""Control reach the process that they are for, once, whatever fails on the way, and are carried out on its sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator

from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.connections import overview, socket_control
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.connections.overview import Overview, SocketReporter, look
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import Activity, SocketControl
from django_throttle.core import Rule
from django_throttle.core.control_messages import CLOSE, CLOSED, ControlMessage
from django_throttle.identity import ScopeWho
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests import doors
from tests.clock import FrozenClock
from tests.consumers import DENIAL, KINDS, TWO_SOCKETS, AsyncEcho, handshake, opened
from tests.doors import BOTH, REDIS, Enforce, Store
from tests.servers import RedisServer

enforce = pytest.fixture(doors.enforcer)
EVICTING = {**TWO_SOCKETS, "at_limit": "evict_oldest"}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_sockets.clear()
    overview.look_again()
    monkeypatch.setattr(overview, "FRESH_SECONDS", 0.001)
    monkeypatch.setattr(overview, "QUIET_MS", 1)  # an order for all is given each time
    yield
    open_sockets.clear()


async def crowd(clock: FrozenClock, number: int, app: Any = KINDS["async"]) -> list[WebsocketCommunicator]:
    """So many sockets, one after the other."""
    found = []
    for _ in range(number):
        found.append(await opened(app))
        clock.tick(0.001)
    return found


async def duties(store: Store) -> None:
    """What the agent does twice a second, and the loops then."""
    await asyncio.to_thread(SocketControl(store))
    await asyncio.sleep(0)


async def goodbye(one: WebsocketCommunicator) -> tuple[dict[str, Any], int]:
    """What a client is told before it is closed, and the code."""
    told = json.loads((await one.receive_output())["text"])
    closed = await one.receive_output()
    assert closed["type"] == "websocket.close"
    await one.disconnect()
    return told, closed["code"]


@BOTH
def waiting(work: Any) -> int:
    """The messages about leases whose sockets are not there yet."""
    return len(work._waiting)


class TestCarriedOut:
    async def test_a_newcomer_closes_the_oldest(self, enforce: Enforce, clock: FrozenClock) -> None:
        store = enforce(sockets=EVICTING)
        first, second, third = await crowd(clock, 3)
        await duties(store)
        told, code = await goodbye(first)
        assert (told["type"], told["code"], told["rule"], told["limit"]) == ("error", "evicted", "sockets", 2)
        assert told["retry_after"] is None
        assert code == 4430
        for one in (second, third):
            await one.send_to("still here")
            assert await one.receive_from() == "still here"
        assert len(open_sockets) == len(store.leases) == 2
        for one in (second, third):
            await one.disconnect()
        assert len(store.leases) == 0

    async def test_making_room_is_no_refusal_of_the_newcomer(self, enforce: Enforce, clock: FrozenClock) -> None:
        """Under a rule that counts refused handshakes, too."""
        knocks = {"rate": "5/hour", "events": ["connect"], "key": "everyone", "count_denied": True}
        store = enforce(sockets=EVICTING, knocks={**knocks, "algorithm": "fixed_window"})
        sockets = await crowd(clock, 5)
        await duties(store)
        for one in sockets[:3]:
            assert (await goodbye(one))[0]["code"] == "evicted"
        (refusal,) = [event for event in await handshake(extensions=DENIAL) if "status" in event]
        assert refusal["status"] == 429
        for one in sockets[3:]:
            await one.disconnect()

    async def test_one_whose_handshake_is_not_through(self, enforce: Enforce, clock: FrozenClock) -> None:
        """Its order is there before its socket is."""
        store = enforce(sockets=EVICTING)
        facts = Facts("chat", ("connect", "connection"), ScopeWho({}))
        leases = []
        for _ in range(3):
            leases.append((await limiter.adecide(facts)).lease)
            clock.tick(0.001)
        work = SocketControl(store)
        await asyncio.to_thread(work)
        one = await opened()
        (guard,) = open_sockets.everyone()
        guard.leases = (leases[0],)  # type: ignore[assignment]
        await asyncio.to_thread(work)
        told, _ = await goodbye(one)
        assert told["code"] == "evicted"

    async def test_one_whose_handshake_waits_for_longer_than_any_order(
        self, enforce: Enforce, clock: FrozenClock, monkeypatch: Any
    ) -> None:
        """It holds its lease while it waits for its turn."""
        monkeypatch.setattr(socket_control, "SOCKET_TIMEOUT", 0.0)
        store = enforce(sockets=EVICTING)
        leases = []
        for _ in range(3):
            leases.append((await limiter.adecide(Facts("chat", ("connect", "connection"), ScopeWho({})))).lease)
            clock.tick(0.001)
        work = SocketControl(store)
        for _ in range(3):
            await asyncio.to_thread(work)
        one = await opened()
        (guard,) = open_sockets.everyone()
        guard.leases = (leases[0],)  # type: ignore[assignment]
        await asyncio.to_thread(work)
        assert (await goodbye(one))[0]["code"] == "evicted"

    async def test_one_whose_handshake_was_given_up(self, enforce: Enforce, monkeypatch: Any) -> None:
        """Nobody waits for it for longer than an answer of the store may take."""
        monkeypatch.setattr(socket_control, "SOCKET_TIMEOUT", 0.0)
        store = enforce(sockets=EVICTING)
        leases = [(await limiter.adecide(Facts("chat", ("connect", "connection"), ScopeWho({})))).lease for _ in "123"]
        work = SocketControl(store)
        for _ in range(2):
            await asyncio.to_thread(work)
            assert waiting(work) == 1
        for lease in leases:
            await limiter.arelease(lease)
        await asyncio.to_thread(work)
        assert waiting(work) == 0

    async def test_a_site_has_its_own_codes(self, enforce: Enforce, clock: FrozenClock) -> None:
        class Own(AsyncEcho):
            throttle_close_codes = {"evicted": 4999}

        store = enforce(sockets=EVICTING)
        first, *others = await crowd(clock, 3, Own.as_asgi())
        await duties(store)
        assert (await goodbye(first))[1] == 4999
        for one in others:
            await one.disconnect()

    async def test_by_its_own_id(self, enforce: Enforce) -> None:
        store = enforce()
        one, other = await opened(), await opened()
        store.control.give(
            (ControlMessage(CLOSE, uid=store.leases.uid, socket=open_sockets.everyone()[0].id, why=CLOSED),)
        )
        await duties(store)
        if isinstance(store, RedisStore):
            assert len(open_sockets) == 1
        told, code = await goodbye(one)
        assert (told["code"], code) == ("closed", 4410)
        await other.disconnect()

    async def test_all_of_an_identity_and_of_nobody_else(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 9, "key": "ip"})
        mine = [await opened(client=["192.0.2.1", 5]) for _ in range(2)]
        other = await opened(client=["192.0.2.10", 5])
        introduce(store)
        store.control.give((ControlMessage(CLOSE, ident="ip:192.0.2.1", why=CLOSED),))
        await duties(store)
        for one in mine:
            assert (await goodbye(one))[0]["code"] == "closed"
        assert len(open_sockets) == len(store.leases) == 1
        await other.disconnect()

    async def test_who_comes_later_is_not_meant(self, enforce: Enforce) -> None:
        """An order of a time when nothing was open here, and nothing asked for."""
        store = enforce(sockets={**TWO_SOCKETS, "limit": 9, "key": "ip"})
        introduce(store)
        work = SocketControl(store)
        work()
        store.control.give((ControlMessage(CLOSE, ident="ip:192.0.2.1", why=CLOSED),))
        one = await opened(client=["192.0.2.1", 5])
        (guard,) = open_sockets.everyone()
        guard.opened += 60  # longer after the order than any round trip
        await asyncio.to_thread(work)
        await one.send_to("x")
        assert await one.receive_from() == "x"
        guard.opened -= 60
        store.control.give((ControlMessage(CLOSE, ident="ip:192.0.2.1", why=CLOSED),))
        await asyncio.to_thread(work)
        assert (await goodbye(one))[0]["code"] == "closed"

    async def test_the_first_socket_of_a_process_hears_what_is_ordered_at_once(self, enforce: Enforce) -> None:
        """Nothing has been asked for since it came: the order is for it all the same."""
        store = enforce(sockets={**TWO_SOCKETS, "limit": 9, "key": "ip"})
        introduce(store)
        work = SocketControl(store)
        work()
        one = await opened(client=["192.0.2.1", 5])
        store.control.give((ControlMessage(CLOSE, ident="ip:192.0.2.1", why=CLOSED),))
        await asyncio.to_thread(work)
        assert (await goodbye(one))[0]["code"] == "closed"

    async def test_who_comes_after_the_order_is_not_meant_where_others_are(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 9, "key": "ip"})
        introduce(store)
        first = await opened(client=["192.0.2.1", 5])
        store.control.give((ControlMessage(CLOSE, ident="ip:192.0.2.1", why=CLOSED),))
        second = await opened(client=["192.0.2.1", 5])
        open_sockets.everyone()[-1].opened += 60  # longer after the order than any round trip
        await duties(store)
        assert (await goodbye(first))[0]["code"] == "closed"
        await second.send_to("x")
        assert await second.receive_from() == "x"
        await second.disconnect()

    async def test_a_reset_reaches_an_open_socket(self, enforce: Enforce) -> None:
        store = enforce(frames={"rate": "1/hour", "events": ["message"], "key": "everyone", "algorithm": "gcra"})
        one = await opened()
        introduce(store)
        for _ in range(2):
            await one.send_to("x")
        assert await one.receive_from() == "x"
        assert json.loads(await one.receive_from())["code"] == "rate_limited"
        await asyncio.to_thread(Limiter([rule_in_force()], store).reset, "everyone")
        await duties(store)
        await one.send_to("y")
        assert await one.receive_from() == "y"
        await one.disconnect()


def introduce(store: Store) -> None:
    """Have Redis know of this process, as the first beat does."""
    if isinstance(store, RedisStore):
        Reconciler(store).beat()


def rule_in_force() -> Rule:
    (rule,) = limiter.rulebook.current().rules
    return rule


class TestIdle:
    @BOTH
    async def test_the_one_that_has_been_silent_for_longest_goes(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "at_limit": "evict_idle"})
        first, second = await opened(), await opened()
        await first.send_to("x")
        assert await first.receive_from() == "x"
        await asyncio.to_thread(Activity(store))
        third = await opened()
        await duties(store)
        assert (await goodbye(second))[0]["code"] == "evicted"
        for one in (first, third):
            await one.disconnect()

    @REDIS
    async def test_nobody_is_told_of_where_no_rule_asks(self, enforce: Enforce, monkeypatch: Any) -> None:
        """The same socket, the same work: only under a rule of ``evict_idle`` does Redis hear of it."""
        sent: list[int] = []
        for at_limit, commands in (("evict_oldest", []), ("evict_idle", [1])):
            store = enforce(sockets={**EVICTING, "at_limit": at_limit})
            assert isinstance(store, RedisStore)
            pipeline = store.pipeline
            monkeypatch.setattr(store, "pipeline", lambda calls, go=pipeline: (sent.append(len(calls)), go(calls))[1])
            one = await opened()
            await asyncio.to_thread(Activity(store))
            assert sent == commands
            await one.disconnect()

    @REDIS
    async def test_it_costs_a_command_for_each_identity(self, enforce: Enforce, monkeypatch: Any) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 20, "at_limit": "evict_idle", "key": "ip"})
        sockets = [await opened(client=[f"192.0.2.{number % 5}", 5]) for number in range(15)]
        assert isinstance(store, RedisStore)
        sent: list[int] = []
        pipeline = store.pipeline
        monkeypatch.setattr(store, "pipeline", lambda calls: (sent.append(len(calls)), pipeline(calls))[1])
        work = Activity(store)
        await asyncio.to_thread(work)  # what was opened since
        await asyncio.to_thread(work)
        assert sent == [5]
        for one in sockets[:3]:
            await one.send_to("x")
            await one.receive_from()
        await asyncio.to_thread(work)
        assert sent == [5, 3]
        for one in sockets:
            await one.disconnect()

    @REDIS
    async def test_redis_lost_everything_and_knows_again(self, enforce: Enforce, redis_server: RedisServer) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "at_limit": "evict_idle"})
        first, second = await opened(), await opened()
        await first.send_to("x")
        assert await first.receive_from() == "x"
        await asyncio.to_thread(Activity(store))
        with redis_server.client() as client:
            client.flushall()
        assert isinstance(store, RedisStore)
        await asyncio.to_thread(Reconciler(store).beat)
        third = await opened()
        await duties(store)
        assert (await goodbye(second))[0]["code"] == "evicted"
        for one in (first, third):
            await one.disconnect()


class TestOverview:
    @BOTH
    async def test_what_is_open(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 9, "key": "ip"})
        introduce(store)
        mine = [await opened(client=["192.0.2.1", 5]) for _ in range(2)]
        await mine[0].send_to("x")
        await mine[0].receive_from()
        found = await seen(store)
        assert (found.open, len(found.connections), found.is_whole) == (2, 2, True)
        assert [(one.shown, one.open, one.processes) for one in found.idents] == [("ip:192.0.2.1", 2, 1)]
        assert [one.open for one in found.processes] == [2]
        first = next(one for one in found.connections if one.received)
        assert (first.received, first.sent, first.address, first.scope, first.path) == (
            1,
            1,
            "192.0.2.1",
            "chat",
            "/chat",
        )
        assert 0 <= first.silent <= first.age < 20
        for one in mine:
            await one.disconnect()

    @BOTH
    async def test_a_search(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 99, "key": "ip"})
        introduce(store)
        sockets = [await opened(client=[address, 5]) for address in ("192.0.2.1", "192.0.2.11", "198.51.100.7")]
        for search, number in (("192.0.2.1", 2), ('"ip:192.0.2.1"', 1), ("CHAT", 3), ("user:1", 0), ("", 3)):
            assert (await seen(store, search)).open == number, search
        for one in sockets:
            await one.disconnect()

    async def test_no_more_is_listed_than_is_wanted(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 999, "key": "ip"})
        sockets = [await opened(client=["192.0.2.1", 5]) for _ in range(30)]
        told = SocketReporter(store, open_sockets).listed("", most=20)
        assert (told["open"], len(told["sockets"])) == (30, 20)
        assert told["idents"] == [["ip:192.0.2.1", store.control.tag("ip:192.0.2.1"), 30]]
        for one in sockets:
            await one.disconnect()

    @REDIS
    async def test_looking_ten_times_costs_as_much_as_once(self, enforce: Enforce, monkeypatch: Any) -> None:
        store = enforce(sockets=TWO_SOCKETS)
        introduce(store)
        one = await opened()
        await seen(store)
        sent: list[int] = []
        assert isinstance(store, RedisStore)
        monkeypatch.setattr(overview, "FRESH_SECONDS", 60)
        await asyncio.to_thread(look, store)
        monkeypatch.setattr(store.transport, "send_all", lambda calls, *rest: sent.append(len(calls)))
        for _ in range(10):
            await asyncio.to_thread(look, store)
        assert sent == []
        await one.disconnect()

    @BOTH
    async def test_a_session_s_key_is_nobody_s_business(self, enforce: Enforce, redis_server: RedisServer) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "key": "tests.connections.test_socket_control.session"})
        introduce(store)
        one = await opened()
        open_sockets.everyone()[0].leases = (limiter.Lease("~1", (("rule", "session:canary"),)),)
        found = await seen(store)
        shown = next(ident.shown for ident in found.idents if "session" in ident.shown)
        assert shown.startswith("session:#") and "canary" not in str(found)
        assert (await seen(store, f'"{shown}"')).open == 1
        if isinstance(store, RedisStore):
            with redis_server.client() as client:
                assert not any("canary" in (client.get(key) or "") for key in client.keys("*:sockets:*"))
        open_sockets.everyone()[0].leases = ()
        await one.disconnect()


def session(scope: dict[str, Any]) -> str:
    return "canary"


async def seen(store: Store, search: str = "") -> Overview:
    """The second look: by then the process has been asked, and has answered."""
    await asyncio.to_thread(look, store, search)
    await asyncio.to_thread(SocketControl(store))
    overview.look_again()
    return await asyncio.to_thread(look, store, search)

"""Control messages reach the process that they are for, once, and are carried out on its sockets."""

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
from django_throttle.connections.overview import Overview, look
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import Activity, SocketControl
from django_throttle.core.control_messages import CLOSE, CLOSED, ControlMessage
from django_throttle.identity import ScopeWho
from django_throttle.stores import RedisStore
from tests import doors
from tests.clock import FrozenClock
from tests.consumers import KINDS, TWO_SOCKETS, opened
from tests.doors import BOTH, Enforce, Store
from tests.servers import RedisServer

enforce = pytest.fixture(doors.enforcer)
EVICTING = {**TWO_SOCKETS, "at_limit": "evict_oldest"}
IDLE = {**TWO_SOCKETS, "at_limit": "evict_idle"}
BY_ADDRESS = {**TWO_SOCKETS, "limit": 99, "key": "ip"}
CLIENT = ["192.0.2.1", 5]
CLOSE_CLIENT = (ControlMessage(CLOSE, ident="ip:192.0.2.1", why=CLOSED),)


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


async def leave(*sockets: WebsocketCommunicator) -> None:
    for socket in sockets:
        await socket.disconnect()


async def goodbye(socket: WebsocketCommunicator) -> tuple[dict[str, Any], int]:
    """What a client is told before it is closed, and the code."""
    told = json.loads((await socket.receive_output())["text"])
    closed = await socket.receive_output()
    assert closed["type"] == "websocket.close"
    await socket.disconnect()
    return told, closed["code"]


async def echo(socket: WebsocketCommunicator, text: str = "x") -> None:
    await socket.send_to(text)
    assert await socket.receive_from() == text


async def duties(store: Store) -> None:
    """What the agent does twice a second, and the loops then."""
    await asyncio.to_thread(SocketControl(store))
    await asyncio.sleep(0)


def introduce(store: Store) -> None:
    """Have Redis know of this process, as the first beat does."""
    if isinstance(store, RedisStore):
        Reconciler(store).beat()


def waiting(work: Any) -> int:
    """The messages about leases whose sockets are not there yet."""
    return len(work._waiting)


@BOTH
class TestCarriedOut:
    async def test_a_newcomer_closes_the_oldest(self, enforce: Enforce, clock: FrozenClock) -> None:
        store = enforce(sockets=EVICTING)
        first, *others = await crowd(clock, 3)
        await duties(store)
        told, code = await goodbye(first)
        assert (told["type"], told["code"], told["rule"], told["limit"]) == ("error", "evicted", "sockets", 2)
        assert (told["retry_after"], code) == (None, 4430)
        for socket in others:
            await echo(socket, "still here")
        assert len(open_sockets) == len(store.leases) == 2
        await leave(*others)
        assert len(store.leases) == 0

    @pytest.mark.parametrize("seconds", [socket_control.SOCKET_TIMEOUT, 0.0])
    async def test_one_whose_handshake_is_not_through(
        self, enforce: Enforce, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch, seconds: float
    ) -> None:
        """Its order is there before its socket is, which may take longer than any order waits for a stranger."""
        monkeypatch.setattr(socket_control, "SOCKET_TIMEOUT", seconds)
        store = enforce(sockets=EVICTING)
        leases = []
        for _ in range(3):
            leases.append((await limiter.adecide(Facts("chat", ("connect", "connection"), ScopeWho({})))).lease)
            clock.tick(0.001)
        work = SocketControl(store)
        for _ in range(2):
            await asyncio.to_thread(work)
            assert waiting(work) == 1
        socket = await opened()
        (guard,) = open_sockets.everyone()
        guard.leases = (leases[0],)  # type: ignore[assignment]
        await asyncio.to_thread(work)
        assert (await goodbye(socket))[0]["code"] == "evicted"

    async def test_by_its_own_id(self, enforce: Enforce) -> None:
        store = enforce()
        first, other = await opened(), await opened()
        store.control.give(
            (ControlMessage(CLOSE, uid=store.leases.uid, socket=open_sockets.everyone()[0].id, why=CLOSED),)
        )
        await duties(store)
        told, code = await goodbye(first)
        assert (told["code"], code, len(open_sockets)) == ("closed", 4410, 1)
        await leave(other)

    async def test_all_of_an_identity_and_of_nobody_else(self, enforce: Enforce) -> None:
        store = enforce(sockets=BY_ADDRESS)
        mine = [await opened(client=CLIENT) for _ in range(2)]
        other = await opened(client=["192.0.2.10", 5])
        introduce(store)
        store.control.give(CLOSE_CLIENT)
        await duties(store)
        for socket in mine:
            assert (await goodbye(socket))[0]["code"] == "closed"
        assert len(open_sockets) == len(store.leases) == 1
        await leave(other)

    async def test_who_comes_later_is_not_meant(self, enforce: Enforce) -> None:
        """By an order of a time when nothing was open here, and nothing asked for; the next one is for it."""
        store = enforce(sockets=BY_ADDRESS)
        introduce(store)
        work = SocketControl(store)
        work()
        store.control.give(CLOSE_CLIENT)
        socket = await opened(client=CLIENT)
        (guard,) = open_sockets.everyone()
        guard.opened += 60  # longer after the order than any round trip
        await asyncio.to_thread(work)
        await echo(socket)
        guard.opened -= 60
        store.control.give(CLOSE_CLIENT)
        await asyncio.to_thread(work)
        assert (await goodbye(socket))[0]["code"] == "closed"


class TestIdle:
    @pytest.mark.parametrize(
        ("enforce", "is_lost"), [("memory", False), ("redis", False), ("redis", True)], indirect=["enforce"]
    )
    async def test_the_one_that_has_been_silent_for_longest_goes(
        self, enforce: Enforce, is_lost: bool, request: pytest.FixtureRequest
    ) -> None:
        """Also where Redis has lost everything and was told again."""
        store = enforce(sockets=IDLE)
        first, second = await opened(), await opened()
        await echo(first)
        await asyncio.to_thread(Activity(store))
        if is_lost and isinstance(store, RedisStore):
            store.transport.client.flushall()
            await asyncio.to_thread(Reconciler(store).beat)
        third = await opened()
        await duties(store)
        assert (await goodbye(second))[0]["code"] == "evicted"
        await leave(first, third)


class TestOverview:
    @BOTH
    async def test_what_is_open(self, enforce: Enforce) -> None:
        store = enforce(sockets=BY_ADDRESS)
        introduce(store)
        sockets = [await opened(client=CLIENT) for _ in range(2)]
        await echo(sockets[0])
        found = await seen(store)
        assert (found.open, len(found.connections), found.is_whole) == (2, 2, True)
        assert [(ident.shown, ident.open, ident.processes) for ident in found.idents] == [("ip:192.0.2.1", 2, 1)]
        assert [process.open for process in found.processes] == [2]
        first = next(row for row in found.connections if row.received)
        assert (first.received, first.sent, first.address) == (1, 1, "192.0.2.1")
        assert (first.scope, first.path) == ("chat", "/chat")
        assert 0 <= first.silent <= first.age < 20
        await leave(*sockets)

    @BOTH
    async def test_a_session_s_key_is_nobody_s_business(self, enforce: Enforce, request: pytest.FixtureRequest) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "key": "tests.connections.test_socket_control.session"})
        introduce(store)
        socket = await opened()
        open_sockets.everyone()[0].leases = (limiter.Lease("~1", (("rule", "session:canary"),)),)
        found = await seen(store)
        shown = next(ident.shown for ident in found.idents if "session" in ident.shown)
        assert shown.startswith("session:#") and "canary" not in str(found)
        assert (await seen(store, f'"{shown}"')).open == 1
        if isinstance(store, RedisStore):
            server: RedisServer = request.getfixturevalue("redis_server")
            with server.client() as client:
                assert not any("canary" in (client.get(key) or "") for key in client.keys("*:sockets:*"))
        open_sockets.everyone()[0].leases = ()
        await leave(socket)


def session(scope: dict[str, Any]) -> str:
    return "canary"


async def seen(store: Store, search: str = "") -> Overview:
    """The second look: by then the process has been asked, and has answered."""
    await asyncio.to_thread(look, store, search)
    await asyncio.to_thread(SocketControl(store))
    overview.look_again()
    return await asyncio.to_thread(look, store, search)

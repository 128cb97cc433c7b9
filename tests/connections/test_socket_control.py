"""Control messages reach the process that they are for, once, and are carried out on its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.connections import socket_control
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import Activity, SocketControl
from django_throttle.core.control_messages import CLOSE, CLOSED, ControlMessage
from django_throttle.identity import ScopeWho
from django_throttle.stores import RedisStore
from tests import doors
from tests.clock import FrozenClock
from tests.consumers import TWO_SOCKETS
from tests.doors import BOTH, Enforce, Store
from tests.sockets.guarded import IDENT, Line

enforce = pytest.fixture(doors.enforcer)
EVICTING = {**TWO_SOCKETS, "at_limit": "evict_oldest"}
BY_ADDRESS = {**TWO_SOCKETS, "limit": 99, "key": "ip"}
CLOSE_CLIENT = (ControlMessage(CLOSE, ident=IDENT, why=CLOSED),)


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    open_sockets.clear()
    yield
    open_sockets.clear()


async def goodbye(line: Line) -> tuple[str, int]:
    """What a client is told before it is closed, and the code."""
    await line.closing()
    await line.ended()
    return line.told("error")[0]["code"], line.closed["code"]


async def echo(line: Line) -> None:
    line.send("still here")
    await line.until(lambda: line.frames)


async def duties(store: Store) -> None:
    """What the agent does twice a second, and the loops then."""
    await asyncio.to_thread(SocketControl(store))
    await asyncio.sleep(0)


def introduce(store: Store) -> None:
    """Have Redis know of this process, as the first beat does."""
    if isinstance(store, RedisStore):
        Reconciler(store).beat()


@BOTH
async def test_a_newcomer_closes_the_oldest(enforce: Enforce, clock: FrozenClock) -> None:
    store = enforce(sockets=EVICTING)
    lines = []
    for second in range(3):
        clock.to(second)
        lines.append(await Line().open())
    await duties(store)
    assert await goodbye(lines[0]) == ("evicted", 4430)
    error = lines[0].told("error")[0]
    assert (error["rule"], error["limit"], error["retry_after"]) == ("sockets", 2, None)
    for line in lines[1:]:
        await echo(line)
    assert len(open_sockets) == len(store.leases) == 2
    for line in lines[1:]:
        await line.close()
    assert len(store.leases) == 0


@BOTH
@pytest.mark.parametrize("seconds", [socket_control.SOCKET_TIMEOUT, 0.0])
async def test_one_whose_handshake_is_not_through(
    enforce: Enforce, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Its order is there before its socket is, which may take longer than any order waits for a stranger."""
    monkeypatch.setattr(socket_control, "SOCKET_TIMEOUT", seconds)
    store: Any = enforce(sockets=EVICTING)
    leases = []
    for _ in range(3):
        leases.append((await limiter.adecide(Facts("chat", ("connect", "connection"), ScopeWho({})))).lease)
        clock.tick(0.001)
    work = SocketControl(store)
    for _ in range(2):
        await asyncio.to_thread(work)
    line = await Line().open()
    (guard,) = open_sockets.everyone()
    guard.leases = (leases[0],)  # type: ignore[assignment]
    await asyncio.to_thread(work)
    assert (await goodbye(line))[0] == "evicted"


@BOTH
async def test_a_socket_by_its_own_id_and_all_of_an_identity(enforce: Enforce) -> None:
    """Nobody else is closed, nor who comes later: the order is of a time when nothing was open here."""
    store = enforce(sockets=BY_ADDRESS)
    introduce(store)
    first, *mine = [await Line().open() for _ in range(3)]
    async with Line(address="203.0.113.10") as other:
        socket = open_sockets.everyone()[0].id
        store.control.give((ControlMessage(CLOSE, uid=store.leases.uid, socket=socket, why=CLOSED),))
        await duties(store)
        assert await goodbye(first) == ("closed", 4410)
        assert len(open_sockets) == 3
        store.control.give(CLOSE_CLIENT)
        await duties(store)
        for line in mine:
            assert await goodbye(line) == ("closed", 4410)
        assert len(open_sockets) == len(store.leases) == 1
        await echo(other)


@BOTH
async def test_who_comes_later_is_not_meant(enforce: Enforce) -> None:
    """By an order of a time when nothing was open here, and nothing asked for; the next one is for it."""
    store = enforce(sockets=BY_ADDRESS)
    introduce(store)
    work = SocketControl(store)
    work()
    store.control.give(CLOSE_CLIENT)
    line = await Line().open()
    (guard,) = open_sockets.everyone()
    guard.opened += 60  # longer after the order than any round trip
    await asyncio.to_thread(work)
    await echo(line)
    guard.opened -= 60
    store.control.give(CLOSE_CLIENT)
    await asyncio.to_thread(work)
    assert (await goodbye(line))[0] == "closed"


@pytest.mark.parametrize(
    ("enforce", "is_lost"), [("memory", False), ("redis", False), ("redis", True)], indirect=["enforce"]
)
async def test_the_one_that_has_been_silent_for_longest_goes(enforce: Enforce, is_lost: bool) -> None:
    """Also where Redis has lost everything and was told again."""
    store = enforce(sockets={**TWO_SOCKETS, "at_limit": "evict_idle"})
    async with Line() as first:
        second = await Line().open()
        await echo(first)
        await asyncio.to_thread(Activity(store))
        if is_lost and isinstance(store, RedisStore):
            store.transport.client.flushall()
            await asyncio.to_thread(Reconciler(store).beat)
        async with Line() as third:
            await duties(store)
            assert (await goodbye(second))[0] == "evicted"
            assert first.closed is third.closed is None

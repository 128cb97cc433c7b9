"""Open sockets are seen and closed from anywhere, and counted truly in all processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from redis import Redis

from django_throttle.connections import overview
from django_throttle.connections.open_sockets import OpenSockets, open_sockets
from django_throttle.connections.overview import Overview, look
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.core import Lease
from django_throttle.publishing.groups import members
from django_throttle.sockets.error_frames import notice_payload
from django_throttle.stores import RedisStore
from tests.connections.evictions import redis_store
from tests.connections.recorder import sockets
from tests.consumers import TWO_SOCKETS, held
from tests.doors import BOTH, Enforce, Store, enforcer
from tests.forks import holds_in_child
from tests.sockets.guarded import Line, only

enforce = pytest.fixture(enforcer)
FRAMES = {"rate": "2/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
ASKED = "dt:{p}:asked:"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_sockets.clear()
    overview.look_again()
    for name, value in {"FRESH_SECONDS": 0.0, "HASTE_SECONDS": 0.0, "QUIET_MS": 1}.items():
        monkeypatch.setattr(overview, name, value)
    yield
    open_sockets.clear()


@BOTH
async def test_what_is_seen_of_a_socket(enforce: Enforce) -> None:
    store = enforce(sockets={**TWO_SOCKETS, "key": "ip"}, frames=FRAMES)
    if isinstance(store, RedisStore):
        Reconciler(store).beat()
    async with Line() as line, Line():
        opened = open_sockets.everyone()[0]
        line.send("1", "2", "3")
        await line.until(lambda: line.told("error"))
        assert opened.last_received > opened.opened
        assert store.leases.unreleased() == {lease.id for each in open_sockets.everyone() for lease in each.leases}
        found = await second_look(store)
        assert (found.open, len(found.connections), found.is_whole) == (2, 2, True)
        assert [(ident.shown, ident.open, ident.processes) for ident in found.idents] == [("ip:203.0.113.9", 2, 1)]
        assert [process.open for process in found.processes] == [2]
        first = next(row for row in found.connections if row.received)
        assert (first.received, first.refused, first.sent, first.lost) == (3, 1, 2, 0)
        assert (first.scope, first.path, first.address) == ("chat", "/chat", "203.0.113.9")
        assert 0 <= first.silent <= first.age < 20
    assert open_sockets.everyone() == ()


async def second_look(store: Store, search: str = "") -> Overview:
    """By then the process has been asked, and has answered."""
    await asyncio.to_thread(look, store, search)
    await asyncio.to_thread(SocketControl(store))
    overview.look_again()
    return await asyncio.to_thread(look, store, search)


@BOTH
async def test_a_session_s_key_is_nobody_s_business(enforce: Enforce) -> None:
    store: Any = enforce(sockets=TWO_SOCKETS)
    if isinstance(store, RedisStore):
        Reconciler(store).beat()
    async with Line():
        own, only().leases = only().leases, (Lease("~1", (("rule", "session:canary"),)),)
        found = await second_look(store)
        shown = next(ident.shown for ident in found.idents if "session" in ident.shown)
        assert shown.startswith("session:#") and "canary" not in str(found)
        assert (await second_look(store, f'"{shown}"')).open == 1
        if isinstance(store, RedisStore):
            client = store.transport.client
            assert not any(b"canary" in (client.get(key) or b"") for key in client.keys("*:sockets:*"))
        only().leases = own


async def test_it_can_be_closed_once_from_another_thread(enforce: Enforce) -> None:
    store = enforce(sockets=TWO_SOCKETS)
    line = await Line().open()
    found, payload = only(), notice_payload("evicted", "Another one took its place.")
    for code in (4430, 4002):
        thread = Thread(target=found.close, args=(code, "evicted", payload))
        thread.start()
        thread.join()
    await line.closing()
    assert line.told("error") == [payload]
    assert line.closed == {"type": "websocket.close", "code": 4430, "reason": "evicted"}
    await line.ended()
    assert (held(store), line.got[-1]["code"]) == (0, 4430)
    found.close(4003, "goodbye")
    await asyncio.sleep(0)
    assert [event["code"] for event in line.sent if event["type"] == "websocket.close"] == [4430]


class Site:
    """One process: a store, and sockets of its own, so many of each user."""

    def __init__(self, url: str, **numbers: int) -> None:
        self.store, own = redis_store(url), OpenSockets()
        Reconciler(self.store).beat()
        for name, number in numbers.items():
            for socket in sockets(*((f"{name}{at}", f"user:{name}") for at in range(number))):
                open_sockets.remove(socket)
                own.add(socket)
        self.duties = SocketControl(self.store, own)


def seen(*sites: Site) -> Overview:
    """The next look, and what everybody does in half a second."""
    found = look(sites[0].store, "")
    for site in sites:
        site.duties.reporter.pauses_until = 0.0
        site.duties()
    until = time.monotonic() + 2 * overview.QUIET_MS / 1000
    while time.monotonic() < until:
        pass
    return found


def test_who_is_not_among_the_first_of_a_process_is_counted_there_too(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lists three; user:x is the first in one process and the last in two others."""
    monkeypatch.setattr(overview, "MOST_IDENTS", 3)
    sites = [Site(redis_url, a=4, b=4, c=4, x=2), Site(redis_url, d=4, e=4, f=4, x=3), Site(redis_url, x=5)]
    seen(*sites)
    second = seen(*sites)
    assert (second.open, second.is_whole, bool(second.doubtful)) == (34, False, True)
    for _ in range(3):  # and it stays so while somebody looks
        third = seen(*sites)
        shown = [(ident.shown, ident.open, ident.processes) for ident in third.idents]
        assert shown == [("user:x", 10, 3), ("user:a", 4, 1), ("user:b", 4, 1)]
        assert third.is_whole and not third.doubtful


def test_the_first_look_is_no_answer_and_who_has_no_socket_is_not_waited_for(redis_url: str, redis: Redis) -> None:
    """Four sockets, under no rule of concurrency: nothing is held as far as Redis knows."""
    site, idle = Site(redis_url, a=4), Site(redis_url)
    first, second = seen(site, idle), seen(site, idle)
    assert (first.open, first.is_whole, second.open, second.is_whole) == (0, False, 4, False)
    assert [process.open for process in second.processes if process.uid == idle.store.leases.uid] == [None]
    assert 0 < redis.pttl(ASKED) <= 5000, "it is forgotten when nobody looks"  # type: ignore[operator]
    redis.hincrby(ASKED, "first", -1_500_000)
    assert look(redis_store(redis_url)).is_whole, "whoever else looks knows for how long it has been asked"


def test_a_child_has_neither_the_sockets_nor_the_members_of_its_parent(servers: None) -> None:
    sockets(("a", "user:1"))
    members.add("news", "channel")
    name = members.process
    try:
        assert holds_in_child(lambda: len(open_sockets) == 0 and members.count("news") == 0 and members.process != name)
        assert len(open_sockets) == members.count("news") == 1
    finally:
        members.discard("news", "channel")

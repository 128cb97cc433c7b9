"""Open sockets are seen and closed from anywhere: orders reach the process that they are for, once."""

import asyncio
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from redis import Redis

from django_throttle import limiter
from django_throttle.connections import overview, socket_control
from django_throttle.connections.overview import SocketOverview, get_overview
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import Activity, SocketControl
from django_throttle.core import Lease
from django_throttle.core.control_messages import CLOSE, CLOSED, ControlMessage
from django_throttle.identity import AsgiCaller
from django_throttle.identity.call import Call
from django_throttle.local.open_sockets import OpenSockets, notice_payload, open_sockets
from django_throttle.stores import RedisStore
from django_throttle.websockets.groups import members
from tests.clock import FrozenClock
from tests.connections.evictions import redis_store, sockets
from tests.consumers import TWO_SOCKETS, held
from tests.doors import BOTH, Enforce, Store
from tests.forks import holds_in_child
from tests.websockets.guarded import IDENT, Line, only

FRAMES = {"rate": "2/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
ASKED = "dt:{p}:asked:"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_sockets.clear()
    overview.clear_overviews()
    for name, value in {"COMPLETE_CACHE_SECONDS": 0.0, "INCOMPLETE_CACHE_SECONDS": 0.0, "QUIET_MS": 1}.items():
        monkeypatch.setattr(overview, name, value)
    yield
    open_sockets.clear()


@BOTH
async def test_what_is_seen_of_a_socket(enforce: Enforce) -> None:
    store = enforce(sockets={**TWO_SOCKETS, "key": "ip"}, frames=FRAMES)
    introduce(store)
    async with Line() as line, Line():
        opened = open_sockets.all()[0]
        line.send("1", "2", "3")
        await line.until(lambda: line.told("error"))
        assert opened.last_received > opened.opened
        assert store.leases.unreleased() == {lease.id for each in open_sockets.all() for lease in each.leases}
        page = await second_look(store)
        assert (page.open, len(page.connections), page.is_whole) == (2, 2, True)
        assert [(ident.shown, ident.open, ident.processes) for ident in page.idents] == [("ip:203.0.113.9", 2, 1)]
        assert [process.open for process in page.processes] == [2]
        first = next(row for row in page.connections if row.received)
        assert (first.received, first.refused, first.sent, first.lost) == (3, 1, 2, 0)
        assert (first.scope, first.path, first.address) == ("chat", "/chat", "203.0.113.9")
        assert 0 <= first.silent <= first.age < 20
    assert open_sockets.all() == ()


async def second_look(store: Store, search: str = "") -> SocketOverview:
    await asyncio.to_thread(get_overview, store, search)
    await asyncio.to_thread(SocketControl(store))
    overview.clear_overviews()
    return await asyncio.to_thread(get_overview, store, search)


@BOTH
async def test_a_session_s_key_is_nobody_s_business(enforce: Enforce) -> None:
    store: Any = enforce(sockets=TWO_SOCKETS)
    introduce(store)
    async with Line():
        own, only().leases = only().leases, (Lease("~1", (("rule", "session:canary"),)),)
        page = await second_look(store)
        shown = next(ident.shown for ident in page.idents if "session" in ident.shown)
        assert shown == f"session:#{store.control.ident_hash('session:canary')[:8]}" and "canary" not in str(page)
        assert (await second_look(store, f'"{shown}"')).open == 1
        if isinstance(store, RedisStore):
            client = store.transport.client
            reports = [client.get(key) for key in client.keys("*:sockets:*")]
            assert reports and "canary" not in str(reports)
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
    """A process: a store, and sockets of its own, so many of each user."""

    def __init__(self, url: str, **numbers: int) -> None:
        self.store, own = redis_store(url), OpenSockets()
        Reconciler(self.store).beat()
        for name, number in numbers.items():
            for socket in sockets(*((f"{name}{at}", f"user:{name}") for at in range(number))):
                open_sockets.remove(socket)
                own.add(socket)
        self.duties = SocketControl(self.store, own)


def seen(*sites: Site) -> SocketOverview:
    """The next look, and what everybody does in half a second."""
    page = get_overview(sites[0].store, "")
    for site in sites:
        site.duties.reporter.pauses_until = 0.0
        site.duties()
    until = time.monotonic() + 2 * overview.QUIET_MS / 1000
    while time.monotonic() < until:
        pass
    return page


def test_who_is_not_among_the_first_of_a_process_is_counted_there_too(redis_url: str, monkeypatch: Any) -> None:
    """Each lists three; user:x is the first in one process and the last in two others."""
    monkeypatch.setattr(overview, "MAX_LISTED_IDENTS", 3)
    sites = [Site(redis_url, a=4, b=4, c=4, x=2), Site(redis_url, d=4, e=4, f=4, x=3), Site(redis_url, x=5)]
    seen(*sites)
    second = seen(*sites)
    assert (second.open, second.is_whole, bool(second.doubtful)) == (34, False, True)
    for _ in range(3):  # while somebody looks
        third = seen(*sites)
        shown = [(ident.shown, ident.open, ident.processes) for ident in third.idents]
        assert shown == [("user:x", 10, 3), ("user:a", 4, 1), ("user:b", 4, 1)]
        assert third.is_whole and not third.doubtful


def test_the_first_look_is_no_answer_and_who_has_no_socket_is_not_waited_for(redis_url: str, redis: Redis) -> None:
    site, idle = Site(redis_url, a=4), Site(redis_url)
    first, second = seen(site, idle), seen(site, idle)
    assert (first.open, first.is_whole, second.open, second.is_whole) == (0, False, 4, False)
    assert [process.open for process in second.processes if process.uid == idle.store.leases.uid] == [None]
    assert 0 < redis.pttl(ASKED) <= 5000, "it is forgotten when nobody looks"  # type: ignore[operator]
    redis.hincrby(ASKED, "first", -1_500_000)
    assert get_overview(redis_store(redis_url)).is_whole, "whoever else looks knows for how long it has been asked"


def test_a_child_has_neither_the_sockets_nor_the_members_of_its_parent(servers: None) -> None:
    sockets(("a", "user:1"))
    members.add("news", "channel")
    name = members.process
    try:
        assert holds_in_child(lambda: len(open_sockets) == 0 and members.count("news") == 0 and members.process != name)
        assert len(open_sockets) == members.count("news") == 1
    finally:
        members.discard("news", "channel")


EVICTING = {**TWO_SOCKETS, "at_limit": "evict_oldest"}
BY_ADDRESS = {**TWO_SOCKETS, "limit": 99, "key": "ip"}
CLOSE_CLIENT = (ControlMessage(CLOSE, ident=IDENT, reason=CLOSED),)


async def goodbye(line: Line) -> tuple[str, int]:
    """Return the word for a client before its socket is closed, and the code."""
    await line.closing()
    await line.ended()
    return line.told("error")[0]["code"], line.closed["code"]


async def echo(line: Line) -> None:
    line.send("still here")
    await line.until(lambda: line.frames)


async def duties(store: Store) -> None:
    """Do the agent's work of every half second, and let the loops follow."""
    await asyncio.to_thread(SocketControl(store))
    await asyncio.sleep(0)


def introduce(store: Store) -> None:
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
@pytest.mark.parametrize("seconds", [socket_control.SOCKET_WAIT_SECONDS, 0.0])
async def test_one_whose_handshake_is_not_through(
    enforce: Enforce, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(socket_control, "SOCKET_WAIT_SECONDS", seconds)
    store: Any = enforce(sockets=EVICTING)
    leases = []
    for _ in range(3):
        leases.append((await limiter.adecide(Call("chat", ("connect", "connection"), AsgiCaller({})))).lease)
        clock.tick(0.001)
    work = SocketControl(store)
    for _ in range(2):
        await asyncio.to_thread(work)
    line = await Line().open()
    (guard,) = open_sockets.all()
    guard.leases = (leases[0],)  # type: ignore[assignment]
    await asyncio.to_thread(work)
    assert (await goodbye(line))[0] == "evicted"


@BOTH
async def test_who_comes_later_is_not_meant(enforce: Enforce) -> None:
    store = enforce(sockets=BY_ADDRESS)
    introduce(store)
    work = SocketControl(store)
    work()
    store.control.dispatch(CLOSE_CLIENT)
    line = await Line().open()
    (guard,) = open_sockets.all()
    guard.opened += 60  # longer after the order than any round trip
    await asyncio.to_thread(work)
    await echo(line)
    guard.opened -= 60
    store.control.dispatch(CLOSE_CLIENT)
    await asyncio.to_thread(work)
    assert (await goodbye(line))[0] == "closed"


@pytest.mark.parametrize(
    ("enforce", "is_lost"), [("memory", False), ("redis", False), ("redis", True)], indirect=["enforce"]
)
async def test_the_one_that_has_been_silent_for_longest_goes(enforce: Enforce, is_lost: bool) -> None:
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

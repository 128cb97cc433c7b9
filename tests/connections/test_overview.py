"""Open sockets are seen and closed from anywhere, and counted truly in all processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from threading import Thread

import pytest
from redis import Redis

from django_throttle.connections import overview
from django_throttle.connections.open_sockets import OpenSocket, OpenSockets, open_sockets
from django_throttle.connections.overview import Overview, look
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.publishing.groups import members
from django_throttle.sockets.error_frames import notice_payload
from tests.connections.evictions import redis_store
from tests.connections.recorder import sockets
from tests.consumers import TWO_SOCKETS, held
from tests.doors import Enforce, enforcer
from tests.forks import holds_in_child
from tests.sockets.guarded import Line, only

enforce = pytest.fixture(enforcer)


async def test_what_is_seen_of_a_socket(enforce: Enforce) -> None:
    frames = {"rate": "2/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
    store = enforce(sockets={**TWO_SOCKETS, "key": "ip"}, frames=frames)
    before = time.monotonic()
    line = await Line().open()
    found = only()
    assert (found.scope, found.path, found.address) == ("chat", "/chat", "203.0.113.9")
    assert found.idents == {"ip:203.0.113.9"}
    assert before <= found.opened <= found.last_received <= time.monotonic()
    line.send("1", "2", "3")
    await line.until(lambda: line.told("error"))
    assert found.last_received > found.opened
    assert (found.received, found.refused, found.sent, found.lost) == (3, 1, 2, 0)
    (lease,) = found.leases
    assert held(store) == 1 and store.leases.unreleased() == {lease.id}
    await line.close()
    assert open_sockets.everyone() == ()


async def test_it_can_be_closed_once_from_another_thread(enforce: Enforce) -> None:
    store = enforce(sockets=TWO_SOCKETS)
    line = await Line().open()
    found, payload = only(), notice_payload("evicted", "Another one took its place.")
    for code in (4430, 4002):
        thread = Thread(target=found.close, args=(code, "evicted", payload))
        thread.start()
        thread.join()
    await line.until(lambda: line.closed)
    assert line.told("error") == [payload]
    assert line.closed == {"type": "websocket.close", "code": 4430, "reason": "evicted"}
    assert line.task is not None
    await line.task
    assert (held(store), line.got[-1]["code"]) == (0, 4430)
    found.close(4003, "goodbye")
    await asyncio.sleep(0)
    assert [event["code"] for event in line.sent if event["type"] == "websocket.close"] == [4430]


def test_a_socket_whose_loop_is_gone_is_left_alone(enforce: Enforce) -> None:
    enforce()
    found: list[OpenSocket] = []

    async def look() -> None:
        line = await Line().open()
        found.append(only())
        await line.close()

    asyncio.run(look())
    found[0].close(4000, "goodbye")
    found[0].reset()


ASKED = "dt:{p}:asked:"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_sockets.clear()
    overview.look_again()
    for name, value in {"FRESH_SECONDS": 0.0, "HASTE_SECONDS": 0.0, "QUIET_MS": 1}.items():
        monkeypatch.setattr(overview, name, value)
    yield
    open_sockets.clear()


class Site:
    """One process: a store, and sockets of its own, so many of each user."""

    def __init__(self, url: str, **numbers: int) -> None:
        self.store, self.sockets = redis_store(url), OpenSockets()
        Reconciler(self.store).beat()
        for name, number in numbers.items():
            for socket in sockets(*((f"{name}{at}", f"user:{name}") for at in range(number))):
                open_sockets.remove(socket)
                self.sockets.add(socket)
        self.duties = SocketControl(self.store, self.sockets)

    def answer(self) -> None:
        self.duties.reporter.pauses_until = 0.0
        self.duties()


def seen(*sites: Site, search: str = "") -> Overview:
    """The next look, and what everybody does in half a second."""
    found = look(sites[0].store, search)
    for site in sites:
        site.answer()
    until = time.monotonic() + 2 * overview.QUIET_MS / 1000
    while time.monotonic() < until:
        pass
    return found


def counts(found: Overview) -> dict[str, tuple[int, int]]:
    return {ident.shown.removeprefix("user:"): (ident.open, ident.processes) for ident in found.idents}


class TestCounts:
    def test_who_is_not_among_the_first_of_a_process_is_counted_there_too(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each lists three; user:x is the first in one process and the last in two others."""
        monkeypatch.setattr(overview, "MOST_IDENTS", 3)
        sites = [Site(redis_url, a=4, b=4, c=4, x=2), Site(redis_url, d=4, e=4, f=4, x=3), Site(redis_url, x=5)]
        seen(*sites)
        second = seen(*sites)
        assert (second.open, second.is_whole, bool(second.doubtful)) == (34, False, True)
        for _ in range(3):  # and it stays so while somebody looks
            third = seen(*sites)
            assert counts(third) == {"x": (10, 3), "a": (4, 1), "b": (4, 1)}
            assert third.is_whole and not third.doubtful


class TestNotYet:
    def test_the_first_look_does_not_pass_for_an_answer(self, redis_url: str, redis: Redis) -> None:
        """Four sockets, under no rule of concurrency: nothing is held as far as Redis knows."""
        site = Site(redis_url, a=4)
        found = [(overview.open, overview.is_whole) for overview in (seen(site), seen(site))]
        assert found == [(0, False), (4, True)]
        assert 0 < redis.pttl(ASKED) <= 5000, "it is forgotten when nobody looks"  # type: ignore[operator]

    def test_who_has_no_socket_never_answers_and_is_not_waited_for(self, redis_url: str, redis: Redis) -> None:
        """Whoever else looks knows for how long it has been asked."""
        site, idle = Site(redis_url, a=1), Site(redis_url)
        seen(site, idle)
        found = seen(site, idle)
        assert [process.open for process in found.processes if process.uid == idle.store.leases.uid] == [None]
        assert not found.is_whole
        redis.hincrby(ASKED, "first", -1_500_000)
        assert look(redis_store(redis_url)).is_whole


def test_a_child_has_neither_the_sockets_nor_the_members_of_its_parent(servers: None) -> None:
    sockets(("a", "user:1"))
    members.add("news", "channel")
    name = members.process
    try:
        assert holds_in_child(lambda: len(open_sockets) == 0 and members.count("news") == 0 and members.process != name)
        assert len(open_sockets) == members.count("news") == 1
    finally:
        members.discard("news", "channel")

"""What is open in all processes is counted truly, and what is not known yet is not passed off as nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from django_throttle.connections import overview
from django_throttle.connections.open_sockets import OpenSockets, open_sockets
from django_throttle.connections.overview import Overview, SocketReporter, look
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.core.control_messages import REPORT, ControlMessage
from django_throttle.publishing.groups import members
from django_throttle.stores import RedisStore
from tests.connections.evictions import redis_store
from tests.connections.recorder import Recorder, sockets
from tests.forks import holds_in_child


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_sockets.clear()
    overview.look_again()
    monkeypatch.setattr(overview, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(overview, "HASTE_SECONDS", 0.0)
    monkeypatch.setattr(overview, "QUIET_MS", 1)
    yield
    open_sockets.clear()


class Site:
    """One process: a store, and sockets of its own."""

    def __init__(self, url: str, **numbers: int) -> None:
        self.store, self.sockets = redis_store(url), OpenSockets()
        Reconciler(self.store).beat()
        for name, number in numbers.items():
            for one in sockets(*((f"{name}{at}", f"user:{name}") for at in range(number))):
                open_sockets.remove(one)
                self.sockets.add(one)
        self.duties = SocketControl(self.store, self.sockets)

    def answer(self) -> None:
        self.duties.reporter.pauses_until = 0.0
        self.duties()


def seen(store: RedisStore, *sites: Site) -> Overview:
    """The next look, and what everybody does in half a second."""
    found = look(store)
    for site in sites:
        site.answer()
    time.sleep(0.002)  # longer than QUIET_MS
    return found


def remembered(reporter: Any) -> tuple[int, int]:
    """The sockets and the idents of which a process remembers what it has told."""
    return len(reporter._entries), len(reporter._idents)


def counts(found: Overview) -> dict[str, tuple[int, int]]:
    return {ident.shown.removeprefix("user:"): (ident.open, ident.processes) for ident in found.idents}


class TestCounts:
    def test_who_is_not_among_the_first_of_a_process_is_counted_there_too(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each lists three; user:x is the first in one process and the last in two others."""
        monkeypatch.setattr(overview, "MOST_IDENTS", 3)
        sites = [Site(redis_url, a=4, b=4, c=4, x=2), Site(redis_url, d=4, e=4, f=4, x=3), Site(redis_url, x=5)]
        store = redis_store(redis_url)
        seen(store, *sites)
        second = seen(store, *sites)
        assert second.open == 34
        assert not second.is_whole and second.doubtful
        third = seen(store, *sites)
        assert counts(third)["x"] == (10, 3)
        assert third.is_whole and not third.doubtful
        assert counts(third) == {"x": (10, 3), "a": (4, 1), "b": (4, 1)}
        assert all("user:" in ident.shown for ident in third.idents)
        for _ in range(3):  # and it stays so while somebody looks
            again = seen(store, *sites)
            assert (again.idents, again.is_whole) == (third.idents, True)

    def test_so_it_is_with_a_search(self, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(overview, "MOST_IDENTS", 2)
        sites = [Site(redis_url, aa=4, ab=4, ac=2, b=9), Site(redis_url, ac=5, b=9)]
        for _ in range(3):
            found = look(sites[0].store, "user:a")
            for site in sites:
                site.answer()
            time.sleep(0.002)
        assert (found.open, counts(found)) == (15, {"ac": (7, 2), "aa": (4, 1)})

    def test_what_everybody_lists_is_asked_for_once(self, redis_url: str, redis: Redis) -> None:
        sites = [Site(redis_url, a=2, b=1), Site(redis_url, a=1)]
        for _ in range(3):
            found = seen(sites[0].store, *sites)
        assert counts(found) == {"a": (3, 2), "b": (1, 1)}
        assert found.is_whole
        assert redis.keys("*:asked:*") == ["dt:{p}:asked:"]

    def test_processes_that_are_too_many_are_not_passed_over_in_silence(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(overview, "MOST_PROCESSES", 2)
        sites = [Site(redis_url, a=1) for _ in range(3)]
        for _ in range(3):
            found = seen(sites[0].store, *sites)
        assert (found.open, found.unseen, found.is_whole) == (2, 1, False)

    def test_a_thousand_processes_are_asked(self) -> None:
        assert overview.MOST_PROCESSES >= 1000
        assert overview.MOST_PROCESSES * overview.IDENTS_A_SOCKET * 2 <= 10_000, "rows of idents that one look reads"


class TestNotYet:
    def test_the_first_look_does_not_pass_for_an_answer(self, redis_url: str) -> None:
        """Four sockets, under no rule of concurrency: nothing is held as far as Redis knows."""
        site, store = Site(redis_url, a=4), redis_store(redis_url)
        first = seen(store, site)
        assert (first.open, first.is_whole) == (0, False)
        second = look(store)
        assert (second.open, second.is_whole) == (4, True)

    def test_who_has_no_socket_never_answers_and_is_not_waited_for(self, redis_url: str, redis: Redis) -> None:
        """Whoever else looks knows for how long it has been asked."""
        site, idle = Site(redis_url, a=1), Site(redis_url)
        seen(site.store, site, idle)
        found = seen(site.store, site, idle)
        assert [process.open for process in found.processes if process.uid == idle.store.leases.uid] == [None]
        assert not found.is_whole
        redis.hincrby("dt:{p}:asked:", "first", -1_500_000)
        assert look(redis_store(redis_url)).is_whole

    def test_who_holds_something_is_waited_for(self, redis_url: str, redis: Redis) -> None:
        site, store = Site(redis_url), redis_store(redis_url)
        site.store.leases.hold("rule", "user:1", "~abc")
        Reconciler(site.store).beat()
        look(store)
        redis.hincrby("dt:{p}:asked:", "first", -60_000_000)
        assert not look(store).is_whole

    def test_nobody_has_looked_for_a_while(self, redis_url: str, redis: Redis) -> None:
        Site(redis_url)
        store = redis_store(redis_url)
        look(store)
        assert 0 < redis.pttl("dt:{p}:asked:") <= 5000  # type: ignore[operator]

    @pytest.mark.parametrize("foreign", ["text", "list", "future", "nonsense"])
    def test_a_foreign_value_is_replaced(self, foreign: str, redis_url: str, redis: Redis) -> None:
        site, key = Site(redis_url, a=1), "dt:{p}:asked:"
        now = redis.time()[0] * 1_000_000  # type: ignore[index]
        match foreign:
            case "text":
                redis.set(key, "1", px=60_000)
            case "list":
                redis.rpush(key, "1")
            case "future":
                redis.hset(key, mapping={"first": now + 10**12, "last": now + 10**12})
            case "nonsense":
                redis.hset(key, mapping={"first": "x", "last": now})
        redis.pexpire(key, 60_000)
        seen(site.store, site)
        assert look(site.store).open == 1


class TestList:
    def test_age_and_silence_are_what_they_are_called(self, redis_url: str) -> None:
        site = Site(redis_url, a=1)
        (one,) = site.sockets.everyone()
        one.opened -= 1000
        one.last_received -= 30
        seen(site.store, site)
        (row,) = look(site.store).connections
        assert 1000 <= row.age < 1030
        assert 30 <= row.silent < 60

    def test_one_pass_makes_all_lists_and_then_it_rests(self, redis_url: str, monkeypatch: Any) -> None:
        """Eight look for different things: addresses and idents are put into words once for all of them."""
        site, worded = Site(redis_url, a=50), []
        address = Recorder.address
        monkeypatch.setattr(Recorder, "address", property(lambda one: (worded.append(one), address)[1]))
        tags: list[str] = []
        tag = site.store.control.tag
        monkeypatch.setattr(site.store.control, "tag", lambda ident: (tags.append(ident), tag(ident))[1])
        sent: list[int] = []
        pipeline = site.store.pipeline
        monkeypatch.setattr(site.store, "pipeline", lambda calls: (sent.append(len(calls)), pipeline(calls))[1])
        reporter = SocketReporter(site.store, site.sockets)
        for number in range(8):
            reporter.want(ControlMessage(REPORT, search=f"nobody {number}", most=1))
        for _ in range(2):
            reporter.pauses_until = 0.0
            reporter.write()
        assert (len(worded), len(tags), sent) == (50, 50, [8, 8])
        reporter.pauses_until = time.monotonic() + 60
        reporter.write()
        assert sent == [8, 8]

    def test_it_rests_four_times_as_long_as_it_took(self, redis_url: str, monkeypatch: Any) -> None:
        site = Site(redis_url, a=1)
        reporter = SocketReporter(site.store, site.sockets)
        reporter.want(ControlMessage(REPORT))
        pipeline = site.store.pipeline
        monkeypatch.setattr(site.store, "pipeline", lambda calls: (time.sleep(0.05), pipeline(calls))[1])
        began = time.monotonic()
        reporter.write()
        assert reporter.pauses_until >= began + 0.05 * (1 + overview.PAUSE)

    def test_nothing_is_remembered_of_what_nobody_looks_at(self, redis_url: str, monkeypatch: Any) -> None:
        site = Site(redis_url, a=3)
        reporter = SocketReporter(site.store, site.sockets)
        reporter.want(ControlMessage(REPORT))
        reporter.write()
        assert remembered(reporter)[0] == 3
        monkeypatch.setattr(overview, "LOOK_SECONDS", 0.0)
        reporter.want(ControlMessage(REPORT))
        reporter.write()
        assert remembered(reporter)[0] == 0

    def test_a_socket_that_has_gone_is_forgotten(self, redis_url: str) -> None:
        site = Site(redis_url, a=1)
        reporter = SocketReporter(site.store, site.sockets)
        reporter.listed("", 10)
        site.sockets.clear()
        assert remembered(reporter) == (0, 0)

    def test_other_leases_are_seen(self, redis_url: str) -> None:
        site = Site(redis_url, a=1)
        reporter = SocketReporter(site.store, site.sockets)
        assert reporter.listed("user:a", 10)["open"] == 1
        (one,) = site.sockets.everyone()
        one.leases = ()
        assert reporter.listed("user:a", 10)["open"] == 0


class TestForks:
    """What a parent has open is not the child's."""

    def test_sockets(self) -> None:
        sockets(("a", "user:1"))
        assert len(open_sockets) == 1
        assert holds_in_child(lambda: len(open_sockets) == 0)
        assert len(open_sockets) == 1

    def test_members_of_groups(self) -> None:
        members.add("news", "channel")
        name = members.process
        try:
            assert holds_in_child(lambda: members.count("news") == 0 and members.process != name)
            assert members.count("news") == 1
        finally:
            members.discard("news", "channel")

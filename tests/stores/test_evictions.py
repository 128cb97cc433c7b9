"""A newcomer has taken a slot, and nobody hears of it: whoever lost it is closed all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Evict
from django_throttle.exceptions import Cause, StoreError
from django_throttle.stores import MemoryStore, RedisStore, control_messages
from django_throttle.stores.base import arun, run
from tests.connections.evictions import Door, is_eviction, lease_of, lose, redis_store
from tests.inside import evictions_fail
from tests.servers import RedisServer

OLDEST = Rule("sockets", limit=3, algorithm="concurrency", at_limit="evict_oldest")
BROAD = Rule("broad", limit=3, algorithm="concurrency", at_limit="evict_oldest")
MakeDoor = Callable[..., Door]


@pytest.fixture
def site(redis_url: str) -> MakeDoor:
    """Doors of several processes, which Redis knows."""

    def make(*rules: Rule) -> Door:
        door = Door(redis_store(redis_url), *(rules or (OLDEST,)))
        door.reconciler().beat()
        return door

    return make


def redis(door: Door) -> RedisStore:
    assert isinstance(door.store, RedisStore)
    return door.store


class TestLostReply:
    def test_whoever_lost_its_slot_hears_of_it(self, site: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two, three = site(), site(), site()
        leases = [lease_of(door.open()) for door in (one, three, one)]
        with monkeypatch.context() as broken:
            lose(two, broken)
            assert not two.open().allowed
        two.reconciler().resend()
        (message,) = one.messages()
        assert (message.lease, message.why, message.rule, message.limit) == (leases[0], "evicted", "sockets", 3)
        assert one.count() == 2, "the newcomer's slot is free again"
        two.reconciler().resend()
        assert (one.messages(), len(redis(two).leases)) == ([], 0)

    async def test_a_newcomer_is_cancelled_meanwhile(self, site: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        with monkeypatch.context() as broken:
            lose(two, broken, asyncio.CancelledError)
            with pytest.raises(asyncio.CancelledError):
                await two.aopen()
        await asyncio.to_thread(two.reconciler().resend)
        assert (one.closed(), one.count()) == (leases[:1], 2)

    def test_an_eviction_that_arrives_late_evicts_nobody(self, site: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = site(), site()
        for _ in range(3):
            one.open()
        link, late = redis(two).transport, []
        send = link.send_all

        def withhold(calls: Any, *rest: Any) -> Any:
            if is_eviction(calls):
                late.extend(calls)
                raise TimeoutError
            return send(calls, *rest)

        with monkeypatch.context() as broken:
            broken.setattr(link, "send_all", withhold)
            assert not two.open().allowed
        two.reconciler().resend()
        assert link.send_all(late) == [[0]]
        assert (one.count(), one.closed()) == (3, [])

    def test_it_is_asked_until_redis_answers(self, site: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        with monkeypatch.context() as broken:
            lose(two, broken)
            two.open()
        with monkeypatch.context() as away:
            away.setattr(redis(two), "send", unavailable)
            for _ in range(3):
                with pytest.raises(StoreError):
                    two.reconciler().resend()
        two.reconciler().resend()
        assert one.closed() == leases[:1]

    def test_nothing_is_asked_after_one_that_was_heard_of(
        self, site: MakeDoor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = site(), site()
        for _ in range(3):
            one.open()
        assert two.open().allowed
        monkeypatch.setattr(redis(two), "send", unavailable)
        two.reconciler().resend()

    def test_nothing_stays_in_redis_for_longer_than_a_minute(
        self, site: MakeDoor, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = site(), site()
        held = [one.open() for _ in range(3)]
        lose(two, monkeypatch)
        two.open()
        monkeypatch.undo()
        two.reconciler().resend()
        with redis_server.client() as client:
            before = set(client.keys("*"))
            (withdrawn,) = [key for key in before if ":~" in key]
            assert 0 < client.pttl(withdrawn) <= 60_000
        assert len(held) == 3


def unavailable(*_: Any) -> Any:
    raise StoreError(Cause.UNAVAILABLE)


class TestLostMessage:
    def test_redis_was_away_for_longer_than_messages_are_kept(
        self, site: MakeDoor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        with monkeypatch.context() as broken:
            evictions_fail(broken)
            broken.setattr(control_messages, "KEEP_SECONDS", 0.0)
            assert two.open().allowed
        two.store.control.resend()
        assert one.closed() == []
        two.reconciler().resend()
        assert one.closed() == leases[:1]
        assert (one.count(), len(redis(two).leases)) == (3, 1), "the newcomer stays"

    def test_the_newcomer_s_process_was_killed_first(self, site: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever sweeps it sends the messages in its place."""
        one, two, three = site(), site(), site()
        leases = [lease_of(one.open()) for _ in range(3)]
        with monkeypatch.context() as broken:
            evictions_fail(broken)
            assert two.open().allowed
        ledger = three.reconciler().records
        (claimed,) = ledger.beat((), [redis(two).leases.uid]).claimed
        assert sum(ledger.sweep(claimed)) == 1
        assert one.closed() == leases[:1]
        assert one.count() == 2


class TestCancelled:
    """Between two rules that are full: what the newcomer has of the first goes back."""

    @pytest.fixture(params=["memory", "redis"])
    def door(self, request: pytest.FixtureRequest) -> Door:
        if request.param == "memory":
            return Door(MemoryStore(), OLDEST, BROAD)
        return Door(redis_store(request.getfixturevalue("redis_url")), OLDEST, BROAD)

    @pytest.mark.parametrize("when", ["not sent", "reply lost"])
    @pytest.mark.parametrize("drive", ["run", "arun"])
    async def test_during_the_second_eviction(
        self, door: Door, drive: str, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = {lease_of(door.open()) for _ in range(3)}
        execute, seen = door.store.execute, []

        def interrupted(command: Any) -> Any:
            seen.extend([command] if isinstance(command, Evict) else [])
            if len(seen) == 2 and when == "not sent":
                raise SystemExit
            reply = execute(command)
            if len(seen) == 2:
                raise SystemExit
            return reply

        async def ainterrupted(command: Any) -> Any:
            return interrupted(command)

        with monkeypatch.context() as broken:
            broken.setattr(door.store, "execute", interrupted)
            broken.setattr(door.store, "aexecute", ainterrupted)
            with pytest.raises(SystemExit):
                await driven(drive, door._flow("user:1", socket=True), door.store)
        if isinstance(door.store, RedisStore):
            door.reconciler().resend()
        assert door.count() == 2
        assert {lease for leases in door.store.leases.holdings().values() for lease in leases} <= before


async def driven(drive: str, flow: Any, store: Any) -> Any:
    return run(flow, store) if drive == "run" else await arun(flow, store)

"""While one node of a Cluster is away, what is on the others is kept up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from django_throttle.connections.socket_control import Activity
from django_throttle.core import Rule
from django_throttle.exceptions import StoreError
from django_throttle.management.commands.refresh_connections import HostRefresher
from tests.clock import FrozenClock
from tests.connections.conftest import BATCHING, Site
from tests.connections.worker import RULE

Make = Callable[..., Site]
pytestmark = pytest.mark.usefixtures("steady_at_the_second_beat")


def idle_rule() -> Any:
    return SimpleNamespace(rules=(Rule("sockets", limit=2, algorithm="concurrency", at_limit="evict_idle"),))


class TestOneNodeAway:
    """Of a Cluster: its errors stand in the place of replies, and what is on other nodes is kept up."""

    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in BATCHING:
            monkeypatch.setattr(f"django_throttle.{module}.BATCH", 10)

    @pytest.fixture
    def away(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Site], pytest.MonkeyPatch]:
        def lose(site: Site) -> pytest.MonkeyPatch:
            """Every second identity is where nothing answers."""
            pipeline = site.store.pipeline
            lost = {site.store.key(RULE.id, f"user:{number}") for number in range(0, 60, 2)}

            def partial(calls: Any) -> list[Any]:
                replies = pipeline([call for call in calls if call[1][0] not in lost])
                return [ConnectionError("away") if call[1][0] in lost else replies.pop(0) for call in calls]

            monkeypatch.setattr(site.store, "pipeline", partial)
            monkeypatch.setattr(site.store.transport, "slot_of", len)
            return monkeypatch

        return lose

    def counts(self, site: Site) -> tuple[int, int]:
        """What is counted of those on the node that is away, and of the others."""
        found = [site.count(f"user:{number}") for number in range(60)]
        return sum(found[::2]), sum(found[1::2])

    def test_the_others_are_registered_and_released(self, make_site: Make, redis: Redis, away: Any) -> None:
        site, onlooker = make_site(), make_site()
        leases = [site.take(f"user:{number}")[0].lease for number in range(60)]
        redis.flushall()
        site.leases.renew()
        partial = away(site)
        with pytest.raises(StoreError, match="away"):
            site.reconciler.resend()
        assert self.counts(onlooker) == (0, 30)
        for lease in leases:
            assert lease
            for pair in lease.holds:
                site.leases.release(*pair, lease.id)
        with pytest.raises(StoreError, match="away"):
            site.reconciler.resend()
        assert self.counts(onlooker) == (0, 0)
        partial.undo()
        site.reconciler.resend()
        assert site.leases.unconfirmed() == []
        assert self.counts(onlooker) == (0, 0)

    def test_all_is_well_when_it_is_back(self, make_site: Make, redis: Redis, away: Any) -> None:
        site, onlooker = make_site(), make_site()
        for number in range(60):
            site.take(f"user:{number}")
        redis.flushall()
        site.leases.renew()
        partial = away(site)
        with pytest.raises(StoreError, match="away"):
            site.reconciler.resend()
        partial.undo()
        for module in BATCHING:
            partial.setattr(f"django_throttle.{module}.BATCH", 10)
        site.reconciler.resend()
        assert self.counts(onlooker) == (30, 30)

    def test_the_others_are_extended(self, make_site: Make, redis: Redis, away: Any) -> None:
        site = make_site()
        for number in range(60):
            site.take(f"user:{number}")
        names = [site.store.key(RULE.id, f"user:{number}") for number in range(60)]
        for name in names:
            redis.pexpire(name, 5000)
        away(site)
        with pytest.raises(StoreError, match="away"):
            site.reconciler.extend()
        assert [redis.pttl(name) > 590_000 for name in names] == [False, True] * 30

    def test_the_others_are_extended_by_their_host(self, make_site: Make, redis: Redis, away: Any) -> None:
        site, onlooker = make_site(), make_site()
        for number in range(60):
            site.take(f"user:{number}")
        command = HostRefresher(onlooker.store)
        away(onlooker)
        assert command.refresh().extended == 30
        assert command.refresh().alive == 1

    def test_the_others_are_told_who_was_heard_of(
        self, make_site: Make, away: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site, told = make_site(), list[str]()
        away(site)
        pipeline = site.store.pipeline
        monkeypatch.setattr(
            site.store, "pipeline", lambda calls: (told.extend(one[1][0] for one in calls), pipeline(calls))[1]
        )
        leases = [SimpleNamespace(id="~a", holds=[(idle_rule().rules[0].id, f"user:{number}")]) for number in range(60)]
        heard = SimpleNamespace(everyone=lambda: [SimpleNamespace(last_received=time.monotonic(), leases=leases)])
        activity: Any = Activity(site.store, heard)  # type: ignore[arg-type]
        monkeypatch.setattr("django_throttle.connections.socket_control.rulebook.current", idle_rule)
        with pytest.raises(StoreError, match="away"):
            activity()
        assert len(told) == 60

    def test_the_others_are_swept(self, make_site: Make, clock: FrozenClock, away: Any) -> None:
        dead, living = make_site(), make_site()
        for number in range(60):
            dead.take(f"user:{number}")
        living.beat()
        partial, onlooker, turns = away(living), make_site(), 0
        living.reconciler.records.beat((), [dead.leases.uid], expires=False, most=0)
        while self.counts(onlooker) != (30, 0) and turns < 100:  # a batch of those that fail ends a turn
            clock.step(3.1)
            turns += 1
            with suppress(StoreError):
                living.beat()
        assert self.counts(onlooker) == (30, 0)
        partial.undo()
        clock.step(3.1)
        living.beat()
        assert self.counts(onlooker) == (0, 0)

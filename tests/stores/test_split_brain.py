"""A master that is cut off from its Sentinels and its replica, and not from us: we leave it within a beat."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from redis.sentinel import MasterNotFoundError

from django_throttle.connections.reconcile import Refresher
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.addresses import Host
from django_throttle.stores.clients import KnownPrimary, PrimarySearch
from tests.fleet import READY, Guarded, GuardedSentinels
from tests.servers import slack

BEAT = 0.5
LIMIT = 100
RULE = Rule("hundred", f"{LIMIT}/366d")


@pytest.fixture
def sentinels() -> Iterator[GuardedSentinels]:
    with GuardedSentinels() as servers:
        yield servers


@pytest.mark.row("F31")
def test_both_drivers_leave_it_within_a_beat(sentinels: GuardedSentinels, figure: Callable[..., None]) -> None:
    """At most two limits pass, the old master's and the new one's, and the old one counts nothing from then on."""
    old = sentinels.master()
    assert isinstance(old, Guarded)
    store = RedisStore(sentinels.url, deadline=5.0)
    limiter, refresher, done = Limiter([RULE], store), Refresher(store), threading.Event()
    admitted = [0]

    def beat() -> None:
        while not done.wait(BEAT):
            refresher.beat()

    async def use_both() -> bool:
        """Whether both drivers are decided by the new master."""
        admitted[0] += limiter.acquire("user:1").allowed
        admitted[0] += (await limiter.aacquire("user:1")).allowed
        limiter.acquire("user:2", cost=0)
        await asyncio.sleep(0.02)
        return store.transport.failovers > 0

    async def follow() -> float:
        while not admitted[0]:
            await use_both()
        old.cut_off()
        while await asyncio.to_thread(sentinels.master) is old:
            await use_both()
        named = time.monotonic()
        async with asyncio.timeout(READY):
            while not await use_both():
                pass
        left = time.monotonic() - named
        before = commands(old)
        for _ in range(50):
            await use_both()
        assert commands(old) == before, "the old master is still asked"
        return left

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        took = asyncio.run(follow())
    finally:
        done.set()
        thread.join()
    figure("left after, with a beat of 0.5 s,", took, "s")
    figure(f"passed of {LIMIT}", admitted[0])
    assert took < slack(BEAT + 0.5)
    assert LIMIT <= admitted[0] <= 2 * LIMIT


def commands(server: Guarded) -> int:
    """The scripts that it has run."""
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def reply(port: int, epoch: int, flags: str = "master") -> list[str]:
    return ["ip", "10.0.0.1", "port", str(port), "flags", flags, "config-epoch", str(epoch)]


def asked(
    primary: PrimarySearch[str], answers: dict[str, list[str] | Exception], *, everyone: bool = False
) -> list[str]:
    """Who is asked until the primary is found."""
    search, found = primary.search(everyone=everyone), list[str]()
    try:
        found.append(next(search))
        while True:
            found.append(search.send(answers[found[-1]]))
    except StopIteration:
        return found


def test_the_sentinel_that_knows_of_the_latest_failover_is_right() -> None:
    moves: list[Host | None] = []
    known = KnownPrimary(lambda: moves.append(known.host))
    primary = PrimarySearch(["cut off", "b", "c"], "dt", known)
    before: dict[str, list[str] | Exception] = dict.fromkeys(("cut off", "b", "c"), reply(1, 0))
    assert asked(primary, before) == ["cut off"]
    after: dict[str, list[str] | Exception] = {**before, "b": TimeoutError(), "c": reply(2, 1)}
    assert asked(primary, after, everyone=True) == ["cut off", "b", "c"]
    assert (known.host, moves) == (("10.0.0.1", 2), [("10.0.0.1", 2)])
    assert known.is_left("10.0.0.1", 1) and not known.is_left("10.0.0.1", 2)
    assert asked(primary, {**after, "c": TimeoutError(), "b": reply(2, 1)}) == ["c", "cut off", "b"]
    down = {**after, "c": reply(2, 1, "master,o_down"), "b": TimeoutError()}
    with pytest.raises(MasterNotFoundError):
        asked(primary, down)
    assert known.host == ("10.0.0.1", 2), "whoever knows less is not believed"
    anew: dict[str, list[str] | Exception] = dict.fromkeys(("cut off", "b", "c"), reply(3, 0))
    assert len(asked(primary, anew)) == 3, "Sentinels that have been set up anew begin to count"
    assert (known.host, known.epoch) == (("10.0.0.1", 3), 0)

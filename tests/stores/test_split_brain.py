"""A master that is cut off from its Sentinels and its replica, and not from us: we leave it within a beat."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from redis.sentinel import MasterNotFoundError

from django_throttle.conf import Conf
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.addresses import Host
from django_throttle.stores.clients import KnownPrimary, PrimarySearch
from tests.fleet import READY, Guarded, GuardedSentinels
from tests.proxy import Proxy
from tests.servers import slack, wait_until

BEAT = Conf().BEAT_INTERVAL
LIMIT = 100
RULE = Rule("hundred", f"{LIMIT}/366d")
LOAD = Rule("load", "1000000/366d", algorithm="fixed_window")  # by the policy local, so that an agent beats
# A replica as those who count, so that it is not cut off with those who watch.
NEVER_MASTER = ("--masteruser", "app", "--masterauth", "app", "--replica-priority", "0")


@pytest.fixture
def sentinels(servers: None) -> Iterator[GuardedSentinels]:
    with GuardedSentinels() as guarded:
        yield guarded


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.agent
@pytest.mark.row("F31", "R15")
def test_both_drivers_leave_it_within_a_beat(sentinels: GuardedSentinels, figure: Callable[..., None]) -> None:
    """At most two limits pass, the old master's and the new one's, and the old one counts nothing from then on."""
    old = sentinels.master()
    assert isinstance(old, Guarded)
    store = RedisStore(sentinels.url, deadline=5.0)
    limiter = Limiter([RULE], store)
    admitted = [0]

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

    took = asyncio.run(follow())
    figure("left after, with the agent's beat of 5 s,", took, "s")
    figure(f"passed of {LIMIT}", admitted[0])
    assert took < slack(BEAT + 0.5)
    assert LIMIT <= admitted[0] <= 2 * LIMIT


class Caller:
    """Calls all the time, and notes when the store has decided."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url, deadline=0.5)
        self.limiter, self.decided = Limiter([LOAD], self.store), list[float]()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.call)

    def call(self) -> None:
        while not self.done.wait(0.02):
            if not self.limiter.acquire("user:1").degraded:
                self.decided.append(time.monotonic())

    def __enter__(self) -> Caller:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.agent
@pytest.mark.row("F31", "R15")
def test_who_is_cut_off_with_it_is_stopped_by_min_replicas(
    sentinels: GuardedSentinels, figure: Callable[..., None]
) -> None:
    """One replica becomes the master; another one falls silent, as a host does behind a partition."""
    old = sentinels.master()
    assert isinstance(old, Guarded)
    with ExitStack() as stack:
        to_sentinels = [stack.enter_context(Proxy(sentinel.port)) for sentinel in sentinels.sentinels]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in to_sentinels)
        silent = stack.enter_context(Guarded("--replicaof", "127.0.0.1", str(old.port), *NEVER_MASTER))
        stack.callback(silent.resume)
        with old.client() as client:
            for name, value in (("min-replicas-to-write", 1), ("min-replicas-max-lag", 10)):
                client.config_set(name, value)
            wait_until(lambda: client.info("replication")["connected_slaves"] == 2, timeout=READY)
            wait_until(lambda: client.wait(2, 100) == 2, timeout=READY)
        cut_off = stack.enter_context(Caller(f"redis+sentinel://{sentinels.credentials}{hosts}/dt/0"))
        other = stack.enter_context(Caller(sentinels.url))
        wait_until(lambda: cut_off.decided and other.decided)
        silent.pause()
        for proxy in to_sentinels:
            proxy.set("dead")
        struck = time.monotonic()
        old.cut_off()
        wait_until(lambda: sentinels.master() is not old, timeout=READY)
        named = time.monotonic()
        wait_until(lambda: other.store.transport.failovers and other.decided[-1] > named, timeout=READY)
        left = time.monotonic() - named
        wait_until(lambda: time.monotonic() - cut_off.decided[-1] > 3.0, timeout=READY)
        assert cut_off.store.transport.failovers == 0
    lasted = cut_off.decided[-1] - struck
    figure("left after, with the agent's beat of 5 s,", left, "s")
    figure("an old primary counts for who is cut off with it, with ``min-replicas-max-lag 10``, for", lasted, "s")
    assert left < slack(BEAT + 0.5)
    assert named - struck < lasted < slack(12.0), "two masters at once, and not for as long as they are apart"


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
            answer = answers[found[-1]]
            found.append(search.throw(answer) if isinstance(answer, Exception) else search.send(answer))
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
    assert known.is_former("10.0.0.1", 1) and not known.is_former("10.0.0.1", 2)
    assert asked(primary, {**after, "c": TimeoutError(), "b": reply(2, 1)}) == ["c", "cut off", "b"]
    down = {**after, "c": reply(2, 1, "master,o_down"), "b": TimeoutError()}
    with pytest.raises(MasterNotFoundError):
        asked(primary, down)
    assert known.host == ("10.0.0.1", 2), "whoever knows less is not believed"
    anew: dict[str, list[str] | Exception] = dict.fromkeys(("cut off", "b", "c"), reply(3, 0))
    assert len(asked(primary, anew)) == 3, "Sentinels that have been set up anew begin to count"
    assert (known.host, known.epoch) == (("10.0.0.1", 3), 0)

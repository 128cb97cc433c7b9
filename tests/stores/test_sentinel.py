"""A master that Sentinels watch: exact, soon back after it has died or hung, and left when it is cut off from them."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.sentinel import MasterNotFoundError

from django_throttle.conf import Conf
from django_throttle.connections.processes import BEATS_PER_TTL
from django_throttle.core import Rule
from django_throttle.core.io import run
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.addresses import Host
from django_throttle.stores.redis.clients import KnownPrimary, PrimarySearch
from tests.conftest import immortal_keys
from tests.crew import Crew, hammer
from tests.failover import DEADLINE, calling, errors_since
from tests.fleet import DOWN_AFTER, READY, Guarded, GuardedSentinels, Sentinels
from tests.records import records
from tests.servers import slack, wait_until
from tests.stores.conftest import evaluations

LIMIT = 100
EXACT = [
    Rule("sliding", f"{LIMIT}/366d"),
    Rule("gcra", f"{LIMIT}/366d", algorithm="gcra"),
    Rule("sockets", limit=LIMIT, algorithm="concurrency"),
]


@pytest.fixture(scope="module")
def watched(servers: None) -> Iterator[Sentinels]:
    with Sentinels() as watched:
        yield watched


@pytest.fixture
def sentinels(watched: Sentinels) -> Iterator[Sentinels]:
    """Empty and calm; afterwards nothing of ours may live for ever."""
    with watched.master().client() as client:
        client.flushall()
    yield watched
    watched.settle()
    assert immortal_keys(watched.master()) == []


@pytest.mark.row("F52", "R13")
@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
def test_exactly_the_limit_passes(rule: Rule, crew: Crew, sentinels: Sentinels, figure: Callable[..., None]) -> None:
    told = crew.run(hammer, sentinels.url, rule, "user:1", 200)
    figure(f"passed of 1,600 behind Sentinels, limit {LIMIT},", sum(allowed for allowed, _ in told))
    assert [sum(column) for column in zip(*told, strict=True)] == [LIMIT, 0]


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.parametrize(
    "blow",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.row("F29")),
        pytest.param(signal.SIGSTOP, marks=pytest.mark.row("F30")),
    ],
    ids=lambda blow: blow.name,
)
def test_after_a_failover_decisions_resume(
    blow: signal.Signals, sentinels: Sentinels, caplog: pytest.LogCaptureFixture, figure: Callable[..., None]
) -> None:
    """Half a second after the Sentinels have named another, 3.5 s in all; no call outlasts its deadline."""
    old = sentinels.master()
    try:
        with calling(sentinels.url, "user:1") as callers:
            wait_until(lambda: all(caller.shared() >= 10 for caller in callers))
            struck = time.monotonic()
            os.kill(old.pid, blow)
            wait_until(lambda: sentinels.master() is not old, timeout=READY)
            elected = time.monotonic() - struck
            until = time.monotonic() + 1.5
            wait_until(lambda: all(caller.is_back(struck) for caller in callers), timeout=READY)
            if blow is signal.SIGSTOP:
                old.resume()  # it believes to be the master still, and nobody may believe it
            wait_until(lambda: time.monotonic() > until and all(caller.is_back(struck) for caller in callers))
    finally:
        old.resume() if blow is signal.SIGSTOP else old.restart()
    master = sentinels.master()
    with old.client() as client:  # the Sentinels do it, too, but take their time
        client.execute_command("REPLICAOF", "127.0.0.1", str(master.port))
    with master.client(decode_responses=False) as client:
        (key,) = client.scan_iter("dt:*")
        (one,) = records(client.get(key)).values()
        (count,) = one.numbers
    assert count >= sum(caller.shared() for caller in callers)
    for caller in callers:
        outage, slowest = caller.outage(struck), caller.slowest()
        figure("decides again after", outage, "s")
        figure("another primary named after", elected, "s")
        figure("longest call", slowest * 1000, "ms")
        # How long the Sentinels take to name a master is their own affair; what comes after that is ours.
        assert 0 < outage < elected + slack(0.5)
        assert outage < slack(DOWN_AFTER + 2.5)
        assert slowest < slack(DEADLINE + 0.05)
    assert errors_since(struck, caplog.records) == []


BEAT = Conf().PROCESS_TTL / BEATS_PER_TTL


@pytest.fixture
def guarded(servers: None) -> Iterator[GuardedSentinels]:
    with GuardedSentinels() as servers_of_two_users:
        yield servers_of_two_users


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.agent
@pytest.mark.row("F31", "R15")
def test_both_drivers_leave_it_within_a_beat(guarded: GuardedSentinels, figure: Callable[..., None]) -> None:
    old = guarded.master()
    assert isinstance(old, Guarded)
    store = RedisStore(guarded.url, deadline=5.0)
    limiter = Limiter([EXACT[0]], store)
    admitted = [0]

    async def use_both() -> bool:
        admitted[0] += limiter.acquire("user:1").allowed
        admitted[0] += (await limiter.aacquire("user:1")).allowed
        limiter.acquire("user:2", cost=0)
        await asyncio.sleep(0.02)
        return store.transport.failovers > 0

    async def follow() -> float:
        while not admitted[0]:
            await use_both()
        old.cut_off()
        while await asyncio.to_thread(guarded.master) is old:
            await use_both()
        named = time.monotonic()
        async with asyncio.timeout(READY):
            while not await use_both():
                pass
        left = time.monotonic() - named
        with old.client() as client:
            before = evaluations(client)
            for _ in range(50):
                await use_both()
            assert evaluations(client) == before, "the old master is still asked"
        return left

    took = asyncio.run(follow())
    figure("left after, with the agent's beat of 5 s,", took, "s")
    figure(f"passed of {LIMIT}", admitted[0])
    assert took < slack(BEAT + 0.5)
    assert LIMIT <= admitted[0] <= 2 * LIMIT


def reply(port: int, epoch: int, flags: str = "master") -> list[str]:
    return ["ip", "10.0.0.1", "port", str(port), "flags", flags, "config-epoch", str(epoch)]


def asked(
    primary: PrimarySearch[str], answers: dict[str, list[str] | Exception], *, everyone: bool = False
) -> list[str]:
    found: list[str] = []

    async def ask(sentinel: str) -> Any:
        found.append(sentinel)
        answer = answers[sentinel]
        if isinstance(answer, Exception):
            raise answer
        return answer

    run(primary.search(ask, everyone=everyone))
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

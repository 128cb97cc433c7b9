"""Real processes that hold connections, threads that stand for some, and which processes a host believes to live."""

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_throttle.exceptions import StoreError
from django_throttle.local import process_identity
from tests.connections.conftest import BATCHING, MakeWorker, Refresh, Site
from tests.servers import RedisServer, wait_until

Figure = Callable[..., None]
SLOW = {"PROCESS_TTL": 60.0}  # nobody is found silent in a test


def comes_to(site: Site, number: int, ident: str = "user:1") -> float:
    """Wait until so many connections are counted; returns the seconds that it took."""
    return wait_until(lambda: site.count(ident) == number, timeout=30)


@pytest.mark.row("F43", "F54")
@pytest.mark.row("R08")
def test_with_commands_on_the_host_they_come_back_at_once(
    make_worker: MakeWorker, refreshing: Refresh, site: Site, redis: Redis, figure: Figure
) -> None:
    living, dead = make_worker(**SLOW), make_worker(**SLOW)
    living.ask("acquire", "user:1", 5)
    killed, other = (refreshing("--interval", "0.1") for _ in range(2))
    for command in (killed, other):
        assert re.search(r"processes \d alive, 0 dead; connections \d+ held, 0 freed; keys 0 ext", command.line())
    dead.ask("acquire", "user:2", 400)
    dead.kill()
    killed.process.kill()  # wherever it is
    figure("slots back after, with refresh_connections,", comes_to(site, 0, "user:2"), "s")
    assert site.count("user:1") == 5
    wait_until(lambda: redis.zcard("dt:{p}:dead") == 0)
    assert other.end()[0] == 0


@pytest.mark.row("F22")
@pytest.mark.row("R14")
def test_redis_crashes_and_comes_back(
    make_worker: MakeWorker, refreshing: Refresh, quick: None, server: RedisServer, figure: Figure
) -> None:
    """Slots are registered again; the command keeps trying, and says so once."""
    workers = [make_worker(REDIS=server.url) for _ in range(2)]
    for worker in workers:
        worker.ask("acquire", "user:1", 5)
    command = refreshing("--interval", "0.1", url=server.url)
    assert "processes 2 alive" in command.line()
    server.kill()
    assert workers[0].ask("acquire", "user:1", 2) == 2  # by the failure policy
    assert workers[1].ask("release", 1) == 4
    while "does not answer" not in (line := command.line()):
        assert "processes 2 alive" in line
    server.start()
    figure("registered again after, with a beat of 0.2 s,", comes_to(Site(server.url), 11), "s")
    assert "Redis answers again" in command.line()
    code, output = command.end()
    assert code == 0 and "does not answer" not in output


IDENTS = [f"user:{number}" for number in range(6)]
# Under `make faults` alone, the last one for ten minutes.
PLAYED = [(0, 2.0), (1, 2.0), (2, 2.0), *([(3, 600.0)] if "LONG_OUTAGES" in os.environ else [])]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that usually takes seconds happens all the time."""
    monkeypatch.setattr("django_throttle.connections.processes.STEADY_BEATS", 0)
    for module in BATCHING:
        monkeypatch.setattr(f"django_throttle.{module}.BATCH", 3)


@pytest.mark.row("F55")
@pytest.mark.parametrize(("seed", "seconds"), PLAYED)
def test_nothing_drifts(
    seed: int,
    seconds: float,
    hasty: None,
    servers: None,
    redis_server: RedisServer,
    redis_url: str,
    figure: Callable[..., None],
) -> None:
    sites = [Site(redis_url) for _ in range(3)]
    open_leases: list[list[Any]] = [[] for _ in sites for _ in range(2)]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=refresh, args=(site, until)) for site in sites]
    for number, leases in enumerate(open_leases):
        chance = random.Random(f"{seed}/{number}")
        threads.append(threading.Thread(target=hold_and_release, args=(sites[number // 2], leases, chance, until)))
    with redis_server.client() as redis:
        threads.append(threading.Thread(target=meddle, args=(redis, random.Random(seed), until)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for site in sites * 2:
            for work in (site.beat, site.reconciler.extend, site.reconciler.resend):
                work()
        held = [sum(site.leases.count(site.rule.id, ident) for site in sites) for ident in IDENTS]
        counted = [sites[0].count(ident) for ident in IDENTS]
        figure("seconds of faults", seconds, "s")
        assert counted == held
        assert sum(held) == sum(map(len, open_leases)) > 0
        assert len(redis.zrange("dt:{p}:live", 0, -1)) == 3


def hold_and_release(site: Site, leases: list[Any], chance: random.Random, until: float) -> None:
    while time.monotonic() < until:
        if leases and chance.random() < 0.5:
            site.limiter.release(leases.pop(chance.randrange(len(leases))))
        else:
            (decision,) = site.take(chance.choice(IDENTS))
            leases.append(decision.lease)


def refresh(site: Site, until: float) -> None:
    while time.monotonic() < until:
        for work in (site.beat, site.reconciler.resend, site.reconciler.extend):
            with suppress(StoreError):  # as the agent does: Redis is late, and the next beat tries again
                work()


def meddle(redis: Redis, chance: random.Random, until: float) -> None:
    """Lose all data, or make one process look silent for an hour."""
    while time.monotonic() < until:
        time.sleep(chance.uniform(0, 0.05))
        if chance.random() < 0.2:
            redis.flushall()
        elif live := redis.zrange("dt:{p}:live", 0, -1):
            redis.zadd("dt:{p}:live", {chance.choice(live): 1}, xx=True)  # type: ignore[arg-type]


def of(pid: int) -> dict[str, Any]:
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # proc(5), field 22
    return {"host": process_identity.host(), "pid": pid, "started": int(started)}


@pytest.fixture
def child(servers: None) -> Iterator[Any]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def test_a_child_lives_until_it_ends(child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = of(child.pid)
    assert process_identity.is_alive(meta) is True
    assert process_identity.is_alive({**meta, "started": meta["started"] - 1}) is False, "another had this pid"
    with monkeypatch.context() as patch:
        patch.setattr(process_identity, "PROC", tmp_path)
        assert process_identity.is_alive(meta) is None, "hidden, as under hidepid or in a container without /proc"
    child.kill()
    wait_until(lambda: process_identity.is_alive(meta) is False)  # defunct
    child.wait()
    monkeypatch.setattr(process_identity, "PROC", tmp_path)
    assert process_identity.is_alive(meta) is False


@pytest.mark.parametrize(
    "changed",
    [{"host": "elsewhere"}, {"host": ""}, {"pid": "1"}, {"pid": -1}, {"pid": None}, {"pid": True}, {"started": None}],
)
def test_what_cannot_be_told_is_not_judged(changed: dict[str, Any]) -> None:
    assert process_identity.is_alive({**of(os.getpid()), **changed}) is None
    assert process_identity.is_alive({}) is None


def test_a_container_that_shares_the_pids_judges_them_under_any_hostname() -> None:
    meta = of(os.getpid())
    assert process_identity.is_alive({**meta, "host": f"another/{meta['host'].partition('/')[2]}"}) is True
    assert process_identity.is_alive({**meta, "host": f"{meta['host']}0"}) is None, "of another boot"


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", "null", b"\xff"])
def test_reads_anything(text: Any) -> None:
    assert process_identity.read(text) == {}

"""Real processes that hold connections, and what becomes of these when the processes do not behave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from testproject.check.standstill import elapsed
from tests.connections.conftest import QUICK, ROOT, Site, Worker
from tests.connections.worker import RULE
from tests.servers import RedisServer, slack, wait_until

MakeWorker = Callable[..., Worker]
# As long after a crash as silence and the longest beat of another process may take: 25 s by default.
CRASH_SECONDS = QUICK["PROCESS_TTL"] + QUICK["BEAT_INTERVAL"]
# Until the next beat, and what a busy machine needs for it.
AGAIN_SECONDS = QUICK["BEAT_INTERVAL"] + 1.0


class Refreshing:
    """``manage.py refresh_connections`` in a process of its own."""

    def __init__(self, url: str, *arguments: str, database: str = "") -> None:
        environment = {**os.environ, "REDIS_URL": url, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", "refresh_connections", *arguments],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT), "DATABASE": database},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout

    def line(self) -> str:
        return self.stdout.readline()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=30)
        return self.process.returncode, output


@pytest.fixture
def site(redis_url: str, quick: None) -> Site:
    """An onlooker that holds nothing and beats only when a test says so."""
    return Site(redis_url)


@pytest.fixture
def refreshing(redis_url: str) -> Iterator[Callable[..., Refreshing]]:
    started: list[Refreshing] = []

    def start(*arguments: str, url: str = redis_url) -> Refreshing:
        started.append(Refreshing(url, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        one.stdout.close()


@pytest.mark.row("F43")
def test_slots_of_a_killed_process_come_back(
    make_worker: MakeWorker, site: Site, redis: Redis, figure: Callable[..., None]
) -> None:
    killed, living = make_worker(), make_worker()
    assert killed.ask("acquire", "user:1", 20) == 20
    assert living.ask("acquire", "user:1", 3) == 3
    time.sleep(2 * QUICK["BEAT_INTERVAL"])
    assert site.count("user:1") == 23
    uid, struck = killed.ask("uid"), time.monotonic()
    killed.kill()
    silent_since: Any = redis.zscore("dt:{p}:live", uid)
    wait_until(lambda: site.count("user:1") == 3, timeout=slack(CRASH_SECONDS + 0.5))
    took, (seconds, micros) = elapsed(struck), redis.time()
    figure("slots back after, at a tenth of the default times,", took, "s")
    assert took * 10 <= slack(30)
    silence = seconds + (micros - silent_since) / 1_000_000
    assert silence >= QUICK["PROCESS_TTL"], "nobody could know as early as that"


@pytest.mark.row("F43")
def test_with_the_command_on_the_host_they_come_back_at_once(
    make_worker: MakeWorker, refreshing: Callable[..., Refreshing], site: Site, figure: Callable[..., None]
) -> None:
    killed, living = make_worker(PROCESS_TTL=20.0), make_worker(PROCESS_TTL=20.0)
    killed.ask("acquire", "user:1", 20)
    living.ask("acquire", "user:1", 3)
    command = refreshing()
    assert "processes 2 alive, 0 dead" in command.line()
    killed.kill()
    took = wait_until(lambda: site.count("user:1") == 3, timeout=slack(2))
    figure("slots back after, with refresh_connections,", took, "s")
    code, output = command.end()
    assert code == 0
    assert re.search(r"processes 1 alive, 1 dead; connections \d+ held, 20 freed; keys 0 extended", output), output


def test_a_successor_frees_them_too(make_worker: MakeWorker, site: Site) -> None:
    killed = make_worker(PROCESS_TTL=20.0)
    killed.ask("acquire", "user:1", 20)
    killed.kill()
    successor = make_worker(PROCESS_TTL=20.0)
    successor.ask("acquire", "user:2")
    wait_until(lambda: site.count("user:1") == 0, timeout=slack(5))


@pytest.mark.row("F44")
def test_who_is_asked_to_end_leaves_nothing(make_worker: MakeWorker, site: Site, redis: Redis) -> None:
    leaving, living = make_worker(), make_worker()
    leaving.ask("acquire", "user:1", 20)
    living.ask("acquire", "user:1", 1)
    uid = leaving.ask("uid")
    leaving.leave()
    assert site.count("user:1") == 1
    assert not [key for key in redis.scan_iter() if uid in key]
    assert uid not in redis.zrange("dt:{p}:live", 0, -1)


@pytest.mark.row("F22")
def test_redis_emptied_under_real_processes(
    make_worker: MakeWorker, site: Site, redis: Redis, figure: Callable[..., None]
) -> None:
    workers = [make_worker(), make_worker()]
    for worker in workers:
        worker.ask("acquire", "user:1", 4)
    redis.flushall()
    took = wait_until(lambda: site.count("user:1") == 8, timeout=slack(AGAIN_SECONDS))
    figure("registered again after, with a beat of 0.5 s,", took, "s")
    assert workers[0].ask("release", 4) == 0
    assert site.count("user:1") == 4


@pytest.mark.row("F45")
def test_paused_for_longer_than_the_silence(make_worker: MakeWorker, site: Site, figure: Callable[..., None]) -> None:
    paused, living = make_worker(), make_worker()
    paused.ask("acquire", "user:1", 5)
    living.ask("acquire", "user:1", 2)
    uid = paused.ask("uid")
    paused.signal(signal.SIGSTOP)
    wait_until(lambda: site.count("user:1") == 2, timeout=slack(CRASH_SECONDS + 0.5))
    paused.signal(signal.SIGCONT)
    took = wait_until(lambda: site.count("user:1") == 7, timeout=slack(3))
    figure("registered again after, with a beat of 0.5 s,", took, "s")
    assert paused.ask("uid") != uid
    time.sleep(1)
    assert site.count("user:1") == 7
    assert paused.ask("release", 5) == 0
    assert site.count("user:1") == 2


@pytest.mark.row("F22")
def test_redis_crashes_and_comes_back(make_worker: MakeWorker, quick: None, figure: Callable[..., None]) -> None:
    with RedisServer() as server:
        workers = [make_worker(REDIS=server.url), make_worker(REDIS=server.url)]
        for worker in workers:
            worker.ask("acquire", "user:1", 5)
        server.kill()
        assert workers[0].ask("acquire", "user:1", 2) == 2  # by the failure policy
        assert workers[1].ask("release", 1) == 4
        time.sleep(1)
        server.start()
        site = Site(server.url)
        took = wait_until(lambda: site.count("user:1") == 11, timeout=slack(AGAIN_SECONDS))
        figure("registered again after, with a beat of 0.5 s,", took, "s")
        time.sleep(0.5)
        assert site.count("user:1") == 11


def test_redis_hangs_for_longer_than_the_silence(make_worker: MakeWorker, quick: None) -> None:
    """Nobody is buried for a silence that was Redis' own."""
    with RedisServer() as server:
        site, lowest = Site(server.url), 10
        workers = [make_worker(REDIS=server.url), make_worker(REDIS=server.url)]
        for worker in workers:
            worker.ask("acquire", "user:1", 5)
        uids = [worker.ask("uid") for worker in workers]
        time.sleep(2 * QUICK["BEAT_INTERVAL"])
        server.pause()
        time.sleep(QUICK["PROCESS_TTL"] + 0.5)
        server.resume()
        until = time.monotonic() + 1.5  # as long as each of them takes to beat again, and once more
        while time.monotonic() < until:
            lowest = min(lowest, site.count("user:1"))
            time.sleep(0.02)
        assert lowest == 10
        assert [worker.ask("uid") for worker in workers] == uids


def test_a_forked_child_is_a_process_of_its_own(make_worker: MakeWorker, site: Site) -> None:
    parent = make_worker()
    parent.ask("acquire", "user:1", 3)
    inherited, uid, held = parent.ask("fork", "user:1")
    assert (inherited, held) == (0, 1)
    assert uid != parent.ask("uid")
    assert site.count("user:1") == 4
    wait_until(lambda: site.count("user:1") == 3, timeout=slack(CRASH_SECONDS + 0.5))  # it ended without a word
    assert parent.ask("release", 3) == 0
    assert site.count("user:1") == 0


@pytest.mark.row("F54")
def test_two_commands_at_once_one_killed_in_the_middle(
    make_worker: MakeWorker, refreshing: Callable[..., Refreshing], site: Site, redis: Redis
) -> None:
    living, dead = make_worker(PROCESS_TTL=20.0), make_worker(PROCESS_TTL=20.0)
    living.ask("acquire", "user:1", 5)
    one, two = (refreshing("--interval", "0.1") for _ in range(2))
    assert "2 alive" in one.line() + two.line() or "1 alive" in one.line()
    dead.ask("acquire", "user:2", 400)
    dead.kill()
    one.process.send_signal(signal.SIGKILL)  # wherever it is
    wait_until(lambda: site.count("user:2") == 0, timeout=slack(5))
    time.sleep(0.5)
    assert site.count("user:1") == 5
    assert two.end()[0] == 0
    assert redis.zcard("dt:{p}:dead") == 0


@pytest.mark.row("F54")
def test_a_command_killed_in_the_middle_of_a_sweep(
    make_worker: MakeWorker,
    refreshing: Callable[..., Refreshing],
    site: Site,
    redis: Redis,
    figure: Callable[..., None],
) -> None:
    """What it had claimed is taken on by the next beat after the claim has lapsed."""
    dead, living = make_worker(PROCESS_TTL=60.0), make_worker(PROCESS_TTL=60.0)
    dead.ask("acquire", "user:1", 5)
    dead.ask("acquire", "user:2", 5)
    uid = dead.ask("uid")
    dead.kill()
    # As far as a pass gets before it is killed: buried and claimed, one index reaped.
    ledger = site.reconciler.records
    assert ledger.beat((), [uid]).claimed == [uid]
    site.store.call("reap", (site.store.key(RULE.id, "user:1"),), (uid,))
    living.ask("acquire", "user:3")
    assert site.count("user:2") == 5
    took = wait_until(lambda: site.count("user:2") == 0, timeout=slack(5))
    figure("swept after", took, "s")
    assert site.count("user:1") == 0
    wait_until(lambda: not redis.zcard("dt:{p}:dead"))
    assert not [key for key in redis.scan_iter() if uid in key]


@pytest.mark.row("F54")
def test_a_command_paused_for_longer_than_the_silence(
    make_worker: MakeWorker, refreshing: Callable[..., Refreshing], site: Site
) -> None:
    living, dead = make_worker(), make_worker()
    for worker in (living, dead):
        worker.ask("acquire", "user:1", 5)
    command = refreshing("--interval", "0.1")
    command.line()
    command.process.send_signal(signal.SIGSTOP)
    dead.kill()
    wait_until(lambda: site.count("user:1") == 5, timeout=slack(CRASH_SECONDS + 0.5))
    command.process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    assert site.count("user:1") == 5
    assert command.end(signal.SIGINT)[0] == 0


def test_the_command_keeps_trying_and_says_so_once(refreshing: Callable[..., Refreshing], quick: None) -> None:
    with RedisServer() as server:
        command = refreshing("--interval", "0.1", url=server.url)
        assert "processes 0 alive, 0 dead; connections 0 held, 0 freed; keys 0 extended" in command.line()
        server.kill()
        while "does not answer" not in (line := command.line()):
            assert "processes 0 alive" in line
        time.sleep(0.5)
        server.start()
        assert "Redis answers again" in command.line()
        assert "processes 0 alive" in command.line()
        code, output = command.end()
        assert code == 0
        assert "does not answer" not in output


def test_once_extends_and_ends(
    make_worker: MakeWorker, refreshing: Callable[..., Refreshing], site: Site, redis: Redis
) -> None:
    make_worker(AGENT=False).ask("acquire", "user:1", 5)
    index = site.store.key(RULE.id, "user:1")
    redis.pexpire(index, 5000)
    command = refreshing("--once")
    output, _ = command.process.communicate(timeout=60)
    assert command.process.returncode == 0
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d processes 1 alive, 0 dead; connections \d held, 0 freed; keys 1 extended\n",
        output,
    )
    assert redis.pttl(index) > 500_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_cleanly_while_it_starts(number: signal.Signals, redis_url: str) -> None:
    """From the moment at which it is loaded: here its first act is to wait for a Redis that does not answer."""
    script = (
        "import sys, django_throttle.stores as stores\n"
        "def build():\n"
        "    print('starting', flush=True)\n"
        "    sys.stdin.read(1)\n"
        "    return found()\n"
        "found, stores.get_store = stores.get_store, build\n"
        "from django.core.management import execute_from_command_line\n"
        "execute_from_command_line(['manage.py', 'refresh_connections'])\n"
    )
    environment = {**os.environ, "REDIS_URL": redis_url, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    process.send_signal(number)
    process.communicate("x", timeout=30)
    assert process.returncode == 0

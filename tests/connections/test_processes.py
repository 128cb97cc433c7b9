"""Real processes that hold connections, and what becomes of these when the processes do not behave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from redis import Redis

from tests.connections.conftest import QUICK, ROOT, MakeWorker, Refresh, Site
from tests.servers import RedisServer, wait_until

Figure = Callable[..., None]
SLOW = {"PROCESS_TTL": 60.0}  # nobody is found silent in a test


def comes_to(site: Site, number: int, ident: str = "user:1") -> float:
    """Wait until so many connections are counted; returns the seconds that it took."""
    return wait_until(lambda: site.count(ident) == number, timeout=30)


@pytest.mark.row("F43")
@pytest.mark.row("R08")
def test_slots_of_a_killed_process_come_back(make_worker: MakeWorker, site: Site, redis: Redis, figure: Figure) -> None:
    killed, living = make_worker(), make_worker()
    killed.ask("acquire", "user:1", 20)
    living.ask("acquire", "user:1", 3)
    comes_to(site, 23)
    uid = killed.ask("uid")
    killed.kill()
    silent_since = redis.zscore("dt:{p}:live", uid)
    figure("slots back after, with a silence of 1 s,", comes_to(site, 3), "s")
    seconds, micros = redis.time()
    assert seconds + (micros - silent_since) / 1_000_000 >= QUICK["PROCESS_TTL"], "nobody could know earlier"


@pytest.mark.row("F43")
@pytest.mark.row("R08")
def test_with_the_command_on_the_host_they_come_back_at_once(
    make_worker: MakeWorker, refreshing: Refresh, site: Site, figure: Figure
) -> None:
    killed, living = make_worker(**SLOW), make_worker(**SLOW)
    killed.ask("acquire", "user:1", 20)
    living.ask("acquire", "user:1", 3)
    command = refreshing()
    assert "processes 2 alive, 0 dead" in command.line()
    killed.kill()
    figure("slots back after, with refresh_connections,", comes_to(site, 3), "s")
    code, output = command.end()
    assert code == 0
    assert re.search(r"processes 1 alive, 1 dead; connections \d+ held, 20 freed; keys 0 extended", output), output


@pytest.mark.row("F44")
def test_who_is_asked_to_end_leaves_nothing(make_worker: MakeWorker, site: Site, redis: Redis) -> None:
    leaving = make_worker()
    leaving.ask("acquire", "user:1", 20)
    site.take("user:1")
    uid = leaving.ask("uid")
    leaving.leave()
    assert site.count("user:1") == 1
    assert not [key for key in redis.scan_iter() if uid in key]
    assert uid not in redis.zrange("dt:{p}:live", 0, -1)


@pytest.mark.row("F22")
@pytest.mark.row("R14")
def test_redis_crashes_and_comes_back(
    make_worker: MakeWorker, quick: None, server: RedisServer, figure: Figure
) -> None:
    workers = [make_worker(REDIS=server.url) for _ in range(2)]
    for worker in workers:
        worker.ask("acquire", "user:1", 5)
    server.kill()
    assert workers[0].ask("acquire", "user:1", 2) == 2  # by the failure policy
    assert workers[1].ask("release", 1) == 4
    server.start()
    figure("registered again after, with a beat of 0.2 s,", comes_to(Site(server.url), 11), "s")


@pytest.mark.row("F54")
def test_two_commands_at_once_one_killed_in_the_middle(
    make_worker: MakeWorker, refreshing: Refresh, site: Site, redis: Redis
) -> None:
    living, dead = make_worker(**SLOW), make_worker(**SLOW)
    living.ask("acquire", "user:1", 5)
    killed, other = (refreshing("--interval", "0.1") for _ in range(2))
    for command in (killed, other):
        assert "alive" in command.line()
    dead.ask("acquire", "user:2", 400)
    dead.kill()
    killed.process.kill()  # wherever it is
    comes_to(site, 0, "user:2")
    assert site.count("user:1") == 5
    wait_until(lambda: redis.zcard("dt:{p}:dead") == 0)
    assert other.end()[0] == 0


def test_the_command_keeps_trying_and_says_so_once(refreshing: Refresh, server: RedisServer) -> None:
    command = refreshing("--interval", "0.1", url=server.url)
    assert "processes 0 alive, 0 dead; connections 0 held, 0 freed; keys 0 extended" in command.line()
    server.kill()
    while "does not answer" not in (line := command.line()):
        assert "processes 0 alive" in line
    server.start()
    assert "Redis answers again" in command.line()
    assert "processes 0 alive" in command.line()
    code, output = command.end()
    assert code == 0 and "does not answer" not in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_cleanly_while_it_starts(number: signal.Signals, redis_url: str, servers: None) -> None:
    """From the moment at which it is loaded: here its first act is to wait for a Redis that does not answer."""
    script = (
        "import sys, django_throttle.stores as stores\n"
        "def build():\n"
        "    print('starting', flush=True)\n"
        "    sys.stdin.read(1)\n"
        "    return get_store()\n"
        "get_store, stores.get_store = stores.get_store, build\n"
        "from django.core.management import execute_from_command_line\n"
        "execute_from_command_line(['manage.py', 'refresh_connections'])\n"
    )
    environment = {**os.environ, "REDIS_URL": redis_url, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        process.send_signal(number)
        process.communicate("x", timeout=30)
    assert process.returncode == 0

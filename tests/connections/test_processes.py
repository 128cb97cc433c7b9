"""Real processes that hold connections, and what becomes of these when the processes do not behave."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from redis import Redis

from tests.connections.conftest import QUICK, MakeWorker, Refresh, Site
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


@pytest.mark.row("F43", "F54")
@pytest.mark.row("R08")
def test_with_commands_on_the_host_they_come_back_at_once(
    make_worker: MakeWorker, refreshing: Refresh, site: Site, redis: Redis, figure: Figure
) -> None:
    """Also where there are two, and one of them is killed in the middle."""
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

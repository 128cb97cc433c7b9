"""Redis' clock is set: nobody is buried for a silence that began before that, by processes or by the command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_throttle.management.commands.refresh_connections import HostRefresher
from tests.connections.conftest import MakeWorker, Site
from tests.servers import wait_until
from tests.steps import SteppingServer

CALM = {"PROCESS_TTL": 2.0}


@pytest.fixture
def server(servers: None) -> Iterator[SteppingServer]:
    with SteppingServer() as server:
        yield server


@pytest.fixture
def command(server: SteppingServer, quick: None, elsewhere: None, settings: Any) -> HostRefresher:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, **CALM}
    return HostRefresher(Site(server.url).store)


@pytest.mark.row("F41")
@pytest.mark.parametrize("seconds", [25, -25, 300])
def test_nobody_who_lives_is_buried(
    seconds: int, server: SteppingServer, command: HostRefresher, make_worker: MakeWorker, figure: Callable[..., None]
) -> None:
    site, workers = Site(server.url), [make_worker(REDIS=server.url, **CALM) for _ in range(2)]
    for worker in workers:
        worker.ask("acquire", "user:1", 20)
    uids = [worker.ask("uid") for worker in workers]
    with server.client() as redis:
        for step in (0, seconds):
            server.step(step)
            before = redis.zmscore("dt:{p}:live", uids)
            while any(now == then for now, then in zip(redis.zmscore("dt:{p}:live", uids), before, strict=True)):
                command.refresh()
                assert site.count("user:1") == 40, "until each of them has beaten"
    assert [worker.ask("uid") for worker in workers] == uids
    workers[0].kill()
    took = wait_until(lambda: (command.refresh(), site.count("user:1"))[1] == 20, timeout=30, every=0.1)
    figure("who died is found after, with a silence of 2 s,", took, "s")

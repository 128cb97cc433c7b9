"""Redis' clock is set: nobody is buried for a silence that began before that, by processes or by the command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_throttle.management.commands.refresh_connections import HostRefresher
from tests.connections.conftest import QUICK, Site, Worker
from tests.connections.test_processes import AGAIN_SECONDS
from tests.servers import slack, wait_until
from tests.steps import SteppingServer

MakeWorker = Callable[..., Worker]
OPEN = 20


@pytest.fixture
def server() -> Iterator[SteppingServer]:
    with SteppingServer() as server:
        yield server


@pytest.fixture
def command(server: SteppingServer, quick: None, monkeypatch: pytest.MonkeyPatch) -> HostRefresher:
    """On another host: it sees none of the processes."""
    monkeypatch.setattr("django_throttle.connections.process_identity.host", lambda: "another/1/2")
    return HostRefresher(Site(server.url).store)


def lowest(site: Site, command: HostRefresher, seconds: float) -> int:
    """The least slots that were counted while the command made its passes."""
    found, until = 2 * OPEN, time.monotonic() + seconds
    while time.monotonic() < until:
        command.refresh()
        found = min(found, site.count("user:1"))
        time.sleep(0.05)
    return found


@pytest.mark.row("F41")
@pytest.mark.parametrize("seconds", [25, -25, 300])
def test_nobody_who_lives_is_buried(
    seconds: int, server: SteppingServer, command: HostRefresher, make_worker: MakeWorker, figure: Callable[..., None]
) -> None:
    site = Site(server.url)
    workers = [make_worker(REDIS=server.url) for _ in range(2)]
    for worker in workers:
        worker.ask("acquire", "user:1", OPEN)
    uids = [worker.ask("uid") for worker in workers]
    assert lowest(site, command, 3 * QUICK["BEAT_INTERVAL"]) == 2 * OPEN
    server.step(seconds)
    assert lowest(site, command, 3 * QUICK["BEAT_INTERVAL"]) == 2 * OPEN
    assert [worker.ask("uid") for worker in workers] == uids
    workers[0].kill()
    took = wait_until(
        lambda: (command.refresh(), site.count("user:1"))[1] == OPEN,
        timeout=slack(2 * QUICK["PROCESS_TTL"] + QUICK["BEAT_INTERVAL"]),
        every=0.1,
    )
    figure("who died is found after, with a silence of 2 s,", took, "s")


@pytest.mark.row("F41")
def test_a_step_beyond_the_lives_of_keys_is_a_loss_like_any(
    server: SteppingServer, quick: None, make_worker: MakeWorker, figure: Callable[..., None]
) -> None:
    site, worker = Site(server.url), make_worker(REDIS=server.url)
    worker.ask("acquire", "user:1", OPEN)
    server.step(3600)
    took = wait_until(lambda: site.count("user:1") == OPEN, timeout=slack(AGAIN_SECONDS))
    figure("registered again after, with a beat of 0.5 s,", took, "s")


def test_the_only_pass_of_the_command(server: SteppingServer, command: HostRefresher, make_worker: MakeWorker) -> None:
    worker = make_worker(REDIS=server.url)
    worker.ask("acquire", "user:1", OPEN)
    server.step(25)
    found: Any = command.once()
    assert (found.dead, found.freed, Site(server.url).count("user:1")) == (0, 0, OPEN)

"""A site of several processes that starts without Redis, gets it, and loses it under load: it answers all the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testproject.check.standstill import elapsed
from tests.http.servers import Server as Site
from tests.http.servers import Visit
from tests.servers import RedisServer, slack, wait_until

LIMIT, PROCESSES, CLIENTS = 40, 4, 4
RULES: dict[str, Any] = {
    "api": {"rate": f"{LIMIT}/h", "algorithm": "gcra", "burst": LIMIT, "key": "tests.http.served.who"}
}


@pytest.fixture
def server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Load:
    """Clients that ask one after the other, until the block ends; what they got, and how long it took at most."""

    def __init__(self, site: Site) -> None:
        self.site, self.statuses, self.slowest = site, list[int](), 0.0
        self.done = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(f"client-{number}",)) for number in range(CLIENTS)]

    def ask(self, name: str) -> None:
        while not self.done.is_set():
            began = time.monotonic()
            with Visit(self.site, f"/middleware/quick/{name}") as visit:
                self.statuses += visit.statuses()
            self.slowest = max(self.slowest, elapsed(began))

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join()


def statuses(site: Site, name: str, times: int) -> list[int]:
    found: list[int] = []
    for _ in range(times):
        with Visit(site, f"/middleware/quick/{name}") as visit:
            found += visit.statuses()
    return found


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F01", "F02")
def test_it_answers_whether_redis_is_there_or_not(server: RedisServer, figure: Callable[..., None]) -> None:
    server.kill()
    with Site("uvicorn-4", server, RULES, DEADLINE=0.1) as site:
        assert statuses(site, "alone", 5) == [200] * 5
        server.start()
        turns = iter(range(100))

        def is_shared() -> bool:  # by all processes: exactly the limit passes, of whoever asks them all
            return statuses(site, f"turn-{next(turns)}", LIMIT + PROCESSES).count(200) == LIMIT

        wait_until(is_shared, timeout=slack(20), every=0.2)
        with Load(site) as load:
            wait_until(lambda: len(load.statuses) > 100)
            server.kill()
            before = len(load.statuses)
            wait_until(lambda: len(load.statuses) > before + 300, timeout=slack(20))
    figure("longest answer while Redis is killed", load.slowest * 1000, "ms")
    assert set(load.statuses) <= {200, 429}
    assert load.slowest <= slack(1.0), "of a site that is asked by four at once, on whatever machine"

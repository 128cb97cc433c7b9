"""Under gevent a Redis that hangs holds up no request for longer than under threads."""

import http.client
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.proxy import Proxy
from tests.servers import RedisServer, need_package, slack, wait_until
from tests.web_server import WebServer

ROOT = Path(__file__).parents[2]
DEADLINE = 0.1
AT_ONCE = 24  # more than there are connections to Redis


class Site(WebServer):
    def __init__(self, redis_url: str, folder: Path, *options: str) -> None:
        need_package("gunicorn")
        need_package("gevent")
        super().__init__("gunicorn", folder, "Booting worker")
        environment = {**os.environ, "REDIS_URL": redis_url}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        bind = ["--bind", f"127.0.0.1:{self.port}", "--worker-class", "gevent"]
        self.launch(["gunicorn", *bind, *options, "tests.green:application"], environment)

    def get(self, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.load(answer)
        finally:
            connection.close()

    def decisions(self) -> list[dict[str, Any]]:
        self.get("/said")
        with ThreadPoolExecutor(AT_ONCE) as crowd:
            assert {status for status, _ in crowd.map(self.get, ["/quick"] * 2 * AT_ONCE)} == {200}
        return self.get("/said")[1]["decisions"][:-1]  # type: ignore[no-any-return]

    def warm_up(self) -> None:
        """Connect to Redis and load everything; on a busy machine some decisions may be late."""
        wait_until(lambda: not all(each["degraded"] for each in self.decisions()), timeout=slack(20))


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def site(server: RedisServer, proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(proxy.url, server.folder, *getattr(request, "param", ()))
    try:
        site.wait_until_it_serves()
        site.warm_up()
        yield site
    finally:
        site.kill()


Fault = Callable[[RedisServer, Proxy], object]
FAULTS: dict[str, tuple[Fault, Fault]] = {
    "hangs": (lambda server, proxy: server.pause(), lambda server, proxy: server.resume()),
    "is killed": (lambda server, proxy: server.kill(), lambda server, proxy: server.start()),
    "is behind a black hole": (lambda server, proxy: proxy.set("dead"), lambda server, proxy: proxy.set("pass")),
}


@pytest.mark.parametrize(
    ("site", "fault"), [((), fault) for fault in FAULTS] + [(("--preload",), "hangs")], indirect=["site"]
)
def test_where_redis_fails_every_decision_of_a_crowd_ends_in_time(
    site: Site, fault: str, server: RedisServer, proxy: Proxy
) -> None:
    begin, end = FAULTS[fault]
    begin(server, proxy)
    try:
        decisions = site.decisions()
    finally:
        end(server, proxy)
    assert len(decisions) == 2 * AT_ONCE and all(each["degraded"] for each in decisions)
    assert max(each["seconds"] for each in decisions) <= DEADLINE + slack(0.05)
    site.warm_up()


def test_slots_are_held_and_the_agent_says_that_the_process_lives(server: RedisServer, site: Site) -> None:
    with server.client() as redis, ThreadPoolExecutor(5) as crowd:
        asked = [crowd.submit(site.get, "/held/3") for _ in range(5)]
        wait_until(lambda: sum(each.done() for each in asked) == 2, timeout=slack(2))
        (uid,) = redis.zrange("dt:{p}:live", 0, -1)
        beat = redis.zscore("dt:{p}:live", uid)
        wait_until(lambda: redis.zscore("dt:{p}:live", uid) > beat, timeout=slack(5))
        assert sorted(each.result()[0] for each in asked) == [200, 200, 200, 429, 429]
        wait_until(lambda: site.get("/held/0")[0] == 200, timeout=slack(2))

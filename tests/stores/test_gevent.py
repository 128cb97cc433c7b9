"""Under gevent a Redis that hangs holds up no request for longer than under threads."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.proxy import Proxy
from tests.servers import RedisServer, free_port, need_package, slack, wait_until

ROOT = Path(__file__).parents[2]
DEADLINE = 0.1
AT_ONCE = 10  # more than there are connections to Redis


class Site:
    """gunicorn with one gevent worker."""

    def __init__(self, redis_url: str, folder: Path, *options: str, **settings: Any) -> None:
        need_package("gunicorn")
        need_package("gevent")
        self.port = free_port()
        self.log = folder / f"gunicorn-{self.port}.log"
        environment = {**os.environ, "REDIS_URL": redis_url, "SETTINGS": json.dumps(settings)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        bind = ["--bind", f"127.0.0.1:{self.port}", "--worker-class", "gevent", "--graceful-timeout", "2"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", *bind, *options, "tests.green:application"],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(self._answers, timeout=slack(20))
        except BaseException:
            print(self.log.read_text())
            self.stop()
            raise

    def get(self, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text
        finally:
            connection.close()

    def storm(self, times: int) -> None:
        """So many requests, as many at once as a browser's crowd."""
        with ThreadPoolExecutor(AT_ONCE) as crowd:
            assert {status for status, _ in crowd.map(self.get, ["/quick"] * times)} == {200}

    def warm_up(self) -> None:
        """Connect to Redis and load everything; on a busy machine some decisions may be late."""
        wait_until(self._is_served, timeout=slack(20))

    def _is_served(self) -> bool:
        self.storm(2 * AT_ONCE)
        return not all(one["degraded"] for one in self.decisions())

    def decisions(self) -> list[dict[str, Any]]:
        """Those since the last time, apart from that about this request."""
        return self.get("/said")[1]["decisions"][:-1]  # type: ignore[no-any-return]

    def _answers(self) -> bool:
        assert self.process.poll() is None
        try:
            return self.get("/quick")[0] == 200
        except OSError:
            return False

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture
def server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def hold(site: Site) -> None:
    """Every decision of a crowd ended in time, by the failure policy."""
    site.storm(2 * AT_ONCE)
    decisions = site.decisions()
    assert len(decisions) == 2 * AT_ONCE and all(one["degraded"] for one in decisions)
    longest = max(one["seconds"] for one in decisions)
    assert longest <= DEADLINE + slack(0.05), longest


@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["", "preload"])
def test_a_redis_that_hangs(server: RedisServer, preload: tuple[str, ...]) -> None:
    with Site(server.url, server.folder, *preload) as site:
        site.warm_up()
        server.pause()
        try:
            hold(site)
        finally:
            server.resume()
        site.warm_up()


def test_a_redis_that_is_killed(server: RedisServer) -> None:
    with Site(server.url, server.folder) as site:
        site.warm_up()
        server.kill()
        hold(site)
        server.start()
        site.warm_up()


@pytest.mark.parametrize("before", [False, True], ids=["from the start", "later"])
def test_a_redis_behind_a_black_hole(server: RedisServer, before: bool) -> None:
    with Proxy(server.port) as proxy:
        if not before:
            proxy.set("dead")
        with Site(proxy.url, server.folder) as site:
            if before:
                site.warm_up()
                proxy.set("dead")
                hold(site)
            else:
                site.storm(AT_ONCE)
                assert all(one["degraded"] for one in site.decisions())


def test_replies_that_trickle_in(server: RedisServer) -> None:
    with Proxy(server.port) as proxy, Site(proxy.url, server.folder) as site:
        site.warm_up()
        proxy.set("trickle")
        hold(site)


def test_slots_are_held_and_the_agent_says_that_the_process_lives(server: RedisServer) -> None:
    with Site(server.url, server.folder) as site, server.client() as redis, ThreadPoolExecutor(5) as crowd:
        asked = [crowd.submit(site.get, "/held/3") for _ in range(5)]
        wait_until(lambda: sum(one.done() for one in asked) == 2, timeout=slack(2))
        assert sorted(one.result()[0] for one in asked if one.done()) == [429, 429]
        (uid,) = redis.zrange("dt:{p}:live", 0, -1)
        beat = redis.zscore("dt:{p}:live", uid)
        wait_until(lambda: redis.zscore("dt:{p}:live", uid) > beat, timeout=slack(5))
        assert sorted(one.result()[0] for one in asked) == [200, 200, 200, 429, 429]
        wait_until(lambda: site.get("/held/0")[0] == 200, timeout=slack(2))


FORKS = """
from gevent import monkey
monkey.patch_all()
import os, sys, time
from django.conf import settings
settings.configure(SECRET_KEY="green", INSTALLED_APPS=[], DJANGO_THROTTLE={"BEAT_INTERVAL": 0.1})
from django_throttle import agent_thread
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore

store = RedisStore(sys.argv[1], deadline=5.0)
rate, cap = Limiter([Rule("rate", "100/min")], store), Limiter([Rule("cap", limit=9, algorithm="concurrency")], store)
ran = []
run = agent_thread.Job.run
agent_thread.Job.run = lambda job: (ran.append(job.name), run(job))

def degraded():
    return rate.acquire("user:1").degraded or cap.acquire("user:1").degraded

def settle():
    while not store.leases.is_introduced:
        time.sleep(0.01)

assert not degraded()
settle()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        ran.clear()
        time.sleep(0.5)
        assert not ran, "the parent's agent went on in its child"
        assert not degraded()
        settle()
        assert ran.count("sending the beat") < 20
        os._exit(7)
    children.append(child)
assert not degraded()
assert [os.WEXITSTATUS(os.waitpid(child, 0)[1]) for child in children] == [7, 7, 7]
assert not degraded()
print(store.leases.uid, len(store.leases), flush=True)
os._exit(0)
"""


def test_forked_children_decide_and_leave_their_parent_alone(server: RedisServer) -> None:
    need_package("gevent")
    done = subprocess.run(
        [sys.executable, "-c", FORKS, server.url], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    uid, leases = done.stdout.split()
    with server.client() as redis:
        assert uid in redis.zrange("dt:{p}:live", 0, -1)  # its children may have been found dead by now
        assert leases == "3"


REFUSES = """
import eventlet
eventlet.monkey_patch()
import sys
from django.conf import settings
settings.configure(SECRET_KEY="green", INSTALLED_APPS=["django_throttle"], DJANGO_THROTTLE={"REDIS": sys.argv[1]})
import django
django.setup()
from django.core import checks
from django_throttle.exceptions import InvalidSetting
from django_throttle.stores import get_store
print(*[message.id for message in checks.run_checks() if message.id.startswith("django_throttle")])
try:
    get_store()
except InvalidSetting as error:
    print(error)
"""


def test_eventlet_is_refused_by_a_check_and_when_the_store_is_made(server: RedisServer) -> None:
    need_package("eventlet")
    line = [sys.executable, "-W", "ignore", "-c", REFUSES, server.url]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    number, error = done.stdout.splitlines()
    assert number == "django_throttle.E035" and "eventlet" in error and "gevent" in error

"""What requests are charged in the end, on real servers and databases: what Django's own query log lists."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any
from uuid import uuid4

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from testproject import settings as site_settings
from testproject.services import NotRunning
from tests.databases import PostgreSQL
from tests.http.servers import Server, Visit
from tests.servers import RedisServer, wait_until

RESERVE, LIMIT = 5, 1_000_000
OPTIONS: dict[str, Any] = {
    "rate": f"{LIMIT}/day",
    "algorithm": "fixed_window",
    "unit": "queries",
    "reserve": RESERVE,
    "key": "tests.http.served.who",
}
RULES = {"queries": OPTIONS, "kind": {**OPTIONS, "refund_on": ["cancelled"]}}
MIDDLEWARE = [
    "tests.http.measured_site.query_log",
    "django.middleware.gzip.GZipMiddleware",
    "django.middleware.http.ConditionalGetMiddleware",
    "django_throttle.middleware.ThrottleMiddleware",
]
MANY = 30
GZIP = {"Accept-Encoding": "gzip"}
KINDS = ["sync", "async", "stream", "astream", "template", "drf", "decorated"]
PREPARE = (
    "import django; django.setup();"
    "from django.core.management import call_command; call_command('migrate', verbosity=0);"
    "from django.contrib.auth.models import Group; Group.objects.bulk_create(Group(name=str(n)) for n in range(50))"
)


class MeasuredServer(Server):
    site = "tests.http.measured_site"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def groups(request: pytest.FixtureRequest, servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database that has groups."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        address = str(tmp_path_factory.mktemp("measured") / "db.sqlite3")
        if request.param == "postgresql":
            try:
                address = stack.enter_context(PostgreSQL()).url
            except NotRunning as reason:
                pytest.skip(str(reason))
        patch.setenv("DATABASE", address)
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
        subprocess.run([sys.executable, "-c", PREPARE], env=environment, check=True)
        yield address


@pytest.fixture(scope="module", params=["gunicorn-4", "uvicorn-h11"])
def server(request: pytest.FixtureRequest, redis_server: RedisServer, groups: str) -> Iterator[Server]:
    with MeasuredServer(request.param, redis_server, RULES, MIDDLEWARE) as running:
        yield running


class Caller:
    """Somebody with a budget: what Redis has charged, and what the site says that it used."""

    def __init__(self, redis: RedisServer) -> None:
        self.name, self._redis = uuid4().hex, redis
        store = RedisStore(redis.url, secret=site_settings.SECRET_KEY, deadline=5.0)
        self._limiters = {name: Limiter([Rule(name, **options)], store) for name, options in RULES.items()}

    def charged(self, rule: str = "queries") -> int:
        return LIMIT - (self._limiters[rule].peek(f"tests.http.served.who:{self.name}").remaining or 0)

    def told(self, what: str) -> list[int]:
        with self._redis.client() as redis:
            return sorted(map(int, redis.lrange(f"{what}:{self.name}", 0, -1)))  # type: ignore[arg-type]

    def get(self, server: Server, kind: str, queries: int, **headers: str) -> Any:
        """The answer; its body has been read."""
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", f"/{kind}/{self.name}?queries={queries}", headers=headers)
        answer = connection.getresponse()
        try:
            answer.read()
        finally:
            connection.close()
        return answer

    def is_settled(self, calls: int) -> Callable[[], bool]:
        return lambda: len(self.told("logged")) == calls and self.charged() == sum(self.told("logged"))


def test_an_answer_that_is_replaced_is_charged_too(server: Server, redis_server: RedisServer) -> None:
    """By ConditionalGetMiddleware, which answers 304 and leaves the response that was made."""
    caller = Caller(redis_server)
    tag = caller.get(server, "sync", MANY).headers["ETag"]
    assert caller.get(server, "sync", MANY, **{"If-None-Match": tag}).status == 304
    wait_until(caller.is_settled(2), timeout=20)
    assert caller.charged() == 2 * (MANY + 1)


def test_two_hundred_parallel_requests_are_charged_their_sum(server: Server, redis_server: RedisServer) -> None:
    caller = Caller(redis_server)
    with ThreadPoolExecutor(16) as pool:
        kinds = [KINDS[number % len(KINDS)] for number in range(200)]
        answers = list(pool.map(lambda number: caller.get(server, kinds[number], number % 23, **GZIP), range(200)))
    assert {answer.status for answer in answers} == {200}
    wait_until(caller.is_settled(200), timeout=60)
    assert caller.told("logged") == caller.told("metered") == sorted(number % 23 + 1 for number in range(200))


def test_a_client_that_leaves_is_charged_what_was_used(server: Server, redis_server: RedisServer) -> None:
    """Unless the rule refunds what its client cancels. A server of WSGI does not tell that a client has left."""
    if not server.name.startswith("uvicorn"):
        pytest.skip("only a server of ASGI tells")
    caller = Caller(redis_server)
    with Visit(server, f"/ahang/{caller.name}?queries={MANY}"):
        with redis_server.client() as redis:
            wait_until(lambda: redis.exists(f"begun:{caller.name}"), timeout=20)
        assert (caller.charged(), caller.charged("kind")) == (RESERVE, RESERVE)
    wait_until(lambda: caller.charged() == MANY + 1, timeout=20)
    wait_until(lambda: caller.charged("kind") == 0, timeout=20)

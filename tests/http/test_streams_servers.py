"""Streams that spend, on real servers: nobody overspends, and what was spent is what is charged in the end."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any
from uuid import uuid4

import pytest
from websockets.asyncio.client import connect

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from testproject import settings as site_settings
from tests.http.servers import Server, Visit
from tests.servers import RedisServer, wait_until

LIMIT, RESERVE, STREAMS = 3000, 20, 50
BATCH = LIMIT // 100
TOKENS: dict[str, Any] = {
    "rate": f"{LIMIT}/day", "algorithm": "fixed_window", "unit": "units", "reserve": RESERVE,
    "key": "tests.http.streams_site.tenant", "events": ["request", "message"],
}  # fmt: skip
KINDS = [
    ("uvicorn-h11", "answer"), ("uvicorn-h11", "chat"), ("daphne", "answer"), ("daphne", "chat"),
    ("gunicorn", "export"),
]  # fmt: skip
MUCH = 1_000_000


class StreamsServer(Server):
    site = "tests.http.streams_site"


class Tenant:
    def __init__(self, server: Server, redis: RedisServer, kind: str) -> None:
        self.server, self.redis, self.kind, self.name = server, redis, kind, uuid4().hex
        store = RedisStore(redis.url, secret=site_settings.SECRET_KEY, deadline=5.0)
        # How much counts, also beyond the limit, which is no part of where it counts.
        self.limiter = Limiter([Rule.from_options("tokens", {**TOKENS, "rate": f"{MUCH}/day"})], store)

    def charged(self) -> int:
        return MUCH - (self.limiter.peek(f"{TOKENS['key']}:{self.name}").remaining or 0)

    def spent(self) -> int:
        with self.redis.client() as redis:
            return int(redis.get(f"spent:{self.name}") or 0)

    def read(self) -> str:
        if self.kind == "chat":
            return asyncio.run(self._talk())
        with closing(HTTPConnection("127.0.0.1", self.server.port, timeout=60)) as connection:
            connection.request("GET", f"/{self.kind}/{self.name}")
            return connection.getresponse().read().decode().rstrip().rpartition("\n")[2]

    async def _talk(self) -> str:
        async with connect(f"ws://127.0.0.1:{self.server.port}/chat/{self.name}", ping_interval=None) as socket:
            await socket.send(json.dumps({"tenant": self.name}))
            while (frame := json.loads(await socket.recv()))["type"] == "token":
                pass
            return f"{frame}"

    def settles(self) -> None:
        try:
            wait_until(lambda: self.charged() == self.spent(), timeout=20)
        finally:
            print(f"{self.spent()} spent, {self.charged()} charged")


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def shared(request: pytest.FixtureRequest, redis_server: RedisServer, servers: None) -> Iterator[tuple[Server, str]]:
    name, kind = request.param
    with StreamsServer(name, redis_server, {"tokens": TOKENS}, []) as server:
        yield server, kind


@pytest.fixture
def tenant(shared: tuple[Server, str], redis_server: RedisServer) -> Tenant:
    server, kind = shared
    if server.process.poll() is not None:
        server.start()
    return Tenant(server, redis_server, kind)


def test_streams_in_parallel_never_overspend_by_more_than_a_chunk_each(tenant: Tenant) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        ends = list(pool.map(lambda _: tenant.read(), range(STREAMS)))
    word = {"answer": "quota-exceeded", "chat": "rate_limited", "export": "# incomplete"}[tenant.kind]
    refused = [end for end in ends if "quota-exceeded" in end or "rate_limited" in end]
    assert any(word in end for end in ends)
    assert len(refused) == STREAMS or tenant.kind == "export"
    assert LIMIT - STREAMS * BATCH <= tenant.spent() <= LIMIT + STREAMS
    tenant.settles()


def test_a_client_that_leaves_is_charged_what_was_spent(tenant: Tenant) -> None:
    if tenant.kind == "chat":

        async def leave() -> None:
            async with connect(f"ws://127.0.0.1:{tenant.server.port}/chat/{tenant.name}") as socket:
                await socket.send(json.dumps({"tenant": tenant.name}))
                for _ in range(100):
                    await socket.recv()

        asyncio.run(leave())
    else:
        with Visit(tenant.server, f"/{tenant.kind}/{tenant.name}"):
            wait_until(lambda: tenant.spent() >= 100, timeout=20)
    tenant.settles()
    assert tenant.spent() >= 100


# The client of a chat would have to be killed too.
@pytest.mark.parametrize("shared", [kind for kind in KINDS if kind[1] != "chat"], indirect=True, ids="-".join)
def test_a_worker_that_is_killed_leaves_its_reserves_charged(tenant: Tenant) -> None:
    with ExitStack() as visits:
        streams = [visits.enter_context(Visit(tenant.server, f"/{tenant.kind}/{tenant.name}")) for _ in range(5)]
        wait_until(lambda: tenant.spent() >= 300, timeout=20)
        tenant.server.kill()
    spent, charged = tenant.spent(), tenant.charged()
    print(f"{spent} spent, {charged} charged")
    assert spent - len(streams) <= charged <= spent + len(streams) * max(BATCH, RESERVE)  # one each may be asked for

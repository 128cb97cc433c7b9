"""However a response ends, on real servers, what its request held of a concurrency rule comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.server import Visit
from tests.http.servers import ASGI, Server
from tests.http.test_slots import CAP, RULES, Caller
from tests.servers import RedisServer, slack, wait_until

SERVERS = ["uvicorn-h11", "hypercorn", "daphne", "granian", "gunicorn"]
FAILURES = ["sync&at=0", "sync&at=2", "async&at=0", "async&at=2", "file&at=0", "file&at=2", "header"]
# Where the middleware is not in front, each door looks after its request by itself.
IN_FRONT = {"behind the middleware": None, "by themselves": []}
SOON = 3.0  # what nobody can give back any more is found twice a second


@pytest.fixture(scope="module", params=SERVERS)
def name(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=IN_FRONT)
def server(request: pytest.FixtureRequest, name: str, redis_server: RedisServer) -> Iterator[Server]:
    if request.param == "by themselves" and name not in ("uvicorn-h11", "gunicorn"):
        pytest.skip("one server of each kind is enough")
    with Server(name, redis_server, RULES, IN_FRONT[request.param]) as running:
        yield running


@pytest.fixture
def caller(redis_server: RedisServer) -> Caller:
    return Caller(redis_server)


def begun(redis_server: RedisServer, caller: Caller) -> None:
    with redis_server.client() as redis:
        wait_until(lambda: redis.exists(f"begun:{caller.name}"), timeout=20)


@pytest.mark.parametrize("door", ["decorator", "drf"])
@pytest.mark.parametrize("how", FAILURES)
def test_a_response_that_fails(server: Server, redis_server: RedisServer, caller: Caller, door: str, how: str) -> None:
    if (server.name, how, door) == ("gunicorn", "header", "drf"):
        pytest.skip("REST framework's view and its request hold each other: the garbage collector finds them")
    with Visit(server, f"/{door}/broken/{caller.name}?kind={how}"):  # it stays: daphne would wait for it for ever
        begun(redis_server, caller)
        assert wait_until(lambda: caller.held() == 0, timeout=20) < slack(SOON)


@pytest.mark.parametrize("door", ["decorator", "drf"])
@pytest.mark.parametrize("doing", ["stream", "broken"])
def test_a_client_that_leaves(server: Server, caller: Caller, door: str, doing: str) -> None:
    if doing == "broken" and server.name not in ASGI:
        pytest.skip("a silent stream keeps a thread of a WSGI server busy")
    visits = [Visit(server, f"/{door}/{doing}/{caller.name}?kind=silent") for _ in range(CAP)]
    wait_until(lambda: caller.held() == CAP, timeout=20)
    for visit in visits:
        visit.leave()
    assert wait_until(lambda: caller.held() == 0, timeout=20) < slack(SOON)


@pytest.mark.parametrize("door", ["decorator", "drf"])
def test_a_client_of_a_file_that_leaves(server: Server, redis_server: RedisServer, caller: Caller, door: str) -> None:
    with Visit(server, f"/{door}/broken/{caller.name}?kind=file&at=1000"):
        begun(redis_server, caller)
    assert wait_until(lambda: caller.held() == 0, timeout=20) < slack(SOON)


def test_a_server_that_is_stopped(name: str, redis_server: RedisServer, caller: Caller) -> None:
    with Server(name, redis_server, RULES) as server:
        visits = [Visit(server, f"/decorator/stream/{caller.name}") for _ in range(CAP)]
        wait_until(lambda: caller.held() == CAP, timeout=20)
        server.signal()
        for visit in visits:  # uvicorn kills itself where they stay; that is another test's
            visit.leave()
        wait_until(lambda: caller.held() == 0, timeout=20)

"""However a response ends, on real servers, what its request held of a concurrency rule comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any

import pytest

from tests.http.server import Visit
from tests.http.servers import ASGI, Server
from tests.http.test_slots import CAP, RULES, Caller
from tests.servers import RedisServer, slack, wait_until

DOORS = ["decorator", "drf"]
FAILURES = ["sync&at=0", "sync&at=2", "async&at=0", "async&at=2", "file&at=0", "file&at=2", "header"]
SERVERS = [(name, None) for name in ("uvicorn-h11", "hypercorn", "daphne", "granian", "gunicorn")]
# Without the middleware each door looks after its request by itself: one server of each kind shows it.
BARE: list[Any] = [("uvicorn-h11", []), ("gunicorn", [])]
SOON = 3.0  # what nobody can give back any more is found twice a second


def named(server: Any) -> str:
    name, middleware = server
    return name if middleware is None else f"{name} without the middleware"


@pytest.fixture(scope="module", params=SERVERS + BARE, ids=named)
def shared(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Server]:
    name, middleware = request.param
    with Server(name, redis_server, RULES, middleware) as running:
        yield running


@pytest.fixture
def server(shared: Server) -> Server:
    if shared.process.poll() is not None:
        shared.start()
    return shared


def begun(redis_server: RedisServer, caller: Caller) -> None:
    with redis_server.client() as redis:
        wait_until(lambda: redis.exists(f"begun:{caller.name}"), timeout=20)


def soon_free(callers: dict[Any, Caller]) -> bool:
    """Whether none of them holds anything any more; who does is said where the test fails."""
    try:
        return wait_until(lambda: not any(caller.held() for caller in callers.values()), timeout=20) < slack(SOON)
    finally:
        print("held:", {way: caller.held() for way, caller in callers.items() if caller.held()})


def test_responses_that_fail(server: Server, redis_server: RedisServer) -> None:
    ways = list(product(DOORS, FAILURES))
    if server.name == "gunicorn":  # REST framework's view and its request hold each other, as only the collector finds
        ways.remove(("drf", "header"))
    callers = {way: Caller(redis_server) for way in ways}
    with ExitStack() as visits:
        for (door, how), caller in callers.items():  # they stay: daphne would wait for one of them for ever
            visits.enter_context(Visit(server, f"/{door}/broken/{caller.name}?kind={how}"))
        for caller in callers.values():
            begun(redis_server, caller)
        assert soon_free(callers)


def test_clients_that_leave(server: Server, redis_server: RedisServer) -> None:
    callers: dict[Any, Caller] = {}
    visits: list[Visit] = []
    for door in DOORS:
        caller = callers[door, "file"] = Caller(redis_server)
        with Visit(server, f"/{door}/broken/{caller.name}?kind=file&at=1000"):
            begun(redis_server, caller)
    wheres = ["stream/{}"]
    if server.name in ASGI:  # a silent stream keeps a thread of a WSGI server busy
        wheres.append("broken/{}?kind=silent")
    for door, where in product(DOORS, wheres):
        caller = callers[door, where] = Caller(redis_server)
        visits += [Visit(server, f"/{door}/{where.format(caller.name)}") for _ in range(CAP)]
        wait_until(lambda caller=caller: caller.held() == CAP, timeout=20)
    for visit in visits:
        visit.leave()
    assert soon_free(callers)


def test_a_server_that_is_stopped(server: Server, redis_server: RedisServer) -> None:
    """The last test here, as whatever comes after it starts the server again."""
    caller = Caller(redis_server)
    visits = [Visit(server, f"/decorator/stream/{caller.name}") for _ in range(CAP)]
    wait_until(lambda: caller.held() == CAP, timeout=20)
    server.signal()
    for visit in visits:  # uvicorn kills itself where they stay; that is another test's
        visit.leave()
    wait_until(lambda: caller.held() == 0, timeout=20)
    server.kill()

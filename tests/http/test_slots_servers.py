"""On real servers slots come back however a response ends, and bursts at once are admitted exactly up to the limit."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as site_settings

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.http.servers import ASGI, Server, Visit
from tests.servers import RedisServer, wait_until

CAP = 3
NAMED: dict[str, Any] = {"limit": CAP, "algorithm": "concurrency", "events": ["inflight"]}
NAMED["key"] = "tests.http.served.caller"
RULES = {"slots": {**NAMED, "scopes": ["middleware", "drf"]}}
INNER = ["decorator", "drf"]
FAILURES = ["sync&at=0", "sync&at=2", "async&at=0", "async&at=2", "file&at=0", "file&at=2", "header"]
SERVERS = [(name, None) for name in ("uvicorn-h11", "hypercorn", "daphne", "granian", "gunicorn")]
# Without the middleware each entry point looks after its request by itself: one server of each kind shows it.
BARE: list[Any] = [("uvicorn-h11", []), ("gunicorn", [])]


class KeyedCaller:
    """Somebody with a name of its own, and how many of its requests Redis counts as open."""

    def __init__(self, redis: RedisServer) -> None:
        self.name, self.redis = uuid4().hex, redis
        store = RedisStore(redis.url, secret=site_settings.SECRET_KEY, deadline=5.0)
        self._limiter = Limiter([Rule("slots", **NAMED)], store)

    def held(self) -> int:
        remaining = self._limiter.peek(f"tests.http.served.caller:{self.name}").remaining
        return CAP - (remaining or 0)

    def holds(self, slots: int) -> None:
        wait_until(lambda: self.held() == slots, timeout=20)

    def has_begun(self) -> None:
        with self.redis.client() as redis:
            wait_until(lambda: redis.exists(f"begun:{self.name}"), timeout=20)


def named(server: Any) -> str:
    name, middleware = server
    return name if middleware is None else f"{name} without the middleware"


@pytest.fixture(scope="module", params=SERVERS + BARE, ids=named)
def shared(request: pytest.FixtureRequest, redis_server: RedisServer, servers: None) -> Iterator[Server]:
    name, middleware = request.param
    with Server(name, redis_server, RULES, middleware) as running:
        yield running


@pytest.fixture
def server(shared: Server) -> Server:
    if shared.process.poll() is not None:
        shared.start()
    return shared


@pytest.fixture
def caller(redis_server: RedisServer) -> KeyedCaller:
    return KeyedCaller(redis_server)


def all_free(callers: dict[Any, KeyedCaller]) -> None:
    try:
        wait_until(lambda: not any(caller.held() for caller in callers.values()), timeout=20)
    finally:
        print("held:", {way: caller.held() for way, caller in callers.items() if caller.held()})


ONE_AN_HOUR = {"slots": NAMED, "api": {"rate": "1/h", "key": "tests.http.served.caller"}}
KINDS = ["gunicorn-sync", "gunicorn", "gunicorn-gevent", "uvicorn-h11", "daphne", "hypercorn", "granian"]


@pytest.mark.smoke
@pytest.mark.parametrize("name", KINDS)
def test_a_request_is_counted_refused_and_gives_its_slot_back(
    redis_server: RedisServer, servers: None, name: str
) -> None:
    caller = KeyedCaller(redis_server)
    with Server(name, redis_server, ONE_AN_HOUR) as server:
        statuses = []
        for _ in range(2):
            with Visit(server, f"/middleware/quick/{caller.name}") as visit:
                statuses += visit.statuses()
        assert statuses == [200, 429]
        wait_until(lambda: caller.held() == 0)


def test_responses_that_fail(server: Server, redis_server: RedisServer) -> None:
    ways = list(product(INNER, FAILURES))
    if server.name == "gunicorn":  # REST framework's view and its request hold each other, as only the collector finds
        ways.remove(("drf", "header"))
    callers = {way: KeyedCaller(redis_server) for way in ways}
    with ExitStack() as visits:
        for (inner, how), caller in callers.items():  # they stay: daphne would wait for one of them for ever
            visits.enter_context(Visit(server, f"/{inner}/broken/{caller.name}?kind={how}"))
        for caller in callers.values():
            caller.has_begun()
        all_free(callers)


def test_clients_that_leave(server: Server, redis_server: RedisServer) -> None:
    callers: dict[Any, KeyedCaller] = {}
    visits: list[Visit] = []
    for inner in INNER:
        caller = callers[inner, "file"] = KeyedCaller(redis_server)
        with Visit(server, f"/{inner}/broken/{caller.name}?kind=file&at=1000"):
            caller.has_begun()
    wheres = list(product(INNER, ["stream/{}"]))
    if server.name in ASGI:  # a silent stream keeps a thread of a WSGI server busy
        wheres += [*product(INNER, ["broken/{}?kind=silent"]), ("decorator", "wait/{}")]
    for inner, where in wheres:
        caller = callers[inner, where] = KeyedCaller(redis_server)
        visits += [Visit(server, f"/{inner}/{where.format(caller.name)}") for _ in range(CAP)]
        caller.holds(CAP)
        with Visit(server, f"/{inner}/quick/{caller.name}") as refused:
            assert refused.statuses() == [429]
    for visit in visits:
        visit.leave()
    all_free(callers)


def test_a_server_that_is_stopped(server: Server, caller: KeyedCaller) -> None:
    """The last test of all servers, as whatever comes after it starts the server again."""
    visits = [Visit(server, f"/decorator/stream/{caller.name}") for _ in range(CAP)]
    caller.holds(CAP)
    server.signal()
    for visit in visits:  # uvicorn kills itself where they stay; that is another test's
        visit.leave()
    caller.holds(0)
    server.kill()


def test_those_of_a_killed_server_are_swept_by_another(
    redis_server: RedisServer, servers: None, caller: KeyedCaller
) -> None:
    with Server("uvicorn-h11", redis_server, RULES) as asgi, Server("uvicorn-h11", redis_server, RULES) as dying:
        with Visit(asgi, f"/decorator/quick/{caller.name}") as served:  # from its first decision on it watches others
            assert served.statuses() == [200]
        visits = [Visit(dying, f"/decorator/wait/{caller.name}") for _ in range(CAP)]
        caller.holds(CAP)
        dying.kill()
        for visit in visits:
            visit.leave()
        wait_until(lambda: caller.held() == 0, timeout=30)


@pytest.mark.parametrize("name", ["uvicorn-h11", "wsgiref"])
def test_a_client_that_has_its_answer_has_its_slot_back(
    redis_server: RedisServer, servers: None, caller: KeyedCaller, name: str
) -> None:
    with Server(name, redis_server, RULES) as server:
        for _ in range(20):
            visits = [Visit(server, f"/decorator/quick/{caller.name}") for _ in range(CAP)]
            assert [visit.statuses() for visit in visits] == [[200]] * CAP
            for visit in visits:
                visit.leave()


LIMIT, BURST = 50, 200
LIMITED: dict[str, Any] = {"rate": f"{LIMIT}/h", "algorithm": "sliding_log", "key": "tests.http.served.caller"}
BURST_RULES = {
    "requests": {**LIMITED, "scopes": ["middleware"]},
    "logins": {**LIMITED, "scopes": ["drf"], "count_on": [401, 403]},
}


@pytest.fixture(scope="module")
def site(redis_server: RedisServer, servers: None) -> Iterator[Server]:
    with Server("uvicorn-4", redis_server, BURST_RULES) as running:
        yield running


def burst(site: Server, *wheres: str) -> Counter[int]:
    """A connection for each of them, opened beforehand, and all asked in one go."""
    visits = [Visit(site) for _ in wheres]
    for visit, where in zip(visits, wheres, strict=True):
        visit.ask(where)
    statuses = Counter(status for visit in visits for status in visit.statuses())
    for visit in visits:
        visit.leave()
    assert statuses.total() == len(wheres)
    return statuses


@pytest.mark.row("A25")
def test_a_parallel_burst_admits_exactly_the_limit(site: Server, figure: Callable[..., None]) -> None:
    statuses = burst(site, *[f"/middleware/quick/{uuid4().hex}"] * BURST)
    figure(f"passed of {BURST} at once, limit {LIMIT},", statuses[200])
    assert statuses == {200: LIMIT, 429: BURST - LIMIT}


@pytest.mark.row("A26")
def test_pipelined_requests_are_counted_one_by_one(site: Server, figure: Callable[..., None]) -> None:
    where = f"/middleware/quick/{uuid4().hex}"
    visits = [Visit(site, *[where] * 20) for _ in range(10)]
    statuses = Counter(status for visit in visits for status in visit.statuses())
    for visit in visits:
        visit.leave()
    figure(f"passed of {BURST}, limit {LIMIT},", statuses[200])
    assert statuses == {200: LIMIT, 429: BURST - LIMIT}


@pytest.mark.row("A38")
def test_right_passwords_are_free_and_exactly_the_limit_of_wrong_ones_is_tried(site: Server) -> None:
    where = f"/drf/login/{uuid4().hex}"
    for _ in range(3):
        assert burst(site, *[f"{where}?password=right"] * LIMIT) == {200: LIMIT}
    statuses = burst(site, *[where, f"{where}?password=right"] * (BURST // 2))
    assert statuses[401] <= LIMIT

    def use_up() -> bool:  # a process goes on refusing for up to a second what it has refused
        statuses.update(burst(site, *[where] * 20))
        return statuses[401] >= LIMIT

    wait_until(use_up, timeout=20, every=0.05)
    assert burst(site, *[where] * BURST) == {429: BURST}
    assert statuses[401] == LIMIT

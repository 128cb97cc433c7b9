"""At most so many in flight, and whatever becomes of a request, its slot comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as site_settings
from django.http import FileResponse, HttpRequest, HttpResponse
from django.test import Client
from django.utils.http import http_date

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.http.slots import Slot
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.doors import BOTH, REDIS, Enforce
from tests.entry_points import site
from tests.http.served import SHORT
from tests.http.server import Site, Visit
from tests.servers import RedisServer, slack, wait_until

CAP = 3
SLOTS: dict[str, Any] = {"limit": CAP, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}
NAMED: dict[str, Any] = {**SLOTS, "key": "tests.http.served.who"}
QUEUE: dict[str, Any] = {
    "rate": "1/h",
    "burst": 2,
    "algorithm": "leaky_bucket",
    "action": "delay",
    "key": "tests.http.served.who",
    "scopes": ["middleware"],
}
RULES = {"slots": {**NAMED, "scopes": ["middleware", "drf"]}}


class TestAtOnce:
    @REDIS
    @pytest.mark.parametrize("door", ["middleware", "decorated", "drf"])
    def test_exactly_so_many_are_in_flight(self, enforce: Enforce, settings: Any, door: str) -> None:
        settings.MIDDLEWARE = site.MIDDLEWARE if door == "middleware" else []
        enforce(api=SLOTS)
        opened, inside = threading.Event(), threading.Semaphore(0)

        def hold(request: HttpRequest) -> HttpResponse:
            inside.release()
            opened.wait(20)
            return HttpResponse()

        site.DOINGS["hold"] = hold
        try:
            with ThreadPoolExecutor(20) as pool:
                asked = [pool.submit(Client().get, f"/{door}/hold") for _ in range(20)]
                for _ in range(CAP):
                    assert inside.acquire(timeout=20)
                wait_until(lambda: sum(one.done() for one in asked) == 20 - CAP, timeout=20)
                opened.set()
                statuses = sorted(one.result().status_code for one in asked)
        finally:
            del site.DOINGS["hold"]
        assert statuses == [200] * CAP + [429] * (20 - CAP)
        assert len(get_store().leases) == 0


def dropped(get_response: Any) -> Any:
    """Answers with something else, and forgets to close what it was given."""

    def middleware(request: HttpRequest) -> HttpResponse:
        get_response(request)
        return HttpResponse("else")

    return middleware


def raising(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> HttpResponse:
        get_response(request)
        raise ZeroDivisionError

    return middleware


def dated(request: HttpRequest) -> FileResponse:
    return FileResponse(BytesIO(b"file"), headers={"Last-Modified": http_date(1000)})


class TestThrownAway:
    """A response that nobody closes: Django's own conditional GET does so with every 304 of a file."""

    @BOTH
    @pytest.mark.parametrize(
        ("outer", "status"),
        [
            ("django.middleware.http.ConditionalGetMiddleware", 304),
            (f"{__name__}.dropped", 200),
            (f"{__name__}.raising", 500),
        ],
    )
    @pytest.mark.parametrize("inner", ["middleware", "decorated", "drf"])
    def test_its_slot_comes_back(self, enforce: Enforce, settings: Any, outer: str, status: int, inner: str) -> None:
        settings.MIDDLEWARE = [outer, *(site.MIDDLEWARE if inner == "middleware" else [])]
        store = enforce(api={**SLOTS, "limit": 1})
        site.DOINGS["dated"] = dated
        client, headers = Client(raise_request_exception=False), {"If-Modified-Since": http_date(2000)}
        try:
            for _ in range(3):
                assert client.get(f"/{inner}/dated", headers=headers).status_code == status
                assert Limiter([Rule("api", **{**SLOTS, "limit": 1})], store).peek("everyone").remaining == 1
        finally:
            del site.DOINGS["dated"]
        assert site.seen == [1] * 3


class Caller:
    """Somebody with a name of its own, and how many of its requests Redis counts as open."""

    def __init__(self, redis: RedisServer) -> None:
        self.name = uuid4().hex
        store = RedisStore(redis.url, secret=site_settings.SECRET_KEY, deadline=5.0)
        self._limiter = Limiter([Rule("slots", **NAMED)], store)

    def held(self) -> int:
        remaining = self._limiter.peek(f"tests.http.served.who:{self.name}").remaining
        return CAP - (remaining or 0)


@pytest.fixture(scope="module")
def asgi(redis_server: RedisServer) -> Iterator[Site]:
    with Site("asgi", redis_server, RULES | {"queue": QUEUE}) as running:
        yield running


@pytest.fixture(scope="module")
def wsgi(redis_server: RedisServer) -> Iterator[Site]:
    with Site("wsgi", redis_server, RULES) as running:
        yield running


@pytest.fixture
def caller(redis_server: RedisServer) -> Caller:
    return Caller(redis_server)


class TestClientsThatLeave:
    @pytest.mark.parametrize("where", ["decorator/wait", "decorator/stream", "drf/stream"])
    def test_from_an_asgi_server(self, asgi: Site, caller: Caller, where: str) -> None:
        visits = [Visit(asgi, f"/{where}/{caller.name}") for _ in range(CAP)]
        wait_until(lambda: caller.held() == CAP, timeout=20)
        with Visit(asgi, f"/{where}/{caller.name}") as refused:
            assert b" 429 " in refused.head()
        for visit in visits:
            visit.leave()
        seconds = wait_until(lambda: caller.held() == 0, timeout=20)
        print(f"slots were free {seconds * 1000:.0f} ms after their clients had left")
        assert seconds < slack(1.0)

    def test_while_waiting_for_their_turn(self, asgi: Site, caller: Caller) -> None:
        """The queue is of one place an hour; whoever waits in it holds a slot, and gives it back by leaving."""
        first, second = (Visit(asgi, f"/middleware/wait/{caller.name}") for _ in range(2))
        wait_until(lambda: caller.held() == 2, timeout=20)
        second.leave()
        wait_until(lambda: caller.held() == 1, timeout=20)
        first.leave()
        wait_until(lambda: caller.held() == 0, timeout=20)

    def test_a_synchronous_view_is_in_flight_until_it_is_through(
        self, asgi: Site, caller: Caller, redis_server: RedisServer
    ) -> None:
        """Its thread goes on when its client has gone: leaving is no way to have more than the limit at work."""
        began = time.monotonic()
        visit = Visit(asgi, f"/middleware/short/{caller.name}")
        with redis_server.client() as redis:  # who leaves before its view has begun never has it run
            wait_until(lambda: bool(redis.exists(f"begun:{caller.name}")), timeout=20)
        assert caller.held() == 1
        visit.leave()
        left = time.monotonic() - began
        wait_until(lambda: caller.held() == 0, timeout=20)
        held = time.monotonic() - began
        print(f"left after {left:.2f} s, held for {held:.2f} s, of which the view takes {SHORT} s")
        assert held >= SHORT

    @pytest.mark.parametrize("door", ["middleware", "decorator", "drf"])
    def test_from_a_wsgi_server(self, wsgi: Site, caller: Caller, door: str) -> None:
        visits = [Visit(wsgi, f"/{door}/stream/{caller.name}") for _ in range(CAP)]
        wait_until(lambda: caller.held() == CAP, timeout=20)
        for visit in visits:
            assert b" 200 " in visit.head()
            visit.leave()
        wait_until(lambda: caller.held() == 0, timeout=20)


def test_those_of_a_killed_server_come_back(redis_server: RedisServer, wsgi: Site, caller: Caller) -> None:
    """kill -9 of one process; another one that counts in the same Redis sweeps what it held."""
    with Site("asgi", redis_server, RULES) as dying:
        visits = [Visit(dying, f"/decorator/wait/{caller.name}") for _ in range(CAP)]
        wait_until(lambda: caller.held() == CAP, timeout=20)
        dying.kill()
        for visit in visits:
            visit.leave()
        seconds = wait_until(lambda: caller.held() == 0, timeout=30)
    print(f"swept {seconds:.1f} s after the kill; a process silent for 2 s is dead")
    assert seconds < slack(6.0)


def test_one_after_the_other_never_waits(wsgi: Site, asgi: Site, caller: Caller) -> None:
    """Who has its answer has its slot back, so a client that asks again at once is not refused."""
    for where in (wsgi, asgi):
        for _ in range(20):
            visits = [Visit(where, f"/decorator/quick/{caller.name}") for _ in range(CAP)]
            assert [visit.statuses() for visit in visits] == [[200]] * CAP
            for visit in visits:
                visit.leave()


class TestStrays:
    """Leases that nobody can give back any more: their last holder was thrown away."""

    @BOTH
    def test_they_are_found(self, enforce: Enforce) -> None:
        store = enforce()
        limiter = Limiter([Rule("api", limit=1, algorithm="concurrency")], store)
        lease = limiter.acquire("everyone").lease
        assert lease is not None
        slot: Slot | None = Slot(lease, store.leases)
        assert not limiter.peek("everyone").allowed
        slot = None
        assert slot is None
        if isinstance(store, RedisStore):
            Reconciler(store).resend()  # what the background thread does twice a second
        assert limiter.peek("everyone").allowed
        limiter.release(lease)
        assert len(store.leases) == 0

    def test_taken_ones_are_none(self, enforce: Enforce) -> None:
        store = enforce()
        limiter = Limiter([Rule("api", limit=1, algorithm="concurrency")], store)
        lease = limiter.acquire("everyone").lease
        assert lease is not None
        slot = Slot(lease, store.leases)
        assert (slot.take(), slot.take()) == (lease, None)
        del slot
        assert store.leases.take_to_release() == []

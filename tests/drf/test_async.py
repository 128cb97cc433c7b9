"""Asynchronous views of REST framework (adrf): nothing that a throttle does holds up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import pytest
from adrf.views import APIView
from django.contrib.auth.models import User
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncClient
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from django_throttle import drf
from django_throttle.core import Rule
from django_throttle.decorators import throttle
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.doors import BOTH, REDIS, Enforce, enforcer
from tests.inside import count_in
from tests.proxy import Proxy

enforce = pytest.fixture(enforcer)

THREE: dict[str, Any] = {"rate": "3/min", "algorithm": "fixed_window", "key": "everyone"}
ONE_AT_ONCE: dict[str, Any] = {"limit": 1, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}
LATE = 0.4


class Anonymous(drf.AnonRateThrottle):
    rate = "3/min"


async def parts() -> AsyncIterator[bytes]:
    for part in (b"one ", b"two"):
        await asyncio.sleep(0)
        yield part


held: list[int] = []


class View(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_scope = "search"

    async def get(self, request: Request, doing: str) -> Any:
        await asyncio.sleep(0)
        held.append(len(get_store().leases))
        match doing:
            case "wait":
                await asyncio.sleep(60)
            case "fail":
                raise ZeroDivisionError
            case "denied":
                raise NotAuthenticated
            case "plain":
                return HttpResponse("plain")
            case "stream":
                return StreamingHttpResponse(parts())
        return Response({"done": doing})


class Tokens(BaseAuthentication):
    """The token is the number of a user."""

    def authenticate(self, request: Request) -> Any:
        token = request.headers.get("X-Token")
        return token and (User(pk=int(token)), None)


class Decorated(APIView):
    authentication_classes: ClassVar[Any] = [Tokens]

    @throttle("api")
    async def get(self, request: Request) -> Any:
        return Response()


MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_throttle.middleware.ThrottleMiddleware",
]
THROTTLES = {"rule": drf.RuleThrottle, "anon": Anonymous}
urlpatterns = [
    path("decorated", Decorated.as_view()),
    *[path(f"{name}/<doing>", View.as_view(throttle_classes=[one])) for name, one in THROTTLES.items()],
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    held.clear()


async def ask(where: str) -> Any:
    response = await AsyncClient(raise_request_exception=False).get(where)
    if response.streaming:
        assert b"".join([part async for part in response]) == b"one two"
    return response


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


@BOTH
@pytest.mark.parametrize("throttle", THROTTLES)
async def test_exactly_the_limit_passes(enforce: Enforce, throttle: str) -> None:
    enforce(api=THREE)
    answers = [await ask(f"/{throttle}/ok") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1]["Retry-After"] == "60"
    assert "RateLimit" in answers[0]


@BOTH
@pytest.mark.parametrize("doing", ["ok", "plain", "stream", "denied", "fail"])
async def test_a_slot_and_a_charge_come_back(enforce: Enforce, doing: str) -> None:
    enforce(api={**THREE, "count_on": [418]}, slots=ONE_AT_ONCE)
    for _ in range(2):
        answer = await ask(f"/rule/{doing}")
        assert answer.status_code == {"denied": 403, "fail": 500}.get(doing, 200)
        await until(lambda: len(get_store().leases) == 0)
    assert held == [1, 1]
    limiter = Limiter([Rule("api", **THREE)], get_store())
    await until(lambda: limiter.peek("everyone").remaining == 3)


async def test_what_is_rendered_has_given_it_back_before_it_is_sent(enforce: Enforce) -> None:
    enforce(slots=ONE_AT_ONCE)
    for _ in range(5):
        assert (await ask("/rule/ok")).status_code == 200
        assert len(get_store().leases) == 0


@REDIS
@pytest.mark.parametrize("throttle", THROTTLES)
@pytest.mark.parametrize("doing", ["ok", "plain", "stream", "denied", "fail"])
async def test_no_question_is_put_to_redis_from_the_loop_but_by_awaiting(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch, throttle: str, doing: str
) -> None:
    store = enforce(api={**THREE, "count_on": [418]}, slots=ONE_AT_ONCE)
    assert isinstance(store, RedisStore)
    sent = []

    def watched(send: Any, *args: Any) -> Any:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        sent.append(1)
        return send(*args)

    for way in ("send", "send_all"):
        monkeypatch.setattr(store.transport, way, partial(watched, getattr(store.transport, way)))
    await ask(f"/{throttle}/{doing}")
    await until(lambda: len(store.leases) == 0)
    assert sent


async def test_a_method_that_it_does_not_have(enforce: Enforce) -> None:
    enforce(slots=ONE_AT_ONCE)
    for _ in range(2):
        assert (await AsyncClient().put("/rule/ok")).status_code == 405
        await until(lambda: len(get_store().leases) == 0)


@BOTH
async def test_a_client_that_leaves_gives_its_slot_back(enforce: Enforce) -> None:
    enforce(slots=ONE_AT_ONCE)
    asking = asyncio.create_task(ask("/rule/wait"))
    await until(lambda: held == [1])
    asking.cancel()
    await asyncio.wait({asking})
    await until(lambda: len(get_store().leases) == 0)
    assert (await ask("/rule/ok")).status_code == 200


@pytest.mark.parametrize("middleware", [[], MIDDLEWARE], ids=["alone", "behind the middleware"])
async def test_a_decorated_method_knows_whom_rest_framework_knows(
    enforce: Enforce, settings: Any, middleware: list[str]
) -> None:
    settings.MIDDLEWARE = middleware
    enforce(api={**THREE, "key": "user_or_ip"})
    for token in "12":
        answers = [await AsyncClient().get("/decorated", headers={"X-Token": token}) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert (await AsyncClient().get("/decorated")).status_code == 200


class Gaps:
    """The longest time in which other tasks of the loop had no turn."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


@asynccontextmanager
async def gaps() -> AsyncIterator[Gaps]:
    found = Gaps()
    watching = asyncio.create_task(found.watch())
    try:
        yield found
    finally:
        watching.cancel()


@pytest.fixture
def slow(enforce: Enforce, redis_url: str, redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A Redis whose every answer is late."""
    enforce(api={**THREE, "count_on": [418]}, slots={**ONE_AT_ONCE, "limit": 9})
    with Proxy(redis_server.port) as proxy:
        store = RedisStore(proxy.url, deadline=5.0)
        count_in(store, monkeypatch)
        yield proxy


@pytest.mark.parametrize("throttle", THROTTLES)
async def test_while_redis_is_slow_other_tasks_go_on(slow: Proxy, throttle: str) -> None:
    assert (await ask(f"/{throttle}/ok")).status_code == 200  # connected, its scripts loaded
    slow.set("delay", LATE)
    began = time.perf_counter()
    async with gaps() as found:
        answer = await ask(f"/{throttle}/plain")
        await until(lambda: len(get_store().leases) == 0)
    took = time.perf_counter() - began
    slow.set("pass")
    print(
        f"\n{throttle}: a request took {took:.2f} s, and no other task waited longer than {found.longest * 1000:.0f} ms"
    )
    assert answer.status_code == 200
    assert took >= LATE
    assert found.longest < LATE * 0.75

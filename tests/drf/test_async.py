"""Asynchronous views of REST framework (adrf), beyond what holds at each entry point."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from adrf.views import APIView
from django.test import AsyncClient
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response

from django_throttle.decorators import throttle
from django_throttle.stores import get_store
from tests.doors import BOTH, Enforce, enforcer
from tests.entry_points import site
from tests.sockets.guarded import becomes

enforce = pytest.fixture(enforcer)
ONE_AT_ONCE: dict[str, Any] = {"limit": 1, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}


class Waiting(site.AsyncApi):
    began: ClassVar[list[int]] = []

    async def get(self, request: Request) -> Any:
        self.began.append(len(get_store().leases))
        await asyncio.Event().wait()


class Decorated(APIView):
    authentication_classes: ClassVar[Any] = [site.Authenticate]

    @throttle("api")
    async def get(self, request: Request) -> Any:
        return Response()


urlpatterns = [
    path("waiting", Waiting.as_view()),
    path("ok/<doing>", site.AsyncApi.as_view()),
    path("decorated", Decorated.as_view()),
]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []


async def test_a_method_that_it_does_not_have(enforce: Enforce) -> None:
    enforce(slots=ONE_AT_ONCE)
    for _ in range(2):
        assert (await AsyncClient().put("/ok/ok")).status_code == 405
        await becomes(lambda: len(get_store().leases) == 0)


@BOTH
async def test_a_client_that_leaves_gives_its_slot_back(enforce: Enforce) -> None:
    enforce(slots=ONE_AT_ONCE)
    Waiting.began.clear()
    asking = asyncio.create_task(AsyncClient().get("/waiting"))  # type: ignore[arg-type]
    await becomes(lambda: Waiting.began == [1])
    asking.cancel()
    await asyncio.wait({asking})
    await becomes(lambda: len(get_store().leases) == 0)
    assert (await AsyncClient().get("/ok/ok")).status_code == 200


@pytest.mark.parametrize("middleware", [[], site.MIDDLEWARE], ids=["alone", "behind the middleware"])
async def test_a_decorated_method_knows_whom_rest_framework_knows(
    enforce: Enforce, settings: Any, middleware: list[str]
) -> None:
    settings.MIDDLEWARE = middleware
    enforce(api={"rate": "3/min", "key": "user_or_ip"})
    for user in "12":
        answers = [await AsyncClient().get("/decorated", headers={"X-User": user}) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert (await AsyncClient().get("/decorated")).status_code == 200

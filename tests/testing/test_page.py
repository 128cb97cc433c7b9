"""docs/howto/testing.rst: every test that it shows passes."""

from __future__ import annotations

import sys
import unittest
from types import SimpleNamespace
from typing import Any

import pytest
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.testing import FrozenClock
from tests.outside.pages import page
from tests.pages import shown

PACKAGE, FUNCTION, CASE, CLOCK, LARGE, ASYNCHRONOUS, SOCKETS, FIXTURES = shown("testing")


async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


urlpatterns = [path("search", view, name="search")]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    """A site with the middleware, on which no rule is in force."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
    settings.DJANGO_THROTTLE = {"DATABASE_RULES": False, "AGENT": False}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page has defined by its end."""
    monkeypatch.setitem(sys.modules, "mysite.consumers", SimpleNamespace(ChatConsumer=None))
    found: dict[str, Any] = {"__name__": "shown"}
    for block in shown("testing"):
        exec(block, found)
    return found


def test_its_tests_are_in_a_package_for_django_s_runner_to_find() -> None:
    files = [block.file for block in page("testing.rst") if block.file.startswith("mysite/tests/")]
    assert files[0] == "mysite/tests/__init__.py"
    assert set(files[1:]) == {"mysite/tests/test_limits.py"}


def test_a_function(names: dict[str, Any], client: Client) -> None:
    names["test_search_is_limited"](client)


def test_a_class(names: dict[str, Any]) -> None:
    from django.test import SimpleTestCase

    case = type("Case", (SimpleTestCase,), dict(names["SearchTests"].__dict__))  # no database is needed
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert (result.testsRun, result.errors, result.failures) == (2, [], [])


def test_the_clock(names: dict[str, Any], client: Client) -> None:
    names["test_it_passes_again_when_the_client_was_told_so"](client)


def test_ten_thousand(names: dict[str, Any], client: Client) -> None:
    names["test_ten_thousand_an_hour_in_milliseconds"](client)


async def test_asynchronously(names: dict[str, Any], async_client: AsyncClient) -> None:
    await names["test_asynchronously"](async_client)


@pytest.mark.parametrize("key", ["ip"])
async def test_sockets(names: dict[str, Any], key: str) -> None:
    class Echo(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
        async def receive_json(self, content: Any, **_: Any) -> None:
            await self.send_json(content)

    names["ChatConsumer"] = Echo
    names["RULES"]["chat"]["key"] = key
    await names["test_chat_is_limited"]()


def test_fixtures(names: dict[str, Any], client: Client, throttle_rules: Any, throttle_clock: FrozenClock) -> None:
    names["test_with_fixtures"](client, throttle_rules, throttle_clock)

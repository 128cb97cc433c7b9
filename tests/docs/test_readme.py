"""The code in the README, the quickstart and the page of the doors is run, and the rule reference is complete."""

from __future__ import annotations

import re
from asyncio import to_thread
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import Refused
from tests.pages import block

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
SETTINGS, VIEW, CONSUMER, ENGINE = BLOCKS
QUIET = {"DATABASE_RULES": False, "AGENT": False, "DEADLINE": 5.0}


NAMES = {
    "APIView": APIView,
    "RuleThrottle": RuleThrottle,
    "ThrottledConsumerMixin": ThrottledConsumerMixin,
    "AsyncJsonWebsocketConsumer": AsyncJsonWebsocketConsumer,
}


@pytest.fixture
def site(settings: Any, redis_url: str) -> dict[str, Any]:
    """What the code shown defines, with its settings in force on a Redis of our own."""
    names: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(SETTINGS.replace("redis://localhost:6379/0", redis_url), names)
    assert names["INSTALLED_APPS"] == ["rest_framework", "django_throttle"]
    settings.DJANGO_THROTTLE = {**names["DJANGO_THROTTLE"], **QUIET}
    return run(VIEW, CONSUMER)


@pytest.fixture
def rules(settings: Any) -> Callable[..., None]:
    """Put rules in force, counted in memory."""

    def enforce(**rules: dict[str, Any]) -> None:
        settings.DJANGO_THROTTLE = {"RULES": rules, **QUIET}

    return enforce


def run(*code: str, **names: Any) -> dict[str, Any]:
    """Run code as one module in which these names are there already; returns all of its names."""
    found = {**NAMES, "__name__": "shown", **names}
    for each in code:
        exec(each, found)
    return found


def search(site: dict[str, Any], address: str) -> Response:
    class View(site["SearchView"]):  # type: ignore[misc]
        def get(self, request: Any) -> Response:
            return Response()

    return View.as_view(authentication_classes=[])(APIRequestFactory().get("/", REMOTE_ADDR=address))


def socket(site: dict[str, Any], address: str) -> WebsocketCommunicator:
    communicator = WebsocketCommunicator(site["ChatConsumer"].as_asgi(), "/")
    communicator.scope |= {"client": (address, 1), "user": AnonymousUser()}
    return communicator


@pytest.mark.row("R17")
def test_the_view_is_limited(site: dict[str, Any]) -> None:
    answers = [search(site, "203.0.113.7") for _ in range(101)]
    assert [answer.status_code for answer in answers] == [200] * 100 + [429]
    assert 1 <= int(answers[-1]["Retry-After"]) <= 121
    assert search(site, "203.0.113.8").status_code == 200


@pytest.mark.django_db  # Channels closes old connections before each event
async def test_the_consumer_is_limited(site: dict[str, Any]) -> None:
    sockets = [socket(site, "203.0.113.9") for _ in range(6)]
    accepted = [(await each.connect(timeout=20))[0] for each in sockets]
    for each in sockets[:5]:
        await each.disconnect(timeout=20)
    assert accepted == [True] * 5 + [False]


@pytest.mark.row("R18")
def test_the_engine_is_as_shown() -> None:
    exec(ENGINE, {})


class TestDoors:
    # The others: http/test_shown.py and publishing/.
    VIEW = block("doors", "throttle_cost = 3")

    def test_the_view_its_cost_and_a_throttle_of_rest_framework_s_kind(self, rules: Callable[..., None]) -> None:
        rules(api={"rate": "7/min", "scopes": ["search"]})
        names = run(self.VIEW)
        assert [search(names, "203.0.113.12").status_code for _ in range(3)] == [200, 200, 429]
        rules()
        switch = block("doors", "class BurstThrottle")
        names = run(self.VIEW, switch, "SearchView.throttle_classes = [BurstThrottle]")
        answers = [search(names, "203.0.113.14").status_code for _ in range(61)]
        assert answers == [200] * 60 + [429]

    async def test_the_decorator(self, rules: Callable[..., None]) -> None:
        rules(search={"rate": "1/min", "key": "ip"}, mail={"rate": "3/day"})
        names = run(block("doors", "def send("))
        requests = [RequestFactory().get("/") for _ in range(2)]
        for request in requests:
            request.user = AnonymousUser()
        answers = [await names["search"](request) for request in requests]
        assert [answer.status_code for answer in answers] == [200, 429]
        user = User(pk=1)
        assert await to_thread(names["send"], user, ["one", "two"]) == 2
        with pytest.raises(Refused):
            await to_thread(names["send"], user, ["one", "two"])
        assert await to_thread(names["send"], user, ["one"]) == 1

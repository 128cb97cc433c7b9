"""What the README and the documentation show is run, and what they list is complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.core import Rule, checks
from django_throttle.core.rule import OPTIONS
from django_throttle.drf import RuleThrottle
from tests.servers import RedisServer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
SETTINGS, DOORS, ENGINE = BLOCKS


@pytest.fixture
def site(settings: Any, redis_url: str) -> dict[str, Any]:
    """What the README's code defines, with its settings in force on a Redis of our own."""
    names: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(SETTINGS.replace("redis://localhost:6379/0", redis_url), names)
    assert names["INSTALLED_APPS"] == ["django_throttle"]
    settings.DJANGO_THROTTLE = {**names["DJANGO_THROTTLE"], "DATABASE_RULES": False, "AGENT": False, "DEADLINE": 2.0}
    names = {
        "APIView": APIView,
        "RuleThrottle": RuleThrottle,
        "ThrottledConsumerMixin": ThrottledConsumerMixin,
        "AsyncJsonWebsocketConsumer": AsyncJsonWebsocketConsumer,
    }
    exec(DOORS, names)
    return names


def search(site: dict[str, Any], address: str) -> Response:
    class View(site["SearchView"]):  # type: ignore[misc]
        def get(self, request: Any) -> Response:
            return Response()

    return View.as_view(authentication_classes=[])(APIRequestFactory().get("/", REMOTE_ADDR=address))


def socket(site: dict[str, Any], address: str) -> WebsocketCommunicator:
    communicator = WebsocketCommunicator(site["ChatConsumer"].as_asgi(), "/")
    communicator.scope |= {"client": (address, 1), "user": AnonymousUser()}
    return communicator


def test_the_view_is_limited(site: dict[str, Any]) -> None:
    answers = [search(site, "203.0.113.7") for _ in range(101)]
    assert [answer.status_code for answer in answers] == [200] * 100 + [429]
    assert 1 <= int(answers[-1]["Retry-After"]) <= 121
    assert search(site, "203.0.113.8").status_code == 200


@pytest.mark.django_db  # Channels closes old connections before each event
async def test_the_consumer_is_limited(site: dict[str, Any]) -> None:
    sockets = [socket(site, "203.0.113.9") for _ in range(6)]
    accepted = [(await each.connect(timeout=5))[0] for each in sockets]
    for each in sockets[:5]:
        await each.disconnect(timeout=5)
    assert accepted == [True] * 5 + [False]


def test_the_engine_is_as_shown() -> None:
    exec(ENGINE, {})


def test_the_two_commands_come_first() -> None:
    first = README.split("```")[1]
    assert "make demo" in first
    assert "make test" in first


def test_adding_it_takes_ten_lines() -> None:
    lines = [line for block in (SETTINGS, DOORS) for line in block.splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.parametrize(
    "name",
    [
        *(*OPTIONS, *checks.EVENTS, *checks.KEYS, *checks.ALGORITHMS),
        *(*checks.ACTIONS, *checks.REFILLS, *checks.FAILURE_POLICIES),
    ],
)
def test_the_rule_reference_is_complete(name: str) -> None:
    assert f"``{name}``" in (ROOT / "docs" / "rules.rst").read_text(encoding="utf-8")


def test_the_example_of_the_rule_reference_is_a_rule() -> None:
    text = (ROOT / "docs" / "rules.rst").read_text(encoding="utf-8")
    (example,) = re.findall(r'^   ("search": \{.*\})$', text, re.MULTILINE)
    ((name, options),) = eval(f"{{{example}}}").items()
    assert Rule.from_options(name, options).burst == 20


def test_a_redis_of_our_own_is_used(site: dict[str, Any], redis_server: RedisServer) -> None:
    search(site, "203.0.113.10")
    with redis_server.client() as client:
        assert client.dbsize() == 1

"""The code in the README, the quickstart and the page of the doors is run, and the rule reference is complete."""

import re
from asyncio import to_thread
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
from django_throttle.drf import RuleThrottle
from tests.pages import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
SETTINGS, VIEW, CONSUMER, ENGINE = BLOCKS
QUIET = {"DATABASE_RULES": False, "DEADLINE": 5.0}
NAMES = {"APIView": APIView, "RuleThrottle": RuleThrottle}
NAMES |= {"ThrottledConsumerMixin": ThrottledConsumerMixin, "AsyncJsonWebsocketConsumer": AsyncJsonWebsocketConsumer}


def search(site: dict[str, Any], address: str) -> Response:
    class View(site["SearchView"]):  # type: ignore[misc]
        def get(self, request: Any) -> Response:
            return Response()

    return View.as_view(authentication_classes=[])(APIRequestFactory().get("/", REMOTE_ADDR=address))


@pytest.mark.django_db  # Channels closes old connections before each event
@pytest.mark.row("R17")
async def test_the_view_and_the_consumer_are_limited(settings: Any, redis_url: str) -> None:
    names = run(SETTINGS.replace("redis://localhost:6379/0", redis_url))
    assert names["INSTALLED_APPS"] == ["rest_framework", "django_throttle", "django_throttle.console"]
    settings.DJANGO_THROTTLE = {**names["DJANGO_THROTTLE"], **QUIET}
    site = run(VIEW + CONSUMER, **NAMES)
    answers = [await to_thread(search, site, "203.0.113.7") for _ in range(101)]
    assert [answer.status_code for answer in answers] == [200] * 100 + [429]
    assert 1 <= int(answers[-1]["Retry-After"]) <= 121
    sockets = [WebsocketCommunicator(site["ChatConsumer"].as_asgi(), "/") for _ in range(6)]
    for socket in sockets:
        socket.scope |= {"client": ("203.0.113.9", 1), "user": AnonymousUser()}
    assert [(await socket.connect(timeout=20))[0] for socket in sockets] == [True] * 5 + [False]
    for socket in sockets[:5]:
        await socket.disconnect(timeout=20)


@pytest.mark.row("R18")
def test_the_engine_is_as_shown() -> None:
    run(ENGINE)

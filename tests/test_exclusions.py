"""A rule covers what its scopes name, except for what an entry with ! leaves out."""

from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.testing import WebsocketCommunicator
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.core.scopes import covers
from django_throttle.exceptions import InvalidRule
from django_throttle.rulebook.coverage import stricter
from django_throttle.rulebook.snapshot import Snapshot
from tests.doors import Enforce

NAMES = ["health", "health:deep", "search", "shop:cart"]
urlpatterns = [path(f"{number}", lambda request: HttpResponse(), name=name) for number, name in enumerate(NAMES)]
MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]


@pytest.mark.parametrize(
    ("scopes", "limited"),
    [
        (["*", "!health"], ["health:deep", "search", "shop:cart"]), (["!health*", "*"], ["search", "shop:cart"]),
        (["!health", "!shop:*"], ["health:deep", "search"]), (["health*", "! health:deep"], ["health"]),
        (["*", "!h[ae]*", "!search"], ["shop:cart"]),
    ],
)  # fmt: skip
def test_requests(enforce: Enforce, settings: Any, scopes: list[str], limited: list[str]) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, MIDDLEWARE
    found = []
    for number, name in enumerate(NAMES):
        enforce(api={"rate": "1/min", "key": "ip", "scopes": scopes})
        if [Client().get(f"/{number}").status_code for _ in range(2)] == [200, 429]:
            found.append(name)
    assert found == limited
    assert found == [name for name in NAMES if covers(Rule("api", "1/min", scopes=scopes).scopes, name)]


@pytest.mark.parametrize(
    ("scopes", "fault"),
    [
        (["*", "-health"], "'-health' leaves nothing out: write '!health'"), (["not health"], "write '!health'"),
        (["*", "!"], "'!' names no scope to leave out"), (["*", "!!health"], "'!!health' names no scope"),
        (["*", "!*"], "scopes cover nothing, as !\\* leaves all out"),
        (["health", "search", "!health", "!sea*"], "scopes cover nothing"),
    ],
)  # fmt: skip
def test_what_leaves_out_nothing_or_everything_is_refused(scopes: list[str], fault: str) -> None:
    with pytest.raises(InvalidRule, match=fault):
        Rule("api", "1/min", scopes=scopes)


def test_words() -> None:
    described = {
        ("*", "!health"): "each user or address: 1 request per minute, except on health",
        ("shop:*", "!shop:cart"): "each user or address: 1 request per minute, on shop:* except shop:cart together",
    }
    assert {scopes: describe(Rule("api", "1/min", scopes=scopes)) for scopes in described} == described


@pytest.mark.parametrize(
    ("ours", "theirs", "is_behind"),
    [
        (["*"], ["*", "!health"], False), (["*", "!health"], ["*"], True),
        (["*", "!health"], ["*", "!health"], True), (["*", "!health", "!search"], ["*", "!health"], True),
        (["search"], ["*", "!health"], True), (["health"], ["*", "!health"], False),
        (["shop:*"], ["*", "!health"], True), (["shop:*"], ["*", "!shop:c*"], False),
    ],
)  # fmt: skip
def test_a_stricter_rule_is_one_that_leaves_out_no_more(ours: list[str], theirs: list[str], is_behind: bool) -> None:
    rule = Rule("zzz", "9/min", scopes=ours)
    snapshot = Snapshot([rule, Rule("strict", "1/min", scopes=theirs)])
    assert (stricter(snapshot, rule) is not None) == is_behind


async def test_sockets(enforce: Enforce) -> None:
    enforce(api={"rate": "1/min", "key": "ip", "scopes": ["!status"], "events": ["connect"]})
    opened = {}
    for name, options in (("status", {}), ("chat", {"throttle_scope": "chat"})):  # else it is the name of the class
        consumer = type(name, (ThrottledConsumerMixin, AsyncWebsocketConsumer), options)
        for _ in range(2):
            communicator = WebsocketCommunicator(consumer.as_asgi(), "/")
            communicator.scope["client"] = ["192.0.2.1", 1]
            opened[name] = (await communicator.connect())[0]
            await communicator.disconnect()
    assert opened == {"status": True, "chat": False}

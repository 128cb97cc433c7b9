"""The recipes of CONTRIBUTING.md, followed from outside the package: an addition works at every store and entry point.

A rule that uses the addition is saved in the admin, and counts requests and frames of a socket together.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_throttle import limiter, rulebook
from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.key import KEY_KINDS
from django_throttle.core.option_words import CALLS_IN_WORDS, NOUNS
from django_throttle.core.options import TUNING, option
from django_throttle.identity import AsgiCaller, RequestCaller, client_address
from django_throttle.identity.call import Call
from django_throttle.identity.caller import IdentCaller
from django_throttle.models import ThrottleRule
from tests.admin.conftest import errors, url
from tests.consumers import opened
from tests.core.test_new_algorithm import COOLDOWN
from tests.doors import BOTH, Enforce
from tests.entry_points import site
from tests.identity.test_keys import ORGANISATION
from tests.models.test_new_option import TYPED


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyRule(Rule):
    heavy: bool = option("switch", False, group=TUNING, label="Heavy calls", help="Count twice.", words="counted twice")

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        self._set("factor", self.factor * (1 + self.heavy))


def sneeze(request: HttpRequest) -> HttpResponse:
    decision = limiter.decide(Call("sneeze", ("sneeze",), RequestCaller(request)))
    return HttpResponse(status=200 if decision.allowed else 429)


class Sneezes(AsyncWebsocketConsumer):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        decision = await limiter.adecide(Call("sneeze", ("sneeze",), AsgiCaller(self.scope)))
        await self.send(text_data if decision.allowed else "refused")


class MailServer:
    """Answers lines of SMTP. Its calls have the event ``request`` and the scope of a view."""

    def receive(self, address: str) -> str:
        caller = IdentCaller(f"ip:{client_address({'type': 'smtp', 'client': (address, 25)})}")
        decision = limiter.decide(Call("view", ("request",), caller))
        return "250 OK" if decision.allowed else f"450 try again in {decision.retry_after:g} s"


class Addition(NamedTuple):
    """A rule as an operator types it, its description, and the verdicts on a request, two frames and a request."""

    register: Callable[[pytest.MonkeyPatch], None]
    typed: dict[str, Any]
    meaning: str
    verdicts: str  # "+" is allowed, "-" refused
    address: str = "/middleware/ok"
    socket: Any = site.SOCKETS["consumer"]


def add_event(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(NOUNS, "sneeze", "sneezes")
    patch.setitem(CALLS_IN_WORDS, "sneeze", lambda count: f"{count} sneezes")


BOTH_EVENTS = ["request", "message"]
TWO = {**TYPED, "badge": "", "rate": "2/min", "algorithm": "fixed_window", "key": "ip", "events": BOTH_EVENTS}
ADDITIONS = {
    "algorithm": Addition(
        lambda patch: patch.setitem(ALGORITHMS, "cooldown", COOLDOWN),
        {"algorithm": "cooldown"}, "2 requests per minute, then none for a minute", "+---",
    ),
    "key": Addition(
        lambda patch: patch.setitem(KEY_KINDS, "organisation", ORGANISATION),
        {"key": "organisation"}, "each organisation: 2 requests per minute", "++--",
    ),
    "event": Addition(add_event, {"events": ["sneeze"]}, "2 sneezes per minute", "++--", "/sneeze", Sneezes.as_asgi()),
    "option": Addition(
        lambda patch: patch.setattr(ThrottleRule, "core", HeavyRule),
        {"heavy": "on", "rate": "4/min"}, "counted twice", "++--",
    ),
    "entry point": Addition(lambda _: None, {}, "2 requests per minute", "+---"),
}  # fmt: skip
urlpatterns = [path("sneeze", sneeze), *site.urlpatterns]


async def frames(app: Any, count: int) -> str:
    communicator = await opened(app, client=("127.0.0.1", 1), headers=[(b"organisation", b"acme")])
    verdicts = ""
    for _ in range(count):
        await communicator.send_to("1")
        verdicts += "+" if await communicator.receive_from() == "1" else "-"
    await communicator.disconnect()
    return verdicts


def request(address: str, organisation: str = "acme") -> str:
    return {200: "+", 429: "-"}[Client().get(address, headers={"organisation": organisation}).status_code]


@BOTH
@pytest.mark.django_db
@pytest.mark.parametrize("name", ADDITIONS)
def test_a_rule_that_uses_it(
    enforce: Enforce, settings: Any, admin_client: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    added = ADDITIONS[name]
    added.register(monkeypatch)
    enforce(DATABASE_RULES=True)
    answer = admin_client.post(url("throttlerule_add"), TWO | added.typed)
    assert answer.status_code == 302, errors(answer)
    assert added.meaning in ThrottleRule.objects.get().meaning
    rulebook.refresh()
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, site.MIDDLEWARE
    if name == "entry point":
        assert MailServer().receive("127.0.0.1") == "250 OK"
    assert request(added.address) + asyncio.run(frames(added.socket, 2)) + request(added.address) == added.verdicts
    if name == "entry point":
        assert [MailServer().receive(f"127.0.0.{last}") for last in (1, 2)] == ["450 try again in 60 s", "250 OK"]
    if name == "key":
        assert request(added.address, "other") == "+"

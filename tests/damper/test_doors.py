"""A damper at every entry point: what is refused there, what a client is told, and what overrides make of it."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from django.test import Client
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import drf, rulebook
from django_throttle.core import Override, Rate, Rule
from tests.clock import FrozenClock
from tests.consumers import opened
from tests.doors import BOTH, Store, build
from tests.inside import count_in
from tests.test_publishing import refusal

DAMPER = Rule("account", "20/s", algorithm="damper", key="ip", events=("request", "message", "publish"))
AT_ONCE = 18  # what the local limiter lets through
Enforce = Callable[..., Store]


class Search(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]

    def get(self, request: Request) -> Response:
        return Response({})


urlpatterns = [path("drf", Search.as_view())]


@pytest.fixture
def enforce(request: pytest.FixtureRequest, settings: Any, monkeypatch: Any, clock: FrozenClock) -> Iterator[Enforce]:
    """Puts the damper and overrides in force, on the store that its parameter names."""
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []
    settings.DJANGO_THROTTLE = {"DATABASE_RULES": False, "RETRY_JITTER": 0.0}
    store = build(request, clock)
    count_in(store, monkeypatch)
    monkeypatch.setattr(store.local_limits, "clock", clock)
    yield lambda *overrides: rulebook.pin(rulebook.Snapshot((DAMPER,), overrides=overrides, now=clock))
    rulebook.pin(None)


@BOTH
async def test_messages_of_sockets_and_publications_are_damped(enforce: Enforce) -> None:
    enforce()
    communicator = await opened(client=("127.0.0.1", 1))
    for _ in range(AT_ONCE):
        await communicator.send_to("in")
        assert await communicator.receive_from() == "in"
    await communicator.send_to("over")
    told = await communicator.receive_json_from()
    assert (told["code"], told["rule"], told["limit"]) == ("rate_limited", "account", 20)
    assert 0 < told["retry_after"] <= 2
    await communicator.disconnect()
    refusals = [await refusal("news", "ip:127.0.0.2") for _ in range(40)]
    assert [bool(refused) for refused in refusals].count(False) == AT_ONCE
    assert refusals[-1].decision.outcomes[0].reason == "suppressed"


@pytest.mark.parametrize(
    ("effect", "options", "expected"),
    [
        ("multiply", {"factor": 2}, 2 * AT_ONCE), ("replace", {"rates": (Rate(600, 60),)}, 10), ("exempt", {}, 100),
        ("block", {}, 0),
    ],
)  # fmt: skip
@BOTH
def test_overrides_hold(effect: str, options: dict[str, Any], expected: int, enforce: Enforce) -> None:
    enforce(Override(subject="ip:127.0.0.1", effect=effect, **options))
    answers = [Client().get("/drf") for _ in range(100)]
    assert [answer.status_code for answer in answers].count(200) == expected
    if effect == "multiply":
        told = [answers[-1][name] for name in ("Retry-After", "RateLimit-Policy", "RateLimit")]
        assert told == ["1", '"account";q=40;w=1', '"account";r=0;t=1']

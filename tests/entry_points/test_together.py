"""One request, one decision: a call that a later entry point refuses is charged by none of those before it."""

import asyncio
from typing import Any, ClassVar

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.core import Rule
from django_throttle.core.commands import Correct
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.exceptions import Cause, StoreError
from django_throttle.http import finalize
from django_throttle.limiter import Limiter
from django_throttle.stores.base import Store
from tests.doors import BOTH, REDIS, Enforce
from tests.entry_points import site
from tests.entry_points.table import ENTRY_POINTS, Http
from tests.inside import commands_to, unsaid

SITE: dict[str, Any] = {"rate": "9/h", "key": "everyone", "algorithm": "fixed_window", "cost": 2}
SLOTS: dict[str, Any] = {"limit": 3, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}
LAST: dict[str, Any] = {"rate": "1/h", "key": "ip", "algorithm": "fixed_window", "scopes": ["last"]}
MIDDLE: dict[str, Any] = {"rate": "7/h", "key": "ip", "algorithm": "sliding_log", "scopes": ["middle"]}


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


async def aplain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@throttle("last", ident="somebody")
def call() -> None:
    """Something that a view calls."""


def calling(request: HttpRequest) -> HttpResponse:
    call()
    return HttpResponse("done")


class Drf(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    inside = "last"

    def initial(self, *args: Any, **kwargs: Any) -> None:
        self.throttle_scope = self.inside  # which the middleware does not know
        super().initial(*args, **kwargs)

    def get(self, request: Request) -> Response:
        return Response("done")


class Within(Drf):
    inside = "middle"

    @method_decorator(throttle("last"))
    def get(self, request: Request) -> Response:
        return Response("done")


class Last(UserRateThrottle):
    rate = "1/h"


class Mixed(Drf):
    """Each throttle class is asked, however many have refused."""

    inside = "middle"
    throttle_classes: ClassVar[Any] = [Last, RuleThrottle]


VIEWS: dict[str, Any] = {
    "drf": Drf.as_view(), "rules and drop-in": Mixed.as_view(),
    "two decorators": throttle("middle")(throttle("last")(plain)),
    "two async decorators": throttle("middle")(throttle("last")(aplain)),
    "decorator in a throttle class": Within.as_view(), "callable in a decorator": throttle("middle")(calling),
}  # fmt: skip
urlpatterns = [path(name.replace(" ", "-"), view) for name, view in VIEWS.items()]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = site.MIDDLEWARE


def ask(view: str, server: str = "wsgi") -> Any:
    address = "/" + view.replace(" ", "-")
    if server == "wsgi" and "async" not in view:
        return Client().get(address)
    return asyncio.run(AsyncClient().get(address))  # type: ignore[arg-type]


def left(store: Store, **options: Any) -> list[int]:
    rule = Rule("site", **{**SITE, **options})
    return [outcome.remaining for outcome in Limiter([rule], store).peek("everyone").outcomes]


def left_of(store: Store, name: str, options: Any) -> int | None:
    return Limiter([Rule(name, **options)], store).peek("ip:127.0.0.1").remaining


@pytest.mark.parametrize(("view", "server"), [*((view, "wsgi") for view in VIEWS), ("drf", "asgi")])
@BOTH
def test_a_refused_request_is_charged_nowhere_by_one_more_command(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch, view: str, server: str
) -> None:
    store = enforce(site=SITE, slots=SLOTS, middle=MIDDLE, last=LAST)
    commands = commands_to(store, monkeypatch)
    assert ask(view, server).status_code == 200
    assert not any(
        isinstance(command, Correct) and command.refunds[0].charge.rule.name != "slots" for command in commands
    )
    before = left(store), left_of(store, "middle", MIDDLE)
    for _ in range(8):  # more than any rule has left
        commands.clear()
        answer = ask(view, server)
        assert answer.status_code == 429
        assert '"site";r=7' in answer["RateLimit"] and '"slots";r=3' in answer["RateLimit"]
        (refund,) = (command for command in commands if isinstance(command, Correct))
        assert "site" in [entry.charge.rule.name for entry in refund.refunds]
    assert (left(store), left_of(store, "middle", MIDDLE)) == before == ([7], before[1])
    assert len(store.leases) == 0


@BOTH
@pytest.mark.parametrize(
    ("options", "expected"),
    [({"count_denied": True}, 3), ({"count_on": (200, 429)}, 7), ({"action": "shadow"}, 7)],
    ids=["of refused calls", "of some answers", "of a shadow"],
)
def test_the_charge_of_a_refused_request(enforce: Enforce, options: dict[str, Any], expected: int) -> None:
    store = enforce(site={**SITE, **options}, last=LAST)
    assert [ask("drf").status_code for _ in range(3)] == [200, 429, 429]
    assert left(store, **options) == [expected]


BEHIND = [row for row in ENTRY_POINTS if isinstance(row, Http) and {"rules"} <= row.traits]


@BOTH
@pytest.mark.parametrize("entry_point", BEHIND, ids=str, indirect=True)
def test_behind_the_middleware_each_rule_is_charged_once(enforce: Enforce, entry_point: Http, settings: Any) -> None:
    settings.MIDDLEWARE = [*site.MIDDLEWARE, *site.MIDDLEWARE]  # twice, by mistake
    failures = {"rate": "3/min", "algorithm": "fixed_window", "key": "everyone", "count_on": [401]}
    store = enforce(api=failures, slots={**SLOTS, "limit": 1})
    assert entry_point.get("login?status=401").status_code == 401
    assert entry_point.get().status_code == 200
    assert Limiter([Rule("api", **failures)], store).peek("everyone").remaining == 2
    assert (site.seen, len(store.leases)) == ([1, 1], 0)


@REDIS
def test_where_redis_goes_away_the_charge_stays(enforce: Enforce, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    unsaid(finalize, monkeypatch)
    store = enforce(site=SITE, last=LAST)
    execute = store.execute

    def away(command: Any) -> Any:
        if isinstance(command, Correct):
            raise StoreError(Cause.UNAVAILABLE)
        return execute(command)

    assert ask("drf").status_code == 200
    monkeypatch.setattr(store, "execute", away)
    assert [ask("drf").status_code for _ in range(4)] == [429] * 4
    assert left(store) == [1]
    assert "could not be refunded" in caplog.text

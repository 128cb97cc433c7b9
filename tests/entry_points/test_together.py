"""One request, one decision: a call that a later entry point refuses is charged by none of those before it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from hypothesis import assume, given
from hypothesis import strategies as st
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import rulebook
from django_throttle.core import Rule
from django_throttle.core.commands import Correct
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.exceptions import Cause, Refused, StoreError
from django_throttle.http import finalize
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import Store
from tests import strategies
from tests.clock import FrozenClock
from tests.doors import BOTH, REDIS, Enforce
from tests.entry_points import site
from tests.entry_points.table import ENTRY_POINTS, Http
from tests.inside import commands_to, count_in, unsaid

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


def handling(request: HttpRequest) -> HttpResponse:
    try:
        call()
    except Refused:
        return HttpResponse("done without")
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
    "drf": Drf.as_view(),
    "rules and drop-in": Mixed.as_view(),
    "two decorators": throttle("middle")(throttle("last")(plain)),
    "two async decorators": throttle("middle")(throttle("last")(aplain)),
    "decorator in a throttle class": Within.as_view(),
    "callable in a decorator": throttle("middle")(calling),
}
HANDLING = {"handling": handling, "handling in a decorator": throttle("middle")(handling)}
urlpatterns = [path(name.replace(" ", "-"), view) for name, view in {**VIEWS, **HANDLING}.items()]


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
    """What remains of the site's rule, of each of its rates."""
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
    assert not any(isinstance(command, Correct) and command.back[0].charge.rule.name != "slots" for command in commands)
    before = left(store), left_of(store, "middle", MIDDLE)
    for _ in range(8):  # more than any rule has left
        commands.clear()
        answer = ask(view, server)
        assert answer.status_code == 429
        assert '"site";r=7' in answer["RateLimit"] and '"slots";r=3' in answer["RateLimit"]
        (refund,) = (command for command in commands if isinstance(command, Correct))
        assert "site" in [entry.charge.rule.name for entry in refund.back]
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


def test_an_entry_point_of_higher_cost(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses the rest of a charge of which the first entry point has made a part."""
    monkeypatch.setattr(Drf, "throttle_cost", 3, raising=False)
    store = enforce(site=SITE)
    answers = [ask("drf") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert left(store) == [3]
    assert answers[1]["RateLimit"].startswith('"site";r=3')


@pytest.mark.parametrize(("view", "middle"), [("handling", 7), ("handling in a decorator", 4)])
def test_a_refusal_that_the_view_handles_is_none_of_the_request(enforce: Enforce, view: str, middle: int) -> None:
    store = enforce(site=SITE, middle=MIDDLE, last=LAST)
    answers = [ask(view) for _ in range(3)]
    assert [answer.content for answer in answers] == [b"done", b"done without", b"done without"]
    assert (left(store), left_of(store, "middle", MIDDLE)) == ([3], middle)


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


def test_without_redis_the_process_refunds_what_it_counted(
    enforce: Enforce, redis_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce(site=SITE, last=LAST, PROCESSES=1)
    store = RedisStore("redis://127.0.0.1:1/0")
    count_in(store, monkeypatch)
    assert [ask("drf").status_code for _ in range(6)] == [200] + [429] * 5
    assert left(store) == [7]


@REDIS
def test_where_redis_goes_away_the_charge_stays(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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


COSTS = st.integers(0, 3)


@given(
    st.lists(
        strategies.rate_rules("rule", strategies.rates(st.integers(1, 6)), {}, st.integers(1, 6)),
        min_size=2,
        max_size=4,
    ),
    st.lists(st.tuples(COSTS, st.sampled_from([0.0, 0.01, 0.3, 1.0])), min_size=1, max_size=12),
)
@pytest.mark.row("R04")
def test_entry_points_one_after_the_other_decide_as_one_decision_does(
    rules: list[Rule], calls: list[tuple[int, float]]
) -> None:
    """Whatever their rules: the same is let through, and then the same is left."""
    named = [replace(rule, name=f"rule {n}", key="everyone") for n, rule in enumerate(rules) if rule.action != "delay"]
    assume(named)
    clock = FrozenClock()
    store, oracle = MemoryStore(clock), MemoryStore(clock)
    cost = 1

    def priced(request: HttpRequest) -> int:
        return cost

    view: Any = plain
    for rule in named:
        view = throttle(rule.name, cost=priced)(view)
    with pytest.MonkeyPatch.context() as patch:
        count_in(store, patch)
        rulebook.pin(rulebook.Snapshot(named))
        try:
            for cost, jump in calls:
                answer = view(RequestFactory().get("/"))
                asked = [named[n:] for n in range(len(named), -1, -1)]  # the last is outermost
                refused = [some for some in asked if not Limiter(some, oracle).peek("everyone", cost).allowed]
                expected = Limiter((refused or [named])[0], oracle).acquire("everyone", cost)
                assert (answer.status_code == 200) is expected.allowed
                for rule in named:
                    peeked = [Limiter([rule], each).peek("everyone") for each in (store, oracle)]
                    assert peeked[0] == peeked[1], rule
                clock.tick(jump * (named[0].window or 0))
        finally:
            rulebook.pin(None)

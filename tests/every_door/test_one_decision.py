"""One request, one decision: what a later door refuses is charged by none of the doors before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from hypothesis import assume, given
from hypothesis import strategies as st
from redis.crc import key_slot
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import rulebook
from django_throttle.core import Rule
from django_throttle.core.commands import Decide, Refund
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.exceptions import Cause, Refused, StoreError
from django_throttle.http import finalize
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import Store
from tests import strategies
from tests.clock import FrozenClock
from tests.doors import enforcer
from tests.fleet import RedisCluster
from tests.inside import commands_to, count_in, counters, unsaid
from tests.stores.conftest import cluster, module_cluster

__all__ = ["cluster", "module_cluster"]

MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
SITE: dict[str, Any] = {"rate": "9/h", "key": "everyone", "algorithm": "fixed_window", "cost": 2}
SLOTS: dict[str, Any] = {"limit": 3, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}
LAST: dict[str, Any] = {"rate": "1/h", "key": "ip", "algorithm": "fixed_window", "scopes": ["last"]}
MIDDLE: dict[str, Any] = {"rate": "7/h", "key": "ip", "algorithm": "sliding_log", "scopes": ["middle"]}
KINDS: dict[str, dict[str, Any]] = {
    "fixed_window": {},
    "calendar": {"rate": "9/day", "timezone": "Europe/Berlin"},
    "sliding_log": {"algorithm": "sliding_log"},
    "sliding_window": {"algorithm": "sliding_window", "resolution": 6},
    "gcra": {"algorithm": "gcra"},
    "interval": {"algorithm": "token_bucket", "refill": "interval"},
    "queue": {"algorithm": "leaky_bucket", "rate": "9000/s", "burst": 9, "action": "delay"},
    "several": {"rate": None, "rates": ["9/h", "100/day"]},
}


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


async def aplain(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("done")


def calling(request: HttpRequest) -> HttpResponse:
    call()
    return HttpResponse("done")


@throttle("last", ident="somebody")
def call() -> None:
    """Something that a view calls."""


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
    """A throttle class, then a decorator."""

    inside = "middle"

    @method_decorator(throttle("last"))
    def get(self, request: Request) -> Response:
        return Response("done")


class Calling(Drf):
    inside = "middle"

    def get(self, request: Request) -> Response:
        call()
        return Response("done")


class Last(UserRateThrottle):
    rate = "1/h"


class DropIn(Drf):
    throttle_classes: ClassVar[Any] = [Last]


class Mixed(Drf):
    """Each rule is asked, however many have refused."""

    inside = "middle"
    throttle_classes: ClassVar[Any] = [Last, RuleThrottle]


VIEWS: dict[str, Any] = {
    "drf": Drf.as_view(),
    "drop-in": DropIn.as_view(),
    "rules and drop-in": Mixed.as_view(),
    "decorator": throttle("last")(plain),
    "async decorator": throttle("last")(aplain),
    "two decorators": throttle("middle")(throttle("last")(plain)),
    "two async decorators": throttle("middle")(throttle("last")(aplain)),
    "decorator in a throttle class": Within.as_view(),
    "callable": calling,
    "callable in a decorator": throttle("middle")(calling),
    "callable in a throttle class": Calling.as_view(),
}
urlpatterns = [
    *(path(name.replace(" ", "-"), view) for name, view in VIEWS.items()),
    path("handling", handling),
    path("handling-in-a-decorator", throttle("middle")(handling)),
]
each_view = pytest.mark.parametrize("view", VIEWS)
Ask = Callable[..., Any]
enforce = pytest.fixture(enforcer)
EVERYWHERE = pytest.mark.parametrize("enforce", ["memory", "redis"], indirect=True)


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = MIDDLEWARE


@pytest.fixture(params=["wsgi", "asgi"])
def ask(request: pytest.FixtureRequest) -> Ask:
    def get(view: str) -> Any:
        where = "/" + view.replace(" ", "-")
        return Client().get(where) if request.param == "wsgi" else asyncio.run(aget(where))

    async def aget(where: str) -> Any:
        return await AsyncClient().get(where)

    return get


def left(store: Store, **options: Any) -> list[int]:
    """What the site's rule has left."""
    rule = Rule("site", **{**SITE, **options})
    return [outcome.remaining for outcome in Limiter([rule], store).peek("everyone").outcomes]


@each_view
@EVERYWHERE
class TestEveryDoor:
    def test_a_refused_request_is_charged_nowhere(self, enforce: Any, ask: Ask, view: str) -> None:
        store = enforce(site=SITE, slots=SLOTS, middle=MIDDLE, last=LAST)
        assert ask(view).status_code == 200
        before = left(store), left_of(store, "middle", MIDDLE)
        for _ in range(8):  # more than any rule has left
            answer = ask(view)
            assert answer.status_code == 429
            assert '"site";r=7' in answer["RateLimit"]
            assert '"slots";r=3' in answer["RateLimit"]
        assert (left(store), left_of(store, "middle", MIDDLE)) == before == ([7], before[1])
        assert len(store.leases) == 0

    def test_in_one_round_trip_which_no_request_that_passes_makes(
        self, enforce: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch, view: str
    ) -> None:
        store = enforce(site=SITE, middle=MIDDLE, last=LAST)
        asked = commands_to(store, monkeypatch)
        assert ask(view).status_code == 200
        assert {type(command) for command in asked} == {Decide}
        for _ in range(2):
            asked.clear()
            assert ask(view).status_code == 429
            refunds = [command for command in asked if isinstance(command, Refund)]
            assert len(refunds) == 1
            assert "site" in [paid.charge.rule.name for paid in refunds[0].paid]


def left_of(store: Store, name: str, options: Any) -> int | None:
    return Limiter([Rule(name, **options)], store).peek("ip:127.0.0.1").remaining


@EVERYWHERE
class TestRules:
    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_stored_is_what_it_was(self, enforce: Any, ask: Ask, kind: str, request: Any) -> None:
        store = enforce(site={**SITE, **KINDS[kind]}, last=LAST)
        assert ask("drf").status_code == 200
        read = reader(store, request)
        before = read()
        for _ in range(6):
            assert ask("drf").status_code == 429
        assert read() == before

    def test_rules_that_count_refused_calls_keep_their_charge(self, enforce: Any, ask: Ask) -> None:
        options = {"count_denied": True}
        store = enforce(site={**SITE, **options}, last=LAST)
        assert [ask("drf").status_code for _ in range(3)] == [200, 429, 429]
        assert left(store, **options) == [3]
        assert '"site";r=1' in ask("drf")["RateLimit"]

    def test_some_answers_count(self, enforce: Any, ask: Ask) -> None:
        options: dict[str, Any] = {"count_on": (200, 429)}
        store = enforce(site={**SITE, **options}, last=LAST)
        assert [ask("drf").status_code for _ in range(6)] == [200] + [429] * 5
        assert left(store, **options) == [7]

    def test_a_shadow_gets_back_what_it_recorded(self, enforce: Any, ask: Ask) -> None:
        store = enforce(site={**SITE, "action": "shadow"}, last=LAST)
        assert [ask("drf").status_code for _ in range(6)] == [200] + [429] * 5
        assert left(store, action="shadow") == [7]

    def test_a_door_of_higher_cost(self, enforce: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
        """It refuses the rest of a charge of which the first door has made a part."""
        monkeypatch.setattr(Drf, "throttle_cost", 3, raising=False)
        store = enforce(site=SITE)
        answers = [ask("drf") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 429, 429]
        assert left(store) == [3]
        assert answers[1]["RateLimit"].startswith('"site";r=3')


@pytest.mark.parametrize("enforce", ["memory", "redis"], indirect=True)
@pytest.mark.parametrize("view", ["handling", "handling in a decorator"])
def test_a_refusal_that_the_view_handles_is_none_of_the_request(enforce: Any, ask: Ask, view: str) -> None:
    store = enforce(site=SITE, middle=MIDDLE, last=LAST)
    answers = [ask(view) for _ in range(3)]
    assert [answer.content for answer in answers] == [b"done", b"done without", b"done without"]
    assert left(store) == [3]
    assert left_of(store, "middle", MIDDLE) == (4 if "decorator" in view else 7)


@pytest.mark.parametrize("view", ["drf", "two decorators", "two async decorators", "callable in a throttle class"])
def test_idents_of_several_slots_of_a_cluster(
    cluster: RedisCluster, settings: Any, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock, ask: Ask, view: str
) -> None:
    rules = {"site": SITE, "each": {**MIDDLE, "scopes": ["*"]}, "middle": MIDDLE, "last": LAST}
    settings.DJANGO_THROTTLE = {"RULES": rules, "DATABASE_RULES": False, "AGENT": False}
    store = RedisStore(cluster.url, clock=clock, deadline=5.0)
    count_in(store, monkeypatch)
    assert len({key_slot(store.key("rule", ident).encode()) for ident in ("everyone", "ip:127.0.0.1")}) == 2
    assert [ask(view).status_code for _ in range(6)] == [200] + [429] * 5
    assert left(store) == [7]
    assert left_of(store, "each", MIDDLE) == 6


def test_while_redis_is_away_this_process_gives_back_its_own(
    settings: Any, monkeypatch: pytest.MonkeyPatch, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"on_store_failure": "local"}
    rules = {"site": {**SITE, **options}, "last": {**LAST, **options}}
    settings.DJANGO_THROTTLE = {"RULES": rules, "DATABASE_RULES": False, "AGENT": False, "PROCESSES": 1}
    store = RedisStore("redis://127.0.0.1:1/0")
    count_in(store, monkeypatch)
    assert [ask("drf").status_code for _ in range(6)] == [200] + [429] * 5
    assert left(store) == [7]


def test_where_redis_goes_away_the_charge_stays(
    enforce: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unsaid(finalize, monkeypatch)
    store = enforce(site=SITE, last=LAST)
    execute = store.execute

    def away(command: Any) -> Any:
        if isinstance(command, Refund):
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
def test_doors_one_after_the_other_decide_as_one_decision_does(
    rules: list[Rule], calls: list[tuple[int, float]]
) -> None:
    """Whatever their rules: the same is let through, and then the same is left."""
    named = [replace(rule, name=f"rule {n}", key="everyone") for n, rule in enumerate(rules) if rule.action != "delay"]
    assume(named)
    clock = FrozenClock()
    doors, oracle = MemoryStore(clock), MemoryStore(clock)
    cost = 1

    def priced(request: HttpRequest) -> int:
        return cost

    view: Any = plain
    for rule in named:
        view = throttle(rule.name, cost=priced)(view)
    with pytest.MonkeyPatch.context() as patch:
        count_in(doors, patch)
        rulebook.pin(rulebook.Snapshot(named))
        try:
            for cost, jump in calls:
                answer = view(RequestFactory().get("/"))
                asked = [named[n:] for n in range(len(named), -1, -1)]  # the last is outermost
                refused = [some for some in asked if not Limiter(some, oracle).peek("everyone", cost).allowed]
                expected = Limiter((refused or [named])[0], oracle).acquire("everyone", cost)
                assert (answer.status_code == 200) is expected.allowed
                for rule in named:
                    told = [Limiter([rule], each).peek("everyone") for each in (doors, oracle)]
                    assert told[0] == told[1], rule
                clock.tick(jump * (named[0].window or 0))
        finally:
            rulebook.pin(None)


def reader(store: Any, request: Any) -> Callable[[], Any]:
    """Reads what the store has counted."""
    if isinstance(store, MemoryStore):
        return lambda: {key: state for key, (state, _) in counters(store).items()}
    server = request.getfixturevalue("redis_server")

    def read() -> Any:
        with server.client() as client:
            return {key: client.dump(key) for key in client.keys("*")}

    return read

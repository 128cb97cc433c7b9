"""A plain request takes a short way, and its answer is that of the general way."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from django.urls import path
from hypothesis import example, given
from hypothesis import strategies as st
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import rulebook
from django_throttle.core import Override, Rule
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import InvalidRule
from django_throttle.http.request_state import decisions_of, state_of
from django_throttle.middleware import ThrottleMiddleware
from django_throttle.rulebook import Snapshot
from django_throttle.stores import RedisStore
from django_throttle.testing import counting_in
from tests.clock import FrozenClock
from tests.doors import BOTH, REDIS, Enforce
from tests.http.conftest import close
from tests.servers import RedisServer


class View(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    throttle_scope = "search"

    def get(self, request: Request) -> Response:
        return Response(status=spend(request))

    post = get


def spend(request: Any) -> int:
    """Spend what the request says, which is due under rules of units; return the status that it asks for."""
    request.throttle.spend(int(request.headers.get("Used", 0)))
    return int(request.headers["Status"])


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=spend(request))


async def aplain(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(plain)(request)


ENTRY_POINTS: dict[str, Callable[[Any], Any]] = {
    "middleware": ThrottleMiddleware(plain),
    "async middleware": async_to_sync(ThrottleMiddleware(aplain)),
    "REST framework": View.as_view(),
    "both": ThrottleMiddleware(View.as_view()),
}
urlpatterns = [path("search", plain, name="search"), path("other", plain, name="other")]


asked: list[HttpRequest] = []


def caller(request: HttpRequest) -> str | None:
    asked.append(request)
    return request.headers.get("Who")


def do_nothing(report: object) -> None:
    """A hook: where there is one, every request takes the general way."""


rates = st.tuples(st.integers(1, 6), st.sampled_from("sm")).map(lambda pair: f"{pair[0]}/{pair[1]}")
options = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["user", "ip", "user_or_ip", "everyone", "user+ip", "tenant"]),
        "scopes": st.sampled_from([("search",), ("other",), ("*",)]),
    }
)
# With none of them, as for most rules here, a rule is plain.
extras: Any = st.sampled_from([{}] * 12 + [
    {"methods": ("POST",)}, {"audience": ("anonymous",)}, {"audience": ("staff",)}, {"action": "shadow"},
    {"count_on": (404,)}, {"warn_at": (0.5,)}, {"plans": {"authenticated": "9/m"}}, {"cost": 2},
    {"unit": "units", "reserve": 2},
    {"algorithm": "leaky_bucket", "action": "defer", "max_queue": 3},
    {"algorithm": "concurrency", "limit": 2, "events": ("inflight",)},
])  # fmt: skip
algorithms = st.sampled_from(["sliding_window", "fixed_window", "gcra", "sliding_log"])
overrides = st.builds(
    Override, subject=st.sampled_from(["user:1", "ip:192.0.2.1"]), effect=st.sampled_from(["exempt", "block"])
)
visits = st.tuples(
    st.sampled_from(sorted(ENTRY_POINTS)),
    st.sampled_from(["GET", "POST"]),
    st.sampled_from(["/search", "/other", "/nowhere"]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from(["192.0.2.1", "192.0.2.2"]),
    st.sampled_from(["200", "404"]),
    st.sampled_from(["0", "0", "1", "3"]),
    st.sampled_from([0.0, 0.3, 20.0]),
)
prefixes = (f"plain{number}" for number in count())


@st.composite
def rule(draw: st.DrawFn, name: str) -> Rule | None:
    chosen: Any = {"algorithm": draw(algorithms), **draw(options), **draw(extras)}
    with suppress(InvalidRule):
        return Rule(name, **chosen if "limit" in chosen else {**chosen, "rate": draw(rates)})
    return None


def answers(
    url: str, rules: list[Rule], overridden: list[Override], history: list[Any], *, hooks: list[str]
) -> list[Any]:
    """What each request of a history is answered, what it was charged, and what they all leave in Redis."""
    told: list[Any] = []
    clock = FrozenClock()
    settings = {"HOOKS": hooks, "RULES": {}, "DATABASE_RULES": False, "RETRY_JITTER": 0.0}
    with override_settings(DJANGO_THROTTLE=settings, ROOT_URLCONF=__name__):
        store = RedisStore(url, clock=clock, deadline=5.0, prefix=next(prefixes))
        redis = store.transport.client
        before = rulebook.pin(Snapshot(rules, overridden, clock))
        try:
            with counting_in(store):
                for entry_point, method, where, pk, address, status, used, seconds in history:
                    clock.tick(seconds)
                    factory = AsyncRequestFactory() if "async" in entry_point else RequestFactory()
                    request: Any = factory.generic(method, where, headers={"Status": status, "Used": used})
                    request.META["REMOTE_ADDR"] = address
                    request.user = AnonymousUser() if pk is None else User(pk=pk)
                    response = ENTRY_POINTS[entry_point](request)
                    state = state_of(request)
                    decisions = [decision._replace(lease=None) for decision in decisions_of(request)]  # of random id
                    close(response)
                    request.close()
                    headers = dict(response.headers)
                    costs, entries = state.ledger.costs, state.ledger.entries
                    told.append((response.status_code, headers, decisions, costs, entries, [*state.queue_slots]))
            keys = sorted(redis.keys(f"{store.prefix}:*"))
            told.append([redis.get(key) for key in keys if redis.type(key) == b"string"])
        finally:
            rulebook.pin(before)
            store.transport.pool.close_idle()
    return told


SPENDS = ("middleware", "GET", "/search", None, "192.0.2.1", "200", "3", 0.0)


@example(rules=[Rule("a", "9/m", key="ip", unit="units", reserve=2)], overridden=[], history=[SPENDS])
@example(rules=[Rule("a", "9/m", key="ip", algorithm="leaky_bucket", action="defer")], overridden=[], history=[SPENDS])
@given(
    rules=st.tuples(rule("a"), rule("b"), rule("c")).map(lambda found: [one for one in found if one is not None]),
    overridden=st.lists(overrides, max_size=1),
    history=st.lists(visits, min_size=1, max_size=12),
)
def test_both_ways_have_the_same_results(redis_server: RedisServer, rules: Any, overridden: Any, history: Any) -> None:
    short = answers(redis_server.url, rules, overridden, history, hooks=[])
    general = answers(redis_server.url, rules, overridden, history, hooks=[f"{__name__}.do_nothing"])
    assert short == general


@REDIS
def test_an_answered_request_owes_nothing_and_another_view_that_it_calls_is_another_call(enforce: Enforce) -> None:
    enforce(api={"rate": "5/m", "algorithm": "fixed_window"})
    request, again = (RequestFactory().get("/search", headers={"Status": "200"}) for _ in range(2))
    ENTRY_POINTS["middleware"](request)
    assert state_of(request).ledger.refund() == ()
    left = [ENTRY_POINTS["REST framework"](again)["RateLimit"] for _ in range(2)]
    assert left == ['"api";r=3;t=60', '"api";r=2;t=60']


@pytest.mark.parametrize("headers", [{"Who": "anna"}, {}])
@pytest.mark.parametrize("slots", [{}, {"slots": {"limit": 2, "algorithm": "concurrency", "events": ["inflight"]}}])
@BOTH
def test_a_function_of_the_site_is_asked_once(enforce: Enforce, slots: Any, headers: Any) -> None:
    enforce(api={"rate": "1/m", "key": f"{__name__}.caller"}, **slots)
    for _ in range(3):  # allowed, refused, and refused again
        asked.clear()
        ENTRY_POINTS["middleware"](RequestFactory().get("/search", headers={"Status": "200", **headers}))
        assert len(asked) == 1

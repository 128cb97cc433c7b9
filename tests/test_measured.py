"""Rules of measured units at the doors of HTTP: a reserve beforehand, what is spent, and what was used in the end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Correct, Decide
from django_throttle.costs import measured
from django_throttle.costs.measured import learned_means
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import Refused
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter
from django_throttle.signals import throttled
from django_throttle.stores import get_store
from tests.callers import ANNA
from tests.doors import BOTH, Enforce
from tests.inside import commands_to, unsaid

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]
QUERIES: dict[str, Any] = {"rate": "100/h", "unit": "queries", "reserve": 10, "key": "everyone"}
DOORS = ["plain", "decorated", "drf"]


def ask(request: HttpRequest) -> HttpResponse:
    for _ in range(int(request.GET["queries"])):
        Group.objects.count()
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse("é" * 10, status=int(request.GET.get("status", 200)))


class View(APIView):
    throttle_classes = [RuleThrottle]

    def get(self, request: Request) -> Response:
        return Response(status=ask(request._request).status_code)


TOKENS: dict[str, Any] = {"rate": "1000/h", "unit": "units", "reserve": 50, "key": "everyone"}
DOINGS: dict[str, Any] = {}


def view(request: HttpRequest) -> Any:
    return DOINGS["view"](request)


async def aview(request: HttpRequest) -> Any:
    return await DOINGS["view"](request)


urlpatterns = [
    path("plain", ask, name="plain"), path("decorated", throttle("api")(ask), name="decorated"),
    path("drf", View.as_view(), name="drf"), path("sync", view, name="sync"), path("async", aview, name="async"),
]  # fmt: skip


def twice(request: Any) -> int:
    return int(request.GET["queries"]) * 2


def of_both(request: Any, response: Any) -> int:
    return int(request.GET["queries"]) + response.status_code


def left(**options: Any) -> int | None:
    return Limiter([Rule("api", **{**QUERIES, **options})], get_store()).peek("everyone").remaining


@pytest.fixture(autouse=True)
def _unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid(measured, monkeypatch)


@pytest.fixture(autouse=True)
def _middleware(settings: Any, request: pytest.FixtureRequest) -> None:
    learned_means.clear()
    door = request.node.callspec.params.get("door") if hasattr(request.node, "callspec") else ""
    settings.MIDDLEWARE = [] if door in ("decorated", "drf") else ["django_throttle.middleware.ThrottleMiddleware"]


def fails(request: Any, response: Any) -> int:
    raise ZeroDivisionError


def negative(request: Any, response: Any) -> int:
    return -1


def get(door: str, queries: int, **query: Any) -> Any:
    return Client(raise_request_exception=False).get(f"/{door}", {"queries": queries, **query})


@BOTH
@pytest.mark.parametrize("door", DOORS)
def test_a_request_is_charged_its_queries_in_the_end(enforce: Enforce, door: str) -> None:
    enforce(api=QUERIES)
    assert get(door, 3).headers["RateLimit"].startswith('"api";r=90')
    assert left() == 97
    assert get(door, 25, fail=1).status_code == 500
    assert left() == 72
    get(door, 80)
    assert left() == 0
    assert get(door, 1).status_code == 429


@BOTH
@pytest.mark.parametrize("door", DOORS)
def test_a_result_that_is_refunded_uses_up_nothing(enforce: Enforce, door: str) -> None:
    options = {"refund_on": [304, "5xx"]}
    enforce(api={**QUERIES, **options})
    for status, remaining in ((304, 100), (500, 100), (404, 96)):
        get(door, 4, status=status)
        assert left(**options) == remaining


@BOTH
@pytest.mark.parametrize(
    ("options", "queries", "told", "charged"),
    [
        ({"unit": "units", "reserve": f"{__name__}.twice", "measure": f"{__name__}.of_both"}, 30, 940, 230),
        ({"unit": "units", "reserve": f"{__name__}.twice", "measure": f"{__name__}.of_both"}, 600, 0, 800),
        ({"unit": "response_bytes"}, 0, 990, 20),
    ],
    ids=["functions", "more than is allowed", "bytes"],
)
def test_what_is_reserved_and_what_is_charged(
    enforce: Enforce, options: dict[str, Any], queries: int, told: int, charged: int
) -> None:
    options = {"rate": "1000/h", **options}
    enforce(api={**QUERIES, **options})
    assert get("plain", queries).headers["RateLimit"].startswith(f'"api";r={told}')
    assert left(**options) == 1000 - charged


@BOTH
def test_the_mean_is_reserved_once_it_is_known(enforce: Enforce) -> None:
    options = {"reserve": "mean", "rate": "1000/h"}
    enforce(api={**QUERIES, **options})
    assert get("plain", 16).headers["RateLimit"].startswith('"api";r=999')
    assert get("plain", 16).headers["RateLimit"].startswith('"api";r=968')
    assert left(**options) == 968


@BOTH
@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (f"{__name__}.fails", f"measure {__name__}.fails: it raised ZeroDivisionError"),
        (f"{__name__}.negative", f"measure {__name__}.negative: a cost must be a whole number from 0 on, not -1"),
    ],
)
def test_where_nothing_could_be_measured_the_reserve_stays(
    enforce: Enforce, measure: str, said: str, caplog: Any
) -> None:
    options = {"unit": "units", "measure": measure}
    enforce(api={**QUERIES, **options}, rows={**QUERIES, "unit": "rows"})
    assert get("plain", 4).status_code == 200
    assert left(**options) == 90
    assert Limiter([Rule("rows", **{**QUERIES, "unit": "rows"})], get_store()).peek("everyone").remaining == 96
    assert f"{said}; under rule 'api' what was reserved stays charged" in caplog.text


def ask_often(queries: int) -> None:
    for _ in range(queries):
        Group.objects.count()
    if queries == 13:
        raise ZeroDivisionError


@throttle("api", ident="everyone")
async def aask_often(queries: int) -> None:
    await sync_to_async(ask_often)(queries)


@BOTH
@pytest.mark.parametrize("ask", [throttle("api", ident="everyone")(ask_often), async_to_sync(aask_often)])
def test_a_callable_is_charged_what_it_has_used(enforce: Enforce, ask: Any) -> None:
    enforce(api=QUERIES)
    ask(20)
    with pytest.raises(ZeroDivisionError):
        ask(13)
    assert left() == 67
    ask(90)
    assert left() == 0
    with pytest.raises(Refused):
        ask(1)


def visit(view: Callable[[HttpRequest], Any]) -> Any:
    DOINGS["view"] = view
    return Client().get("/sync")


def spending(*units: int) -> tuple[Any, list[Decision]]:
    """The response of a view that spends these one by one, and what it was told."""
    told: list[Decision] = []

    def spend(request: Any) -> HttpResponse:
        told.extend(request.throttle.spend(each) for each in units)
        return HttpResponse()

    return visit(spend), told


def costs(commands: list[Any]) -> list[int]:
    return [one.charges[0].cost for one in commands if isinstance(one, Decide)]


@BOTH
@pytest.mark.parametrize(
    ("reserve", "units", "paid", "settled"),
    [
        (50, [5] * 10, [50], 0),
        (50, [3] * 24, [50, 10, 10, 10], 1),  # batches of 1 % of the limit, what is spent first in them
        (50, [70, 60], [50, 70, 60], 1),
        (995, [995, 2, 2, 1], [995, 10, 2, 10, 2, 10, 1], 0),
    ],
    ids=["the reserve", "batches", "large chunks", "the last units"],
)
def test_the_reserve_covers_the_start_and_batches_the_rest(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch, reserve: int, units: list[int], paid: list[int], settled: int
) -> None:
    commands = commands_to(enforce(api={**TOKENS, "reserve": reserve}), monkeypatch)
    response, told = spending(*units)
    assert response.headers["RateLimit"].startswith(f'"api";r={1000 - reserve}')
    assert all(decision.allowed for decision in told)
    assert costs(commands) == paid
    assert sum(isinstance(command, Correct) for command in commands) == settled
    assert left(**TOKENS) == 1000 - sum(units)


@BOTH
def test_the_end_of_a_budget_is_said_and_what_went_beyond_it_is_owed(enforce: Enforce) -> None:
    options = {"algorithm": "token_bucket"}
    enforce(api={**TOKENS, **options})
    told_of: list[Any] = []
    throttled.connect(lambda **said: told_of.append(said["call"].cost), weak=False, dispatch_uid="spending")
    response, told = spending(940, 55, 5, 7, 7)
    throttled.disconnect(dispatch_uid="spending")
    assert [one.allowed for one in told] == [True, True, True, False, False]
    assert (response.status_code, told[-1].rule, told_of) == (200, "api", [7, 7])
    debt = Limiter([Rule("api", **{**TOKENS, **options})], get_store()).peek("everyone")
    assert debt.retry_after == pytest.approx(15 * 3.6, abs=0.1)  # 14 are owed


@BOTH
def test_every_rate_is_charged_what_it_lacks(enforce: Enforce) -> None:
    enforce(api=TOKENS, narrow={**TOKENS, "rate": "300/min", "reserve": 200})
    _, told = spending(120, 60, 100, 100)
    assert [one.rule for one in told if not one.allowed] == ["narrow"] and not told[-1].allowed
    assert left(**TOKENS) == 1000 - 380


@BOTH
def test_on_an_event_loop_spending_is_awaited(enforce: Enforce) -> None:
    enforce(api=TOKENS)

    async def stream(request: Any) -> StreamingHttpResponse:
        with pytest.raises(RuntimeError, match="await aspend"):
            request.throttle.spend(5)

        async def parts() -> AsyncIterator[str]:
            for _ in range(30):
                assert (await request.throttle.aspend(7)).allowed
                yield "part "

        return StreamingHttpResponse(parts())

    async def ask() -> None:
        response: Any = await AsyncClient().get("/async")
        assert len([part async for part in response]) == 30
        await closed(response)

    DOINGS["view"] = stream
    asyncio.run(ask())
    assert left(**TOKENS) == 1000 - 210


@BOTH
def test_threads_of_one_request_lose_nothing(enforce: Enforce) -> None:
    enforce(api={**TOKENS, "rate": "100000/h"})

    def spend(request: Any) -> HttpResponse:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(request.throttle.spend, [3] * 2000))
        return HttpResponse()

    visit(spend)
    assert left(**{**TOKENS, "rate": "100000/h"}) == 100_000 - 6000


@BOTH
def test_requests_at_once_share_what_is_left_and_overspend_nothing(enforce: Enforce) -> None:
    enforce(api=TOKENS)
    spent, together = list[int](), Barrier(8, timeout=30)

    def spend(request: Any) -> HttpResponse:
        together.wait()
        while request.throttle.spend(1).allowed:
            spent.append(1)
        return HttpResponse()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(visit, [spend] * 8))
    assert 1000 - 8 * 10 <= len(spent) <= 1000, "the others hold a batch each"


async def closed(response: Any) -> None:
    response.close()
    while asyncio.all_tasks() - {asyncio.current_task()}:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_batch_that_is_on_its_way_when_its_stream_is_cancelled_goes_back(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = enforce(api=TOKENS)
    aexecute, on_its_way, goes_on = store.aexecute, asyncio.Event(), asyncio.Event()

    async def slowly(command: Any) -> Any:
        answer = await aexecute(command)
        if isinstance(command, Decide) and command.charges[0].cost == 60:
            on_its_way.set()
            await goes_on.wait()
        return answer

    monkeypatch.setattr(store, "aexecute", slowly)

    async def parts(request: Any) -> HttpResponse:
        waiting = asyncio.ensure_future(request.throttle.aspend(60))
        await on_its_way.wait()
        waiting.cancel()
        return HttpResponse()

    DOINGS["view"] = parts
    response = await AsyncClient().get("/async")
    goes_on.set()
    await closed(response)
    assert left(**TOKENS) == 940


def test_a_call_that_costs_nothing_reserves_nothing() -> None:
    rule = Rule("api", **QUERIES)
    assert [measured.reserve_of(rule, Call("api", ("request",), ANNA, cost)) for cost in (0, 1)] == [0, 10]

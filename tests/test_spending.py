"""What is spent while a request runs: by its reserve, then in batches, and settled as one when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Decide, Settle
from django_throttle.limiter import Limiter
from django_throttle.signals import throttled
from django_throttle.stores import get_store
from tests.doors import BOTH, Enforce, enforcer
from tests.inside import commands_to

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]
enforce = pytest.fixture(enforcer)
TOKENS: dict[str, Any] = {"rate": "1000/h", "unit": "units", "reserve": 50, "key": "everyone"}
DOINGS: dict[str, Any] = {}


def view(request: HttpRequest) -> Any:
    return DOINGS["view"](request)


async def aview(request: HttpRequest) -> Any:
    return await DOINGS["view"](request)


urlpatterns = [path("sync", view, name="sync"), path("async", aview, name="async")]


@pytest.fixture(autouse=True)
def _middleware(settings: Any) -> None:
    settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]


def left(**options: Any) -> int | None:
    return Limiter([Rule("tokens", **{**TOKENS, **options})], get_store()).peek("everyone").remaining


def get(view: Callable[[HttpRequest], Any]) -> Any:
    DOINGS["view"] = view
    return Client().get("/sync")


def spending(*units: int) -> tuple[Any, list[Decision]]:
    """The response of a view that spends these one by one, and what it was told."""
    told: list[Decision] = []

    def spend(request: Any) -> HttpResponse:
        told.extend(request.throttle.spend(each) for each in units)
        return HttpResponse()

    return get(spend), told


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
    commands = commands_to(enforce(tokens={**TOKENS, "reserve": reserve}), monkeypatch)
    response, told = spending(*units)
    assert response.headers["RateLimit"].startswith(f'"tokens";r={1000 - reserve}')
    assert all(decision.allowed for decision in told)
    assert costs(commands) == paid
    assert sum(isinstance(command, Settle) for command in commands) == settled
    assert left() == 1000 - sum(units)


@BOTH
def test_the_end_of_a_budget_is_said_and_what_went_beyond_it_is_owed(enforce: Enforce) -> None:
    options = {"algorithm": "token_bucket"}
    enforce(tokens={**TOKENS, **options})
    told_of: list[Any] = []
    throttled.connect(lambda **said: told_of.append(said["facts"].cost), weak=False, dispatch_uid="spending")
    response, told = spending(940, 55, 5, 7, 7)
    throttled.disconnect(dispatch_uid="spending")
    assert [one.allowed for one in told] == [True, True, True, False, False]
    assert (response.status_code, told[-1].rule, told_of) == (200, "tokens", [7, 7])
    debt = Limiter([Rule("tokens", **{**TOKENS, **options})], get_store()).peek("everyone")
    assert debt.retry_after == pytest.approx(15 * 3.6, abs=0.1)  # 14 are owed


@BOTH
def test_every_rate_is_charged_what_it_lacks(enforce: Enforce) -> None:
    enforce(tokens=TOKENS, narrow={**TOKENS, "rate": "300/min", "reserve": 200})
    _, told = spending(120, 60, 100, 100)
    assert [one.rule for one in told if not one.allowed] == ["narrow"] and not told[-1].allowed
    assert left() == 1000 - 380


@BOTH
def test_on_an_event_loop_spending_is_awaited(enforce: Enforce) -> None:
    enforce(tokens=TOKENS)

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
    assert left() == 1000 - 210


@BOTH
def test_what_is_spent_after_the_end_is_charged_one_by_one(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = commands_to(enforce(tokens=TOKENS), monkeypatch)
    requests: list[Any] = []
    get(lambda request: requests.append(request) or HttpResponse())
    assert left() == 1000
    for units in (3, 4):
        assert requests[0].throttle.spend(units).allowed
    assert costs(commands)[-2:] == [3, 4]
    assert left() == 993


@BOTH
def test_threads_of_one_request_lose_nothing(enforce: Enforce) -> None:
    enforce(tokens={**TOKENS, "rate": "100000/h"})

    def spend(request: Any) -> HttpResponse:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(request.throttle.spend, [3] * 2000))
        return HttpResponse()

    get(spend)
    assert left(rate="100000/h") == 100_000 - 6000


async def closed(response: Any) -> None:
    """Close it, and wait for what settles it."""
    response.close()
    while asyncio.all_tasks() - {asyncio.current_task()}:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_batch_that_is_on_its_way_when_its_stream_is_cancelled_goes_back(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = enforce(tokens=TOKENS)
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
    assert left() == 940

"""The recipes for streams are run, and do what they say."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import pytest
from django.test import AsyncClient, Client
from django.urls import path

from tests.doors import BOTH, Enforce, enforcer
from tests.pages import shown
from tests.sockets.guarded import Line

SETTINGS, CONSUMER, EXPORT, EVENTS = shown("streams")
enforce = pytest.fixture(enforcer)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]
RULES: dict[str, Any] = {}
exec(SETTINGS, RULES)
LONG = 2000


def orders() -> Iterator[str]:
    return (f"order {number}" for number in range(LONG))


async def tokens(request: Any) -> AsyncIterator[str]:
    for number in range(LONG):
        yield f"token {number}"


@pytest.fixture(autouse=True)
def _site(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    mysite: dict[str, Any] = {"orders": {"orders": orders}, "model": {"tokens": tokens}}
    monkeypatch.setitem(sys.modules, "mysite", ModuleType("mysite"))
    for name, names in mysite.items():
        module = ModuleType(f"mysite.{name}")
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    export: dict[str, Any] = {"__name__": "mysite.export"}
    exec(EXPORT, export)
    events: dict[str, Any] = {"__name__": "mysite.answers"}
    exec(EVENTS, events)
    urlpatterns[:] = [path("export", export["ExportView"].as_view()), path("answer", events["answer"])]
    settings.MIDDLEWARE = []


urlpatterns: list[Any] = []


def rule(limit: int) -> dict[str, Any]:
    (given,) = RULES["DJANGO_THROTTLE"]["RULES"].values()
    return {**given, "key": "everyone", "rate": f"{limit}/h"}


@BOTH
def test_an_export_says_where_it_is_incomplete(enforce: Enforce) -> None:
    enforce(tokens=rule(1000))
    response: Any = Client().get("/export")
    lines = b"".join(response.streaming_content).decode().splitlines()
    assert lines[999] == "order 999"
    assert lines[1000].startswith("# incomplete: Rate limit exceeded. Try again in ")
    assert len(lines) == 1001
    assert Client().get("/export").status_code == 429


@BOTH
def test_an_export_within_the_budget_is_whole(enforce: Enforce) -> None:
    enforce(tokens=rule(10_000))
    response: Any = Client().get("/export")
    assert len(b"".join(response.streaming_content).splitlines()) == LONG


@BOTH
@pytest.mark.parametrize(("limit", "last"), [(1000, "error"), (10_000, "done")])
async def test_the_last_event_says_how_a_stream_ended(enforce: Enforce, limit: int, last: str) -> None:
    enforce(tokens=rule(limit))
    response: Any = await AsyncClient().get("/answer")
    events = b"".join([part async for part in response]).decode().split("\n\n")[:-1]
    fields = dict(line.split(": ", 1) for line in events[-1].split("\n"))
    assert fields["event"] == last
    assert len(events) == min(limit, LONG) + 1
    if last == "error":
        problem = json.loads(fields["data"])
        assert problem["violated-policies"] == ["tokens"]
        assert problem["status"] == 429
        assert fields["retry"] == f"{problem['retry_after']}000"


async def test_the_last_frame_says_how_an_answer_ended(enforce: Enforce) -> None:
    enforce(tokens=rule(1500))
    consumer: dict[str, Any] = {"__name__": "mysite.consumers"}
    exec(CONSUMER, consumer)
    line = await Line(consumer["Answers"].as_asgi()).open()
    line.send("{}")
    await line.until(lambda: line.told("error"))
    assert [frame["type"] for frame in line.frames] == ["token"] * 1500 + ["error"]
    assert line.frames[-1]["rule"] == "tokens"
    await line.close()

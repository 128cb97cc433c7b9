"""The recipes for streams are run, and say where what they send is incomplete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from django.test import Client
from django.urls import path

from tests.doors import BOTH, Enforce, enforcer
from tests.pages import run, shown
from tests.sockets.guarded import Line

SETTINGS, CONSUMER, EXPORT, _EVENTS = shown("streams")  # the last is run by test_client_sees.py
enforce = pytest.fixture(enforcer)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]
LONG = 2000
urlpatterns: list[Any] = []


def orders() -> Iterator[str]:
    return (f"order {number}" for number in range(LONG))


async def tokens(request: Any) -> Any:
    for number in range(LONG):
        yield f"token {number}"


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    for name, names in {"mysite": {}, "mysite.orders": {"orders": orders}, "mysite.model": {"tokens": tokens}}.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    urlpatterns[:] = [path("export", run(EXPORT)["ExportView"].as_view())]
    settings.MIDDLEWARE = []


def rule(limit: int) -> dict[str, Any]:
    (given,) = run(SETTINGS)["DJANGO_THROTTLE"]["RULES"].values()
    return {**given, "key": "everyone", "rate": f"{limit}/h"}


@BOTH
@pytest.mark.parametrize("limit", [1000, 10_000])
def test_an_export_says_where_it_is_incomplete(enforce: Enforce, limit: int) -> None:
    enforce(tokens=rule(limit))
    response: Any = Client().get("/export")
    lines = b"".join(response.streaming_content).decode().splitlines()
    if limit > LONG:
        assert len(lines) == LONG
        return
    assert lines[limit - 1] == f"order {limit - 1}"
    assert lines[limit].startswith("# incomplete: Rate limit exceeded. Try again in ")
    assert len(lines) == limit + 1
    assert Client().get("/export").status_code == 429


async def test_the_last_frame_says_how_an_answer_ended(enforce: Enforce) -> None:
    enforce(tokens=rule(1500))
    line = await Line(run(CONSUMER)["Answers"].as_asgi()).open()
    line.send("{}")
    await line.until(lambda: line.told("error"))
    assert [frame["type"] for frame in line.frames] == ["token"] * 1500 + ["error"]
    assert line.frames[-1]["rule"] == "tokens"
    await line.close()

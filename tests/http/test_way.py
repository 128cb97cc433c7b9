"""The way of one request: the modules of the package that it enters, the moves between them, and its calls."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.test import RequestFactory
from rest_framework.response import Response

import django_throttle
from django_throttle.stores import RedisStore
from tests.doors import Enforce
from tests.http import site
from tests.inside import count_in

PACKAGE = str(Path(django_throttle.__file__).parent) + "/"
MOST_MODULES, MOST_MOVES, MOST_CALLS = 20, 36, 50


class Way(NamedTuple):
    """The calls of functions of the package, in their order: (module, function)."""

    calls: list[tuple[str, str]]

    @property
    def modules(self) -> set[str]:
        return {module for module, _ in self.calls}

    @property
    def moves(self) -> int:
        """How often a call is in another module than the one before it."""
        pairs = zip(self.calls, self.calls[1:], strict=False)
        return sum(one[0] != other[0] for one, other in pairs)


def way_of(call: Any) -> Way:
    """Make the call, and note the functions that it enters; a generator is entered each time it is resumed."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            calls.append((code.co_filename.removeprefix(PACKAGE).removesuffix(".py"), code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Way(calls)


@pytest.mark.usefixtures("no_databases")
def test_the_way_of_a_request(enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setitem(site.DOINGS, "answer", lambda request: Response({"said": "ok"}))
    monkeypatch.setattr(site, "do", lambda request, doing: site.DOINGS[doing](request))
    enforce(api={"rate": "1000/h", "key": "ip"})
    count_in(RedisStore(redis_url, deadline=5.0), monkeypatch)  # by the server's clock, as sites do
    handler, statuses = WSGIHandler(), []

    def ask() -> None:
        handler(RequestFactory().get("/drf/answer").environ, lambda status, _: statuses.append(status))

    for _ in range(3):  # what the first request prepares is prepared
        ask()
    way = way_of(ask)
    print(*(f"{module:28}{function}" for module, function in way.calls), sep="\n")
    print(f"{len(way.modules)} modules, {way.moves} moves between them, {len(way.calls)} calls")
    assert statuses == ["200 OK"] * 4
    assert len(way.modules) <= MOST_MODULES
    assert way.moves <= MOST_MOVES
    assert len(way.calls) <= MOST_CALLS

"""Rules name any method that is registered, and statuses by their class."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from tests.doors import BOTH, Enforce, enforcer

enforce = pytest.fixture(enforcer)

urlpatterns = [path("<int:status>", lambda request, status: HttpResponse(status=status), name="page")]


@pytest.fixture
def site(settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, ["django_throttle.middleware.ThrottleMiddleware"]


def statuses(wanted: list[int], method: str = "GET") -> list[int]:
    return [Client().generic(method, f"/{status}").status_code for status in wanted]


@BOTH
@pytest.mark.parametrize("method", ["QUERY", "query", "PROPFIND", "MKCOL", "VERSION-CONTROL"])
def test_a_method(enforce: Enforce, site: None, method: str) -> None:
    enforce(api={"rate": "1/min", "key": "ip", "methods": [method]})
    assert statuses([200] * 3, method.upper()) == [200, 429, 429]
    assert statuses([200] * 3, "MOVE") == [200] * 3


@BOTH
@pytest.mark.parametrize(
    ("count_on", "passed"), [(["4xx"], 4), ([404, "5xx"], 3), (["5xx"], 5), ([401], 8), (["4xx", "5xx"], 3)]
)
def test_a_class_of_statuses(enforce: Enforce, site: None, count_on: list[Any], passed: int) -> None:
    enforce(api={"rate": "2/min", "key": "ip", "count_on": count_on})
    asked = [200, 404, 500, 403, 503, 404, 200, 201]
    assert statuses(asked) == asked[:passed] + [429] * (8 - passed)

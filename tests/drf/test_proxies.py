"""The drop-ins of the REST framework behind proxies: a header is an address or it is nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_throttle import drf
from tests.doors import BOTH, Enforce, enforcer

enforce = pytest.fixture(enforcer)


class Anon(drf.AnonRateThrottle):
    rate = "3/min"


class User(drf.UserRateThrottle):
    rate = "3/min"


class Scoped(drf.ScopedRateThrottle):
    THROTTLE_RATES: ClassVar[Any] = {"scope": "3/min"}


class View(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_scope = "scope"

    def get(self, request: Request) -> Response:
        return Response()


@pytest.fixture(params=[Anon, User, Scoped])
def ask(request: pytest.FixtureRequest, settings: Any, enforce: Enforce) -> Callable[[str], int]:
    """The status for what X-Forwarded-For says, of a view behind one proxy."""
    enforce()
    settings.REST_FRAMEWORK = {"NUM_PROXIES": 1}
    view = View.as_view(throttle_classes=[request.param])
    return lambda said: int(view(APIRequestFactory().get("/", headers={"X-Forwarded-For": said})).status_code)


@BOTH
@pytest.mark.parametrize("said", ["x" * 2000, "1" * 2000, "::" * 1000, "9.9.9.9, " + "y" * 2000, "", " ,"], ids=len)
def test_what_is_no_address_is_the_proxy_s_own_budget(said: str, ask: Callable[[str], int]) -> None:
    assert [ask(said) for _ in range(4)] == [200, 200, 200, 429]
    assert ask("z" * 1999) == 429, "else every other word would be a new budget"
    assert ask("198.51.100.7") == 200


@BOTH
def test_addresses_of_one_network_share_a_budget(ask: Callable[[str], int]) -> None:
    assert [ask(f"2001:db8:0:1::{number}") for number in range(5)] == [200, 200, 200, 429, 429]
    assert ask("2001:0DB8:0:1:ffff::1") == 429, "the same network in another notation"
    assert ask("2001:db8:0:2::1") == 200


@BOTH
def test_one_address_has_one_budget_in_every_notation(ask: Callable[[str], int]) -> None:
    assert [ask(said) for said in ("198.51.100.7", "::ffff:198.51.100.7", " 198.51.100.7 ", "198.51.100.7")] == [
        200,
        200,
        200,
        429,
    ]

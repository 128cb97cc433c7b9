"""The drop-ins of the REST framework behind proxies: a header is an address or it is nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIRequestFactory

from django_throttle import drf
from tests.doors import BOTH, Enforce, enforcer
from tests.entry_points import site

enforce = pytest.fixture(enforcer)


@pytest.fixture(params=[drf.AnonRateThrottle, drf.UserRateThrottle, drf.ScopedRateThrottle])
def ask(request: pytest.FixtureRequest, settings: Any, enforce: Enforce) -> Callable[[str], int]:
    """The status for what X-Forwarded-For says, of a view behind one proxy."""
    enforce()
    rates = dict.fromkeys(("anon", "user", "scope"), "3/min")
    settings.REST_FRAMEWORK = {"NUM_PROXIES": 1, "DEFAULT_THROTTLE_RATES": rates}
    view = type("View", (site.Api,), {"throttle_scope": "scope", "throttle_classes": [request.param]}).as_view()  # type: ignore[attr-defined]
    factory = APIRequestFactory()
    return lambda said: int(view(factory.get("/", headers={"X-Forwarded-For": said}), doing="ok").status_code)


@BOTH
@pytest.mark.parametrize("said", ["x" * 2000, "1" * 2000, "::" * 1000, "9.9.9.9, " + "y" * 2000, "", " ,"], ids=len)
def test_what_is_no_address_is_the_proxy_s_own_budget(said: str, ask: Callable[[str], int]) -> None:
    assert [ask(said) for _ in range(4)] == [200, 200, 200, 429]
    assert ask("z" * 1999) == 429, "else every other word would be a new budget"
    assert ask("198.51.100.7") == 200


@pytest.mark.parametrize(
    ("said", "other"),
    [
        (["2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1::3", "2001:0DB8:0:1:ffff::1"], "2001:db8:0:2::1"),
        (["198.51.100.7", "::ffff:198.51.100.7", " 198.51.100.7 ", "198.51.100.7"], "198.51.100.8"),
    ],
)
def test_a_network_or_an_address_has_one_budget_in_every_notation(
    said: list[str], other: str, ask: Callable[[str], int]
) -> None:
    assert [ask(each) for each in said] == [200, 200, 200, 429]
    assert ask(other) == 200

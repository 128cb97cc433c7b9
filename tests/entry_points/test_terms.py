"""Methods, audiences and costs at entry points of HTTP: who is meant, and that nobody gets around."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.http import HttpRequest
from django.test import Client

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from tests.doors import Enforce
from tests.entry_points import site

AUTH = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
FORGED = {
    "X-HTTP-Method-Override": "OPTIONS",
    "X-Forwarded-User": "boss",
    "X-Remote-User": "boss",
    "X-Groups": "partners,staff",
    "X-Staff": "true",
    "X-Throttle-Bypass": "1",
    "Authorization": "Bearer staff",
}

pytestmark = pytest.mark.django_db


def size(request: HttpRequest) -> int:
    return int(request.GET.get("size", "1"))


@pytest.fixture(params=["/middleware/ok", "/decorated/ok", "/drf/ok"])
def where(request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a view behind one entry point."""
    from rest_framework.authentication import SessionAuthentication

    monkeypatch.setattr(site.Api, "authentication_classes", [SessionAuthentication])
    monkeypatch.setattr(site.Api, "post", site.Api.get, raising=False)
    settings.ROOT_URLCONF = site.__name__
    settings.MIDDLEWARE = [*AUTH, *(site.MIDDLEWARE if "middleware" in request.param else [])]
    return str(request.param)


def admitted(answers: list[Any]) -> int:
    return sum(answer.status_code != 429 for answer in answers)


def test_methods(enforce: Enforce, where: str) -> None:
    client = Client()
    enforce(api={"rate": "4/min", "methods": ["GET"]})
    assert admitted([call(where) for call in [client.get, client.head] * 4]) == 4, "HEAD is no way around"
    enforce(api={"rate": "2/min", "methods": ["post"]})
    assert admitted([client.get(where) for _ in range(5)]) == 5
    assert admitted([client.post(where, headers=FORGED) for _ in range(5)]) == 2, "nor is a header"


@pytest.mark.parametrize(
    ("audience", "who", "counted"),
    [
        (["anonymous"], None, True),
        (["anonymous"], {}, False),
        (["authenticated"], None, False),
        (["authenticated"], {}, True),
        (["staff"], {}, False),
        (["staff", "group:partners"], {"is_staff": True}, True),
        (["staff", "group:partners"], {"group": "partners"}, True),
        (["group:partners"], {"group": "partner"}, False),
    ],
)
def test_only_who_is_meant_is_counted(
    enforce: Enforce, where: str, audience: list[str], who: Any, counted: bool
) -> None:
    enforce(api={"rate": "2/min", "audience": audience})
    client = Client()
    if who is not None:
        client.force_login(somebody(**who))
    assert admitted([client.get(where) for _ in range(4)]) == (2 if counted else 4)


def somebody(group: str = "", **options: Any) -> User:
    user = User.objects.create_user("anna", **options)
    if group:
        user.groups.add(Group.objects.create(name=group))
    return user


@pytest.mark.row("A34")
def test_nobody_is_exempt_for_what_he_says_of_himself(enforce: Enforce, where: str) -> None:
    Group.objects.create(name="partners")
    enforce(
        api={"rate": "2/min", "audience": ["anonymous"]},
        few={"rate": "9/min", "audience": ["staff", "group:partners"]},
    )
    forged = {**FORGED, "Cookie": "is_staff=1; user=boss"}
    assert admitted([Client().get(f"{where}?user=boss&is_staff=1", headers=forged) for _ in range(5)]) == 2


@pytest.mark.parametrize(
    ("rate", "said", "expected"),
    [
        ("10/min", ["11", "8", "0", "3", "2"], [429, 200, 200, 429, 200]),
        ("2/min", ["-1", "nonsense", "-1"], [200, 200, 429]),  # what is no cost counts 1
        ("1/min", [str(10**15), str(2**63), "9" * 400, "1"], [429, 429, 429, 200]),
    ],
)
def test_a_request_costs_what_the_function_of_the_rule_says(
    enforce: Enforce, where: str, rate: str, said: list[str], expected: list[int]
) -> None:
    enforce(api={"rate": rate, "cost": f"{__name__}.size"})
    assert [Client().get(f"{where}?size={each}").status_code for each in said] == expected


def test_what_is_too_large_is_told_how_large_it_may_be(enforce: Enforce, where: str) -> None:
    enforce(api={"rate": "3000/min", "unit": "bytes", "cost": 2})
    answer = Client().post(where, b"x" * 1501, "text/plain")
    assert (answer.status_code, "Retry-After" in answer) == (429, False)
    assert "This is too large: at most 1,500 bytes are taken at once." in answer.json()["detail"]
    assert Client().post(where, b"x" * 1500, "text/plain").status_code != 429


@pytest.mark.parametrize(
    ("events", "status"), [(["connection"], 200), (["inflight"], 429), (["connection", "inflight"], 429)]
)
def test_open_sockets_and_requests_in_flight_are_two_events(
    enforce: Enforce, where: str, events: list[str], status: int
) -> None:
    """Somebody with all the sockets that they may have open asks for a page."""
    rule = {"limit": 1, "algorithm": "concurrency", "key": "everyone", "events": events}
    store = enforce(api={"rate": "9/min"}, tabs={**rule, "scopes": ["*"]})
    with Limiter([Rule("tabs", **rule)], store).lease("everyone"):
        expected = 200 if "decorated" in where else status  # its rule is another
        assert Client().get(where).status_code == expected
    assert Client().get(where).status_code == 200

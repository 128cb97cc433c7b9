"""Methods, audiences and costs through the real doors: who is meant, and that nobody gets around."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import decorators, drf
from tests.doors import Enforce, enforcer

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
DOOR = "django_throttle.middleware.ThrottleMiddleware"
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


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("plain")


@decorators.throttle("one")
def decorated(request: HttpRequest) -> HttpResponse:
    return HttpResponse("decorated")


class Search(APIView):
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]

    def get(self, request: Request) -> Response:
        return Response({})

    def post(self, request: Request) -> Response:
        return Response({})


urlpatterns = [
    path("plain", plain, name="plain"),
    path("decorated", decorated, name="decorated"),
    path("search", Search.as_view(), name="search"),
]
enforce = pytest.fixture(enforcer)


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [*MIDDLEWARE, DOOR]


@pytest.fixture(params=["middleware", "decorator", "drf"])
def where(request: pytest.FixtureRequest, settings: Any) -> str:
    """The address of a view behind one door, which is under the rule called one."""
    if request.param != "middleware":
        settings.MIDDLEWARE = MIDDLEWARE
    return {"middleware": "/plain", "decorator": "/decorated", "drf": "/search"}[request.param]


def admitted(answers: list[Any]) -> int:
    return sum(answer.status_code != 429 for answer in answers)


class TestMethods:
    def test_head_is_no_way_around_a_limit_on_get(self, enforce: Enforce, where: str) -> None:
        enforce(one={"rate": "4/min", "methods": ["GET"]})
        client = Client()
        calls = [client.get, client.head] * 4
        assert admitted([call(where) for call in calls]) == 4

    def test_other_methods_are_not_counted(self, enforce: Enforce, where: str) -> None:
        enforce(one={"rate": "2/min", "methods": ["post"]})
        client = Client()
        assert admitted([client.get(where) for _ in range(5)]) == 5
        assert admitted([client.post(where) for _ in range(5)]) == 2

    def test_a_header_changes_no_method(self, enforce: Enforce, where: str) -> None:
        enforce(one={"rate": "2/min", "methods": ["POST"]})
        assert admitted([Client().post(where, headers=FORGED) for _ in range(5)]) == 2


class TestAudience:
    MEANT = pytest.mark.parametrize(
        ("audience", "who", "counted"),
        [
            (["anonymous"], None, True),
            (["anonymous"], {}, False),
            (["authenticated"], None, False),
            (["authenticated"], {}, True),
            (["staff"], {}, False),
            (["staff"], {"is_staff": True}, True),
            (["group:partners"], {}, False),
            (["group:partners"], {"group": "partners"}, True),
            (["group:partners"], {"group": "partner"}, False),
            (["staff", "group:partners"], {"group": "partners"}, True),
        ],
    )

    @MEANT
    def test_only_who_is_meant_is_counted(
        self, enforce: Enforce, where: str, audience: list[str], who: Any, counted: bool
    ) -> None:
        enforce(one={"rate": "2/min", "audience": audience})
        client = Client()
        if who is not None:
            client.force_login(somebody(**who))
        assert admitted([client.get(where) for _ in range(4)]) == (2 if counted else 4)

    @MEANT
    @pytest.mark.django_db(transaction=True)  # the database is asked in another thread
    def test_on_an_event_loop_too(self, enforce: Enforce, audience: list[str], who: Any, counted: bool) -> None:
        enforce(one={"rate": "2/min", "audience": audience})
        client = AsyncClient()
        if who is not None:
            client.force_login(somebody(**who))
        answers = [asyncio.run(client.get("/plain")) for _ in range(4)]  # type: ignore[arg-type]
        assert admitted(answers) == (2 if counted else 4)

    @pytest.mark.row("A34")
    def test_nobody_is_exempt_for_what_he_says_of_himself(self, enforce: Enforce, where: str) -> None:
        Group.objects.create(name="partners")
        enforce(
            one={"rate": "2/min", "audience": ["anonymous"]},
            few={"rate": "9/min", "audience": ["staff", "group:partners"]},
        )
        forged = {**FORGED, "Cookie": "is_staff=1; user=boss"}
        assert admitted([Client().get(f"{where}?user=boss&is_staff=1", headers=forged) for _ in range(5)]) == 2


def somebody(group: str = "", **options: Any) -> User:
    user = User.objects.create_user("anna", **options)
    if group:
        user.groups.add(Group.objects.create(name=group))
    return user


class TestCost:
    def test_a_request_costs_what_the_site_s_function_says(self, enforce: Enforce, where: str) -> None:
        enforce(one={"rate": "10/min", "cost": f"{__name__}.size"})
        client = Client()
        assert client.get(f"{where}?size=11").status_code == 429
        assert client.get(f"{where}?size=8").status_code == 200
        assert client.get(f"{where}?size=0").status_code == 200
        assert client.get(f"{where}?size=3").status_code == 429
        assert client.get(f"{where}?size=2").status_code == 200

    def test_more_than_the_limit_is_refused_in_words(self, enforce: Enforce) -> None:
        enforce(one={"rate": "10/min", "cost": f"{__name__}.size"})
        answer = Client().get("/plain?size=11")
        assert (answer.status_code, "Retry-After" in answer) == (429, False)
        assert "costs more than the limit ever allows" in answer.content.decode()

    def test_what_is_too_large_is_told_how_large_it_may_be(self, enforce: Enforce, where: str) -> None:
        enforce(one={"rate": "3000/min", "unit": "bytes", "cost": 2})
        answer = Client().post(where, b"x" * 1501, "text/plain")
        assert (answer.status_code, "Retry-After" in answer) == (429, False)
        assert "This is too large: at most 1,500 bytes are taken at once." in answer.json()["detail"]
        assert Client().post(where, b"x" * 1500, "text/plain").status_code != 429

    @pytest.mark.parametrize("said", ["-1", "nonsense"])
    def test_what_is_no_cost_counts_one(self, enforce: Enforce, where: str, said: str) -> None:
        enforce(one={"rate": "2/min", "cost": f"{__name__}.size"})
        assert [Client().get(f"{where}?size={said}").status_code for _ in range(3)] == [200, 200, 429]

    @pytest.mark.parametrize("said", [str(10**15), str(2**63), "9" * 400])
    def test_what_a_client_makes_too_large_is_refused_and_charges_nothing(
        self, enforce: Enforce, where: str, said: str
    ) -> None:
        enforce(one={"rate": "1/min", "cost": f"{__name__}.size"})
        answer = Client().get(f"{where}?size={said}")
        assert (answer.status_code, "Retry-After" in answer) == (429, False)
        assert Client().get(where).status_code == 200

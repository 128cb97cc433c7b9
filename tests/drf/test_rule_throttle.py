"""The REST framework door: one decision for all rules, exact Retry-After, and DRF's own throttles replaced."""

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from adrf.views import APIView as AsyncAPIView
from django.test import AsyncClient
from django.urls import ResolverMatch, path
from django.utils import translation
from rest_framework.exceptions import APIException, Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_throttle import drf
from django_throttle.core import Rule
from django_throttle.decorators import throttle
from django_throttle.exceptions import InvalidRate, Refused
from django_throttle.http.request_state import decisions_of
from django_throttle.limiter import Limiter, raise_if_refused
from django_throttle.stores import MemoryStore, get_store
from tests.doors import BOTH, Enforce
from tests.entry_points import site
from tests.websockets.guarded import becomes


class View(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_scope: str | None = None
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]

    def get(self, request: Request, **kwargs: Any) -> Response:
        return Response({"decisions": len(decisions_of(request._request))})


class SearchView(View):
    throttle_scope = "search"


class BusyView(SearchView):
    def throttled(self, request: Request, wait: float) -> None:
        raise ServiceUnavailable(f"busy for {wait} s")


class ServiceUnavailable(APIException):
    status_code = 503


class Waiting(site.AsyncApi):
    began: ClassVar[list[int]] = []

    async def get(self, request: Request) -> Any:
        self.began.append(len(get_store().leases))
        await asyncio.Event().wait()


class Decorated(AsyncAPIView):
    authentication_classes: ClassVar[Any] = [site.Authenticate]

    @throttle("api")
    async def get(self, request: Request) -> Any:
        return Response()


urlpatterns = [
    path("waiting", Waiting.as_view()),
    path("ok/<doing>", site.AsyncApi.as_view()),
    path("decorated", Decorated.as_view()),
]


@pytest.fixture(autouse=True)
def urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []


ONE_AT_ONCE: dict[str, Any] = {"limit": 1, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}


@pytest.mark.parametrize(
    "match",
    [None, ResolverMatch(View.as_view(), (), {}), SimpleNamespace(namespace="v1")],
    ids=["none", "without-a-route", "of-another-kind"],
)
def test_a_view_called_without_a_route_has_its_class_name_as_scope(enforce: Enforce, match: Any) -> None:
    enforce(api={"rate": "1/min", "scopes": ["View"]})
    requests = [APIRequestFactory().get("/") for _ in range(2)]
    for request in requests:
        request.resolver_match = match
    assert [View.as_view()(request).status_code for request in requests] == [200, 429]


class TestDropIns:
    @pytest.mark.parametrize(
        ("rate", "parsed"),
        [("100/m", (100, 60)), ("1/second", (1, 1)), ("9/day", (9, 86400)), ("5/10m", (5, 600)), (None, (None, None))],
    )
    def test_parse_rate_reads_drfs_rates_and_ours(self, rate: str | None, parsed: object) -> None:
        assert type("Own", (drf.UserRateThrottle,), {"rate": "4/min"})().parse_rate(rate) == parsed

    @pytest.mark.parametrize("rate", ["10/fortnight", "1/2-sec", "10/Hour", "10/mo", "10", "", "1.5/m", "10/m/m"])
    def test_parse_rate_refuses_what_drf_misreads(self, rate: str) -> None:
        with pytest.raises(InvalidRate):
            type("Own", (drf.UserRateThrottle,), {"rate": "4/min"})().parse_rate(rate)

    @BOTH
    def test_a_rate_too_large_for_a_log(self, enforce: Enforce) -> None:
        class Large(drf.UserRateThrottle):
            rate = "10000000/day"

        enforce()
        request = APIRequestFactory().get("/")
        assert View.as_view(throttle_classes=[Large])(request).status_code == 200
        assert decisions_of(request)[0].remaining == 9_999_999


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_a_refusal_reads_as_rest_framework_s_own(enforce: Enforce, language: str) -> None:
    enforce(api={"rate": "1/h", "scopes": ["search"], "key": "ip", "algorithm": "fixed_window"})
    view = SearchView.as_view()
    with translation.override(language):
        _, refused = [view(APIRequestFactory().get("/")) for _ in range(2)]
        assert refused.data == {"detail": Throttled(int(refused["Retry-After"])).detail}
        assert (refused.status_code, refused.data["detail"].code) == (429, "throttled")


def test_a_view_answers_a_refusal_in_its_own_way(enforce: Enforce) -> None:
    enforce(api={"rate": "1/h", "scopes": ["search"], "key": "ip", "algorithm": "fixed_window"})
    view = BusyView.as_view()
    _, refused = [view(APIRequestFactory().get("/")) for _ in range(2)]
    assert (refused.status_code, refused.data["detail"].startswith("busy for ")) == (503, True)


class Wrapped(SearchView):
    """Makes another response of its own, after what REST framework has made; work of its own may be refused."""

    work = staticmethod(lambda: None)

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        super().dispatch(request, *args, **kwargs)
        try:
            self.work()
        except Refused as error:
            return self.finalize_response(self.request, self.handle_exception(error))
        return self.finalize_response(self.request, Response({"wrapped": True}))


def test_a_view_may_finalize_a_second_response(enforce: Enforce) -> None:
    enforce(api={"rate": "9/h", "scopes": ["search"], "key": "ip"})
    response = Wrapped.as_view()(APIRequestFactory().get("/"))
    assert (response.status_code, "RateLimit" in response) == (200, True)
    limiter = Limiter([Rule("own", "1/h")], MemoryStore())

    def refused() -> None:
        for _ in range(2):
            raise_if_refused(limiter.acquire("user:1"))

    response = Wrapped.as_view(work=refused)(APIRequestFactory().get("/"))
    assert (response.status_code, "Retry-After" in response) == (429, True)


class Unfinished(SearchView):
    def finalize_response(self, *args: Any, **kwargs: Any) -> Any:
        raise LookupError("no response")


def test_a_view_whose_response_cannot_be_finalized_keeps_no_slot(enforce: Enforce) -> None:
    store = enforce(slots={**ONE_AT_ONCE, "scopes": ["search"]})
    for _ in range(2):
        with pytest.raises(LookupError):
            Unfinished.as_view()(APIRequestFactory().get("/"))
        assert len(store.leases) == 0


async def test_a_method_that_an_asynchronous_view_does_not_have(enforce: Enforce) -> None:
    enforce(slots=ONE_AT_ONCE)
    for _ in range(2):
        assert (await AsyncClient().put("/ok/ok")).status_code == 405
        await becomes(lambda: len(get_store().leases) == 0)


@BOTH
async def test_a_client_that_leaves_an_asynchronous_view_gives_its_slot_back(enforce: Enforce) -> None:
    enforce(slots=ONE_AT_ONCE)
    Waiting.began.clear()
    asking = asyncio.create_task(AsyncClient().get("/waiting"))  # type: ignore[arg-type]
    await becomes(lambda: Waiting.began == [1])
    asking.cancel()
    await asyncio.wait({asking})
    await becomes(lambda: len(get_store().leases) == 0)
    assert (await AsyncClient().get("/ok/ok")).status_code == 200


@pytest.mark.parametrize("middleware", [[], site.MIDDLEWARE], ids=["alone", "behind the middleware"])
async def test_a_decorated_asynchronous_method_knows_whom_rest_framework_knows(
    enforce: Enforce, settings: Any, middleware: list[str]
) -> None:
    settings.MIDDLEWARE = middleware
    enforce(api={"rate": "3/min", "key": "user_or_ip"})
    for user in "12":
        answers = [await AsyncClient().get("/decorated", headers={"X-User": user}) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert (await AsyncClient().get("/decorated")).status_code == 200

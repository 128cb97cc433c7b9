"""The REST framework door: one decision for all rules, and drop-ins, which say what they do not have of DRF's."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from adrf.views import APIView as AsyncAPIView
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import AsyncClient
from django.urls import ResolverMatch, path
from django.utils import translation
from rest_framework.exceptions import APIException, Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from django_throttle import drf, rulebook
from django_throttle.core import Override, Rule
from django_throttle.decorators import throttle
from django_throttle.exceptions import InvalidRate, Refused
from django_throttle.http.request_state import decisions_of, state_of
from django_throttle.limiter import Limiter, raise_if_refused
from django_throttle.stores import MemoryStore, get_store
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce
from tests.entry_points import site
from tests.websockets.guarded import becomes


class View(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_scope: str | None = None
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]

    def get(self, request: Request) -> Response:
        return Response()


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


class Two(drf.UserRateThrottle):
    rate = "2/min"


def get(*throttles: type[Any], user: User | None = None, **extra: Any) -> Any:
    request = APIRequestFactory().get("/", **extra)
    if user is not None:
        force_authenticate(request, user)
    return SearchView.as_view(throttle_classes=throttles or [Two])(request)


class TestWhatTheyDoNotHave:
    @pytest.mark.parametrize("own", [{"timer": lambda throttle: 0.0}, {"cache": {}}], ids=["timer", "cache"])
    @pytest.mark.parametrize("base", [drf.UserRateThrottle, drf.ScopedRateThrottle, drf.SimpleRateThrottle])
    def test_a_clock_or_a_cache_of_ones_own_is_refused(self, own: dict[str, Any], base: type[Any]) -> None:
        (name,) = own
        with pytest.raises(ImproperlyConfigured, match=rf"Own\.{name}: calls are counted (by the store|in the store)"):
            type("Own", (base,), own)

    @pytest.mark.parametrize("name", ["timer", "cache", "history", "now"])
    def test_whoever_reads_what_is_not_there_is_told_why(self, name: str) -> None:
        with pytest.raises(AttributeError, match=rf"Two\.{name}: "):
            getattr(Two(), name)

    def test_a_format_that_nobody_would_use(self) -> None:
        with pytest.raises(ImproperlyConfigured, match=r"Own\.cache_format has no effect without a get_cache_key"):
            type("Own", (drf.AnonRateThrottle,), {"cache_format": "v2_%(scope)s_%(ident)s"})


class TellsWhatIsLeft(drf.UserRateThrottle):
    rate = "2/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        allowed = super().allow_request(request, view)
        own = self
        timer = getattr(own, "timer")  # noqa: B009
        request.META["left"] = self.num_requests - len([at for at in own.history if at > timer() - 60])
        return allowed


class KeepsItsOwn(drf.UserRateThrottle):
    rate = "2/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        self.history = [self.key] if hasattr(self, "key") else []
        return super().allow_request(request, view) and not self.history


class Inherits(TellsWhatIsLeft):
    scope = "inherits"


class Choosing(SearchView):
    throttle_classes = ()

    def get_throttles(self) -> list[Any]:
        return [Inherits()]


@pytest.mark.parametrize("place", ["settings", "a view", "get_throttles"])
def test_a_check_names_what_a_throttle_reads_in_vain(settings: Any, place: str) -> None:
    throttles = [KeepsItsOwn, Two, Inherits, drf.RuleThrottle]
    if place == "settings":
        settings.REST_FRAMEWORK = {
            "DEFAULT_THROTTLE_CLASSES": [f"{__name__}.{kind.__name__}" for kind in throttles[:3]]
        }
    elif place == "get_throttles":
        settings.ROOT_URLCONF = (path("", Choosing.as_view()),)
    else:
        settings.ROOT_URLCONF = (path("", SearchView.as_view(throttle_classes=throttles)),)
    warnings = [message for message in run_checks(tags=["django_throttle"]) if message.id == "django_throttle.W095"]
    reads = [re.match(r"(\S+) reads self\.(\w+)", message.msg).groups() for message in warnings]  # type: ignore[union-attr]
    assert reads == [("Inherits.allow_request", "timer"), ("Inherits.allow_request", "history")]


@BOTH
class TestWhatTheyHaveInstead:
    def test_the_decision_and_its_header_fields(self, enforce: Enforce) -> None:
        enforce()
        throttle, request = Two(), Request(APIRequestFactory().get("/"))
        assert throttle.wait() is None
        assert throttle.allow_request(request, SearchView())
        assert throttle.decision is not None
        assert (throttle.key, throttle.decision.remaining, throttle.decision.rule) == ("ip:127.0.0.1", 1, "drf-user")
        assert get(user=User(pk=1))["RateLimit"] == '"drf-user";r=1;t=60'
        own = type("Own", (Two,), {"get_cache_key": lambda *given: "whatever a client says"})
        assert "RateLimit" not in get(own)

    def test_they_do_not_get_in_the_way_of_rules(self, enforce: Enforce) -> None:
        enforce(**{"drf-user": {"rate": "3/min", "scopes": ["search"]}})
        request = APIRequestFactory().get("/")
        throttle = type("Own", (drf.UserRateThrottle,), {"rate": "4/min"})
        answers = [SearchView.as_view(throttle_classes=[throttle, drf.RuleThrottle])(request) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert answers[-1].data["detail"].startswith("Request was throttled")
        assert not state_of(request).ledger.entries


DOUBLE = Override(subject="ip:127.0.0.0/8", effect="multiply", factor=2)
EXEMPT = Override(subject="user:1", effect="exempt")


@BOTH
@pytest.mark.parametrize(
    ("override", "key", "user", "passed"),
    [
        (DOUBLE, None, None, 4),
        (replace(DOUBLE, rules=("drf-*",)), None, None, 4),
        (EXEMPT, "all", 1, 5),
        (EXEMPT, "all", 2, 2),
        (EXEMPT, "user:1", None, 2),  # an API key that reads like an ident counts by itself
    ],
    ids=["every rule", "a pattern", "the user", "another user", "a key"],
)
def test_an_override_is_of_the_caller_whatever_the_throttle_counts_by(
    enforce: Enforce, clock: FrozenClock, override: Override, key: str | None, user: int | None, passed: int
) -> None:
    enforce()
    throttle = type("Own", (Two,), {"get_cache_key": lambda *given: key}) if key else Two
    rulebook.pin(rulebook.Snapshot((), overrides=[override], now=clock))
    answers = [get(throttle, user=user and User(pk=user)).status_code for _ in range(5)]
    rulebook.pin(None)
    assert answers == [200] * passed + [429] * (5 - passed)


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

"""Where our drop-ins are not as DRF's throttles are: what they refuse to do they say, and what they add."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from django_throttle import drf, rulebook
from django_throttle.core import Override
from django_throttle.http.request_state import state_of
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce
from tests.entry_points import site


class Two(drf.UserRateThrottle):
    rate = "2/min"


class View(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [Two]
    throttle_scope = "search"

    def get(self, request: Request) -> Response:
        return Response()


def get(*throttles: type[Any], user: User | None = None, **extra: Any) -> Any:
    request = APIRequestFactory().get("/", **extra)
    if user is not None:
        force_authenticate(request, user)
    return View.as_view(throttle_classes=throttles or [Two])(request)


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


class Choosing(View):
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
        settings.ROOT_URLCONF = (path("", View.as_view(throttle_classes=throttles)),)
    found = [message for message in run_checks(tags=["django_throttle"]) if message.id == "django_throttle.W095"]
    reads = [re.match(r"(\S+) reads self\.(\w+)", message.msg).groups() for message in found]  # type: ignore[union-attr]
    assert reads == [("Inherits.allow_request", "timer"), ("Inherits.allow_request", "history")]


@BOTH
class TestWhatTheyHaveInstead:
    def test_the_decision_and_its_header_fields(self, enforce: Enforce) -> None:
        enforce()
        throttle, request = Two(), Request(APIRequestFactory().get("/"))
        assert throttle.wait() is None
        assert throttle.allow_request(request, View())
        assert throttle.decision is not None
        assert (throttle.key, throttle.decision.remaining, throttle.decision.rule) == ("ip:127.0.0.1", 1, "drf-user")
        assert get(user=User(pk=1))["RateLimit"] == '"drf-user";r=1;t=60'
        own = type("Own", (Two,), {"get_cache_key": lambda *given: "whatever a client says"})
        assert "RateLimit" not in get(own)

    def test_they_do_not_get_in_the_way_of_rules(self, enforce: Enforce) -> None:
        enforce(**{"drf-user": {"rate": "3/min", "scopes": ["search"]}})
        request = APIRequestFactory().get("/")
        throttle = type("Own", (drf.UserRateThrottle,), {"rate": "4/min"})
        answers = [View.as_view(throttle_classes=[throttle, drf.RuleThrottle])(request) for _ in range(5)]
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
        (EXEMPT, "user:1", None, 2),  # a key that reads like somebody is nobody
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

"""What REST framework's own throttles do, done by them and by ours in their place: the same answers, call for call."""

import itertools
import random
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from rest_framework import throttling
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from django_throttle import drf
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce, enforcer


class Memory(dict[str, list[float]]):
    """A cache in which nothing expires by itself: only the clock of the test says what is over."""

    def get(self, key: str, default: Any = None) -> Any:
        return list(super().get(key, default))

    def set(self, key: str, value: list[float], timeout: float) -> None:
        self[key] = list(value)


class Kind:
    """Throttles of one make, on a clock that stands still until a test moves it."""

    def __init__(self, module: ModuleType, own: dict[str, Any]) -> None:
        self.module, self.own = module, own

    def __call__(self, base: str, **attributes: Any) -> type[Any]:
        return type("Throttle", (getattr(self.module, base),), {**self.own, **attributes})


def theirs(clock: FrozenClock) -> Kind:
    return Kind(throttling, {"timer": lambda throttle: clock(), "cache": Memory()})


OURS = Kind(drf, {})


@pytest.fixture(params=["drf", "memory", "redis"])
def kind(request: pytest.FixtureRequest, clock: FrozenClock, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Kind:
    if request.param == "drf":
        return theirs(clock)
    enforcer(request, settings, monkeypatch, clock)()
    return OURS


def view_of(*throttles: type[Any], **attributes: Any) -> Callable[..., Any]:
    def get(view: APIView, request: Request) -> Response:
        return Response()

    made = {"authentication_classes": [], "throttle_classes": throttles, "get": get, **attributes}
    return type("View", (APIView,), made).as_view()  # type: ignore[attr-defined,no-any-return]


def by(user: int | None = None, address: str = "192.0.2.1", forwarded: str | None = None) -> Any:
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    request = APIRequestFactory().get("/", REMOTE_ADDR=address, headers=headers)
    if user is not None:
        force_authenticate(request, User(pk=user))
    return request


def told(view: Callable[..., Any], times: int, request: Any = None) -> list[str]:
    """ "ok" or, of what is refused, its Retry-After, in seconds; "never" without one."""
    request = by() if request is None else request  # one for all: the same object, as DRF's own tests have it
    answers = [view(request) for _ in range(times)]
    assert {answer.status_code for answer in answers} <= {200, 429}
    return ["ok" if one.status_code == 200 else one.headers.get("Retry-After", "never") for one in answers]


class TestOneRate:
    @pytest.mark.parametrize(
        ("rate", "after"),
        [
            *[("3/sec", "1"), ("3/s", "1"), ("3/min", "60"), ("3/hour", "3600"), ("3/day", "86400")],
            *[("3/hrs", "3600"), (" 3 /day", "86400"), ("0_3/hourly", "3600"), ("+3/minutely", "60"), ("3/s.", "1")],
        ],
    )
    def test_the_limit_passes_and_the_next_is_told_when(self, kind: Kind, rate: str, after: str) -> None:
        assert told(view_of(kind("UserRateThrottle", rate=rate)), 4) == ["ok"] * 3 + [after]

    @pytest.mark.parametrize(
        ("own", "expected"),
        [
            ({"rate": "0/min"}, ["60", "60"]), ({"rate": "-1/min"}, ["never", "never"]),
            ({"num_requests": 0}, ["60", "60"]), ({"duration": 100 / 3}, ["ok", "34"]),
        ],
        ids=str,
    )  # fmt: skip
    def test_a_limit_that_the_site_computes(self, kind: Kind, own: dict[str, Any], expected: list[str]) -> None:
        class Computed(getattr(kind.module, "UserRateThrottle")):  # type: ignore[misc]  # noqa: B009
            rate = own.get("rate", "1/min")

            def __init__(self) -> None:
                super().__init__()
                vars(self).update(own)

        throttle = type("Throttle", (Computed,), kind.own)
        assert told(view_of(throttle), len(expected)) == expected

    def test_rates_that_a_test_changes(self, kind: Kind) -> None:
        throttle, rates = kind("UserRateThrottle"), {"user": "2/min"}
        with mock.patch.dict(throttle.THROTTLE_RATES, rates, clear=True):
            assert told(view_of(throttle), 3) == ["ok", "ok", "60"]
        with mock.patch("rest_framework.throttling.SimpleRateThrottle.THROTTLE_RATES", {"user": "3/min"}):
            assert told(view_of(throttle), 2) == ["ok", "60"]

    @pytest.mark.parametrize(
        ("own", "expected"),
        [
            ({"THROTTLE_RATES": {"user": None}}, ["ok"] * 9),
            ({"rate": "1/min", "get_cache_key": lambda *given: None}, ["ok"] * 3),
            ({"rate": "2 in 5", "parse_rate": lambda throttle, rate: (2, 5)}, ["ok", "ok", "5"]),
            ({"rate": "1/min", "throttle_failure": lambda throttle: True}, ["ok"] * 3),
            ({"rate": "1/s", "throttle_success": lambda throttle: not throttle.key, "wait": lambda _: 7}, ["7"]),
            ({"rate": "1/min", "wait": lambda throttle: 7}, ["ok", "7"]),
            ({"rate": "1/min", "wait": lambda throttle: None}, ["ok", "never"]),
        ],
        ids="-".join,
    )
    def test_attributes_of_a_subclass(self, kind: Kind, own: dict[str, Any], expected: list[str]) -> None:
        assert told(view_of(kind("UserRateThrottle", **own)), len(expected)) == expected


def test_each_user_for_itself_from_wherever(kind: Kind) -> None:
    view = view_of(kind("UserRateThrottle", rate="3/min"))
    assert [told(view, 1, by(1, f"192.0.2.{number}")) for number in range(4)] == [["ok"], ["ok"], ["ok"], ["60"]]
    assert told(view, 3, by(2)) == ["ok"] * 3


def test_the_anonymous_one_leaves_users_alone(kind: Kind) -> None:
    view = view_of(kind("AnonRateThrottle", rate="1/min"))
    assert told(view, 2) == ["ok", "60"]
    assert told(view, 5, by(1)) == ["ok"] * 5


def test_classes_of_one_scope_share_what_they_count(kind: Kind) -> None:
    wide, narrow = (view_of(kind("UserRateThrottle", rate=rate)) for rate in ("5/min", "2/min"))
    assert told(wide, 2) == ["ok", "ok"]
    assert told(narrow, 1) == ["60"]
    assert told(view_of(kind("UserRateThrottle", rate="2/min", scope="other")), 2) == ["ok", "ok"]


@pytest.mark.parametrize("first", [True, False])
def test_beside_a_throttle_of_the_sites_own_that_knows_no_time(kind: Kind, first: bool) -> None:
    class Once(BaseThrottle):
        called: ClassVar[list[bool]] = []

        def allow_request(self, request: Request, view: APIView) -> bool:
            self.called.append(True)
            return len(self.called) == 1

    throttles = [Once, kind("UserRateThrottle", rate="2/min")]
    view = view_of(*(throttles if first else reversed(throttles)))
    assert told(view, 4) == ["ok", "never", "60", "60"]


def test_a_view_names_its_scope(kind: Kind) -> None:
    rates = {"x": "3/min", "y": "1/min"}
    assert told(view_of(kind("ScopedRateThrottle", THROTTLE_RATES=rates)), 4) == ["ok"] * 4, "without one it is free"
    scoped = kind("ScopedRateThrottle", THROTTLE_RATES=rates, scope_attr="upload_scope")
    assert told(view_of(scoped, throttle_scope="x", upload_scope="y"), 2) == ["ok", "60"]
    with pytest.raises(ImproperlyConfigured, match="No default throttle rate set for 'z' scope"):
        view_of(kind("ScopedRateThrottle", THROTTLE_RATES=rates), throttle_scope="z")(by())


@pytest.mark.parametrize(
    ("proxies", "forwarded", "expected"),
    [
        (0, ["192.0.2.10, 192.0.2.11, 192.0.2.12", "192.0.2.55", None], ["ok", "86400", "86400"]),
        (1, ["192.0.2.10, 192.0.2.12", "192.0.2.13, 192.0.2.12", "192.0.2.10, 192.0.2.17"], ["ok", "86400", "ok"]),
        (2, ["192.0.2.10, 192.0.2.11, 192.0.2.12", "192.0.2.13, 192.0.2.11, 192.0.2.12"], ["ok", "86400"]),
        (2, ["192.0.2.10, 192.0.2.11, 192.0.2.12", "192.0.2.10, 192.0.2.17, 192.0.2.12"], ["ok", "ok"]),
        (2, ["192.0.2.10", "192.0.2.10", None, None], ["ok", "86400", "ok", "86400"]),
    ],
)
def test_behind_proxies_each_machine_has_a_budget_whatever_a_client_writes(
    kind: Kind, settings: Any, proxies: int, forwarded: list[str | None], expected: list[str]
) -> None:
    settings.REST_FRAMEWORK = {"NUM_PROXIES": proxies}
    view = view_of(kind("ScopedRateThrottle", THROTTLE_RATES={"x": "1/day"}), throttle_scope="x")
    assert [told(view, 1, by(address="192.0.2.99", forwarded=said))[0] for said in forwarded] == expected


class TestClasses:
    def test_it_needs_a_scope_or_a_rate_and_a_key(self, kind: Kind) -> None:
        with pytest.raises(ImproperlyConfigured, match=r"either `.scope` or `.rate`"):
            kind("SimpleRateThrottle")()
        with pytest.raises(ImproperlyConfigured, match="No default throttle rate set for 'no such' scope"):
            kind("SimpleRateThrottle", scope="no such")()
        with pytest.raises(NotImplementedError):
            kind("SimpleRateThrottle", rate="1/min")().get_cache_key({}, {})

    @pytest.mark.parametrize("key", ["user:1", 7, "", "x" * 200, "{x} %s\n"])
    def test_a_key_of_its_own(self, kind: Kind, key: Any) -> None:
        throttle = kind("SimpleRateThrottle", scope="x", rate="1/min", get_cache_key=lambda *given: key)
        assert told(view_of(throttle), 2) == ["ok", "60"]
        assert told(view_of(kind("UserRateThrottle", scope="x", rate="1/min")), 1, by(1)) == ["ok"]

    def test_a_key_in_the_usual_format(self, kind: Kind) -> None:
        def get_cache_key(throttle: Any, request: Request, view: APIView) -> Any:
            return throttle.cache_format % {"scope": throttle.scope, "ident": throttle.get_ident(request)}

        view = view_of(kind("SimpleRateThrottle", scope="x", rate="1/min", get_cache_key=get_cache_key))
        assert told(view, 2) == ["ok", "60"]
        assert told(view, 1, by(address="192.0.2.9")) == ["ok"]


def histories(kind: Kind, clock: FrozenClock, times: Sequence[float], *rates: str) -> list[str]:
    view = view_of(*[kind("UserRateThrottle", rate=rate, scope=rate) for rate in rates])
    found = []
    for second in times:
        clock.to(second)
        found += told(view, 1)
    return found


@pytest.mark.parametrize("seed", range(3))
@BOTH
def test_whatever_the_history(enforce: Enforce, seed: int, clock: FrozenClock) -> None:
    chance = random.Random(seed)
    rates = chance.sample(["3/sec", "7/sec", "20/min", "5/min", "60/hour"], 1 + seed)
    gaps = [chance.choice([0, 0.015625, 0.25, 0.5, 1, 4, 12.5]) for _ in range(60)]
    times = list(itertools.accumulate(gaps))
    wanted = histories(theirs(clock), clock, times, *rates)
    enforce()
    assert histories(OURS, clock, times, *rates) == wanted
    assert "ok" in wanted and len(set(wanted)) > 1

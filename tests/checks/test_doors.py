"""The check that finds rules of open WebSockets where requests in flight must be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views import View
from rest_framework.views import APIView

from django_throttle import checks
from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.checks import doors
from django_throttle.drf import RuleThrottle


class Lobby(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    throttle_scope = "lobby"


class Report(View):
    throttle_scope = "reports"


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("export", page, name="export"),
    path("lobby", page, name="lobby"),
    path("report", Report.as_view(), name="report"),
    path("shop/", include(([path("cart", page, name="cart")], "shop"))),
    path("unnamed", page),
]
HELD: dict[str, Any] = {"limit": 5, "algorithm": "concurrency"}
Warn = Callable[..., list[Any]]


@pytest.fixture
def warned(settings: Any) -> Warn:
    """What is said of one rule with these options."""
    settings.ROOT_URLCONF = __name__

    def warned(**options: Any) -> list[Any]:
        settings.DJANGO_THROTTLE = {"RULES": {"held": {**HELD, **options}}}
        return checks.check_inflight(None)

    return warned


@pytest.mark.parametrize("scope", ["export", "reports", "shop:cart", "shop:*", "rep*"])
@pytest.mark.parametrize("events", [{}, {"events": ["connection"]}], ids=["usual", "said"])
def test_a_rule_of_sockets_in_the_scope_of_a_view_is_found(warned: Warn, scope: str, events: dict[str, Any]) -> None:
    (message,) = warned(scopes=["elsewhere", scope], **events)
    assert message.id == "django_throttle.W045"
    assert message.msg.startswith("rule 'held' counts open WebSockets alone, and '")
    assert message.msg.endswith("' is the scope of a view, whose requests it does not limit")
    assert '"inflight"' in message.hint
    assert ("Where only sockets are meant" in message.hint) is not bool(events)


@pytest.mark.parametrize(
    "options",
    [
        {"scopes": ["export"], "events": ["inflight"]},
        {"scopes": ["export"], "events": ["connection", "inflight"]},
        {"scopes": ["export"], "enabled": False},
        {"scopes": ["export", "lobby"], "events": ["connection"]},  # a consumer's too, so it does something
        {"scopes": ["*o*"]},  # one pattern for both
        {"scopes": ["lobby"]},  # a page and its socket
        {"scopes": ["elsewhere"]},
        {},
    ],
    ids=str,
)
def test_nothing_is_said_of_any_other(warned: Warn, options: dict[str, Any]) -> None:
    assert warned(**options) == []


def test_a_consumer_s_scope_does_not_make_up_for_a_view_s(warned: Warn) -> None:
    (message,) = warned(scopes=["lobby", "export"])
    assert message.msg.endswith("and 'export' is the scope of a view, whose requests it does not limit")


MIDDLEWARE = {"MIDDLEWARE": ["django_throttle.middleware.ThrottleMiddleware"]}
THROTTLE = {"REST_FRAMEWORK": {"DEFAULT_THROTTLE_CLASSES": ["django_throttle.drf.RuleThrottle"]}}


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "socket_scopes", lambda: ())


@pytest.mark.parametrize("door", [MIDDLEWARE, THROTTLE], ids=["middleware", "throttle"])
def test_a_rule_of_everything_where_only_requests_come_is_found(
    warned: Warn, settings: Any, door: dict[str, Any], no_sockets: None
) -> None:
    for name, value in door.items():
        setattr(settings, name, value)
    (message,) = warned(key="ip")
    assert message.id == "django_throttle.W045"
    assert message.msg.endswith(
        "no consumer that this check could find has the mixin; it does not limit requests while they are being answered"
    )
    assert '"inflight"' in message.hint
    for meant in ({"events": ["connection"]}, {"events": ["inflight"]}, {"at_limit": "evict_oldest"}):
        assert warned(key="ip", **meant) == []


class Throttled(APIView):
    throttle_classes: ClassVar[Any] = [RuleThrottle]


@pytest.mark.parametrize("view", [Throttled.as_view(), APIView.as_view(throttle_classes=[RuleThrottle])])
def test_a_throttle_of_one_view_sees_requests(warned: Warn, settings: Any, no_sockets: None, view: Any) -> None:
    settings.ROOT_URLCONF = (path("api/", include([path("only", view)])),)
    (message,) = warned(key="ip")
    assert message.msg.endswith(
        "no consumer that this check could find has the mixin; it does not limit requests while they are being answered"
    )


def test_it_is_meant_for_sockets_where_there_are_some(warned: Warn, settings: Any) -> None:
    settings.MIDDLEWARE = MIDDLEWARE["MIDDLEWARE"]
    assert warned(key="ip") == []


def test_where_no_door_sees_requests_nothing_is_said(warned: Warn, no_sockets: None) -> None:
    assert warned(key="ip") == []


def test_without_channels_there_are_no_sockets(warned: Warn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "find_spec", lambda name: None)
    (message,) = warned()
    assert message.msg.endswith("and Channels, which serves them, is not installed")


def test_rules_that_nobody_can_read_are_another_check_s_matter(settings: Any) -> None:
    for rules in (["held"], {"held": "5"}, {"held": {**HELD, "limit": "5"}}):
        settings.DJANGO_THROTTLE = {"RULES": rules}
        assert checks.check_inflight(None) == []

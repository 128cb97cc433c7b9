"""The checks of a project: rules of requests in flight, origins, messages that are delayed, misspelt attributes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import pytest
from channels.auth import AuthMiddleware, AuthMiddlewareStack
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path
from django.views import View
from rest_framework.views import APIView

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.checks import project
from django_throttle.drf import RuleThrottle
from django_throttle.models import ThrottleRule


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
        return project.check_inflight(None)

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
    monkeypatch.setattr(project, "socket_scopes", lambda: ())


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
    monkeypatch.setattr(project, "find_spec", lambda name: None)
    (message,) = warned()
    assert message.msg.endswith("and Channels, which serves them, is not installed")


def test_rules_that_nobody_can_read_are_another_check_s_matter(settings: Any) -> None:
    for rules in (["held"], {"held": "5"}, {"held": {**HELD, "limit": "5"}}):
        settings.DJANGO_THROTTLE = {"RULES": rules}
        assert project.check_inflight(None) == []


class Guarded(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    pass


class Bare(AsyncWebsocketConsumer):
    pass


QUEUEING: Any = {"algorithm": "leaky_bucket", "action": "delay", "max_delay": 1}


async def own(scope: Any, receive: Any, send: Any) -> None: ...


GUARDED = URLRouter([path("chat", Guarded.as_asgi())])
BARE = URLRouter([path("chat", Bare.as_asgi())])


@pytest.mark.row("A41")
class TestOrigins:
    """A41: a page of another site opens a socket with the cookies of whoever looks at it."""

    @pytest.fixture
    def served(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        def serve(websocket: Any) -> list[Any]:
            module = ModuleType("served_by_a_test")
            module.application = ProtocolTypeRouter({"websocket": websocket})  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "served_by_a_test", module)
            settings.ASGI_APPLICATION = "served_by_a_test.application"
            return project.check_origins(None)

        return serve

    @pytest.mark.parametrize(
        "app",
        [
            AuthMiddlewareStack(GUARDED),
            AuthMiddlewareStack(ThrottleMiddleware(BARE, "chat")),
            ThrottleMiddleware(AuthMiddlewareStack(URLRouter([re_path("^a", BARE)])), "chat"),
            AuthMiddlewareStack(
                URLRouter([path("a", AllowedHostsOriginValidator(GUARDED)), path("b", Guarded.as_asgi())])
            ),
        ],
    )
    def test_consumers_that_any_page_can_open(self, served: Any, app: Any) -> None:
        (message,) = served(app)
        assert message.id == "django_throttle.W042"
        assert message.msg.startswith("pages of any website can open ")
        assert "AllowedHostsOriginValidator" in message.hint

    @pytest.mark.parametrize(
        "app",
        [
            AllowedHostsOriginValidator(AuthMiddlewareStack(GUARDED)),
            AuthMiddlewareStack(AllowedHostsOriginValidator(GUARDED)),
            AuthMiddlewareStack(BARE),  # not ours to speak of
            GUARDED,  # no cookies: whoever has the token is whoever it says
            AuthMiddleware(GUARDED),
            AuthMiddlewareStack(own),  # who knows what it looks at
            own,
        ],
    )
    def test_it_is_silent_where_all_is_well_or_unknown(self, served: Any, app: Any) -> None:
        assert served(app) == []

    @pytest.mark.parametrize("name", [None, "", "nowhere.application", "tests.checks.test_project.own"])
    def test_what_cannot_be_loaded_is_somebody_else_s_matter(self, settings: Any, name: str | None) -> None:
        settings.ASGI_APPLICATION = name
        assert project.check_origins(None) == []


class TestDelays:
    QUEUE = {"rate": "5/s", "algorithm": "leaky_bucket", "action": "delay", "max_delay": 1}

    def found(self, settings: Any, monkeypatch: pytest.MonkeyPatch, app: str = "daphne", **rule: Any) -> list[Any]:
        monkeypatch.setattr(project, "DAPHNE", "django_throttle" if app == "daphne" else "not.installed")
        settings.DJANGO_THROTTLE = {"RULES": {"queue": {**self.QUEUE, **rule}}}
        return project.check_delays(None)

    def test_messages_that_wait_on_daphne(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        (message,) = self.found(settings, monkeypatch, events=["message"])
        assert message.id == "django_throttle.W043"
        assert message.msg.startswith("messages are delayed by rule 'queue'")

    def test_elsewhere_and_of_requests_that_is_fine(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.found(settings, monkeypatch, "uvicorn", events=["message"]) == []
        for fine in ({"events": ["request"]}, {"events": ["message"], "enabled": False}):
            found = self.found(settings, monkeypatch, **fine)
            assert "rule" not in "".join(message.msg for message in found)

    def test_a_middleware_s_ladder(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = ThrottleMiddleware(own, "slow", ladder={"delay": 3})
        around = AuthMiddlewareStack(ThrottleMiddleware(URLRouter([path("slow", slow), path("own", own)]), "calm"))
        monkeypatch.setattr(project, "_application", lambda: around)
        (message,) = self.found(settings, monkeypatch, events=["request"])
        assert "the ladder of ThrottleMiddleware, scope 'slow'" in message.msg
        assert "calm" not in message.msg

    @pytest.mark.django_db
    def test_rules_in_the_database(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        ThrottleRule.objects.create(name="row", rate="5/s", events=["message"], **QUEUEING)
        ThrottleRule.objects.create(name="other", rate="5/s", events=["request"], **QUEUEING)
        monkeypatch.setattr(project, "DAPHNE", "django_throttle")
        (message,) = project.check_waiting_rows(None, databases=["default"])
        assert message.id == "django_throttle.W043"
        assert message.msg.startswith("messages are delayed by rule 'row' in the database, but daphne")
        assert project.check_waiting_rows(None) == project.check_waiting_rows(None, databases=[]) == []
        monkeypatch.setattr(project, "DAPHNE", "not.installed")
        assert project.check_waiting_rows(None, databases=["default"]) == []

    def test_a_consumer_s_ladder(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow(Guarded):
            throttle_ladder = {"delay": 3}

        (message,) = self.found(settings, monkeypatch, events=["request"])
        assert f"throttle_ladder of {Slow.__name__}" in message.msg


def test_they_are_loaded_as_the_server_would(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``manage.py`` has no reason to import an application's consumers by itself."""
    loaded: list[str] = []
    settings.ASGI_APPLICATION = "site.asgi.application"
    monkeypatch.setattr(project, "import_string", loaded.append)
    project.check_attributes(None)
    assert loaded == ["site.asgi.application"]


def test_attributes_of_consumers_that_mean_nothing() -> None:
    class Typo(Guarded):
        throttle_max_aeg = 60

    found = [message for message in project.check_attributes(None) if Typo.__name__ in message.msg]
    assert [(message.id, message.msg) for message in found] == [
        ("django_throttle.W044", "Typo.throttle_max_aeg has no effect; did you mean 'throttle_max_age'?")
    ]

"""System checks of the WebSocket doors: they speak only where they are sure."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from channels.auth import AuthMiddleware, AuthMiddlewareStack
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import path, re_path

from django_throttle import checks
from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.checks import sockets
from django_throttle.models import ThrottleRule


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
            return checks.check_origins(None)

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

    @pytest.mark.parametrize("name", [None, "", "nowhere.application", "tests.checks.test_sockets.own"])
    def test_what_cannot_be_loaded_is_somebody_else_s_matter(self, settings: Any, name: str | None) -> None:
        settings.ASGI_APPLICATION = name
        assert checks.check_origins(None) == []


class TestDelays:
    QUEUE = {"rate": "5/s", "algorithm": "leaky_bucket", "action": "delay", "max_delay": 1}

    def found(self, settings: Any, monkeypatch: pytest.MonkeyPatch, app: str = "daphne", **rule: Any) -> list[Any]:
        monkeypatch.setattr(sockets, "DAPHNE", "django_throttle" if app == "daphne" else "not.installed")
        settings.DJANGO_THROTTLE = {"RULES": {"queue": {**self.QUEUE, **rule}}}
        return checks.check_delays(None)

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
        monkeypatch.setattr(sockets, "_application", lambda: around)
        (message,) = self.found(settings, monkeypatch, events=["request"])
        assert "the ladder of ThrottleMiddleware, scope 'slow'" in message.msg
        assert "calm" not in message.msg

    @pytest.mark.django_db
    def test_rules_in_the_database(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        ThrottleRule.objects.create(name="row", rate="5/s", events=["message"], **QUEUEING)
        ThrottleRule.objects.create(name="other", rate="5/s", events=["request"], **QUEUEING)
        monkeypatch.setattr(sockets, "DAPHNE", "django_throttle")
        (message,) = sockets.check_waiting_rows(None, databases=["default"])
        assert message.id == "django_throttle.W043"
        assert message.msg.startswith("messages are delayed by rule 'row' in the database, but daphne")
        assert sockets.check_waiting_rows(None) == sockets.check_waiting_rows(None, databases=[]) == []
        monkeypatch.setattr(sockets, "DAPHNE", "not.installed")
        assert sockets.check_waiting_rows(None, databases=["default"]) == []

    def test_a_consumer_s_ladder(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow(Guarded):
            throttle_ladder = {"delay": 3}

        (message,) = self.found(settings, monkeypatch, events=["request"])
        assert f"throttle_ladder of {Slow.__name__}" in message.msg


def test_they_are_loaded_as_the_server_would(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``manage.py`` has no reason to import an application's consumers by itself."""
    loaded: list[str] = []
    settings.ASGI_APPLICATION = "site.asgi.application"
    monkeypatch.setattr(sockets, "import_string", loaded.append)
    sockets.check_names(None)
    assert loaded == ["site.asgi.application"]


def test_attributes_of_consumers_that_mean_nothing() -> None:
    class Typo(Guarded):
        throttle_max_aeg = 60

    found = [message for message in sockets.check_names(None) if Typo.__name__ in message.msg]
    assert [(message.id, message.msg) for message in found] == [
        ("django_throttle.W044", "Typo.throttle_max_aeg has no effect; did you mean 'throttle_max_age'?")
    ]

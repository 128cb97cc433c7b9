"""The checks of a project: requests in flight, origins, messages that are delayed, misspelt attributes, layers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import pytest
from channels.auth import AuthMiddleware, AuthMiddlewareStack
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.http import HttpRequest, HttpResponse
from django.urls import clear_url_caches, include, path, re_path
from django.views import View
from redis.asyncio.connection import Connection
from rest_framework.views import APIView

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.checks import project
from django_throttle.drf import RuleThrottle
from django_throttle.http.deferred import Deferral, deferrals
from django_throttle.models import ThrottleRule
from django_throttle.site_queues import limited_tasks, tasks_module
from django_throttle.tasks import throttled_task
from tests.servers import need_package


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
    setattr(settings, name, [] if name == "MIDDLEWARE" else {})
    assert warned(key="ip") == [], "no entry point sees requests"
    setattr(settings, name, value)
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
    loaded: list[str] = []
    settings.ASGI_APPLICATION = "site.asgi.application"
    monkeypatch.setattr(project, "import_string", loaded.append)
    project.check_attributes(None)
    assert loaded == ["site.asgi.application"]


def test_attributes_of_consumers_that_mean_nothing() -> None:
    class Typo(Guarded):
        throttle_max_aeg = 60

    found = [message for message in project.check_attributes(None) if Typo.__name__ in message.msg]
    assert [(message.id, message.msg, message.hint) for message in found] == [
        (
            "django_throttle.W044",
            "Typo.throttle_max_aeg has no effect; did you mean 'throttle_max_age'?",
            "Rename it to throttle_max_age, or to a name that does not begin with throttle.",
        )
    ]


CORE, PUBSUB = "channels_redis.core.RedisChannelLayer", "channels_redis.pubsub.RedisPubSubChannelLayer"
URL = "redis://127.0.0.1:6379/1"
SENTINEL: dict[str, Any] = {"sentinels": [("127.0.0.1", 26379)], "master_name": "dt"}
PLAIN_TIMEOUT = Connection().socket_timeout  # redis-py 8 has one of 5 seconds, earlier versions have none


def of_layers(settings: Any, backend: str, hosts: Any) -> list[Any]:
    need_package("channels_redis")
    settings.CHANNEL_LAYERS = {"chat": {"BACKEND": backend, "CONFIG": {"hosts": hosts} if hosts else {}}}
    return project.check_layers(None)


@pytest.mark.parametrize(
    "hosts",
    [
        [{"address": URL, "socket_timeout": 3}],
        [{"address": URL, "socket_timeout": None}, {"address": URL, "socket_timeout": 3}],
        [f"{URL}?socket_timeout=3"],
        [{**SENTINEL, "socket_timeout": 3.0}],
    ],
    ids=["one", "second", "url", "sentinel"],
)
def test_a_layer_that_gives_up_waiting_is_found(settings: Any, hosts: Any) -> None:
    (message,) = of_layers(settings, CORE, hosts)
    assert message.id == "django_throttle.W046"
    assert message.msg.startswith("consumers on the channel layer 'chat' end after 3 s without a message")
    assert message.msg.endswith("while the layer waits for 5 s")
    assert '"socket_timeout": None' in message.hint


@pytest.mark.parametrize(
    "hosts", [None, [URL], [("127.0.0.1", 6379)], [SENTINEL]], ids=["none", "url", "pair", "sentinel"]
)
def test_it_is_found_where_the_default_is_too_short(settings: Any, hosts: Any) -> None:
    found = [message.id for message in of_layers(settings, CORE, hosts)]
    assert found == (["django_throttle.W046"] if PLAIN_TIMEOUT is not None else [])


@pytest.mark.parametrize(
    ("backend", "hosts"),
    [
        (CORE, [{"address": URL, "socket_timeout": None}]),
        (CORE, [{"address": URL, "socket_timeout": 15}]),
        (CORE, [{**SENTINEL, "socket_timeout": None}]),
        (PUBSUB, [{"address": URL, "socket_timeout": 3}]),
        (CORE, URL),  # no list: the layer says so itself
        ("channels.layers.InMemoryChannelLayer", None),
        ("nowhere.Layer", None),
    ],
)
def test_other_layers_are_none_of_it(settings: Any, backend: str, hosts: Any) -> None:
    assert of_layers(settings, backend, hosts) == []


def make_report() -> None: ...


class TestDeferredCalls:
    QUEUE: ClassVar[dict[str, Any]] = {"rate": "1/min", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 3}

    @pytest.fixture(autouse=True)
    def site(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """One whose views defer the calls of rule "reports" alone, without the status page."""
        settings.ROOT_URLCONF = __name__
        others = list(deferrals)
        deferrals[:] = [Deferral("reports", None, None, False)]
        yield
        deferrals[:] = others
        monkeypatch.undo()
        clear_url_caches()

    def test_a_status_page_without_an_address_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (message,) = project.check_status_pages(None)
        assert message.id == "django_throttle.E082"
        assert "(rules 'reports')" in message.msg
        assert message.msg.endswith('add path("later/", include("django_throttle.urls")) to urlpatterns')
        monkeypatch.setitem(globals(), "urlpatterns", [path("later/", include("django_throttle.urls"))])
        clear_url_caches()
        assert project.check_status_pages(None) == []

    @pytest.mark.parametrize(
        ("backend", "found"), [("immediate.ImmediateBackend", ["E084"]), ("dummy.DummyBackend", [])]
    )
    def test_a_backend_that_cannot_wait_is_an_error(self, settings: Any, backend: str, found: list[str]) -> None:
        package = tasks_module()
        settings.TASKS = {"default": {"BACKEND": f"{package}.backends.{backend}"}}
        task = import_module(package).task()(make_report)
        deferrals[:] = [Deferral("reports", task, None, False)]
        messages = project.check_deferring_backends(None)
        assert [message.id for message in messages] == [f"django_throttle.{one}" for one in found]

    @pytest.mark.parametrize(
        ("backend", "options", "found"),
        [
            ("immediate.ImmediateBackend", {}, ["E084"]),
            ("dummy.DummyBackend", {}, []),
            ("immediate.ImmediateBackend", {"action": "reject", "max_queue": None}, []),
            ("immediate.ImmediateBackend", {"enabled": False}, []),
        ],
    )
    def test_so_is_one_of_a_task_that_draws_on_a_queue(
        self, settings: Any, backend: str, options: dict[str, Any], found: list[str]
    ) -> None:
        deferrals.clear()
        package = tasks_module()
        settings.TASKS = {"default": {"BACKEND": f"{package}.backends.{backend}"}}
        settings.DJANGO_THROTTLE = {"RULES": {"mails": {**self.QUEUE, "events": ["task"], **options}}}
        others = list(limited_tasks)
        throttled_task("mails")(import_module(package).task()(make_report))
        try:
            messages = project.check_deferring_backends(None)
        finally:
            limited_tasks[:] = others
        assert [message.id for message in messages] == [f"django_throttle.{one}" for one in found]
        assert all("'mails'" in message.msg for message in messages)

    def test_a_rule_that_does_not_defer_is_found(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RULES": {"reports": {"rate": "1/min"}, "other": {"rate": "1/min"}}}
        (message,) = project.check_deferring_rules(None)
        assert message.id == "django_throttle.W048"
        assert message.msg == "a view names a task for calls over rule 'reports', but its action is 'reject'"

    def test_where_no_view_defers_or_nothing_is_served_none_is_needed(self, settings: Any) -> None:
        deferrals.clear()
        assert project.check_status_pages(None) == []
        settings.ROOT_URLCONF = None
        assert project.check_status_pages(None) == []

    def test_a_rule_that_no_view_names_is_found(self, settings: Any) -> None:
        others = {"off": {"enabled": False}, "tasks": {"events": ["task"]}, "delays": {"action": "delay"}}
        rules = {"reports": self.QUEUE, **{name: {**self.QUEUE, **options} for name, options in others.items()}}
        settings.DJANGO_THROTTLE = {"RULES": rules}
        assert project.check_deferring_rules(None) == []
        settings.DJANGO_THROTTLE = {"RULES": rules | {"exports": self.QUEUE}}
        (message,) = project.check_deferring_rules(None)
        assert message.id == "django_throttle.W047"
        assert message.msg.startswith("rule 'exports' defers requests, but no view that was found names a task")
        assert '@throttle("exports", defer_to=…)' in message.hint

    @pytest.mark.django_db
    def test_so_is_one_in_the_database(self) -> None:
        ThrottleRule.objects.create(name="reports", **self.QUEUE)
        ThrottleRule.objects.create(name="exports", **self.QUEUE)
        (message,) = project.check_deferring_rows(None, databases=["default"])
        assert message.id == "django_throttle.W047" and "'exports'" in message.msg
        assert project.check_deferring_rows(None) == []

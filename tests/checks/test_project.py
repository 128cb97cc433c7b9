"""The checks of a project: requests in flight, origins, messages that are delayed, misspelt attributes, layers."""

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
from django.utils.translation import gettext_lazy
from django.views import View
from redis.asyncio.connection import Connection
from rest_framework.decorators import action, api_view, throttle_classes
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.checks import project
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.http.deferred import Deferral, deferrals
from django_throttle.later.site_queues import limited_tasks, tasks_module
from django_throttle.models import ThrottleRule
from django_throttle.tasks import throttled_task
from tests.servers import need_package


class Lobby(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    throttle_scope = "lobby"


class Bare(AsyncWebsocketConsumer):
    pass


class Report(View):
    throttle_scope = "reports"


class Throttled(APIView):
    throttle_classes: ClassVar[Any] = [RuleThrottle]


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def own(scope: Any, receive: Any, send: Any) -> None: ...


def make_report() -> None: ...


urlpatterns = [
    *(path("export", page, name="export"), path("lobby", page, name="lobby"), path("unnamed", page)),
    path("report", Report.as_view(), name="report"),
    path("shop/", include(([path("cart", page, name="cart")], "shop"))),
]
HELD: dict[str, Any] = {"limit": 5, "algorithm": "concurrency"}
QUEUE: dict[str, Any] = {"rate": "5/s", "algorithm": "leaky_bucket", "action": "delay", "max_delay": 1}
DEFER: dict[str, Any] = {"rate": "1/min", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 3}
Warn = Callable[..., list[Any]]


def ids(messages: list[Any]) -> list[str]:
    return [str(message.id).removeprefix("django_throttle.") for message in messages]


@pytest.fixture
def warned(settings: Any) -> Warn:
    settings.ROOT_URLCONF = __name__

    def warned(**options: Any) -> list[Any]:
        settings.DJANGO_THROTTLE = {"RULES": {"held": {**HELD, **options}}}
        return project.check_inflight(None)

    return warned


@pytest.mark.parametrize(
    ("scope", "view"),
    [("export", "export"), ("reports", "reports"), ("shop:cart", "shop:cart"), ("shop:*", "shop:cart")],
)
def test_a_rule_of_sockets_in_the_scope_of_a_view_is_found(warned: Warn, scope: str, view: str) -> None:
    for events in ({}, {"events": ["connection"]}):
        (message,) = warned(scopes=["elsewhere", scope], **events)
        assert message.id == "django_throttle.W089"
        assert message.msg == (
            f"rule 'held' counts open WebSockets alone, and {view!r} is the scope of a view, "
            "whose requests it does not limit"
        )
        assert '"inflight"' in message.hint
        assert ("Where only sockets are meant" in message.hint) is not bool(events)
    (message,) = warned(scopes=["lobby", "export"])
    assert "and 'export' is the scope" in message.msg, "a consumer's makes up for no view's"


def test_nothing_is_said_of_any_other(warned: Warn) -> None:
    for options in (
        {"scopes": ["export"], "events": ["inflight"]},
        {"scopes": ["export"], "enabled": False},
        {"scopes": ["export", "lobby"], "events": ["connection"]},  # a consumer's too, so it does something
        {"scopes": ["*o*"]},  # one pattern for both
        {"scopes": ["lobby"]},  # a page and its socket
        {},
    ):
        assert warned(**options) == [], options


@pytest.mark.parametrize(
    ("name", "value", "nothing"),
    [
        ("MIDDLEWARE", ["django_throttle.middleware.ThrottleMiddleware"], []),
        ("REST_FRAMEWORK", {"DEFAULT_THROTTLE_CLASSES": ["django_throttle.drf.RuleThrottle"]}, {}),
        ("ROOT_URLCONF", (path("api/", include([path("only", Throttled.as_view())])),), __name__),
        ("ROOT_URLCONF", (path("a", APIView.as_view(throttle_classes=[RuleThrottle])),), __name__),
    ],
    ids=["middleware", "throttle", "a view", "initkwargs"],
)
def test_a_rule_of_everything_where_no_sockets_are_is_found(
    warned: Warn, settings: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, nothing: Any
) -> None:
    setattr(settings, name, value)
    assert warned(key="ip") == [], "it is meant for sockets where there are some"
    with monkeypatch.context() as patch:
        patch.setattr(project, "socket_scopes", lambda: ())
        (message,) = warned(key="ip")
        assert message.id == "django_throttle.W089" and '"inflight"' in message.hint
        assert "no consumer that this check could find has the mixin; it does not limit requests while" in message.msg
        for meant in ({"events": ["inflight"]}, {"at_limit": "evict_oldest"}):
            assert warned(key="ip", **meant) == []
        setattr(settings, name, nothing)
        assert warned(key="ip") == [], "no entry point sees requests"
    monkeypatch.setattr(project, "find_spec", lambda name: None)
    assert warned()[0].msg.endswith("and Channels, which serves them, is not installed")


GUARDED, BARE = (URLRouter([path("chat", consumer.as_asgi())]) for consumer in (Lobby, Bare))
HALF = URLRouter([path("a", AllowedHostsOriginValidator(GUARDED)), path("b", Lobby.as_asgi())])


@pytest.mark.row("A41")
@pytest.mark.parametrize(
    ("app", "is_open"),
    [
        (AuthMiddlewareStack(GUARDED), True),
        (AuthMiddlewareStack(ThrottleMiddleware(BARE, "chat")), True),
        (ThrottleMiddleware(AuthMiddlewareStack(URLRouter([re_path("^a", BARE)])), "chat"), True),
        (AuthMiddlewareStack(HALF), True),
        (AllowedHostsOriginValidator(AuthMiddlewareStack(GUARDED)), False),
        (AuthMiddlewareStack(AllowedHostsOriginValidator(GUARDED)), False),
        (AuthMiddlewareStack(BARE), False),  # not ours to speak of
        (GUARDED, False),  # no cookies: whoever has the token is whoever it says
        (AuthMiddleware(GUARDED), False),
        (AuthMiddlewareStack(own), False),  # who knows what it looks at
    ],
)
def test_consumers_that_pages_of_other_sites_can_open(settings: Any, monkeypatch: Any, app: Any, is_open: bool) -> None:
    module = ModuleType("served_by_a_test")
    module.application = ProtocolTypeRouter({"websocket": app})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "served_by_a_test", module)
    settings.ASGI_APPLICATION = "served_by_a_test.application"
    messages = project.check_origins(None)
    assert ids(messages) == ["W042"] * is_open
    settings.ASGI_APPLICATION = "nowhere.application"
    assert project.check_origins(None) == [], "what cannot be loaded is somebody else's matter"
    for message in messages:
        assert message.msg.startswith("pages of any website can open ")
        assert "AllowedHostsOriginValidator" in message.hint


class TestDelays:
    @pytest.fixture(autouse=True)
    def on_daphne(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(project, "DAPHNE", "django_throttle")  # as if it were installed

    def said(self, settings: Any, **options: Any) -> str:
        settings.DJANGO_THROTTLE = {"RULES": {"queue": {**QUEUE, **options}}}
        messages = project.check_delays(None)
        assert {*ids(messages)} <= {"W043"}
        return " ".join(message.msg for message in messages)

    def test_messages_that_wait_on_daphne(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.said(settings, events=["message"]).startswith("messages are delayed by rule 'queue'")
        assert "rule" not in self.said(settings, events=["request"])
        monkeypatch.setattr(project, "DAPHNE", "not.installed")
        assert self.said(settings, events=["message"]) == ""

    def test_ladders(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = ThrottleMiddleware(own, "slow", ladder={"delay": 3})
        around = AuthMiddlewareStack(ThrottleMiddleware(URLRouter([path("slow", slow), path("own", own)]), "calm"))
        with monkeypatch.context() as patch:
            patch.setattr(project, "_application", lambda: around)
            said = self.said(settings, events=["request"])
        assert "the ladder of ThrottleMiddleware, scope 'slow'" in said and "calm" not in said

        class Slow(Lobby):
            throttle_ladder = {"delay": 3}

        assert f"throttle_ladder of {Slow.__name__}" in self.said(settings, events=["request"])

    @pytest.mark.django_db
    def test_rules_in_the_database(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ThrottleRule.from_state({"name": "row", "events": ["message"], **QUEUE}).save()
        ThrottleRule.from_state({"name": "other", "events": ["request"], **QUEUE}).save()
        (message,) = project.check_waiting_rows(None, databases=["default"])
        assert message.id == "django_throttle.W043"
        assert message.msg.startswith("messages are delayed by rule 'row' in the database, but daphne")
        assert project.check_waiting_rows(None) == project.check_waiting_rows(None, databases=[]) == []
        monkeypatch.setattr(project, "DAPHNE", "not.installed")
        assert project.check_waiting_rows(None, databases=["default"]) == []


def test_attributes_of_consumers_that_mean_nothing(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Chatty(Lobby):
        throttle_max_aeg, refused, idle_timeout, throttle_max_violations, throttle_indent = 60, "frame", 5, 3, "user"
        throttle_key, max_age, cost, throttle_channel = "ip", 60, 3, "its own"

        def connect(self) -> Any:
            return [self.max_age for _ in range(2)]

    loaded: list[str] = []
    settings.ASGI_APPLICATION = "site.asgi.application"
    monkeypatch.setattr(project, "import_string", loaded.append)
    messages = [message for message in project.check_attributes(None) if Chatty.__name__ in message.msg]
    assert loaded == ["site.asgi.application"], "consumers are there once the server's application is"
    key = "the option 'key' of a rule"
    meant = {
        "throttle_max_aeg": "'throttle_max_age'", "throttle_max_violations": "'throttle_ladder'", "refused": "'refuse'",
        "idle_timeout": "'throttle_idle_timeout'", "cost": "'throttle_cost'", "throttle_key": key,
        "throttle_indent": key,
    }  # fmt: skip
    texts = {f"Chatty.{name} has no effect; did you mean {option}?" for name, option in meant.items()}
    assert {message.msg for message in messages} == texts
    (message,) = [message for message in messages if "aeg" in message.msg]
    assert message.id == "django_throttle.W044" and message.hint.startswith("Rename it to 'throttle_max_age', or")


class Counted(UserRateThrottle):
    def get_cache_key(self, request: Any, view: Any) -> str | None:
        return "key" if getattr(view, "throttle_costs", None) else None


def test_attributes_of_throttles_that_mean_nothing(settings: Any) -> None:
    class Typed(UserRateThrottle):
        scop, rates, get_cach_key, own = "burst", {}, None, 1

        def throttle_succes(self) -> bool:
            return True

        def allow_request(self, *args: Any) -> bool:
            return bool(self.rates)

    class Ruled(RuleThrottle):
        rate = "5/min"

    class Sound(UserRateThrottle):
        scope, rate, history_size = "burst", "5/min", True

    view = APIView.as_view(throttle_classes=[Typed, Ruled, Sound])
    settings.ROOT_URLCONF = (path("", view),)
    texts = [message.msg for message in project.check_attributes(None)]
    assert [text for text in texts if text.startswith(("Typed.", "Ruled.", "Sound."))] == [
        "Typed.scop has no effect; did you mean 'scope'?",
        "Typed.get_cach_key has no effect; did you mean 'get_cache_key'?",
        "Typed.throttle_succes has no effect; did you mean 'throttle_success'?",
        "Ruled.rate has no effect; did you mean the base SimpleRateThrottle?",
    ]


def test_attributes_of_views_that_mean_nothing(settings: Any) -> None:
    def view(base: Any, name: str, **own: Any) -> Any:
        return type("Own", (type("Typo", (base,), {name: "x"}),), own).as_view()

    def hello(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def two(self: Any, request: Any) -> None: ...

    hello.throttle_csot = 3  # type: ignore[attr-defined]
    two.throttle_scop = "x"  # type: ignore[attr-defined]
    acting = type("Acting", (ViewSet,), {"two": action(detail=False)(two), "throttle_key": "ip"})
    misspelt = {"throttle_scop": "throttle_scope", "trottle_scope": "throttle_scope", "throttle_costs": "throttle_cost"}
    misspelt |= dict.fromkeys(("throttle_class", "throttling_classes"), "throttle_classes")
    own = [
        *(view(APIView, name) for name in ("throttle_scope_map", "throttle_rates", "throttle_classes", "throttled_by")),
        view(APIView, "throttle_costs", throttle_classes=[Counted]),
        view(APIView, "throttle_scopes", scope_attribute="throttle_scopes"),
        view(APIView, "throttle_class", get_throttles=lambda self: [self.throttle_class()]),
        view(View, "throttle_class"),
    ]
    views = [*(view(APIView, name) for name in misspelt), view(View, "throttle_scpoe"), hello, *own]
    views += [acting.as_view({"get": "two"}), api_view(["GET"])(hello)]
    settings.ROOT_URLCONF = tuple(path(f"{number}", view) for number, view in enumerate(views))
    texts = [message.msg for message in project.check_attributes(None)]
    assert [text for text in texts if text.startswith(("Typo.", "hello.", "Acting."))] == [
        *(f"Typo.{name} has no effect; did you mean {meant!r}?" for name, meant in misspelt.items()),
        "Typo.throttle_scpoe has no effect; did you mean 'throttle_scope'?",
        "hello.throttle_csot has no effect; did you mean 'throttle_cost'?",
        "Acting.throttle_key has no effect; did you mean the option 'key' of a rule?",
        "Acting.two.throttle_scop has no effect; did you mean 'throttle_scope'?",
        "hello.throttle_csot has no effect; did you mean 'throttle_cost'?",  # below @api_view
    ]


@pytest.mark.parametrize("base", [View, APIView])
def test_values_of_views_that_nothing_reads(settings: Any, base: Any) -> None:
    async def coroutine(request: Any) -> int:
        return 1

    def get(self: Any, request: Any) -> None: ...

    get.throttle_scope = "s"  # type: ignore[attr-defined]
    of_instance = property(lambda self: "s")
    wrong = [
        *({"throttle_scope": value} for value in (["s"], 5, lambda self: "s")),
        *({"throttle_cost": value} for value in ("3", 2.5, -1, True, coroutine, lambda self: 3, lambda: 3)),
        {"get": get}, {"post": throttle_classes([RuleThrottle])(lambda self, request: None)},
    ]  # fmt: skip
    right = [
        *({"throttle_scope": value} for value in ("s", gettext_lazy("s"), None)),
        *({"throttle_cost": value} for value in (0, None, len, lambda request: 3, lambda self, request: 3)),
    ]
    (right if base is APIView else wrong).extend([{"throttle_scope": of_instance}, {"throttle_cost": of_instance}])
    kinds = [type(f"V{number}", (base,), options) for number, options in enumerate([*wrong, *right])]
    settings.ROOT_URLCONF = tuple(path(kind.__name__, kind.as_view()) for kind in kinds)
    messages = project.check_view_values(None)
    assert ids(messages) == ["W044"] * len(wrong)
    texts = [message.msg for message in messages]
    assert [text.partition(".")[0] for text in texts] == [f"V{number}" for number in range(len(wrong))]
    assert texts[3] == "V3.throttle_cost is '3': it is ignored, and each request counts 1"
    assert texts[10] == "V10.get has throttle_scope, which nothing reads at a method of a view"
    assert texts[11] == "V11.post has throttle_classes, which nothing reads at a method of a view"

    def below(request: HttpRequest) -> None: ...

    below.throttle_cost, below.throttle_classes = 3, [RuleThrottle]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = (path("a", below), path("b", api_view(["GET"])(below)))
    assert [message.msg for message in project.check_view_values(None)] == [
        "below.throttle_classes is ignored, as below is not a view of REST framework",
        "below has throttle_cost, which nothing reads below @api_view",
    ]


CORE, PUBSUB = "channels_redis.core.RedisChannelLayer", "channels_redis.pubsub.RedisPubSubChannelLayer"
URL = "redis://127.0.0.1:6379/1"
SENTINEL: dict[str, Any] = {"sentinels": [("127.0.0.1", 26379)], "master_name": "dt"}
# redis-py 8 has a timeout of 5 seconds, earlier versions have none.
BY_DEFAULT = ["W046"] if Connection().socket_timeout is not None else []


@pytest.mark.parametrize(
    ("wanted", "backend", "hosts"),
    [
        (["3 s"], CORE, [{"address": URL, "socket_timeout": None}, {"address": URL, "socket_timeout": 3}]),
        (["3 s"], CORE, [f"{URL}?socket_timeout=3"]),
        (["3 s"], CORE, [{**SENTINEL, "socket_timeout": 3.0}]),
        *((BY_DEFAULT, CORE, hosts) for hosts in (None, [URL], [("127.0.0.1", 6379)], [SENTINEL])),
        ([], CORE, [{"address": URL, "socket_timeout": None}]),
        ([], CORE, [{"address": URL, "socket_timeout": 15}]),
        ([], PUBSUB, [{"address": URL, "socket_timeout": 3}]),
        ([], CORE, URL),  # no list: the layer says so itself
        ([], "nowhere.Layer", None),
    ],
)
def test_a_layer_that_gives_up_waiting_is_found(settings: Any, wanted: list[str], backend: str, hosts: Any) -> None:
    need_package("channels_redis")
    settings.CHANNEL_LAYERS = {"chat": {"BACKEND": backend, "CONFIG": {"hosts": hosts} if hosts else {}}}
    messages = project.check_layers(None)
    assert ids(messages) == ["W046"] * len(wanted)
    if wanted == ["3 s"]:
        assert messages[0].msg.startswith("consumers on the channel layer 'chat' end after 3 s without a message")
        assert messages[0].msg.endswith("while the layer waits for 5 s")
        assert '"socket_timeout": None' in messages[0].hint


class TestDeferredCalls:
    @pytest.fixture(autouse=True)
    def site(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """One whose views defer the calls of rule "reports" alone, without the status page."""
        settings.ROOT_URLCONF = __name__
        others = list(deferrals), list(limited_tasks)
        deferrals[:] = [Deferral("reports", None, None, False)]
        yield
        deferrals[:], limited_tasks[:] = others
        monkeypatch.undo()
        clear_url_caches()

    def test_a_status_page_without_an_address_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (message,) = project.check_status_pages(None)
        assert message.id == "django_throttle.E082" and "(rules 'reports')" in message.msg
        assert message.msg.endswith('add path("later/", include("django_throttle.urls")) to urlpatterns')
        monkeypatch.setitem(globals(), "urlpatterns", [path("later/", include("django_throttle.urls"))])
        clear_url_caches()
        assert project.check_status_pages(None) == []

    @pytest.mark.parametrize(
        ("backend", "options", "found"),
        [
            ("immediate.ImmediateBackend", {}, ["E082"]),
            ("dummy.DummyBackend", {}, []),
            ("immediate.ImmediateBackend", {"enabled": False}, []),
        ],
    )
    def test_backends_that_cannot_wait_are_errors(
        self, settings: Any, backend: str, options: dict[str, Any], found: list[str]
    ) -> None:
        package = tasks_module()
        settings.TASKS = {"default": {"BACKEND": f"{package}.backends.{backend}"}}
        task = import_module(package).task()(make_report)
        if not options:
            deferrals[:] = [Deferral("reports", task, None, False)]
            assert ids(project.check_deferring_backends(None)) == found
        deferrals.clear()
        settings.DJANGO_THROTTLE = {"RULES": {"mails": {**DEFER, "events": ["task"], **options}}}
        throttled_task("mails")(task)
        messages = project.check_deferring_backends(None)
        assert ids(messages) == found
        assert all("'mails'" in message.msg for message in messages)

    @pytest.mark.django_db
    def test_rules_and_views_that_do_not_fit_are_found(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RULES": {"reports": {"rate": "1/min"}, "other": {"rate": "1/min"}}}
        (message,) = project.check_deferring_rules(None)
        assert message.id == "django_throttle.W082"
        assert message.msg == "a view names a task for calls over rule 'reports', but its action is 'reject'"
        others = {"off": {"enabled": False}, "tasks": {"events": ["task"]}, "delays": {"action": "delay"}}
        rules = {"reports": DEFER, **{name: {**DEFER, **options} for name, options in others.items()}}
        settings.DJANGO_THROTTLE = {"RULES": rules}
        assert project.check_deferring_rules(None) == []
        settings.DJANGO_THROTTLE = {"RULES": rules | {"exports": DEFER}}
        (message,) = project.check_deferring_rules(None)
        assert message.id == "django_throttle.W082"
        assert message.msg.startswith("rule 'exports' has action 'defer', but no view passes defer_to=…")
        assert '@throttle("exports", defer_to=…)' in message.hint
        for name in ("reports", "exports"):
            ThrottleRule.from_state({"name": name, **DEFER}).save()
        (message,) = project.check_deferring_rows(None, databases=["default"])
        assert message.id == "django_throttle.W082" and "'exports'" in message.msg
        assert project.check_deferring_rows(None) == []

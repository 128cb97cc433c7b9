"""A rule whose scopes nothing has, or that no entry point applies there, or that applies everywhere, is told of."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import OriginValidator
from django.core.asgi import get_asgi_application
from django.core.checks import INFO, WARNING, run_checks
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from rest_framework.permissions import AllowAny, IsAuthenticated
from rest_framework.views import APIView

from django_throttle import limiter, middleware, tasks
from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.checks import project, scopes
from django_throttle.contrib.httpx import ThrottledTransport
from django_throttle.decorators import decorated, throttle
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.later.site_queues import named_by_tasks
from django_throttle.limiter import named_by_transports
from django_throttle.models import ThrottleRule
from django_throttle.tasks import throttled_task

HELD = {"algorithm": "concurrency", "rate": None, "limit": 2, "events": ["inflight"]}
NOTHING = "no route, view or consumer has the scope 'lounge'"
ABOUT_SOCKETS = ("W088", "W089", "I101", "W101")
OURS = ["django_throttle.middleware.ThrottleMiddleware"]


def made(get_response: Any) -> Any:
    return middleware.ThrottleMiddleware(get_response)


class Around:
    def __init__(self, get_response: Any) -> None:
        self.inside = middleware.ThrottleMiddleware(get_response)


class ChatOfScopes(ThrottledConsumerMixin, AsyncWebsocketConsumer):  # type: ignore[misc]
    throttle_scope = "chat"


def behind(app: Any) -> Any:
    async def call(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return call


lounge = ThrottleMiddleware(ChatOfScopes.as_asgi(), "lounge")


class Bare(AsyncWebsocketConsumer):  # type: ignore[misc]
    throttle_scope = "bare"


consumers = URLRouter([path("", ChatOfScopes.as_asgi()), path("bare", Bare.as_asgi())])
application = ProtocolTypeRouter({"websocket": consumers})


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Search(APIView):
    throttle_scope = "search"
    throttle_classes = ()


class Chosen(Search):
    throttle_scope = "chosen"

    def get_throttles(self) -> list[Any]:
        return [RuleThrottle()]


@throttle("sign-up")
def sign_up(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@throttle("gratis", cost=0)
def free(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@throttle("exports", ident="all")
def export(order: int) -> None: ...


@throttle("exports", ident=lambda order, by: "all")
def export_of(order: int, by: HttpRequest) -> None: ...


@throttled_task("weekly")
def send_mail() -> None: ...


CRM = ThrottledTransport("crm-calls")
ROUTES = [
    path("", page, name="front"), path("s", Search.as_view(), name="search-list"),
    path("o", Search.as_view(throttle_scope="orders", throttle_classes=[RuleThrottle]), name="order-list"),
    path("d", Search.as_view(throttle_scope="drop-in", throttle_classes=[UserRateThrottle]), name="drop-in"),
    path("c", Chosen.as_view(), name="chosen"), path("u", sign_up, name="sign-up-page"),
    path("shop/", include(([path("", page, name="cart")], "shop"))),
]  # fmt: skip


@pytest.fixture(autouse=True)
def of_these_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what this file decorates: other tests name rules, too."""
    monkeypatch.setattr(scopes, "decorated", {name: decorated[name] for name in ("sign-up", "gratis")})
    monkeypatch.setattr(scopes, "named_by_tasks", {"weekly": named_by_tasks["weekly"]})
    monkeypatch.setattr(scopes, "named_by_transports", named_by_transports & {CRM.rule})
    monkeypatch.setattr(project, "wrapped_operations", [])


def found(settings: Any, rules: dict[str, Any]) -> list[tuple[str, str]]:
    settings.ROOT_URLCONF, settings.ASGI_APPLICATION = tuple(ROUTES), f"{__name__}.application"
    settings.DJANGO_THROTTLE = {"RULES": {name: {"rate": "1/min", **rule} for name, rule in rules.items()}}
    wanted = {f"django_throttle.W{number:03}" for number in (88, 89, 90)}
    messages = [message for message in run_checks(tags=["django_throttle"]) if message.id in wanted]
    messages = [message for message in messages if "counts open WebSockets alone" not in message.msg]  # another check's
    return [(str(message.id)[-3:], message.msg.removeprefix("rule ")) for message in messages]


@pytest.mark.parametrize(
    ("rule", "number", "text"),
    [
        ({"scopes": ["serach"]}, "088", "'api': nothing has the scope 'serach'; did you mean 'search'?"),
        ({"scopes": ["/s"]}, "088", "the view at this path has the scope 'search'"),
        ({"scopes": ["^shop/.*$"]}, "088", "the view at this path has the scope 'shop:cart'"),
        ({"scopes": ["orders"], "key": "user", "plans": {"anonymous": "2/min"}}, "088", "the plan 'anonymous' is of"),
        ({"scopes": ["orders"], "audience": ["anonymous"], "plans": {"staff": "2/min"}}, "088", "the plan 'staff' is"),
        ({"scopes": ["chta"], "events": ["message"]}, "088", "did you mean 'chat'?"),
        (
            {"scopes": ["bare"], "events": ["message"]},
            "088",
            "Bare has the throttle_scope 'bare', which only Throttled",
        ),
        ({"scopes": ["serach"], "events": ["request", "task"]}, "088", "did you mean 'search'?"),
        ({"scopes": ["*", "!fornt"]}, "088", "'api': nothing has the scope 'fornt'; did you mean 'front'?"),
        ({"scopes": ["shop:x*"]}, "088", "no route, view or consumer has the scope 'shop:x*'"),
        ({"scopes": ["search-list"]}, "088", "route 'search-list' has the scope 'search', the throttle_scope of its"),
        ({"scopes": ["search"]}, "089", "limits nothing: no entry point applies it to requests of scope 'search'"),
        ({"scopes": ["404"]}, "089", "limits nothing: no entry point applies it to requests of scope '404'"),
        (
            {"scopes": ["wekly"], "events": ["task"]},
            "088",
            "did you mean 'weekly', named by tests.checks.test_scopes.s",
        ),
        (
            {"scopes": ["send_mail"], "events": ["task"]},
            "088",
            "'send_mail' is no scope of a task; did you mean 'weekl",
        ),
        ({"scopes": ["front"], **HELD}, "089", ""),
        ({"scopes": ["orders", "search"]}, "089", "does not limit 'search-list' of scope 'search'"),
        (
            {"scopes": ["chat", "search"], "events": ["message", "request"]},
            "089",
            "does not limit 'search-list' of scope 'search'",
        ),
        ({"scopes": ["drop-in"]}, "089", "requests of scope 'drop-in'"),
        ({"scopes": ["shop:*"]}, "089", "requests of scope 'shop:cart'"),
        ({"scopes": ["chat"]}, "088", "'chat' is the scope of WebSockets, and the rule counts requests alone"),
        ({"scopes": ["front"], "events": ["send"]}, "088", "is the scope of a view, and the rule counts WebSockets"),
        ({"scopes": ["search"], "events": ["task"]}, "088", "'search' is a scope of this site, and the rule counts ru"),
    ],
)
def test_what_holds_nothing_is_told(settings: Any, rule: dict[str, Any], number: str, text: str) -> None:
    settings.MIDDLEWARE = []
    ((told, message),) = found(settings, {"api": rule})
    assert (told, text in message) == (number, True), message


def test_a_rule_of_tasks_that_no_task_of_an_app_names(settings: Any, monkeypatch: Any, tmp_path: Path) -> None:
    (tmp_path / "billing").mkdir()
    (tmp_path / "billing/__init__.py").touch()
    decorator = "from django_throttle.tasks import throttled_task\n\n@throttled_task('invoices')\n"
    (tmp_path / "billing/tasks.py").write_text(f"{decorator}def bill(): ...\n\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tasks, "named_by_tasks", scopes.named_by_tasks)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "billing"]
    found(settings, {name: {"events": ["task"]} for name in ("mails", "invoices", "weekly")})
    fault = "no @throttled_task('mails') has been imported, so it is not known if a task names the rule"
    messages = run_checks(tags=["django_throttle"])
    assert [message.msg for message in messages if message.level == INFO] == [f"rule 'mails': {fault}"]


@pytest.mark.parametrize(
    ("name", "place"),
    [("exports", "@throttle around export"), ("weekly", f"@throttled_task around {__name__}.send_mail")],
)
def test_methods_where_there_is_no_request(settings: Any, name: str, place: str) -> None:
    (message,) = found(settings, {name: {"methods": ["POST"], "scopes": ["orders"]}})
    assert message == ("088", f"{name!r} has methods, and {place} gets no request: it limits nothing")


@pytest.mark.parametrize(
    ("permission", "middleware", "told"),
    [(IsAuthenticated, [], 1), (IsAuthenticated, OURS, 0), (AllowAny, [], 0), (None, [], 0)],
)
def test_answers_that_throttles_do_not_see(
    settings: Any, monkeypatch: pytest.MonkeyPatch, permission: Any, middleware: list[str], told: int
) -> None:
    classes = {"permission_classes": [permission] if permission else [], "throttle_classes": [RuleThrottle]}
    view = Search.as_view(throttle_scope="orders", **classes)
    monkeypatch.setattr(sys.modules[__name__], "ROUTES", [path("o", view)])
    settings.MIDDLEWARE = middleware
    message = "'wrong' limits nothing: REST framework answers 401 before its throttles decide"
    rules = {"wrong": {"scopes": ["orders"], "count_on": [401]}, "all": {"scopes": ["orders"], "count_on": ["4xx"]}}
    assert found(settings, rules) == [("089", message)] * told


def test_keys_of_websockets_around_views(settings: Any) -> None:
    for key in ("connection", "ip+django_throttle.channels.group"):
        rule = {"key": key, "events": ["message"], "scopes": ["chat"]}
        expected = f"'sign-up' counts by {key}, and @throttle around sign_up has none: it limits nothing"
        assert ("088", expected) in found(settings, {"sign-up": rule, "exports": rule})


def test_a_decorator_that_charges_nothing(settings: Any) -> None:
    expected = "'gratis' limits nothing where @throttle has the cost 0, around free"
    assert ("089", expected) in found(settings, {"gratis": {"scopes": ["front"]}})


@pytest.mark.parametrize(
    ("rule", "middleware"),
    [
        ({}, []),
        ({"scopes": ["*", "!front"]}, OURS),
        *(({"scopes": ["404"]}, [middleware]) for middleware in (*OURS, f"{__name__}.made", f"{__name__}.Around")),
        ({"scopes": ["orders"]}, []),
        ({"scopes": ["chosen"]}, []),
        ({"scopes": ["chat", "orders"], "events": ["message", "request"]}, []),
        ({"scopes": ["s*", "orders"]}, []),
        ({"scopes": ["api"]}, OURS),  # asked by its name
        ({"scopes": ["serach"], "enabled": False}, OURS),
        ({"scopes": ["a-group"], "events": ["publish"]}, OURS),
        ({"scopes": ["a-task"], "events": ["request", "task"]}, []),
        ({"scopes": ["serach"], "events": ["task"]}, []),
        ({"events": ["message"]}, []),
    ],
)
def test_others_are_not(settings: Any, monkeypatch: Any, rule: dict[str, Any], middleware: list[str]) -> None:
    settings.MIDDLEWARE = middleware
    assert found(settings, {"api": rule}) == []


@pytest.mark.parametrize(
    ("app", "doubt"),
    [
        (None, "ASGI_APPLICATION is not set"),
        (get_asgi_application(), "no application for WebSockets can be seen in served_by_a_test.application"),
        (ProtocolTypeRouter({"websocket": page}), "page in ASGI_APPLICATION cannot be looked into"),
        (SimpleNamespace(app=behind(ProtocolTypeRouter({"websocket": OriginValidator(lounge, ["*"])}))), None),
        (application, ""),
        (ZeroDivisionError("of the site"), "ASGI_APPLICATION cannot be loaded"),
    ],
    ids=["unset", "of startproject", "hidden", "wrapped", "known", "broken"],
)
def test_sockets_that_cannot_be_looked_for(
    settings: Any, monkeypatch: pytest.MonkeyPatch, app: Any, doubt: str | None
) -> None:
    def load(name: str) -> object:
        if isinstance(app, Exception):
            raise app
        return app

    module = ModuleType("served_by_a_test")
    module.__getattr__ = load  # type: ignore[method-assign]
    monkeypatch.setattr(scopes, "_asked_names", set)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.ASGI_APPLICATION = None if app is None else "served_by_a_test.application"
    settings.MIDDLEWARE = OURS
    places = {"lounge": ["message"], "chat": ["connect"], "front": ["request", "message"]}
    rules = {name: {"scopes": [name], "events": events, "rate": "1/min"} for name, events in places.items()}
    settings.ROOT_URLCONF, settings.DJANGO_THROTTLE = tuple(ROUTES), {"RULES": rules}
    messages = [message for message in run_checks(tags=["django_throttle"]) if str(message.id)[-4:] in ABOUT_SOCKETS]
    unknown = f"it is not known if a WebSocket has the scope 'lounge': {doubt}"
    error = "WebSockets are not checked, as ASGI_APPLICATION cannot be loaded: ZeroDivisionError: of the site"
    told = {f"rule 'lounge': {unknown if doubt else NOTHING}": INFO if doubt else WARNING}
    assert {message.msg: message.level for message in messages} == {
        **({} if doubt is None else told),
        **({error: WARNING} if isinstance(app, Exception) else {}),
    }


@pytest.mark.parametrize(
    ("options", "number", "text"),
    [
        ({"scopes": ["rooms"], "events": ["message"]}, "088", "consumer has the scope 'rooms'"),
        ({"scopes": ["rooms"], **HELD, "events": ["connection"]}, "088", "consumer has the scope 'rooms'"),
        ({"scopes": ["front"], "events": ["connect"]}, "088", "'front' is the scope of a view"),
        ({"scopes": ["api"], "events": ["message"]}, "088", "consumer has the scope 'api'"),
        ({"events": ["message"]}, "089", "limits nothing: no WebSockets were found"),
    ],
)
def test_rules_of_sockets_on_a_site_without_channels(
    settings: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], number: str, text: str
) -> None:
    monkeypatch.setattr(scopes, "_asked_names", set)
    monkeypatch.setattr(project, "find_spec", lambda name: None)
    ((told, message),) = found(settings, {"api": options})
    assert (told, text in message) == (number, True), message


@pytest.mark.parametrize("everywhere", ["middleware", "default throttle", "nowhere"])
def test_a_rule_of_a_decorator_that_limits_everything(settings: Any, everywhere: str) -> None:
    settings.MIDDLEWARE = OURS if everywhere == "middleware" else []
    if everywhere == "default throttle":
        settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["django_throttle.drf.RuleThrottle"]}
    told = found(settings, {"sign-up": {}})
    assert [number for number, _ in told] == ([] if everywhere == "nowhere" else ["090"])
    assert found(settings, {"sign-up": {"scopes": ["sign-up"]}}) == []


@pytest.mark.parametrize("rule", [{}, {"scopes": ["*"]}, {"scopes": ["!health"]}])
@pytest.mark.parametrize("asked_by_name", [False, True])
def test_a_rule_for_every_view_that_no_entry_point_applies(
    settings: Any, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], asked_by_name: bool
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROUTES", [path("health", page, name="health"), path("", page)])
    monkeypatch.setattr(scopes, "_asked_names", lambda: {"api", "heath"} if asked_by_name else set())
    settings.MIDDLEWARE = []
    messages = [message for _, message in found(settings, {"api": rule, "heath": {"scopes": ["heath"]}})]
    assert messages == ([] if asked_by_name else [
        "'api' limits nothing: no entry point applies it to any view",
        "'heath': nothing has the scope 'heath'; did you mean 'health'?",
    ])  # fmt: skip


@pytest.mark.parametrize("line", ["allows", "allows as may_enter", "aallows", "Limiter"])
def test_rules_are_asked_by_name_where_a_module_of_the_site_has_the_name_and_the_question(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    source = tmp_path / "limits_of_shop.py"
    source.write_text(f'from django_throttle.limiter import {line}\nNAMES = ["exports"]\n')
    monkeypatch.syspath_prepend(tmp_path)
    modules = {"django_throttle.limiter": limiter, "compiled": SimpleNamespace(allows=limiter.allows, NAME="reports")}
    monkeypatch.setattr(scopes, "sys", SimpleNamespace(modules=modules | {"shop": import_module(source.stem)}))
    del sys.modules[source.stem]
    monkeypatch.setattr(sys.modules[__name__], "ROUTES", [path("", page)])
    settings.MIDDLEWARE = []
    silent = {"reports"} if line == "Limiter" else {"reports", "exports"}
    rules: dict[str, Any] = {name: {} for name in ("api", "exports", "reports")}
    rule_names = {message.partition(" ")[0] for _, message in found(settings, rules)}
    assert rule_names == {repr(name) for name in rules.keys() - silent}


class Priced(Search):
    throttle_cost = staticmethod(lambda request: 2)


@pytest.mark.parametrize(("classes", "middleware", "told"), [((), OURS, 1), ((RuleThrottle,), OURS, 0), ((), [], 0)])
def test_a_function_of_a_view_that_nothing_calls(settings: Any, classes: Any, middleware: list[str], told: int) -> None:
    settings.ROOT_URLCONF = (path("", Priced.as_view(throttle_classes=classes), name="priced"),)
    settings.MIDDLEWARE, settings.DJANGO_THROTTLE = middleware, {"RULES": {"api": {"rate": "1/min"}}}
    messages = [each for each in run_checks(tags=["django_throttle"]) if "nothing calls it" in each.msg]
    assert [each.id for each in messages] == ["django_throttle.W044"] * told
    assert all("Priced, at 'priced', has a function throttle_cost" in each.msg for each in messages)


class TestNamesOfDecorators:
    @pytest.fixture
    def names(self, settings: Any) -> Callable[..., list[str]]:
        def told(rules: list[str], *, has_rows: bool, asked: list[str] | None = None) -> list[str]:
            settings.ROOT_URLCONF = tuple(ROUTES)
            settings.DJANGO_THROTTLE = {
                "DATABASE_RULES": has_rows,
                "RULES": {name: {"rate": "1/min", "scopes": [name]} for name in rules},
            }
            messages = run_checks(databases=asked)
            return [message.msg for message in messages if "limits nothing: there is no rule" in message.msg]

        return told

    @pytest.mark.parametrize(("rules", "said"), [(["sign-ups", "wekly", "crm-call"], 3), (["sign-up"], 0)])
    def test_of_rules_in_settings(self, names: Any, rules: list[str], said: int) -> None:
        nothing = "limits nothing: there is no rule"
        of_view = f"@throttle('sign-up') around sign_up {nothing} 'sign-up'; did you mean 'sign-ups'?"
        of_task = f"@throttled_task('weekly') around {__name__}.send_mail {nothing} 'weekly'; did you mean 'wekly'?"
        of_call = f"ThrottledTransport('crm-calls') {nothing} 'crm-calls'; did you mean 'crm-call'?"
        assert names(rules, has_rows=False) == [of_view, of_task, of_call][:said]

    @pytest.mark.django_db
    def test_of_rules_in_the_database(self, names: Any) -> None:
        assert names(["sign-ups"], has_rows=True) == []  # as one in the database may have the name
        assert len(names(["sign-ups"], has_rows=True, asked=["default"])) == 1
        ThrottleRule.objects.create(name="sign-up", rate="1/min")
        assert names(["sign-ups"], has_rows=True, asked=["default"]) == []

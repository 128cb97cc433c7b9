"""Every way in which Django and REST framework let a view carry an attribute is read alike at every entry point."""

from functools import partial, wraps
from typing import Any, ClassVar

import pytest
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import include, path
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import action, api_view, throttle_classes
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_throttle.costs import measured
from django_throttle.drf import RuleThrottle
from django_throttle.identity import site_functions
from django_throttle.runtime import LogThrottle
from tests.doors import LOGIN, Enforce

SCOPE = "limited"


class Page(View):
    throttle_scope: str | None = None
    throttle_cost: Any = 1

    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Rest(APIView):
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    throttle_scope: str | None = None
    throttle_cost: Any = 1

    def get(self, request: Any) -> Response:
        return Response()


def mark(view: Any, **attributes: Any) -> Any:
    """Stand for a decorator of a site's own that sets attributes on a view."""

    @wraps(view)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    vars(marked).update(attributes)
    return marked


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def function(**attributes: Any) -> Any:
    @api_view(["GET"])
    @throttle_classes([RuleThrottle])
    def view(request: Any) -> Response:
        return Response()

    vars(view).update(attributes)
    return view


class Property(Rest):
    @property
    def throttle_scope(self) -> str:  # type: ignore[override]
        return SCOPE


class InGetThrottles(Rest):
    def get_throttles(self) -> Any:
        self.throttle_scope = SCOPE
        return super().get_throttles()


class InInitial(Rest):
    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self.throttle_scope = SCOPE
        super().initial(request, *args, **kwargs)


class Actions(ViewSet):
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    throttle_scope = "other"

    @action(detail=False, throttle_scope=SCOPE)
    def go(self, request: Any) -> Response:
        return Response()


router = SimpleRouter()
router.register("actions", Actions, basename="actions")
SCOPES: dict[str, Any] = {
    "class": type("Class", (Page,), {"throttle_scope": SCOPE}).as_view(),
    "as_view": Page.as_view(throttle_scope=SCOPE), "function": mark(page, throttle_scope=SCOPE),
    "partial": partial(mark(page, throttle_scope=SCOPE)), "marked class": mark(Page.as_view(), throttle_scope=SCOPE),
    "exempt": csrf_exempt(type("Exempt", (Page,), {"throttle_scope": SCOPE}).as_view()),
    "rest class": type("RestClass", (Rest,), {"throttle_scope": SCOPE}).as_view(),
    "rest as_view": Rest.as_view(throttle_scope=SCOPE), "rest marked": mark(Rest.as_view(), throttle_scope=SCOPE),
    "rest function": function(throttle_scope=SCOPE), "property": Property.as_view(),
    "get_throttles": InGetThrottles.as_view(), "initial": InInitial.as_view(),
}  # fmt: skip
COSTS: dict[str, Any] = {
    "number": 3,
    "lambda": lambda request: len(request.GET["three"]),
    "of its own request": lambda request: len(getattr(request, "query_params", request.GET)["three"]),
    "method": lambda self, request: len(request.GET["three"]) if isinstance(self, View) else 0,
    "named self": lambda self, request=None: len(request.GET["three"]),
    "with a default": lambda request, times=1: len(request.GET["three"]) * times,
    "static": staticmethod(lambda request: len(request.GET["three"])),
    "class method": classmethod(lambda kind, request: len(request.GET["three"])),
    "partial": partial(lambda times, request: len(request.GET["three"]) * times, 1),
    "property": property(lambda self: 3),
}
urlpatterns = [
    *[path(f"scope/{name}", view, name=name) for name, view in SCOPES.items()],
    path("scope/", include(router.urls)),
    *[path(f"cost/rest/{name}", type("C", (Rest,), {"throttle_cost": cost}).as_view()) for name, cost in COSTS.items()],
    *[path(f"cost/page/{name}", type("C", (Page,), {"throttle_cost": cost}).as_view()) for name, cost in COSTS.items()],
    path("cost/rest/as_view", Rest.as_view(throttle_cost=COSTS["lambda"])),
    path("cost/page/as_view", Page.as_view(throttle_cost=COSTS["lambda"])),
    path("cost/rest/function", function(throttle_cost=COSTS["lambda"])),
    path("cost/page/function", mark(page, throttle_cost=COSTS["lambda"])),
]
MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]


def left(answer: HttpResponse) -> dict[str, int]:
    """Return what is left of each rule that the header fields tell of."""
    assert answer.status_code == 200, answer.content
    items = answer.get("RateLimit", "").split(", ")
    return {item.split(";")[0].strip('"'): int(item.split("r=")[1].split(";")[0]) for item in items if item}


def entries(name: str) -> list[str]:
    """Return the entry points that ask for this view."""
    is_rest = issubclass(getattr(SCOPES.get(name), "cls", APIView if "/" in name else View), APIView)
    return ["throttle class", "both"] if is_rest else ["middleware"]


@pytest.mark.parametrize(
    ("name", "entry"), [(name, entry) for name in [*SCOPES, "actions/go/"] for entry in entries(name)]
)
def test_a_scope_is_charged_once_and_no_other(enforce: Enforce, settings: Any, name: str, entry: str) -> None:
    if entry != "throttle class":
        settings.MIDDLEWARE = MIDDLEWARE
    rule = {"rate": "9/min", "algorithm": "fixed_window"}
    enforce(mine=rule | {"scopes": [SCOPE]}, route=rule | {"scopes": [name]}, other=rule | {"scopes": ["other"]})
    assert left(Client().get(f"/scope/{name}")) == {"mine": 8}
    assert left(Client().get(f"/scope/{name}")) == {"mine": 7}


def test_what_the_middleware_charged_for_another_scope_goes_back(enforce: Enforce, settings: Any) -> None:
    settings.MIDDLEWARE = MIDDLEWARE
    held = {"limit": 1, "algorithm": "concurrency", "events": ["inflight"], "scopes": ["get_throttles"]}
    enforce(route={"rate": "1/min", "scopes": ["get_throttles"], "algorithm": "fixed_window"}, held=held)
    assert [Client().get("/scope/get_throttles").status_code for _ in range(4)] == [200] * 4


# Python 3.13 warns whoever puts a partial into a class.
@pytest.mark.filterwarnings("ignore:functools.partial will be:FutureWarning")
@pytest.mark.parametrize(
    ("where", "middleware", "name"),
    [
        (where, middleware, name)
        for where, middleware in [("rest", False), ("rest", True), ("page", True)]
        for name in [*COSTS, "as_view", "function"]
        if (where, name) != ("page", "property")  # only an instance knows it
    ],
)
def test_a_cost(enforce: Enforce, settings: Any, where: str, middleware: bool, name: str, caplog: Any) -> None:
    settings.MIDDLEWARE = MIDDLEWARE if middleware else []
    enforce(mine={"rate": "9/min", "algorithm": "fixed_window"})
    assert left(Client().get(f"/cost/{where}/{name}?three=abc")) == {"mine": 6}
    assert not [record for record in caplog.records if record.name == "django_throttle"]


def by_match(request: HttpRequest) -> str:
    assert request.resolver_match is not None
    return str(request.resolver_match.url_name)


@pytest.mark.parametrize("server", ["wsgi", "asgi"])
async def test_functions_find_the_match_in_the_middleware(enforce: Enforce, settings: Any, server: str) -> None:
    settings.MIDDLEWARE = MIDDLEWARE
    path, rule = f"{__name__}.by_match", {"rate": "1/min", "algorithm": "fixed_window"}
    enforce(key={**rule, "rate": "3/min", "key": path}, plans={**rule, "plans": {f"{path}:class": "3/min"}})
    get: Any = AsyncClient().get if server == "asgi" else sync_to_async(Client(raise_request_exception=False).get)
    assert [(await get("/scope/class")).status_code for _ in range(4)] == [200, 200, 200, 429]


def nobody(subject: object) -> object:
    return object()


BY_MATCH, NOBODY = f"{__name__}.by_match", f"{__name__}.nobody"


@pytest.mark.parametrize("path", [BY_MATCH, NOBODY])
@pytest.mark.parametrize("use", ["key", "part of a key", "TENANT", "cost", "plans", "measure"])
def test_a_function_of_the_site_that_fails_leaves_a_404_and_the_limit(
    enforce: Enforce,
    settings: Any,
    use: str,
    path: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    django_user_model: Any,
) -> None:
    for module in (site_functions, measured):
        monkeypatch.setattr(module, "_log_throttle", LogThrottle())
    settings.MIDDLEWARE = [*LOGIN, *MIDDLEWARE]
    options: dict[str, Any] = {
        "key": {"key": path}, "part of a key": {"key": f"ip+{path}"}, "TENANT": {"key": "tenant"},
        "cost": {"cost": path}, "plans": {"plans": {f"{path}:x": "9/min"}},
        "measure": {"unit": "units", "measure": path},
    }[use]  # fmt: skip
    enforce(
        site={"rate": "2/min", "algorithm": "fixed_window", "key": "ip"} | options,
        **({"TENANT": path} if use == "TENANT" else {}),
    )
    client = Client(raise_request_exception=False)
    client.force_login(django_user_model.objects.create_user("anna"))
    assert [client.get("/nowhere").status_code for _ in range(3)] == [404, 404, 429]
    assert path.rpartition(".")[2] in caplog.text

"""Nobody obtains by being over the limit what a view would have refused, wherever the decorator that defers stands."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import PermissionRequiredMixin
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.transaction import atomic
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_POST
from django_tasks_db.models import DBTaskResult
from rest_framework.decorators import api_view, permission_classes
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.checks import project
from django_throttle.decorators import throttle
from django_throttle.runtime import LogThrottle
from tests.doors import LOGIN, Enforce
from tests.http.test_deferred import QUEUE, make

pytestmark = pytest.mark.django_db(transaction=True)


OURS = ["django_throttle.middleware.ThrottleMiddleware"]


def defer(rule: str) -> Any:
    return throttle(rule, defer_to=make)


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


async def apage(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


def rest_page(request: Any) -> Response:
    return Response("now")


def only_staff(view: Any) -> Any:
    """Stand for a decorator of the site's own."""

    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        if not request.user.is_staff:
            raise PermissionDenied
        response: HttpResponse = view(request)
        return response

    return checked


def hiding(view: Any) -> Any:
    """A decorator without functools.wraps."""

    def checked(request: HttpRequest) -> HttpResponse:
        return check_first(view, request)

    return checked


def check_first(view: Any, request: HttpRequest) -> HttpResponse:
    return only_staff(view)(request)  # type: ignore[no-any-return]


class Calling:
    def __init__(self, view: Any) -> None:
        self.view = view

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return check_first(self.view, request)


@contextmanager
def staff_block() -> Iterator[None]:
    yield


class Open(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("now")

    post = get


class Guarded(PermissionRequiredMixin, Open):
    permission_required = "auth.add_user"


class AsyncGuarded(PermissionRequiredMixin, View):
    permission_required = "auth.add_user"

    async def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("now")


class Rest(APIView):
    permission_classes = (IsAuthenticated,)

    def post(self, request: Any) -> Response:
        return Response("now")


class Posting(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("now")


def decorated(base: Any, name: str, *decorators: Any) -> Any:
    """Return the view of a subclass whose method of that name has these decorators, the innermost first."""
    kind: Any = type("Decorated", (base,), {})
    for decorator in decorators:
        kind = method_decorator(decorator, name=name)(kind)
    return kind.as_view()


USER_PASSES_TEST = "django.contrib.auth.decorators.user_passes_test"
# The decorator that defers, above what refuses: by rule, the view, and what the check names.
GUARDED: dict[str, tuple[Any, str]] = {
    "login": (defer("login")(login_required(page)), USER_PASSES_TEST),
    "alogin": (defer("alogin")(login_required(apage)), USER_PASSES_TEST),
    "permission": (defer("permission")(permission_required("auth.add_user")(never_cache(page))), USER_PASSES_TEST),
    "own": (defer("own")(never_cache(only_staff(page))), "tests.http.test_deferred_order.only_staff"),
    "csrf": (defer("csrf")(csrf_protect(page)), "django.utils.decorators.make_middleware_decorator"),
    "as_view": (defer("as_view")(csrf_exempt(Guarded.as_view())), "Guarded.as_view()"),
    "rest": (defer("rest")(Rest.as_view()), "Rest.as_view()"),
    "function": (
        defer("function")(api_view(["POST"])(permission_classes([IsAuthenticated])(rest_page))),
        "rest_page.as_view()",
    ),
    "dispatch": (decorated(Guarded, "dispatch", defer("dispatch")), "PermissionRequiredMixin.dispatch"),
    "listed": (decorated(Posting, "post", [defer("listed"), login_required]), USER_PASSES_TEST),
    "two layers": (
        decorated(Posting, "post", login_required, defer("two layers")),
        "django.contrib.auth.decorators.login_required",
    ),
    "without wraps": (defer("without wraps")(hiding(page)), "tests.http.test_deferred_order.hiding"),
    "an object": (defer("an object")(Calling(page)), "tests.http.test_deferred_order.Calling"),
    "partial": (defer("partial")(partial(check_first, page)), "functools.partial"),
    "a block": (defer("a block")(staff_block()(page)), "contextlib.ContextDecorator"),
    "in a thread": (defer("in a thread")(async_to_sync(sync_to_async(login_required(page)))), USER_PASSES_TEST),
    "other rule": (defer("other rule")(throttle("other")(page)), "tests.http.test_deferred_order.throttled"),
}
# The same decorator where it can do no harm.
SAFE: dict[str, Any] = {
    "below": login_required(defer("below")(page)),
    "class": defer("class")(type("Around", (Guarded,), {})).as_view(),
    "async class": defer("async class")(AsyncGuarded).as_view(),
    "handler": decorated(Guarded, "post", defer("handler")),
    "rest class": defer("rest class")(type("RestClass", (Rest,), {})).as_view(),
    "require_POST": require_POST(login_required(defer("require_POST")(never_cache(atomic(page))))),
}
urlpatterns = [
    *[path(f"guarded/{name}", view) for name, (view, _) in GUARDED.items()],
    *[path(f"safe/{name}", view) for name, view in SAFE.items()],
    path("open", defer("open")(type("Free", (Posting,), {})).as_view()),
    path("page", defer("page")(page)),
    path("later/", include("django_throttle.urls")),
]
RULES: dict[str, Any] = dict.fromkeys([*GUARDED, *SAFE, "open", "page"], QUEUE) | {"other": {"rate": "99/min"}}


@pytest.fixture(autouse=True)
def here(settings: Any, enforce: Enforce) -> None:
    settings.LOGIN_URL = "/login"
    settings.MIDDLEWARE = LOGIN
    enforce(**RULES)


@pytest.mark.parametrize("method", ["post", "get", "head", "options"])
@pytest.mark.parametrize("name", [*(f"guarded/{name}" for name in GUARDED), *(f"safe/{name}" for name in SAFE)])
def test_whoever_is_not_logged_in_has_nothing_done_later(name: str, method: str) -> None:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    statuses = {getattr(client, method)(f"/{name}").status_code for _ in range(4)}
    assert 202 not in statuses
    assert not DBTaskResult.objects.exists()


@pytest.mark.parametrize(
    ("server", "name"),
    # The mixin of the "async class" asks the database on the loop, so Django refuses it under ASGI.
    [("wsgi", name) for name in SAFE] + [("asgi", name) for name in SAFE if name != "async class"],
)
async def test_whoever_may_is_deferred_in_the_right_order(name: str, server: str) -> None:
    anna, client, aclient = await User.objects.acreate_superuser("anna"), Client(), AsyncClient()
    await aclient.aforce_login(anna)
    await sync_to_async(client.force_login)(anna)

    async def post() -> Any:
        where = f"/safe/{name}"
        return await (aclient.post(where) if server == "asgi" else sync_to_async(client.post)(where))

    assert [(await post()).status_code for _ in range(5)] == [200, 202, 202, 202, 429]


@pytest.mark.parametrize("name", GUARDED)
def test_in_the_wrong_order_calls_over_the_rate_are_refused_and_give_their_turn_back(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogThrottle, "try_acquire", lambda *_: True)  # another test may have had it logged
    client = Client()
    client.force_login(User.objects.create_superuser("anna"))
    answers = [client.post(f"/guarded/{name}") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] + [429] * 5
    assert all(50 < int(answer["Retry-After"]) <= 66 for answer in answers[1:])
    assert "r=0" in answers[-1]["RateLimit"]
    (line,) = {record.getMessage() for record in caplog.records if "defer_to" in record.getMessage()}
    assert f"stands above {GUARDED[name][1]}, which a deferred call would skip" in line


def test_the_check_names_each_wrong_order_and_no_right_one() -> None:
    messages = [message for message in project.check_deferring_views(None) if message.id == "django_throttle.E082"]
    found = {message.msg for message in messages}
    for name, (_, guard) in GUARDED.items():
        wanted = f"@throttle({name!r}, defer_to=…) stands above {guard}, which a deferred call would skip"
        assert [text for text in found if text.startswith(wanted)], (wanted, found)
    assert not [text for text in found for name in [*SAFE, "open", "page"] if text.startswith(f"@throttle({name!r}")]


@pytest.mark.parametrize("method", ["head", "options"])
def test_a_request_that_asks_about_the_work_does_not_order_it(method: str) -> None:
    assert [Client().get("/page").status_code for _ in range(2)] == [200, 202]
    assert [getattr(Client(), method)("/page").status_code for _ in range(3)] == [429] * 3
    assert Client().get("/page").json()["position"] == 2, "their turns were given back"


@pytest.mark.parametrize(
    ("middleware", "methods", "counted"), [([], [], False), (OURS, ["POST"], False), (OURS, [], True)]
)
def test_a_class_answers_options_without_the_decorator(
    settings: Any, enforce: Enforce, middleware: list[str], methods: list[str], counted: bool
) -> None:
    settings.MIDDLEWARE = middleware
    enforce(open={**QUEUE, "scopes": ["open"], "methods": methods})
    statuses = [Client().options("/open").status_code for _ in range(5)]
    assert statuses == ([200] * 4 + [429] if counted else [200] * 5)
    assert Client().post("/open").status_code == (429 if counted else 200)

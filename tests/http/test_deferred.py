"""Work that is done later: the 202, its task on the site's queue, and the page that says how far it is.

Under a rule of slots N calls are in flight; the tasks of the others run when a slot is given back.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import pytest
from celery import Celery
from django.contrib.auth.models import User
from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import clear_url_caches, include, path
from django.views import View
from django_tasks_db.models import DBTaskResult
from ninja import NinjaAPI
from rest_framework.authentication import BasicAuthentication
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_throttle.checks import project
from django_throttle.core import Lease
from django_throttle.decorators import throttle
from django_throttle.http.deferred import StatusUrl, deferrals
from django_throttle.identity import RequestCaller
from django_throttle.later.site_queues import tasks_module
from django_throttle.signals import throttled
from django_throttle.stores import RedisStore
from django_throttle.tasks import throttled_task
from tests.doors import BOTH, LOGIN, Enforce
from tests.inside import count_in
from tests.workers import Worker, give_back, take_slot
from tests.workers import work as run_worker

task = import_module(tasks_module()).task
QUEUE = {"rate": "1/min", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 3, "key": "user_or_ip"}
made: list[str] = []


@task()
def make(name: str = "", times: int = 1) -> str:
    if name == "broken":
        raise ValueError(name)
    made.append(name * times)
    return f"made {name}"


def arguments(request: Any, *args: Any, **kwargs: Any) -> Any:
    return {"name": request.GET.get("name", "") + "".join(map(str, kwargs.values()))}


deferred = partial(throttle, "reports", defer_to=make)


@deferred(payload=arguments)
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


@deferred(payload=arguments)
async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


@deferred(payload=arguments)
class Whole(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("now")


class RestMethod(APIView):
    @deferred(payload=lambda request: ([request.query_params["name"]], {"times": 1}))
    def get(self, request: Any) -> Response:
        return Response("now")


@deferred(payload=arguments)
class Rest(APIView):
    authentication_classes: ClassVar[Any] = [BasicAuthentication]

    def get(self, request: Any) -> Response:
        return Response("now")


@api_view(["GET"])
@deferred(payload=arguments)
def rest_function(request: Any) -> Response:
    return Response("now")


api = NinjaAPI(urls_namespace="deferred")


@api.get("sync")
@deferred(payload=arguments)
def operation(request: HttpRequest) -> Any:
    return "now"


BAD: dict[str, Any] = {
    "list": lambda request: ["name"], "text": lambda request: "name", "numbers": lambda request: {1: "name"},
    "pair": lambda request: ("name", {}), "raises": lambda request: {}["name"],
    "no argument": lambda request: {"colour": object()},
}  # fmt: skip


@throttle("reports", defer_to=make, show_result=True)
def shown(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


app = Celery("later", broker="memory://", backend="cache+memory://", set_as_current=False)
SLOTS = {
    "limit": 2, "algorithm": "concurrency", "action": "defer", "events": ["task"], "key": "ip", "max_queue": 3,
}  # fmt: skip
HERE = "ip:127.0.0.1"


@throttled_task("exports", ident=lambda name: HERE)
@task()
def export(name: str) -> str:
    made.append(name)
    return f"made {name}"


@app.task(name="later.export")  # type: ignore[misc,unused-ignore]
@throttled_task("exports", ident=lambda name: HERE)
def celery_export(name: str) -> str:
    made.append(name)
    return f"made {name}"


@task()
def unlimited(name: str) -> None: ...


def export_arguments(request: HttpRequest) -> dict[str, str]:
    return {"name": request.GET["name"]}


@throttle("exports", defer_to=export, payload=export_arguments, show_result=True)
def export_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


@throttle("exports", defer_to=export, payload=export_arguments)
async def aexport_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


@throttle("exports", defer_to=celery_export, payload=export_arguments)
def celery_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


@throttle("exports", defer_to=unlimited, payload=export_arguments)
def wrong_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


DOORS = ["view", "aview", "whole", "rest-method", "rest", "rest-function", "ninja/sync"]
urlpatterns = [
    path("view", view), path("aview", aview), path("whole", Whole.as_view()),
    path("rest-method", RestMethod.as_view()), path("rest", Rest.as_view()), path("rest-function", rest_function),
    path("ninja/", api.urls), path("shown", shown), path("exports", export_view), path("aexports", aexport_view),
    path("celery", celery_view), path("wrong", wrong_view),
    *[path(f"bad/{name}", deferred(payload=payload)(lambda request: HttpResponse())) for name, payload in BAD.items()],
    path("later/", include("django_throttle.urls")),
]  # fmt: skip
pytestmark = pytest.mark.django_db(transaction=True)
Get = Callable[..., Any]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.MIDDLEWARE = LOGIN
    made.clear()


@pytest.fixture(params=["wsgi", "asgi"])
def get(request: pytest.FixtureRequest) -> Get:
    if request.param == "wsgi":
        return Client().get
    return lambda *args, **kwargs: asyncio.run(AsyncClient().get(*args, **kwargs))  # type: ignore[arg-type]


def work() -> None:
    """Run what is due now; a moment that is to come is brought forward."""
    DBTaskResult.objects.update(run_after="2020-01-01T00:00Z")
    run_worker()


def status(response: Any, client: Client | None = None, **extra: Any) -> Any:
    return (client or Client()).get(response["Location"], **extra)


@pytest.mark.parametrize("door", DOORS)
@BOTH
@pytest.mark.row("R06")
def test_what_is_over_the_rate_is_answered_202_and_done_later(enforce: Enforce, get: Get, door: str) -> None:
    enforce(reports=QUEUE)
    assert get(f"/{door}?name=now").status_code == 200
    before = datetime.now(UTC)
    answers = [get(f"/{door}?name={number}") for number in range(4)]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 429], "three may wait"
    assert [answer.json()["position"] for answer in answers[:3]] == [1, 2, 3]
    rows = list(DBTaskResult.objects.order_by("run_after"))
    for number, (answer, row) in enumerate(zip(answers[:3], rows, strict=True)):
        wait = (row.run_after - before).total_seconds()
        assert 60 * number + 59 < wait < 60 * number + 65
        assert 60 * number + 58 < int(answer["Retry-After"]) <= 60 * number + 60
        assert answer.json()["state"] == "queued"
        at = datetime.fromisoformat(answer.json()["starts_at"])
        assert abs((at - row.run_after).total_seconds()) < 0.002
        assert answer["Cache-Control"] == "no-store"
        assert "RateLimit" in answer, "it is an answer like any other"
    work()
    assert made == ["0", "1", "2"]


def test_the_page_tells_how_far_it_is(enforce: Enforce) -> None:
    enforce(reports=QUEUE)
    _, first, second = (Client().get(f"/view?name={name}") for name in ("now", "a", "broken"))
    asked = status(second)
    assert (asked.status_code, asked.json()["state"], asked.json()["position"]) == (200, "queued", 2)
    assert 100 < int(asked["Retry-After"]) <= 120
    DBTaskResult.objects.filter(args_kwargs__kwargs__name="a").update(status="RUNNING")
    assert status(first).json() == {"state": "running"}
    DBTaskResult.objects.update(status="READY")
    work()
    assert (status(first).json(), status(second).json()) == ({"state": "done"}, {"state": "failed"})


def test_the_result_is_told_only_where_the_view_says_so(enforce: Enforce) -> None:
    enforce(reports=QUEUE)
    _, told = Client().get("/shown"), Client().get("/shown")
    _, untold = Client().get("/view"), Client().get("/view?name=a")
    work()
    assert status(told).json() == {"state": "done", "result": "made "}
    assert "made" not in status(untold).content.decode()
    assert "made" in status(told, headers={"Accept": "text/html"}).content.decode()


def test_people_get_a_page_that_looks_again(enforce: Enforce) -> None:
    enforce(reports=QUEUE)
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    _, answer = Client().get("/view"), Client().get("/view?name=a", headers=browser)
    assert answer.status_code == 202
    page = status(answer, headers=browser).content.decode()
    for text in (answer.content.decode(), page):
        assert "number 1 in the queue" in text
        assert '<progress max="100" value="0"' in text
        assert re.search(r'http-equiv="refresh" content="10; url=/later/[^"]+"', text)
    assert not re.search("<script|style=|onload|@import|//", page), (
        "nothing that a strict policy would stop, but <style>"
    )
    work()
    done = status(answer, headers=browser)
    assert "is done" in done.content.decode()
    assert "refresh" not in done.content.decode()
    assert done["Vary"] == "Accept, Cookie, Authorization"


def basic(name: str) -> Any:
    return {"headers": {"Authorization": f"Basic {b64encode(f'{name}:pw'.encode()).decode()}"}}


@pytest.mark.parametrize("kind", ["address", "session", "basic"])
def test_nobody_else_is_told(enforce: Enforce, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    enforce(reports=QUEUE)
    monkeypatch.setattr(APIView, "authentication_classes", [BasicAuthentication])  # the default of the site
    anna, bert = (User.objects.create_user(name, password="pw") for name in ("anna", "bert"))
    client, other = Client(), Client()
    theirs: dict[str, Any] = {"address": {"REMOTE_ADDR": "203.0.113.1"}, "session": {}, "basic": basic("anna")}
    others: dict[str, Any] = {"address": {"REMOTE_ADDR": "203.0.113.2"}, "session": {}, "basic": basic("bert")}
    if kind == "session":
        client.force_login(anna)
        other.force_login(bert)
    door = "/rest" if kind == "basic" else "/view"
    _, answer = client.get(door, **theirs[kind]), client.get(door, **theirs[kind])
    assert answer.status_code == 202
    assert status(answer, client, **theirs[kind]).status_code == 200
    assert status(answer, other, **others[kind]).status_code == 404
    assert status(answer, Client(), REMOTE_ADDR="203.0.113.9").status_code == 404
    assert status(answer, Client(), headers={"Authorization": "Basic nonsense"}).status_code == 404


def test_tokens_that_are_not_ours_or_too_old_lead_nowhere(enforce: Enforce, settings: Any) -> None:
    enforce(reports=QUEUE)
    _, answer = Client().get("/view"), Client().get("/view")
    where = answer["Location"]
    token, caller = where.removeprefix("/later/"), RequestCaller(RequestFactory().get("/"))
    later = StatusUrl.of(token, caller)
    assert later is not None
    for wrong in (
        "x",
        f"{token}x",
        signing.dumps(later),
        later._replace(asked_at="soon").token(caller),  # type: ignore[arg-type]
        later._replace(starts_at=later.starts_at - 8 * 86_400).token(caller),
    ):
        assert Client().get(f"/later/{wrong}").status_code == 404
    assert Client().get(where).status_code == 200
    DBTaskResult.objects.all().delete()
    assert Client().get(where).status_code == 404, "the site has pruned it"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_payload_is_an_error_and_gives_the_moment_back(enforce: Enforce, name: str) -> None:
    enforce(reports=QUEUE)
    assert Client().get("/view").status_code == 200
    with pytest.raises((TypeError, KeyError)) as error:
        Client().get(f"/bad/{name}")
    if name not in ("raises", "no argument"):
        assert "a dict of the task's keyword arguments" in str(error.value)
    assert not DBTaskResult.objects.exists()
    assert Client().get("/view").json()["position"] == 1, "the moment was given back"


@BOTH
def test_a_queue_that_fails_gives_the_moment_back(enforce: Enforce, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(reports=QUEUE)
    assert get("/view").status_code == 200

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("the queue is away")

    with monkeypatch.context() as patch:
        patch.setattr("django_tasks_db.backend.DatabaseBackend.enqueue", fails)
        for _ in range(5):
            with pytest.raises(OSError, match="the queue is away"):
                Client().get("/view")
    assert get("/view").json()["position"] == 1


def test_without_the_address_of_the_page_nothing_is_enqueued(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(reports=QUEUE)
    monkeypatch.setitem(globals(), "urlpatterns", urlpatterns[:-1])
    clear_url_caches()
    Client().get("/view")
    with pytest.raises(ImproperlyConfigured, match="its status page has no address"):
        Client().get("/view")
    assert not DBTaskResult.objects.exists()
    monkeypatch.undo()
    clear_url_caches()


def test_without_redis_a_process_defers_its_share(
    enforce: Enforce, get: Get, redis_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce(reports=QUEUE | {"rate": "3/min", "max_queue": 4, "on_store_failure": "local"})
    count_in(RedisStore("redis://127.0.0.1:1/0", processes=2), monkeypatch)
    answers = [get("/view") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 202, 202, 429, 429]
    later = [(answer.json()["position"], answer["Retry-After"]) for answer in answers[1:3]]
    assert later == [(3, "60"), (4, "120")], "at half the rate"
    assert DBTaskResult.objects.count() == 2


def test_what_it_is_told_makes_sense() -> None:
    for wrong, message in (
        ({"defer_to": arguments}, "put @task or @shared_task around it"),
        ({"payload": arguments}, "need defer_to"),
        ({"defer_to": make, "payload": {"name": "x"}}, "payload is a function"),
    ):
        with pytest.raises(TypeError, match=message):
            throttle("reports", **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="actions of Actions"):
        throttle("reports", defer_to=make)(type("Actions", (ViewSet,), {}))
    with pytest.raises(TypeError, match="defer_to is for views"):
        throttle("reports", defer_to=make, ident="everyone")(len)([])
    assert any(one.rule == "reports" for one in deferrals)


def test_a_new_secret_key_ends_no_page_while_the_old_one_is_a_fallback(enforce: Enforce, settings: Any) -> None:
    enforce(reports=QUEUE)
    _, answer = Client().get("/view"), Client().get("/view")
    old, settings.SECRET_KEY = settings.SECRET_KEY, "a" * 50
    assert status(answer).status_code == 404
    settings.SECRET_KEY_FALLBACKS = [old]
    assert status(answer).status_code == 200


@pytest.fixture
def refusals() -> Iterator[list[Any]]:
    heard: list[Any] = []

    def hear(decision: Any, **_: Any) -> None:
        heard.append(decision)

    throttled.connect(hear)
    yield heard
    throttled.disconnect(hear)


def take_slots() -> list[Lease]:
    return [take_slot(HERE) for _ in range(2)]


@pytest.mark.parametrize("door", ["exports", "aexports"])
@BOTH
def test_who_finds_no_slot_is_answered_202_and_served_in_order(
    enforce: Enforce, door: str, refusals: list[Any]
) -> None:
    enforce(exports=SLOTS)

    def get(name: str, **options: Any) -> Any:
        if door == "exports":
            return Client().get("/exports", {"name": name}, **options)
        return asyncio.run(AsyncClient().get("/aexports", {"name": name}))

    assert get("a").content == b"now", "its slot is given back with the answer"
    held = take_slots()
    answers = [get(name) for name in "bcde"]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 429]
    assert [answer.json() for answer in answers[:3]] == [
        {"state": "queued", "position": place, "starts_at": None} for place in (1, 2, 3)
    ]
    assert answers[0]["Retry-After"] == "5"
    assert DBTaskResult.objects.count() == 3, "nothing is left of the one too many"
    assert len(refusals) == 1
    state = Client().get(answers[1]["Location"]).json()
    assert state == {"state": "queued", "position": None, "starts_at": None}
    run_worker()
    assert made == []
    give_back(*held)
    run_worker()
    run_worker()
    assert made == ["b", "c", "d"]
    state = Client().get(answers[1]["Location"]).json()
    assert state == ({"state": "done", "result": "made c"} if door == "exports" else {"state": "done"})


def test_the_page_of_a_browser_promises_no_time_and_what_only_asks_is_refused(
    enforce: Enforce, refusals: list[Any]
) -> None:
    enforce(exports=SLOTS)
    held = take_slots()
    assert Client().head("/exports", {"name": "a"}).status_code == 429
    assert (DBTaskResult.objects.count(), len(refusals)) == (0, 1)
    page = Client().get("/exports", {"name": "a"}, headers={"Accept": "text/html"})
    assert page.status_code == 202
    assert "It starts as soon as others have ended." in page.content.decode()
    assert "max=" not in page.content.decode().partition("<progress")[2].partition(">")[0]
    give_back(*held)


@BOTH
def test_celery_gets_a_message_that_asks_and_is_called(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(app, monkeypatch)
    enforce(exports=SLOTS)
    held = take_slots()
    answer = Client().get("/celery", {"name": "a"})
    assert (answer.status_code, answer.json()["position"]) == (202, 1)
    (waiting,) = worker.due
    assert waiting.headers["eta"]
    give_back(held[0])
    called = worker.due[1]
    assert (called.headers["id"], called.headers["eta"]) == (waiting.headers["id"], None)
    for message in (called, waiting):
        worker.run(message)
    assert made == ["a"]
    assert Client().get(answer["Location"]).json() == {"state": "done"}
    give_back(held[1])


def test_a_broker_that_is_away_leaves_nothing_to_call(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("the broker is away")

    worker = Worker(app, monkeypatch)
    enforce(exports=SLOTS)
    held = take_slots()
    with monkeypatch.context() as patch:
        patch.setattr(app.amqp, "send_task_message", fails)
        assert Client(raise_request_exception=False).get("/celery", {"name": "a"}).status_code == 500
    give_back(*held)
    assert worker.due == []


def test_a_task_that_takes_no_slot_is_an_error(enforce: Enforce) -> None:
    enforce(exports=SLOTS)
    held = take_slots()
    with pytest.raises(ImproperlyConfigured, match="put @throttled_task\\('exports', ident=…\\) around it"):
        Client().get("/wrong", {"name": "a"})
    give_back(*held)


def test_the_check_names_a_task_that_takes_no_slot(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"exports": SLOTS}}
    (message,) = [error for error in project.check_slots_of_tasks(None) if error.id == "django_throttle.E082"]
    assert "@throttled_task('exports', ident=…)" in message.msg

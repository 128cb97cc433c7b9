"""N calls in flight, the others 202: their tasks wait for a slot, and run when one is given back."""

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from celery import Celery
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import include, path
from django_tasks_db.models import DBTaskResult

from django_throttle.checks import project
from django_throttle.core import Lease, Rule
from django_throttle.decorators import throttle
from django_throttle.later.site_queues import tasks_module
from django_throttle.models import ThrottleRule
from django_throttle.signals import throttled
from django_throttle.tasks import throttled_task
from tests.doors import BOTH, Enforce
from tests.workers import Worker, give_back, take_slot, work

task = import_module(tasks_module()).task
app = Celery("later", broker="memory://", backend="cache+memory://", set_as_current=False)
SLOTS = {
    "limit": 2, "algorithm": "concurrency", "action": "defer", "events": ["task"], "key": "ip", "max_queue": 3,
}  # fmt: skip
HERE = "ip:127.0.0.1"
made: list[str] = []


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


def arguments(request: HttpRequest) -> dict[str, str]:
    return {"name": request.GET["name"]}


@throttle("exports", defer_to=export, payload=arguments, show_result=True)
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


@throttle("exports", defer_to=export, payload=arguments)
async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


@throttle("exports", defer_to=celery_export, payload=arguments)
def celery_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


@throttle("exports", defer_to=unlimited, payload=arguments)
def wrong_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("now")


urlpatterns = [
    path("view", view), path("aview", aview), path("celery", celery_view), path("wrong", wrong_view),
    path("later/", include("django_throttle.urls")),
]  # fmt: skip
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    made.clear()


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


@pytest.mark.parametrize("door", ["view", "aview"])
@BOTH
def test_who_finds_no_slot_is_answered_202_and_served_in_order(
    enforce: Enforce, door: str, refusals: list[Any]
) -> None:
    enforce(exports=SLOTS)

    def get(name: str, **options: Any) -> Any:
        if door == "view":
            return Client().get("/view", {"name": name}, **options)
        return asyncio.run(AsyncClient().get("/aview", {"name": name}))

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
    work()
    assert made == []
    give_back(*held)
    work()
    work()
    assert made == ["b", "c", "d"]
    state = Client().get(answers[1]["Location"]).json()
    assert state == ({"state": "done", "result": "made c"} if door == "view" else {"state": "done"})


def test_the_page_of_a_browser_promises_no_time_and_what_only_asks_is_refused(
    enforce: Enforce, refusals: list[Any]
) -> None:
    enforce(exports=SLOTS)
    held = take_slots()
    assert Client().head("/view", {"name": "a"}).status_code == 429
    assert (DBTaskResult.objects.count(), len(refusals)) == (0, 1)
    page = Client().get("/view", {"name": "a"}, headers={"Accept": "text/html"})
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


def test_the_rule_is_kept_in_the_database_too() -> None:
    options = {"action": "defer", "max_queue": 3}
    row = ThrottleRule(name="exports", algorithm="concurrency", limit=2, events=("task",), key="ip", options=options)
    row.full_clean()
    row.save()
    assert ThrottleRule.objects.get().as_rule() == Rule.from_options("exports", SLOTS)


def test_the_check_names_a_task_that_takes_no_slot(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"exports": SLOTS}}
    (message,) = [error for error in project.check_slots_of_tasks(None) if error.id == "django_throttle.E082"]
    assert "@throttled_task('exports', ident=…)" in message.msg

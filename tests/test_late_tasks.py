"""Runs of tasks that are put off: counted for each run, in a state that says so, and at the rate however late."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from celery import Celery
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import include, path
from django_tasks_db.models import DBTaskResult

from django_throttle.decorators import throttle
from django_throttle.site_queues import tasks_module
from django_throttle.tasks import throttled_task
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce, enforcer

enforce = pytest.fixture(enforcer)
app = Celery("late", broker="memory://", backend="cache+memory://", set_as_current=False)
app.conf.task_track_started = True
WINDOW = {"rate": "1/min", "algorithm": "fixed_window", "events": ["task"]}
QUEUE = {"rate": "10/s", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 1000, "events": ["task"]}
LATE = 28
ran: list[float] = []


class Beat:
    """The clock on which runs start: that of the store, which passes while a worker waits."""

    clock: FrozenClock


@app.task(name="late.mail", bind=True, max_retries=9)  # type: ignore[misc,unused-ignore]
@throttled_task("reports", max_put_off=2)
def mail(self: Any) -> None:
    raise self.retry(countdown=0)


@app.task(name="late.soft")  # type: ignore[misc,unused-ignore]
@throttled_task("reports")
def soft() -> None:
    ran.append(Beat.clock())


@app.task(name="late.hard")  # type: ignore[misc,unused-ignore]
@throttled_task("reports", strict=True)
def hard() -> None:
    ran.append(Beat.clock())


@throttled_task("reports", strict=True)
@import_module(tasks_module()).task()
def row() -> None:
    ran.append(Beat.clock())


class Worker:
    """Does with a message what Celery's worker does; ``due`` is what is published, as task and message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[tuple[Any, dict[str, Any], Any]] = []
        monkeypatch.setattr(app.amqp, "send_task_message", self._send)

    def _send(self, producer: Any, name: str, message: Any, **options: Any) -> None:
        self.due.append((app.tasks[name], message.headers | (options.get("headers") or {}), message.body))

    def run(self) -> str:
        """Run the first message that is due, and return the state that is stored then."""
        from celery.app.trace import build_tracer

        task, headers, (args, kwargs, embed) = self.due.pop(0)
        request = headers | embed | {"delivery_info": {"exchange": "", "routing_key": "late"}}
        build_tracer(task.name, task, app=app)(headers["id"], args, kwargs, request)
        return str(task.AsyncResult(headers["id"]).state)

    def eta(self) -> float:
        """When the first message is due, on the store's clock."""
        found = self.due[0][1]["eta"]
        return 0.0 if found is None else datetime.fromisoformat(found).timestamp()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


@pytest.fixture(autouse=True)
def beat(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    Beat.clock = clock
    ran.clear()
    monkeypatch.setattr("django_throttle.turns.wall_clock", clock)
    monkeypatch.setattr("django_throttle.tasks.shared_now", lambda: datetime.fromtimestamp(clock(), UTC))
    monkeypatch.setattr("django_throttle.stores.base.time.sleep", clock.tick)


def test_each_retry_may_be_put_off_as_often(enforce: Enforce, clock: FrozenClock, worker: Worker) -> None:
    enforce(reports=WINDOW)
    mail.delay()
    for _ in range(3):  # a run, and its retries
        assert worker.run() == "RETRY"
        for _ in range(2):
            assert worker.run() == "RETRY", "it is put off"
        clock.tick(60)
    worker.run()
    for _ in range(2):
        worker.run()
    assert worker.run() == "FAILURE", "this run was put off two times"


def test_a_run_that_waits_is_not_shown_as_started(enforce: Enforce, worker: Worker) -> None:
    enforce(reports=QUEUE)
    results = [soft.delay() for _ in range(2)]
    assert worker.run() == "SUCCESS"
    assert worker.run() == "RETRY"
    assert results[1].ready() is False
    assert worker.run() == "SUCCESS"


@BOTH
@pytest.mark.parametrize(("task", "most"), [(soft, LATE - 1), (hard, 11)], ids=["soft", "hard"])
def test_what_is_late_starts_at_the_rate_where_it_is_strict(
    enforce: Enforce, clock: FrozenClock, worker: Worker, task: Any, most: int
) -> None:
    enforce(reports=QUEUE)
    for _ in range(LATE):
        task.delay()
    for _ in range(LATE):
        worker.run()  # all but the first have their turns now
    clock.tick(60)  # no worker was there
    turns = 0
    while worker.due:
        worker.due.sort(key=lambda message: message[1]["eta"] or "")
        clock.tick(max(0.0, worker.eta() - clock()))
        worker.run()
        turns += 1
    assert len(ran) == LATE
    late = ran[1:]
    busiest = max(sum(moment <= other < moment + 1 for other in late) for moment in late)
    assert busiest <= most
    assert busiest >= 10, "nor slower than the rate"
    assert turns <= 2 * LATE, "nobody asks again and again"


def test_who_is_on_time_is_not_put_off_again(enforce: Enforce, clock: FrozenClock, worker: Worker) -> None:
    enforce(reports=QUEUE)
    for _ in range(LATE):
        hard.delay()
    for _ in range(LATE):
        worker.run()
    for number in range(1, LATE):
        clock.tick(max(0.0, worker.eta() - clock()) + 0.01 * (number % 3))  # a little late, each its own way
        assert worker.run() == "SUCCESS"
    assert len(ran) == LATE


@pytest.mark.django_db(transaction=True)
def test_rows_of_django_tasks_that_are_late(enforce: Enforce, clock: FrozenClock) -> None:
    enforce(reports={**QUEUE, "rate": "2/s"})
    for _ in range(9):
        row.enqueue()
    clock.tick(60)
    due = DBTaskResult.objects.filter(status="READY")
    for _ in range(20):
        due.update(run_after="2020-01-01T00:00Z")
        call_command("db_worker", batch=True, interval=0, startup_delay=False, reload=False, verbosity=0)
        clock.tick(1)
        if not due.exists():
            break
    assert len(ran) == 9
    assert max(sum(moment <= other < moment + 1 for other in ran) for moment in ran) <= 3


@throttled_task("reports", ident=lambda ident: ident, strict=True)
@import_module(tasks_module()).task()
def report(ident: str) -> None:
    ran.append(Beat.clock())


@app.task(name="late.report")  # type: ignore[misc,unused-ignore]
@throttled_task("reports", ident=lambda ident: ident)
def celery_report(ident: str) -> None:
    ran.append(Beat.clock())


def view_of(task: Any) -> Any:
    defer = throttle("reports", defer_to=task, payload=lambda request: {"ident": request.GET["ident"]})
    return defer(lambda request: HttpResponse("now"))


urlpatterns = [
    path("rows", view_of(report)),
    path("celery", view_of(celery_report)),
    path("later/", include("django_throttle.urls")),
]
MINUTELY = {**QUEUE, "rate": "1/min", "max_queue": 9, "key": "ip"}


@pytest.mark.django_db(transaction=True)
def test_a_deferred_call_has_one_turn_of_its_rule(enforce: Enforce, clock: FrozenClock, settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []
    enforce(reports=MINUTELY)
    answers = [Client().get("/rows", {"ident": "ip:127.0.0.1"}).status_code for _ in range(4)]
    assert answers == [200, 202, 202, 202]
    moments = DBTaskResult.objects.order_by("run_after").values_list("run_after", flat=True)
    assert [round((moment.timestamp() - clock()) / 60) for moment in moments] == [1, 2, 3]
    Client().get("/rows", {"ident": "ip:192.0.2.1"})
    assert DBTaskResult.objects.count() == 4, "another ident has turns of its own, and the later one counts"


def test_a_deferred_call_of_celery_s_has_one_turn_of_its_rule(
    enforce: Enforce, clock: FrozenClock, worker: Worker, settings: Any
) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []
    enforce(reports=MINUTELY)
    answers = [Client().get("/celery", {"ident": "ip:127.0.0.1"}).status_code for _ in range(3)]
    assert answers == [200, 202, 202]
    for _ in range(2):
        clock.tick(60)
        assert worker.run() == "SUCCESS", "it is not put off again"
    assert len(ran) == 2


@pytest.mark.parametrize("strict", [1, "yes", None])
def test_strict_is_true_or_false(strict: Any) -> None:
    with pytest.raises(TypeError, match="strict is True or False"):
        throttled_task("reports", strict=strict)

"""The moment that a queue has reserved for a call, and what the queues of the site make of it."""

from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import Celery
from django_tasks_db.models import DBTaskResult

from django_throttle.core import Decision, Rule
from django_throttle.core.decision import Outcome
from django_throttle.later import queue_slots
from django_throttle.later.queue_slots import QueueSlot, last_queue_slot, position, queue_slot_of
from django_throttle.later.site_queues import QUEUED, CeleryTasks, DjangoTasks, SiteQueue, TaskState, tasks_module
from tests.workers import Worker

TURN = QueueSlot("queue", "user:1", 4_000_000_000.0)
MOMENT = datetime.fromtimestamp(TURN.at, UTC)
app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)


@import_module(tasks_module()).task()  # type: ignore[misc,unused-ignore]
def django_task(*args: Any, **kwargs: Any) -> str:
    return "done"


@app.task(name="shop.celery_task")  # type: ignore[misc,unused-ignore]
def celery_task(*args: Any, **kwargs: Any) -> str:
    return "done"


def enqueued(queue: SiteQueue, task: Any, awaited: bool) -> tuple[str, str]:
    enqueue, aenqueue = queue.enqueue(task, TURN, [1], {"b": 2}, is_own=False)
    found = async_to_sync(aenqueue)() if awaited else enqueue()
    return queue.place(task, found), found.id


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("awaited", [False, True])
def test_django_tasks_run_after_the_moment(awaited: bool) -> None:
    place, task_id = enqueued(DjangoTasks(), django_task, awaited)
    row = DBTaskResult.objects.get(id=task_id)
    assert (place, row.run_after, row.args_kwargs) == ("default", MOMENT, {"args": [1], "kwargs": {"b": 2}})
    for state, told in (("READY", "queued"), ("RUNNING", "running"), ("FAILED", "failed")):
        DBTaskResult.objects.update(status=state)
        assert DjangoTasks().state_of(place, task_id) == TaskState(told)
    DBTaskResult.objects.update(status="SUCCESSFUL", return_value="done")
    assert DjangoTasks().state_of(place, task_id) == TaskState("done", "done")
    DBTaskResult.objects.all().delete()
    assert DjangoTasks().state_of(place, task_id) is None


@pytest.mark.parametrize("awaited", [False, True])
def test_celery_gets_the_moment_as_eta(monkeypatch: pytest.MonkeyPatch, awaited: bool) -> None:
    worker = Worker(app, monkeypatch)
    place, task_id = enqueued(CeleryTasks(), celery_task, awaited)
    (message,) = worker.due
    assert (message.eta, message.body[:2]) == (TURN.at, ((1,), {"b": 2}))
    assert place == "shop.celery_task"
    monkeypatch.setattr("django_throttle.later.site_queues.deferral_tasks", [celery_task])
    assert CeleryTasks().state_of(place, task_id) == TaskState(QUEUED)
    for state, told in (("STARTED", "running"), ("RETRY", "queued"), ("FAILURE", "failed"), ("REVOKED", "failed")):
        app.backend.store_result(task_id, None, state)
        assert CeleryTasks().state_of(place, task_id) == TaskState(told)
    app.backend.store_result(task_id, "result", "SUCCESS")
    assert CeleryTasks().state_of(place, task_id) == TaskState("done", "result")


NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
def frozen_shared_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_throttle.later.queue_slots.shared_clock.now", lambda: NOW)


def test_of_several_turns_the_latest_counts() -> None:
    outcomes = tuple(Outcome("queue", "user:1", True, 1, 0, 0.0, 9.0, deferred_for=wait) for wait in (1.0, 3.0, 2.0))
    turn = last_queue_slot(Decision(outcomes=outcomes))
    assert turn is not None and turn.at == NOW + 3
    assert queue_slot_of(Decision(False, outcomes=outcomes), outcomes[0]) is None, "it is refused"
    assert queue_slot_of(Decision(outcomes=outcomes), outcomes[0]._replace(shadow=True)) is None, "it is only recorded"


def test_the_moment_is_as_django_has_them(settings: Any) -> None:
    turn = queue_slots.QueueSlot("queue", "user:1", NOW)
    assert turn.start_time == turn.run_after == datetime.fromtimestamp(NOW, UTC)
    settings.USE_TZ = False
    assert turn.run_after.tzinfo is None


def test_a_position_is_that_of_the_slowest_rate() -> None:
    rule = Rule("queue", rates=["10/s", "30/min"], algorithm="leaky_bucket", action="defer")
    assert [position(rule, wait) for wait in (0.0, 2.0, 2.1, 58.0, 90.0)] == [1, 1, 2, 29, 29]
    assert position(None, 60.0) is None

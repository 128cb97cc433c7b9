"""The queues of the site: what they make of a task, its moment and its arguments."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from celery import Celery
from django_tasks_db.models import DBTaskResult

from django_throttle.site_queues import (
    QUEUED,
    CeleryTasks,
    DjangoTasks,
    Found,
    SiteQueue,
    queue_of,
    tasks_module,
)
from django_throttle.turns import Turn

TURN = Turn("queue", "user:1", 4_000_000_000.0)
MOMENT = datetime.fromtimestamp(TURN.at, UTC)
app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)


@import_module(tasks_module()).task()  # type: ignore[misc,unused-ignore]
def django_task(*args: Any, **kwargs: Any) -> str:
    return "done"


@app.task(name="shop.celery_task")  # type: ignore[misc,unused-ignore]
def celery_task(*args: Any, **kwargs: Any) -> str:
    return "done"


def enqueued(queue: SiteQueue, task: Any, awaited: bool) -> tuple[str, str]:
    step = queue.enqueue(task, TURN, [1], {"b": 2})
    found = asyncio.run(step.ado()) if awaited else step.do()  # type: ignore[arg-type]
    return queue.place(task, found), found.id


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("awaited", [False, True])
def test_django_tasks_run_after_the_moment(awaited: bool) -> None:
    place, task_id = enqueued(DjangoTasks(), django_task, awaited)
    row = DBTaskResult.objects.get(id=task_id)
    assert (place, row.run_after, row.args_kwargs) == ("default", MOMENT, {"args": [1], "kwargs": {"b": 2}})
    for state, told in (("READY", "queued"), ("RUNNING", "running"), ("FAILED", "failed")):
        DBTaskResult.objects.update(status=state)
        assert DjangoTasks().find(place, task_id) == Found(told)
    DBTaskResult.objects.update(status="SUCCESSFUL", return_value="done")
    assert DjangoTasks().find(place, task_id) == Found("done", "done")
    DBTaskResult.objects.all().delete()
    assert DjangoTasks().find(place, task_id) is None


@pytest.mark.parametrize("awaited", [False, True])
def test_celery_gets_the_moment_as_eta(monkeypatch: pytest.MonkeyPatch, awaited: bool) -> None:
    sent: list[Any] = []
    original = celery_task.apply_async

    def apply_async(*args: Any, **options: Any) -> Any:
        sent.append((args, options))
        return original(*args, **options)

    monkeypatch.setattr(celery_task, "apply_async", apply_async)
    place, task_id = enqueued(CeleryTasks(), celery_task, awaited)
    assert sent == [(((1,), {"b": 2}), {"eta": MOMENT})]
    assert place == "shop.celery_task"
    monkeypatch.setattr("django_throttle.site_queues.deferred_to", [celery_task])
    assert CeleryTasks().find(place, task_id) == Found(QUEUED)
    for state, told in (("STARTED", "running"), ("RETRY", "queued"), ("FAILURE", "failed"), ("REVOKED", "failed")):
        app.backend.store_result(task_id, None, state)
        assert CeleryTasks().find(place, task_id) == Found(told)
    app.backend.store_result(task_id, "result", "SUCCESS")
    assert CeleryTasks().find(place, task_id) == Found("done", "result")


def test_only_tasks_have_a_queue() -> None:
    assert isinstance(queue_of(django_task), DjangoTasks)
    assert isinstance(queue_of(celery_task), CeleryTasks)
    for wrong in (test_only_tasks_have_a_queue, "shop.celery_task"):
        with pytest.raises(TypeError, match="defer_to is a task of"):
            queue_of(wrong)

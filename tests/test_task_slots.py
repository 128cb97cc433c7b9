"""N runs of a tenant's tasks at once; the others wait, and are called when a slot is given back."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.worker.state import revoked
from django_tasks_db.models import DBTaskResult

from django_throttle.core.commands import CallNext, ClaimRun, Enlist
from django_throttle.later.site_queues import tasks_module
from django_throttle.local.freed_slots import freed_slots
from django_throttle.tasks import throttled_task
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce
from tests.workers import Worker, give_back, take_slot, work

app = Celery("slots", broker="memory://", backend="cache+memory://", set_as_current=False)
app.conf.task_track_started = True
TWO = {"limit": 2, "algorithm": "concurrency", "events": ["task"], "key": "tenant"}
ACME = "tenant:acme"
ran: list[str] = []
meanwhile: dict[str, Callable[[], Any]] = {}


def tenant(name: str) -> str:
    return f"tenant:{name.partition(' ')[0]}"


@app.task(name="slots.export")  # type: ignore[misc,unused-ignore]
@throttled_task("exports", ident=tenant, max_put_off=1)
def export(name: str) -> str:
    ran.append(name)
    meanwhile.pop(name, int)()
    return name


@throttled_task("exports", ident=tenant)
@import_module(tasks_module()).task()
def row(name: str) -> None:
    ran.append(name)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    ran.clear()
    meanwhile.clear()
    return Worker(app, monkeypatch)


@BOTH
def test_whoever_waits_is_called_when_a_slot_is_given_back(enforce: Enforce, worker: Worker) -> None:
    enforce(exports=TWO)
    for name in ("acme 1", "acme 2", "acme 3", "acme 4", "acme 5", "other 1"):
        export.delay(name)

    def at_once() -> int:
        return sum(not message.eta for message in worker.due)

    seen: list[Any] = []

    def first() -> None:
        meanwhile["acme 2"] = second
        worker.run(worker.take())

    def second() -> None:
        seen.extend(worker.run(worker.take()) for _ in range(3))  # 3, 4 and 5 of acme
        assert worker.run(worker.take()) == "SUCCESS", "another tenant has slots of its own"

    meanwhile["acme 1"] = first
    worker.run(worker.take())
    assert seen == ["IGNORED"] * 3
    assert ran == ["acme 1", "acme 2", "other 1"]
    assert at_once() == 2, "one for each slot that was given back"
    while at_once():
        assert worker.run(worker.take()) == "SUCCESS"
    assert ran == ["acme 1", "acme 2", "other 1", "acme 3", "acme 4", "acme 5"], "in their order"
    assert len(worker.due) == 3, "messages that would have asked by themselves"
    while worker.due:
        assert worker.run(worker.take(later=True)) == "IGNORED"
    assert len(ran) == 6


@BOTH
def test_a_message_that_asks_by_itself_is_enough(enforce: Enforce, worker: Worker, monkeypatch: Any) -> None:
    enforce(exports={**TWO, "limit": 1})
    held = take_slot(ACME)
    export.delay("acme 1")
    assert worker.run(worker.take()) == "IGNORED"
    for _ in range(9):  # more often than max_put_off: it is no put-off
        assert worker.run(worker.take(later=True)) == "IGNORED"
    monkeypatch.setattr(freed_slots, "call_next", len)
    give_back(held)
    assert worker.run(worker.take(later=True)) == "SUCCESS"
    assert (ran, worker.due) == (["acme 1"], [])


@BOTH
def test_who_cannot_be_called_or_is_too_late_is_the_first_again(
    enforce: Enforce, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce(exports={**TWO, "limit": 1})
    held = take_slot(ACME)
    for name in ("acme 1", "acme 2"):
        export.delay(name)
        assert worker.run(worker.take()) == "IGNORED"
    with monkeypatch.context() as patch:
        patch.setattr("celery.canvas.Signature.apply_async", Mock(side_effect=OSError))  # the broker is away
        give_back(held)
    assert all(message.eta for message in worker.due)
    give_back(take_slot(ACME))
    held = take_slot(ACME)  # a newcomer was faster
    assert worker.run(worker.take()) == "IGNORED"
    give_back(held)
    assert worker.run(worker.take()) == "SUCCESS"
    assert ran == ["acme 1"]


@BOTH
def test_a_run_that_is_revoked_or_expires_passes_its_call_on(
    enforce: Enforce, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce(exports={**TWO, "limit": 1})
    held, tomorrow = take_slot(ACME), datetime.now(UTC) + timedelta(days=1)
    export.apply_async(("acme 1",), expires=tomorrow)
    revoked_run = export.delay("acme 2")
    export.delay("acme 3")
    assert [worker.run(worker.take()) for _ in range(3)] == ["IGNORED"] * 3
    revoked.add(revoked_run.id)
    monkeypatch.setattr(app, "now", lambda: tomorrow)
    give_back(held)
    assert worker.run(worker.take()) == "REVOKED"
    freed_slots.drain()
    assert worker.run(worker.take()) == "SUCCESS"
    assert ran == ["acme 3"]


@pytest.mark.django_db(transaction=True)
@BOTH
def test_rows_of_django_tasks(enforce: Enforce) -> None:
    ran.clear()
    enforce(exports={**TWO, "limit": 1})
    for name in ("acme 1", "acme 2", "acme 3"):
        row.enqueue(name)
    held = take_slot(ACME)
    work()
    waiting = DBTaskResult.objects.filter(status="READY")
    assert (ran, waiting.count()) == ([], 3)
    give_back(held)
    work()  # the first is called, and each calls the next
    assert (ran, waiting.count()) == (["acme 1", "acme 2", "acme 3"], 0)


@BOTH
def test_the_list_of_those_that_wait(enforce: Enforce, clock: FrozenClock) -> None:
    store = enforce(exports=TWO)

    def enlist(name: str, *, is_first: bool = False, most: int = 4) -> int:
        clock.tick(1)
        place: int = store.execute(Enlist("rule", "acme", name, name.encode(), 1000, is_first, most))
        return place

    assert [enlist(name) for name in "abca"] == [1, 2, 3, 1]
    assert (enlist("d", is_first=True), enlist("e"), enlist("c"), enlist("d", is_first=True)) == (1, 0, 4, 1)
    called = [store.execute(CallNext("rule", "acme")) for _ in range(5)]
    assert called == [b"d", b"a", b"b", b"c", None]
    assert store.execute(CallNext("rule", "other")) is None
    claims = [store.execute(ClaimRun("run", *claim)) for claim in (("x",), ("x", 9), ("y",), ("y", 9), ("x", 9))]
    assert claims == ["", "x", "x", "x", "x"]

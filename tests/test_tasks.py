"""Runs of tasks draw on budgets, and are put off to their moment."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from celery import Celery
from django.core.management import call_command
from django_tasks_db.models import DBTaskResult

from django_throttle.core import Rule
from django_throttle.exceptions import InvalidCost, PutOffTooOften, Refused
from django_throttle.limiter import Limiter
from django_throttle.site_queues import tasks_module
from django_throttle.stores import get_store
from django_throttle.tasks import throttled_task
from tests.clock import FrozenClock
from tests.doors import Enforce, enforcer

enforce = pytest.fixture(enforcer)
django_task = import_module(tasks_module()).task
app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
QUEUE = {"rate": "1/min", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 2, "events": ["task"]}
WINDOW = {"rate": "1/min", "algorithm": "fixed_window", "events": ["task"]}
ran: list[Any] = []


@throttled_task("reports", ident=lambda name, **_: f"name:{name}", cost=lambda name, cost=1: cost, max_put_off=2)
@django_task()
def make(name: str, cost: int = 1) -> str:
    ran.append(name)
    return f"made {name}"


@throttled_task("reports")
@django_task()
def count(queries: int) -> None:
    for _ in range(queries):
        DBTaskResult.objects.count()


@throttled_task("reports")
@django_task(takes_context=True)
async def amake(context: Any, name: str) -> str:
    ran.append((name, context.attempt))
    return f"made {name}"


@django_task()
@throttled_task("reports")
def turned_round() -> None:
    ran.append("turned round")


@app.task(name="shop.mail", bind=True, max_retries=3)  # type: ignore[misc,unused-ignore]
@throttled_task("reports", ident=lambda to: f"to:{to}", max_put_off=2)
def mail(self: Any, to: str) -> str:
    ran.append((to, self.request.retries))
    return f"mailed {to}"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def work() -> None:
    call_command("db_worker", batch=True, interval=0, startup_delay=False, reload=False, verbosity=0)


@pytest.mark.django_db(transaction=True)
class TestDjangoTasks:
    @pytest.mark.parametrize("awaited", [False, True])
    def test_a_queue_reserves_the_moment_when_it_is_enqueued(self, enforce: Enforce, awaited: bool) -> None:
        enforce(reports=QUEUE)
        now = datetime.now(UTC)
        if awaited:
            results = [asyncio.run(make.aenqueue("a")) for _ in range(3)]
        else:
            results = [make.enqueue("a") for _ in range(3)]
        rows = [DBTaskResult.objects.get(id=result.id) for result in results]
        assert [round((row.run_after - now).total_seconds() / 60) for row in rows[1:]] == [1, 2]
        with pytest.raises(Refused):
            make.enqueue("a")
        assert DBTaskResult.objects.count() == 3
        make.enqueue("b")  # another ident
        work()
        assert sorted(ran) == ["a", "b"]
        DBTaskResult.objects.update(run_after="2020-01-01T00:00Z")
        work()
        results[2].refresh()
        assert (results[2].return_value, results[2].id) == ("made a", str(rows[2].id))

    def test_a_moment_of_the_sites_own_that_is_later_stays(self, enforce: Enforce) -> None:
        enforce(reports=QUEUE)
        later = datetime.now(UTC) + timedelta(days=1)
        for _ in range(2):
            assert make.using(run_after=later).enqueue("a").task.run_after == later

    def test_if_it_cannot_be_enqueued_the_moment_is_given_back(self, enforce: Enforce) -> None:
        enforce(reports=QUEUE)
        make.enqueue("a")
        for _ in range(5):
            with pytest.raises(TypeError):
                make.enqueue("a", object())
        turn = make.enqueue("a").task.run_after - datetime.now(UTC)
        assert turn < timedelta(seconds=61)

    def test_without_a_queue_the_same_row_is_put_off(self, enforce: Enforce, clock: FrozenClock) -> None:
        enforce(reports=WINDOW)
        first, second = make.enqueue("a"), make.enqueue("a")
        work()
        assert ran == ["a"]
        row = DBTaskResult.objects.get(id=second.id)
        assert (row.status, row.args_kwargs, row.exception_class_path) == ("READY", {"args": ["a"], "kwargs": {}}, "")
        assert 0 < (row.run_after - datetime.now(UTC)).total_seconds() <= 60
        clock.tick(60)
        DBTaskResult.objects.filter(id=second.id).update(run_after="2020-01-01T00:00Z")
        work()
        second.refresh()
        assert (second.return_value, second.attempts, len(ran)) == ("made a", 2, 2)
        first.refresh()
        assert first.attempts == 1

    def test_it_is_put_off_so_often_and_then_fails_clearly(self, enforce: Enforce) -> None:
        enforce(reports=WINDOW)
        make.enqueue("a")
        found = make.enqueue("a")
        for _ in range(4):
            DBTaskResult.objects.filter(status="READY").update(run_after="2020-01-01T00:00Z")
            work()
        found.refresh()
        assert (found.status, found.attempts) == ("FAILED", 3)
        assert found.errors[0].exception_class_path == "django_throttle.exceptions.PutOffTooOften"
        assert "was put off 2 times" in found.errors[0].traceback

    def test_what_never_fits_fails_at_once(self, enforce: Enforce) -> None:
        enforce(reports=WINDOW)
        found = make.enqueue("a", cost=2)
        work()
        found.refresh()
        assert (found.status, found.attempts, ran) == ("FAILED", 1, [])

    def test_an_asynchronous_task_with_its_context(self, enforce: Enforce, clock: FrozenClock) -> None:
        enforce(reports=WINDOW)
        found = [amake.enqueue("a"), amake.enqueue("b")]
        work()
        clock.tick(60)
        DBTaskResult.objects.filter(status="READY").update(run_after="2020-01-01T00:00Z")
        work()
        found[1].refresh()
        assert (ran, found[1].return_value) == ([("a", 1), ("b", 2)], "made b")

    def test_it_is_settled_by_the_queries_it_has_made(self, enforce: Enforce) -> None:
        rule = {"rate": "100/h", "unit": "queries", "reserve": 10, "events": ["task"], "key": "everyone"}
        enforce(reports=rule)
        count.enqueue(3)
        work()
        assert Limiter([Rule("reports", **rule)], get_store()).peek("everyone").remaining == 97  # type: ignore[arg-type]

    def test_a_direct_call_is_refused(self, enforce: Enforce) -> None:
        enforce(reports=WINDOW)
        assert make.call("a") == "made a"
        with pytest.raises(Refused):
            make.call("a")
        with pytest.raises(Refused):
            asyncio.run(make.acall("a"))

    def test_below_task_its_first_run_fails_clearly(self) -> None:
        found = turned_round.enqueue()
        work()
        found.refresh()
        assert (found.status, found.errors[0].exception_class_path, ran) == ("FAILED", "builtins.TypeError", [])
        assert "@throttled_task goes above @task of django.tasks" in found.errors[0].traceback


class Worker:
    """Does with a message what Celery's worker does, and keeps what is published meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.published: list[tuple[str, Any, Any, dict[str, Any]]] = []
        monkeypatch.setattr(app.amqp, "send_task_message", self.send)

    def send(self, producer: Any, name: str, message: Any, **options: Any) -> None:
        self.published.append((name, message.headers | (options.get("headers") or {}), message.body, options))

    def run(self, message: Any) -> str:
        from celery.app.trace import build_tracer

        _, headers, (args, kwargs, embed), options = message
        task = mail._get_current_object()
        request = (
            headers | embed | {"delivery_info": {"exchange": "", "routing_key": options.get("routing_key") or "mails"}}
        )
        traced = build_tracer(task.name, task, app=app)(headers["id"], args, kwargs, request)
        return str(traced.info.state if traced.info else "SUCCESS")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


class TestCelery:
    def test_a_queue_puts_it_off_once_to_its_turn(self, enforce: Enforce, worker: Worker) -> None:
        enforce(reports=QUEUE)
        results = [mail.apply_async(("anna",), queue="mails", link=mail.s()) for _ in range(3)]
        sent, worker.published = worker.published, []
        now = datetime.now(UTC)
        assert [worker.run(message) for message in sent] == ["SUCCESS", "IGNORED", "IGNORED"]
        assert ran == [("anna", 0)]
        again = [one for one in worker.published if one[1]["id"] in {result.id for result in results}]
        waits = [round((datetime.fromisoformat(one[1]["eta"]) - now).total_seconds()) for one in again]
        assert waits == [60, 120]
        for (_, before, (args, kwargs, embed), _), (_, after, body, options) in zip(sent[1:], again, strict=True):
            assert (before["id"], before["retries"], before["root_id"]) == (
                after["id"], after["retries"], after["root_id"],
            )  # fmt: skip
            assert (tuple(args), kwargs) == (tuple(body[0]), body[1])
            assert embed["callbacks"][0]["task"] == body[2]["callbacks"][0]["task"]
            assert options["queue"].name == "mails"
        assert [worker.run(message) for message in again] == ["SUCCESS", "SUCCESS"], "they had their turns"
        assert results[2].get(timeout=1) == "mailed anna"

    def test_another_rule_puts_it_off_by_retry_after_and_so_often(self, enforce: Enforce, worker: Worker) -> None:
        enforce(reports=WINDOW)
        for _ in range(2):
            mail.delay("anna")
        (first, message), worker.published = worker.published, []
        assert worker.run(first) == "SUCCESS"
        states = []
        for _ in range(9):
            states.append(worker.run(message))
            if not worker.published:
                break
            (message,), worker.published = worker.published, []
            assert (
                datetime.now(UTC)
                < datetime.fromisoformat(message[1]["eta"])
                < datetime.now(UTC) + timedelta(seconds=61)
            )
        assert states == ["IGNORED", "IGNORED", "FAILURE"]
        with pytest.raises(PutOffTooOften, match="was put off 2 times") as caught:
            mail.AsyncResult(message[1]["id"]).get(timeout=1)
        assert caught.value.decision.rule == "reports"

    def test_a_broker_that_fails_gives_the_moment_back(
        self, enforce: Enforce, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        enforce(reports=QUEUE)
        for _ in range(3):
            mail.delay("anna")
        first, second, third = worker.published
        worker.run(first)
        with monkeypatch.context() as patch:
            patch.setattr(type(mail._get_current_object()), "apply_async", fails)
            assert worker.run(second) == "FAILURE"
            patch.setattr(mail, "acks_late", True)
            assert worker.run(second) == "REJECTED"
        worker.published = []
        worker.run(third)
        eta = datetime.fromisoformat(worker.published[0][1]["eta"])
        assert eta < datetime.now(UTC) + timedelta(seconds=61)


def fails(*_: Any, **__: Any) -> None:
    raise OSError("the broker is away")


def generates() -> Any:
    yield


async def awaited() -> None: ...


async def agenerates() -> Any:
    yield


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (mail, "goes above @task .*: not around"),
        ("text", "goes above @task .*: not around 'text'"),
        (type, "goes above @task"),
        (awaited, "not limit async functions and generators, as <function awaited"),
        (generates, "not limit async functions and generators, as <function generates"),
        (agenerates, "not limit async functions and generators, as <function agenerates"),
    ],
)
def test_what_it_cannot_limit_is_said(task: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        throttled_task("reports")(task)


@pytest.mark.parametrize(
    "wrong", [{"rule": ""}, {"rule": 1}, {"ident": 1}, {"ident": awaited}, {"cost": awaited}, {"max_put_off": -1}]
)
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        throttled_task(**({"rule": "reports"} | wrong))
    with pytest.raises(InvalidCost):
        throttled_task("reports", cost=-1)

"""Runs of tasks draw on budgets, are put off to their moment, and start at the rate however late they are.

Of tasks under a rule of slots N run at once; the others wait, and are called when a slot is given back.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from celery import Celery
from celery.worker.state import revoked
from django.http import HttpResponse
from django.test import Client
from django.urls import include, path
from django_tasks_db.models import DBTaskResult

from django_throttle.core.commands import CallNext, ClaimRun, Enlist
from django_throttle.decorators import throttle
from django_throttle.exceptions import InvalidCost, PutOffTooOften, Refused
from django_throttle.later.site_queues import HEADER, tasks_module
from django_throttle.local.freed_slots import freed_slots
from django_throttle.tasks import throttled_task
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce
from tests.workers import Worker, give_back, take_slot, work

django_task = import_module(tasks_module()).task
app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
app.conf.task_track_started = True
QUEUE = {"rate": "1/min", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 2, "events": ["task"]}
WINDOW = {"rate": "1/min", "algorithm": "fixed_window", "events": ["task"]}
ran: list[Any] = []


@throttled_task("reports", ident=lambda name, **_: f"name:{name}", cost=lambda name, cost=1: cost, max_put_off=2)
@django_task()
def make(name: str, cost: int = 1) -> str:
    ran.append(name)
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


class Beat:
    """The clock on which late runs start: that of the store, which passes while a worker waits."""

    clock: FrozenClock


def note(ident: str = "everyone") -> None:
    ran.append(Beat.clock())


LIMITED = throttled_task("reports", ident=lambda ident="everyone": ident)
STRICT = throttled_task("reports", ident=lambda ident="everyone": ident, strict=True)
soft, hard = app.task(name="shop.soft")(LIMITED(note)), app.task(name="shop.hard")(STRICT(note))


@STRICT
@django_task()
def row(ident: str = "everyone") -> None:
    note()


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def work_late() -> None:
    DBTaskResult.objects.filter(status="READY").update(run_after="2020-01-01T00:00Z")
    work()


@pytest.mark.django_db(transaction=True)
class TestDjangoTasks:
    @pytest.mark.parametrize("awaited", [False, True])
    def test_a_queue_reserves_the_moment_when_it_is_enqueued(self, enforce: Enforce, awaited: bool) -> None:
        enforce(reports=QUEUE)
        now = datetime.now(UTC)
        enqueue = async_to_sync(make.aenqueue) if awaited else make.enqueue
        results = [enqueue("a") for _ in range(3)]
        rows = [DBTaskResult.objects.get(id=result.id) for result in results]
        assert [round((row.run_after - now).total_seconds() / 60) for row in rows[1:]] == [1, 2]
        with pytest.raises(Refused):
            make.enqueue("a")
        assert DBTaskResult.objects.count() == 3
        make.enqueue("b")  # another ident
        work()
        assert sorted(ran) == ["a", "b"]
        work_late()
        results[2].refresh()
        assert (results[2].return_value, results[2].id) == ("made a", str(rows[2].id))

    def test_if_it_cannot_be_enqueued_the_moment_is_given_back(self, enforce: Enforce) -> None:
        enforce(reports=QUEUE)
        make.enqueue("a")
        for _ in range(5):
            with pytest.raises(TypeError):
                make.enqueue("a", object())
        assert make.enqueue("a").task.run_after - datetime.now(UTC) < timedelta(seconds=61)
        later = datetime.now(UTC) + timedelta(days=1)
        assert make.using(run_after=later).enqueue("a").task.run_after == later, "a later one of the site's own stays"

    @pytest.mark.parametrize("options", [{}, {"count_denied": True}])
    def test_without_a_queue_the_same_row_is_put_off(self, enforce: Enforce, clock: FrozenClock, options: Any) -> None:
        enforce(reports={**WINDOW, "algorithm": "sliding_log", **options})
        first, second = make.enqueue("a"), make.enqueue("a")
        work()
        assert ran == ["a"]
        row = DBTaskResult.objects.get(id=second.id)
        assert (row.status, row.args_kwargs, row.exception_class_path) == ("READY", {"args": ["a"], "kwargs": {}}, "")
        assert 0 < (row.run_after - datetime.now(UTC)).total_seconds() <= 60
        clock.tick(30)
        make.enqueue("a")
        work()
        clock.tick(30)
        work_late()
        second.refresh()
        assert (second.return_value, second.attempts, len(ran)) == ("made a", 2, 2)
        first.refresh()
        assert first.attempts == 1

    def test_it_is_put_off_so_often_and_then_fails_clearly(self, enforce: Enforce) -> None:
        enforce(reports=WINDOW)
        make.enqueue("a")
        found, never = make.enqueue("a"), make.enqueue("b", cost=2)
        for _ in range(4):
            work_late()
        found.refresh()
        assert (found.status, found.attempts) == ("FAILED", 3)
        assert found.errors[0].exception_class_path == "django_throttle.exceptions.PutOffTooOften"
        assert "was put off 2 times" in found.errors[0].traceback
        never.refresh()
        assert (never.status, never.attempts, ran) == ("FAILED", 1, ["a"]), "what never fits fails at once"

    def test_below_task_its_first_run_fails_clearly(self) -> None:
        found = turned_round.enqueue()
        work()
        found.refresh()
        assert (found.status, found.errors[0].exception_class_path, ran) == ("FAILED", "builtins.TypeError", [])
        assert "@throttled_task goes above @task of django.tasks" in found.errors[0].traceback


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    meanwhile.clear()
    return Worker(app, monkeypatch)


class TestCelery:
    def test_a_queue_puts_it_off_once_to_its_turn(self, enforce: Enforce, worker: Worker) -> None:
        enforce(reports=QUEUE)
        results = [mail.apply_async(("anna",), queue="mails", link=mail.s()) for _ in range(3)]
        sent, worker.due = worker.due, []
        now = datetime.now(UTC).timestamp()
        assert [worker.run(message) for message in sent] == ["SUCCESS", "IGNORED", "IGNORED"]
        assert ran == [("anna", 0)]
        assert (results[1].state, results[1].ready()) == ("RETRY", False)
        again = [message for message in worker.due if message.headers["id"] in {result.id for result in results}]
        assert [round(message.eta - now) for message in again] == [60, 120]
        for before, after in zip(sent[1:], again, strict=True):
            for name in ("id", "retries", "root_id"):
                assert before.headers[name] == after.headers[name]
            assert (tuple(before.body[0]), before.body[1]) == (tuple(after.body[0]), after.body[1])
            assert before.body[2]["callbacks"][0]["task"] == after.body[2]["callbacks"][0]["task"]
            assert after.options["queue"].name == "mails"
        assert [worker.run(message) for message in again] == ["SUCCESS", "SUCCESS"], "they had their turns"
        assert results[2].get(timeout=1) == "mailed anna"

    def test_another_rule_puts_it_off_by_retry_after_and_so_often(self, enforce: Enforce, worker: Worker) -> None:
        enforce(reports=WINDOW)
        _, result = [mail.delay("anna") for _ in range(2)]
        assert worker.run() == "SUCCESS"
        for _ in range(2):
            assert worker.run() == "IGNORED"
            assert 0 < worker.due[0].eta - datetime.now(UTC).timestamp() < 61
        retry = worker.due[0]._replace(headers=worker.due[0].headers | {"retries": 1})
        assert (worker.run(), worker.due) == ("FAILURE", [])
        with pytest.raises(PutOffTooOften, match="was put off 2 times") as caught:
            result.get(timeout=1)
        assert caught.value.decision.rule == "reports"
        assert worker.run(retry) == "IGNORED", "Celery's own retry begins anew"
        for header in (5, [], [0, 0], ["x", 0, False, ""], [float("inf"), 0, False, ""], [-9, 0, False, ""]):
            message = retry._replace(headers=retry.headers | {"retries": 0, HEADER: header})
            assert worker.run(message) == "IGNORED", header

    def test_a_broker_that_fails_gives_the_moment_back(
        self, enforce: Enforce, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        enforce(reports=QUEUE)
        for _ in range(3):
            mail.delay("anna")
        worker.run()
        second = worker.take()
        with monkeypatch.context() as patch:
            patch.setattr(type(mail._get_current_object()), "apply_async", fails)
            assert worker.run(second) == "FAILURE"
            patch.setattr(mail, "acks_late", True)
            assert worker.run(second) == "REJECTED"
        worker.run()
        assert worker.due[0].eta < datetime.now(UTC).timestamp() + 61


def fails(*_: Any, **__: Any) -> None:
    raise OSError("the broker is away")


FAST, LATE = {**QUEUE, "rate": "10/s", "max_queue": 1000}, 28
MINUTELY = {**QUEUE, "max_queue": 9, "key": "ip"}


def view_of(task: Any) -> Any:
    defer = throttle("reports", defer_to=task, payload=lambda request: {"ident": request.GET["ident"]})
    return defer(lambda request: HttpResponse("now"))


urlpatterns = [
    path("rows", view_of(row)),
    path("celery", view_of(soft)),
    path("later/", include("django_throttle.urls")),
]


class TestLate:
    @pytest.fixture(autouse=True)
    def beat(self, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        Beat.clock = clock
        monkeypatch.setattr("django_throttle.later.queue_slots.shared_clock.now", clock)
        monkeypatch.setattr("django_throttle.tasks.shared_now", lambda: datetime.fromtimestamp(clock(), UTC))
        monkeypatch.setattr("django_throttle.stores.base.time.sleep", clock.tick)
        settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []

    @BOTH
    @pytest.mark.parametrize(("task", "most"), [(soft, LATE - 1), (hard, 11)], ids=["soft", "hard"])
    def test_what_is_late_starts_at_the_rate_where_it_is_strict(
        self, enforce: Enforce, clock: FrozenClock, worker: Worker, task: Any, most: int
    ) -> None:
        enforce(reports=FAST)
        for _ in range(LATE):
            task.delay()
        for _ in range(LATE):
            worker.run()  # all but the first have their turns now
        clock.tick(60)  # no worker was there
        runs = 0
        while worker.due:
            worker.due.sort(key=lambda message: message.eta)
            clock.tick(max(0.0, worker.due[0].eta - clock()))
            worker.run()
            runs += 1
        assert len(ran) == LATE
        assert 10 <= busiest(ran[1:]) <= most, "nor slower than the rate"
        assert runs <= 2 * LATE, "nobody asks again and again"

    @pytest.mark.django_db(transaction=True)
    def test_a_deferred_call_has_one_turn_of_its_rule(
        self, enforce: Enforce, clock: FrozenClock, worker: Worker
    ) -> None:
        enforce(reports=MINUTELY)
        assert [Client().get("/rows", {"ident": "ip:127.0.0.1"}).status_code for _ in range(3)] == [200, 202, 202]
        moments = DBTaskResult.objects.order_by("run_after").values_list("run_after", flat=True)
        assert [round((moment.timestamp() - clock()) / 60) for moment in moments] == [1, 2]
        Client().get("/rows", {"ident": "ip:192.0.2.1"})
        assert DBTaskResult.objects.count() == 3, "another ident has turns of its own, and the later one counts"
        assert Client().get("/celery", {"ident": "ip:127.0.0.1"}).status_code == 202
        clock.tick(240)
        assert worker.run() == "SUCCESS", "it is not put off again"
        assert len(ran) == 1


def busiest(moments: list[float]) -> int:
    return max(sum(moment <= other < moment + 1 for other in moments) for moment in moments)


async def awaited() -> None: ...


async def agenerates() -> Any:
    yield


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (mail, "goes above @task .*: not around"), ("text", "goes above @task .*: not around 'text'"),
        (type, "goes above @task"), (awaited, "not limit async functions and generators such as <function awaited"),
        (lambda: (yield), "not limit async functions and generators"),
        (agenerates, "not limit async functions and generators such as <function agenerates"),
    ],
)  # fmt: skip
def test_what_it_cannot_limit_is_said(task: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        throttled_task("reports")(task)


@pytest.mark.parametrize(
    "wrong",
    [{"rule": ""}, {"rule": 1}, {"ident": 1}, {"ident": awaited}, {"cost": awaited}, {"max_put_off": -1}]
    + [{"strict": strict} for strict in (1, "yes", None)],
)
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        throttled_task(**({"rule": "reports"} | wrong))
    with pytest.raises(InvalidCost):
        throttled_task("reports", cost=-1)


TWO = {"limit": 2, "algorithm": "concurrency", "events": ["task"], "key": "tenant"}
ACME = "tenant:acme"
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
@django_task()
def export_row(name: str) -> None:
    ran.append(name)


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
    enforce(exports={**TWO, "limit": 1})
    for name in ("acme 1", "acme 2", "acme 3"):
        export_row.enqueue(name)
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

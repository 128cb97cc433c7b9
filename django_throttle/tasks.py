"""Decorator ``@throttled_task``: runs of a task use a rule's budget, and a run over the limit is put off.

In Celery, the same message is published again with its id, arguments and retries, and the new start time as its ETA.
``django.tasks`` cannot change the start time of a task once it is enqueued. So under a rule with a queue, the start
time is reserved when the task is enqueued, as its ``run_after``. The task keeps its id and its result.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import field, make_dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

from django_throttle import limiter
from django_throttle.core import Decision
from django_throttle.core.decide import correct, release_lease
from django_throttle.core.decision import NO_RULE_DECISION
from django_throttle.core.io import run
from django_throttle.core.key import EVERYONE
from django_throttle.exceptions import Refused
from django_throttle.later import task_slots
from django_throttle.later.queue_slots import QueueSlot, last_queue_slot
from django_throttle.later.site_queues import HEADER, limited_tasks, named_by_tasks, task_class, tasks_module
from django_throttle.later.task_budget import BUDGET, Cost, Ident, RunTask, TaskBudget, check_options, run_once
from django_throttle.local.freed_slots import freed_slots
from django_throttle.local.leases import LeaseKey
from django_throttle.local.shared_clock import shared_now
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, StoreIo

if TYPE_CHECKING:
    from celery import Task as CeleryTask  # type: ignore[import-untyped]
    from celery.app.task import Context  # type: ignore[import-untyped]
    from celery.canvas import Signature  # type: ignore[import-untyped]
    from django.db.models import Model
    from django.tasks import TaskResult

__all__ = ["throttled_task"]

T = TypeVar("T")
P = ParamSpec("P")
DECORATOR_ORDER: Final = (
    "@throttled_task goes above @task of django.tasks, or below @shared_task of Celery, next to the function"
)
UNSUPPORTED_KINDS: Final = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction


def throttled_task(
    rule: str, *, cost: Cost = 1, ident: Ident = EVERYONE, max_put_off: int = 100, strict: bool = False
) -> Callable[[T], T]:
    """Charge the runs of a task to the budget of the named rule. The rule's scopes and events do not matter.

    The decorator goes above django.tasks' ``@task``, or below Celery's ``@shared_task``, next to the function.
    ``ident`` is a text, or a function of the task's arguments. The function returns a text, a number, a user, or None
    for a run that is not limited. ``cost`` is a number of units, or a function of the arguments. A run over the limit
    is put off at most ``max_put_off`` times, and then raises PutOffTooOften. If ``strict``, a run under a rule with a
    queue is decided again at its start. Late workers then do not exceed the rate. A function that is called directly,
    not by a worker, raises Refused.

    Raise TypeError for a function that cannot be limited, and for invalid options.
    """
    check_options(rule, cost, ident, max_put_off, strict)

    def decorate(task: Any) -> Any:
        if tasks_module():
            import_module(f"{tasks_module()}.signals").task_started.connect(_note_started, dispatch_uid=__name__)
            if isinstance(task, task_class()):
                kind: Any = type(task)
                fields = {name: getattr(task, name) for name in kind.__dataclass_fields__}
                budget = TaskBudget(rule, cost, ident, task.module_path, max_put_offs=max_put_off, strict=strict)
                named_by_tasks.setdefault(rule, set()).add(task.module_path)
                limited_tasks.append((rule, _limited_class(kind)(**fields, budget=budget)))
                return limited_tasks[-1][1]
        _check_function(task)
        if "celery" in sys.modules:
            import_module("celery.signals").task_revoked.connect(_call_next_if_revoked, dispatch_uid=__name__)
        name = f"{task.__module__}.{task.__qualname__}"
        named_by_tasks.setdefault(rule, set()).add(name)
        return _limited_function(task, TaskBudget(rule, cost, ident, name, max_put_offs=max_put_off, strict=strict))

    return decorate


def _check_function(task: object) -> None:
    """Raise TypeError for a function that cannot be limited below @shared_task."""
    if not inspect.isroutine(task):
        raise TypeError(f"{DECORATOR_ORDER}: not around {task!r:.80}")
    if any(is_such(task) for is_such in UNSUPPORTED_KINDS):
        raise TypeError(
            f"@throttled_task below @shared_task does not limit async functions and generators such as {task!r:.80}; "
            "above @task of django.tasks it limits async functions, too"
        )


def _limited_function(function: Callable[P, T], budget: TaskBudget) -> Callable[P, T]:
    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        if (started := running.get()) and _is_in(started.task.func, limited):
            raise TypeError(f"{DECORATOR_ORDER}: not below @task, where a run cannot be put off; change their order")

        async def run_task() -> T:
            return function(*args, **kwargs)

        celery_task, io = _celery_run(limited), BlockingIo(get_store())
        if celery_task is None:
            is_bound = bool(args) and callable(getattr(args[0], "apply_async", None))
            return run(budget.call_directly(io, run_task, (args[is_bound:], kwargs)))
        return run(_run_by_celery(io, budget, celery_task, run_task))

    vars(limited)[BUDGET] = budget
    return limited


def _celery_run(function: object) -> CeleryTask | None:
    """Return Celery's task if its worker runs this function now, else None."""
    try:
        from celery import current_task
    except ImportError:
        return None
    if not current_task or current_task.request.called_directly or current_task.request.is_eager:
        return None
    task = current_task._get_current_object()
    return task if _is_in(getattr(task, "__wrapped__", None) or type(task).run, function) else None


def _is_in(outer: object, function: object) -> bool:
    """Return True if ``outer`` is the function, or a wrapper around it."""
    while outer is not None:
        outer = getattr(outer, "__func__", outer)
        if outer is function:
            return True
        outer = getattr(outer, "__wrapped__", None)
    return False


async def _run_by_celery(io: StoreIo, budget: TaskBudget, task: CeleryTask, run_task: RunTask[T]) -> T:
    """Run the task, or publish it again for its start time, and raise Ignore.

    After Ignore, Celery stores no result, and acknowledges the message.
    """
    from celery.exceptions import Ignore  # type: ignore[import-untyped]

    request = task.request
    arguments = request.args, request.kwargs
    times, has_queue_slot, message = _put_offs(request)
    name, start = f"{request.id}.{request.retries}", NO_RULE_DECISION
    if message and not task_slots.claim(name, message, commit=False):
        raise Ignore
    if has_queue_slot and (start := await budget.start(io, arguments)).allowed:
        return await run_task()
    decision = await budget.decide(io, arguments)
    if lease_key := budget.slot_awaited(decision):
        _wait_for_slot(task, name, message, lease_key, Refused(decision))
        if budget.has_slot(*arguments):  # a slot was released meanwhile
            task_slots.call_next(lease_key)
        raise Ignore
    queue_slot = last_queue_slot(decision)
    if message and decision.allowed and not task_slots.claim(name, message, commit=True):
        await release_lease(io, decision.lease)
        raise Ignore
    is_due = decision.allowed and queue_slot is None and not has_queue_slot
    if is_due and (start := await budget.start(io, arguments)).allowed:
        return await run_once(io, run_task, decision, budget.name)
    try:
        if error := budget.too_often(decision, times):
            raise error
        put_offs = PutOffs(times + 1, has_queue_slot=decision.allowed)
        _publish_again(
            task, _start_time(decision, queue_slot, start), put_offs, Refused(start if decision.allowed else decision)
        )
    except Exception:
        await correct(io, queue_slot.refund() if queue_slot else ())
        raise
    raise Ignore


class PutOffs(NamedTuple):
    """Past put-offs of a run."""

    times: int = 0
    has_queue_slot: bool = False  #: True if the start time was reserved
    message: str = ""  #: kind of the message if the run waits for a slot, see ``task_slots``


def _put_offs(request: Context) -> PutOffs:
    """Read the header of a message. A retry is a separate run, and was not put off yet."""
    try:
        times, retries, has_queue_slot, message = (request.headers or {})[HEADER]
        is_retry = retries != request.retries
        return PutOffs() if is_retry else PutOffs(max(0, int(times)), bool(has_queue_slot), str(message))
    except (KeyError, TypeError, ValueError, OverflowError):  # no header, or an invalid one
        return PutOffs()


def _start_time(decision: Decision, queue_slot: QueueSlot | None, start: Decision) -> datetime:
    """Return the time at which a run may start: its queue slot's, else the retry time of its refusal."""
    wait = start.retry_after if decision.allowed else decision.retry_after
    return queue_slot.start_time if queue_slot else shared_now() + timedelta(seconds=wait or 0.0)


def _publish_again(task: CeleryTask, eta: datetime, put_offs: PutOffs, refused: Refused) -> None:
    """Publish the run with the same id, arguments, retries, links and limits. Raise any error of the broker.

    Its state is RETRY until then, as after Celery's own retry. The state is set first, because another worker may
    receive the message at once.
    """
    from celery.exceptions import Reject

    next_message = _next_message(task, eta, put_offs)
    try:
        _mark_as_waiting(task, refused)
        next_message.apply_async()
    except Exception as error:
        if task.acks_late:
            raise Reject(error, requeue=True) from error
        raise


def _mark_as_waiting(task: CeleryTask, refused: Refused) -> None:
    if not (task.ignore_result or task.request.ignore_result):
        task.backend.mark_as_retry(task.request.id, refused, request=task.request)


def _next_message(task: CeleryTask, eta: datetime | None, put_offs: PutOffs) -> Signature:
    request = task.request
    times, has_queue_slot, message = put_offs
    headers = {**(request.headers or {}), HEADER: [times, request.retries, has_queue_slot, message]}
    return task.signature_from_request(request, eta=eta, retries=request.retries, headers=headers)


def _wait_for_slot(task: CeleryTask, name: str, message: str, lease_key: LeaseKey, refused: Refused) -> None:
    """Publish a run that looks for a slot again later, and enlist it to be called when a slot is released.

    Only one of both messages runs, see ``task_slots.claim``. Waiting does not count as a put-off.
    """
    task_slots.celery_apps[task.name] = task.app
    times = _put_offs(task.request).times
    if message == task_slots.CALLED:  # the other message still waits
        _mark_as_waiting(task, refused)
    else:
        _publish_again(task, task_slots.next_look(), PutOffs(times, message=task_slots.WAITING), refused)
    call_directly = _next_message(task, None, PutOffs(times, message=task_slots.CALLED))
    task_slots.enlist(lease_key, name, task_slots.celery_entry(name, task, call_directly), is_first=bool(message))


def _call_next_if_revoked(sender: object, request: Context, **_: object) -> None:
    """Call the next run if a waiting run was revoked or has expired, because the worker drops its messages."""
    if _put_offs(request).message == task_slots.CALLED:
        rule_id, ident = request.headers[task_slots.SLOT_HEADER]
        freed_slots.add((rule_id, ident))


#: The run of a django.tasks worker in this context.
running: Final[ContextVar[TaskResult[..., Any] | None]] = ContextVar("running", default=None)


def _note_started(sender: object, task_result: TaskResult[..., object], **_: object) -> None:
    running.set(task_result)


@lru_cache(maxsize=16)
def _limited_class(kind: type) -> Callable[..., _Limited]:
    """Return a limited subclass of the task's class, which depends on the backend."""
    budget = ("budget", Any, field(default=None, compare=False, repr=False))
    return make_dataclass(kind.__name__, [budget], bases=(_Limited, kind), frozen=True, kw_only=True, slots=True)


Steps = Callable[["_Limited", StoreIo, tuple[object, ...], dict[str, object]], Coroutine[None, None, T]]


def _blocking(steps: Steps[T]) -> Callable[..., T]:
    def method(self: _Limited, *args: object, **kwargs: object) -> T:
        return run(steps(self, BlockingIo(get_store()), args, kwargs))

    return method


def _awaiting(steps: Steps[T]) -> Callable[..., Coroutine[None, None, T]]:
    """Return an asynchronous method that runs the steps on an event loop."""

    async def method(self: _Limited, *args: object, **kwargs: object) -> T:
        return await steps(self, LoopIo(get_store()), args, kwargs)

    return method


class _Limited:
    """Limited methods of a django.tasks task: enqueuing it, and running it in a worker."""

    __slots__ = ()
    budget: TaskBudget
    using: Callable[..., _Limited]
    get_backend: Callable[[], Any]  # Any: the methods of backends are typed for tasks only
    run_after: datetime | None
    func: Callable[..., object]
    takes_context: bool

    async def _enqueue(self, io: StoreIo, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        queue_slot, due = None, self
        if await self.budget.is_queue(io):
            queue_slot = last_queue_slot(limiter.raise_if_refused(await self.budget.decide(io, (args, kwargs))))
        try:
            if queue_slot is not None:
                due = self.using(run_after=max(filter(None, (self.run_after, queue_slot.run_after))))
            backend = due.get_backend()
            options = {"task": due, "args": args, "kwargs": kwargs}
            return await io.call(partial(backend.enqueue, **options), partial(backend.aenqueue, **options))
        except Exception:
            await correct(io, queue_slot.refund() if queue_slot else ())
            raise

    async def _run(self, io: StoreIo, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        call, acall = super().call, super().acall  # type: ignore[misc]
        run_task = partial(io.call, partial(call, *args, **kwargs), partial(acall, *args, **kwargs))
        task_result, arguments = running.get(), (args[1:] if self.takes_context else args, kwargs)
        if task_result is None or task_result.task.func is not self.func:
            return await self.budget.call_directly(io, run_task, arguments)
        running.set(None)
        start, has_queue_slot = NO_RULE_DECISION, await self.budget.is_queue(io)  # reserved when it was enqueued
        if has_queue_slot and (start := await self.budget.start(io, arguments)).allowed:
            return await run_task()
        decision = await self.budget.decide(io, arguments)
        if lease_key := self.budget.slot_awaited(decision):
            raise _wait_as_row(task_result, Refused(decision), lease_key, partial(self.budget.has_slot, *arguments))
        if decision.allowed and not has_queue_slot:
            return await run_once(io, run_task, decision, self.budget.name)
        queue_slot = last_queue_slot(decision)
        if error := self.budget.too_often(decision, len(task_result.worker_ids) - 1):
            await correct(io, queue_slot.refund() if queue_slot else ())
            raise error
        raise _put_off(
            task_result, Refused(start if decision.allowed else decision), _start_time(decision, queue_slot, start)
        )

    #: Enqueue the task for its queue slot. Raise Refused if the queue is full.
    enqueue, aenqueue = _blocking(_enqueue), _awaiting(_enqueue)
    #: Run the task, as a worker does.
    call, acall = _blocking(_run), _awaiting(_run)


def _wait_as_row(
    task_result: TaskResult[..., object], error: Refused, lease_key: LeaseKey, has_slot: Callable[[], bool]
) -> Refused:
    """Return the error by which a row waits for a slot: it is put off, and enlisted to be called when one is free."""

    def enlist(row: Model) -> None:
        entry, has_waited = task_slots.row_entry(row), len(task_result.worker_ids) > 1
        task_slots.enlist(lease_key, str(row.pk), entry, is_first=has_waited)
        if has_slot():
            task_slots.call_next(lease_key)

    return _put_off(task_result, error, task_slots.next_look(), enlist)


def _put_off(
    task_result: TaskResult[..., object], error: Refused, start_time: datetime, on_saved: Callable[[Model], object] = id
) -> Refused:
    """Return the error that makes the worker of the database backend put the row off, instead of marking it failed."""
    row = getattr(task_result, "db_result", None)
    if row is None:
        error.add_note("Only django-tasks-db can put off a run of django.tasks; give the rule a queue (leaky_bucket).")
        return error

    def put_off(_: BaseException) -> None:
        row.status, row.started_at = "READY", None
        row.run_after = start_time
        row.save(update_fields=["status", "started_at", "run_after"])
        on_saved(row)

    row.set_failed = import_module("django_tasks_db.utils").retry()(put_off)
    return error

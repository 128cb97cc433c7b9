"""Queues of the site in which tasks wait for their start times: django.tasks and Celery. We have no queue ourselves."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from asgiref.sync import sync_to_async

from django_throttle.later.queue_slots import QueueSlot

if TYPE_CHECKING:
    from django.tasks.base import Task, TaskResult


class Enqueued(Protocol):
    """Waiting task, as its queue returns it."""

    @property
    def id(self) -> str: ...


class CeleryTask(Protocol):
    """Task of Celery, which has no types itself."""

    name: str

    def apply_async(self, *args: object, **options: object) -> Enqueued: ...


#: A function that enqueues, and the same for an event loop.
Enqueuing = tuple[Callable[[], Enqueued], Callable[[], Awaitable[Enqueued]]]

QUEUED, RUNNING, DONE, FAILED, UNKNOWN = "queued", "running", "done", "failed", "unknown"


@lru_cache(maxsize=1)
def tasks_module() -> str:
    """Return the name of the installed package, django.tasks or its backport, or "" if there is none."""
    return next((name for name in ("django.tasks", "django_tasks") if find_spec(name)), "")


@lru_cache(maxsize=1)
def task_class() -> type[Task[..., Any]]:
    """Return the class of django.tasks' tasks. Raise ImportError if there is none."""
    kind: type[Task[..., Any]] = import_module(f"{tasks_module() or 'django.tasks'}.base").Task
    return kind


class TaskState(NamedTuple):
    """State of a task in its queue, one of the constants above, and its result if it is done."""

    state: str
    result: object = None


class SiteQueue(Protocol):
    """Kind of queue."""

    name: str

    def takes(self, task: object) -> bool:
        """Return True for a task of this kind of queue."""

    def can_wait(self, task: Any) -> bool:
        """Return True if the task's backend can run the task later."""

    def enqueue(
        self, task: Any, queue_slot: QueueSlot, args: Sequence[object], kwargs: Mapping[str, object], *, is_own: bool
    ) -> Enqueuing:
        """Return the functions that enqueue the task for its queue slot, and return its result, which has an ``id``.

        ``is_own`` is True if the run uses the rule and the ident of the queue slot, and so must not reserve another.
        """

    def place(self, task: Any, enqueued: Any) -> str:
        """Return the place of the task for ``state_of``: the name of its backend, or its own name."""

    def state_of(self, place: str, id: str) -> TaskState | None:  # noqa: A002 - the name in both libraries
        """Return the state of a task, or None if the queue does not know the task."""


DJANGO_STATES: Final = {"READY": QUEUED, "RUNNING": RUNNING, "SUCCESSFUL": DONE, "FAILED": FAILED}


class DjangoTasks:
    """``django.tasks``, or its backport before Django 6.0, with any backend that supports ``run_after``."""

    name = "django"

    def takes(self, task: object) -> bool:
        return bool(tasks_module()) and isinstance(task, task_class())

    def can_wait(self, task: Task[..., Any]) -> bool:
        return bool(task.get_backend().supports_defer)

    def enqueue(
        self,
        task: Task[..., Any],
        queue_slot: QueueSlot,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        is_own: bool,
    ) -> Enqueuing:
        due = task.using(run_after=queue_slot.run_after)
        if is_own:
            backend: Any = due.get_backend()  # Any: it is typed for one task
            options = {"task": due, "args": list(args), "kwargs": dict(kwargs)}
            return partial(backend.enqueue, **options), partial(backend.aenqueue, **options)
        return partial(due.enqueue, *args, **kwargs), partial(due.aenqueue, *args, **kwargs)

    def place(self, task: object, enqueued: TaskResult[..., Any]) -> str:
        return str(enqueued.backend)

    def state_of(self, place: str, id: str) -> TaskState | None:  # noqa: A002
        tasks = import_module(tasks_module())
        errors = import_module(f"{tasks_module()}.exceptions")
        try:
            result = tasks.task_backends[place].get_result(id)
        except errors.TaskResultDoesNotExist:
            return None
        except NotImplementedError:  # a backend without results
            return TaskState(UNKNOWN)
        state = DJANGO_STATES.get(str(result.status), UNKNOWN)
        return TaskState(state, result.return_value if state == DONE else None)


#: Header of a limited task's Celery message: number of put-offs, number of the retry, ``has_queue_slot``, kind.
HEADER: Final = "django_throttle"
CELERY_STATES: Final = {
    "PENDING": QUEUED, "RECEIVED": QUEUED, "RETRY": QUEUED, "STARTED": RUNNING,
    "SUCCESS": DONE, "FAILURE": FAILED, "REVOKED": FAILED,
}  # fmt: skip


class CeleryTasks:
    """Celery. Its result backend knows the states of tasks, and reports an unknown task as queued."""

    name = "celery"

    def takes(self, task: object) -> bool:
        return callable(getattr(task, "apply_async", None))

    def can_wait(self, task: object) -> bool:
        return True

    def enqueue(
        self,
        task: CeleryTask,
        queue_slot: QueueSlot,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        is_own: bool,
    ) -> Enqueuing:
        options = {"headers": {HEADER: [0, 0, True, ""]}} if is_own else {}
        publish = partial(task.apply_async, tuple(args), dict(kwargs), eta=queue_slot.start_time, **options)
        return publish, sync_to_async(publish, thread_sensitive=False)

    def place(self, task: CeleryTask, enqueued: object) -> str:
        return str(task.name)

    def state_of(self, place: str, id: str) -> TaskState | None:  # noqa: A002
        result = self._result(place, id)
        try:
            state = CELERY_STATES.get(result.state, QUEUED)  # custom states are those of unfinished tasks
        except (AttributeError, NotImplementedError):  # Celery has no result backend
            return TaskState(UNKNOWN)
        return TaskState(state, result.result if state == DONE else None)

    def _result(self, place: str, id: str) -> Any:  # noqa: A002
        for task in deferral_tasks:  # a task knows its app, but a thread may have no current app
            if self.takes(task) and task.name == place:
                return task.AsyncResult(id)
        from celery.result import AsyncResult  # type: ignore[import-untyped]

        return AsyncResult(id)


#: Tasks that views name in ``defer_to``.
deferral_tasks: Final[list[Any]] = []
#: Rules, and the django.tasks tasks whose runs are charged to them.
limited_tasks: Final[list[tuple[str, Any]]] = []
#: Rules, and the names of all tasks whose runs are charged to them.
named_by_tasks: Final[dict[str, set[str]]] = {}
QUEUES: Final[tuple[SiteQueue, ...]] = (DjangoTasks(), CeleryTasks())


def queue_of(task: object) -> SiteQueue:
    """Return the queue of a task. Raise TypeError if it is no task."""
    for queue in QUEUES:
        if queue.takes(task):
            return queue
    kind = "a plain function" if inspect.isfunction(task) else f"a {type(task).__name__}"
    raise TypeError(f"defer_to is a task of django.tasks or of Celery, not {kind}: put @task or @shared_task around it")


def queue_named(name: str) -> SiteQueue:
    """Return the queue of this name. Raise LookupError if there is none."""
    return {queue.name: queue for queue in QUEUES}[name]

"""The queues of the site on which work waits for its start time: django.tasks and Celery. There is none of our own."""

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
    """A task that waits in a queue, as the queue returns it."""

    @property
    def id(self) -> str: ...


class CeleryTask(Protocol):
    """A task of Celery, which has no types of its own."""

    name: str

    def apply_async(self, *args: object, **options: object) -> Enqueued: ...


# A call of a queue, and the same for an event loop.
Enqueuing = tuple[Callable[[], Enqueued], Callable[[], Awaitable[Enqueued]]]

QUEUED, RUNNING, DONE, FAILED, UNKNOWN = "queued", "running", "done", "failed", "unknown"


@lru_cache(maxsize=1)
def tasks_module() -> str:
    """The name of the package that is django.tasks here; empty where there is none."""
    return next((name for name in ("django.tasks", "django_tasks") if find_spec(name)), "")


@lru_cache(maxsize=1)
def task_class() -> type[Task[..., Any]]:
    """The class of django.tasks' tasks; raises ImportError where there is none."""
    kind: type[Task[..., Any]] = import_module(f"{tasks_module() or 'django.tasks'}.base").Task
    return kind


class TaskState(NamedTuple):
    """What a queue says of a task: one of the states above, and its result where it is done."""

    state: str
    result: object = None


class SiteQueue(Protocol):
    """One kind of queue."""

    name: str

    def takes(self, task: object) -> bool:
        """Whether the task is one of this queue's."""

    def can_wait(self, task: Any) -> bool:
        """Whether its backend runs the task at a later moment."""

    def enqueue(
        self, task: Any, queue_slot: QueueSlot, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_own: bool
    ) -> Enqueuing:
        """What enqueues the task for its queue slot, and returns its result to be, which has an ``id``.

        ``is_own``: the queue slot is one of the rule and the ident that the run draws on, and so reserves no other.
        """

    def place(self, task: Any, enqueued: Any) -> str:
        """Where ``find`` will find it: its backend, or its name."""

    def find(self, place: str, id: str) -> TaskState | None:  # noqa: A002 - what it is called on both sides
        """What has become of the task; None where the queue does not know it."""


STATES: Final = {"READY": QUEUED, "RUNNING": RUNNING, "SUCCESSFUL": DONE, "FAILED": FAILED}


class DjangoTasks:
    """``django.tasks``, or the package django-tasks before Django 6.0, with any backend that keeps ``run_after``."""

    name = "django"

    def takes(self, task: object) -> bool:
        return bool(tasks_module()) and isinstance(task, task_class())

    def can_wait(self, task: Task[..., Any]) -> bool:
        return bool(task.get_backend().supports_defer)

    def enqueue(
        self,
        task: Task[..., Any],
        queue_slot: QueueSlot,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        is_own: bool,
    ) -> Enqueuing:
        due = task.using(run_after=queue_slot.run_after)
        if is_own:
            backend: Any = due.get_backend()  # its types are of one task
            put = {"task": due, "args": list(args), "kwargs": dict(kwargs)}
            return partial(backend.enqueue, **put), partial(backend.aenqueue, **put)
        return partial(due.enqueue, *args, **kwargs), partial(due.aenqueue, *args, **kwargs)

    def place(self, task: object, enqueued: TaskResult[..., Any]) -> str:
        return str(enqueued.backend)

    def find(self, place: str, id: str) -> TaskState | None:  # noqa: A002
        tasks = import_module(tasks_module())
        errors = import_module(f"{tasks_module()}.exceptions")
        try:
            found = tasks.task_backends[place].get_result(id)
        except errors.TaskResultDoesNotExist:
            return None
        except NotImplementedError:  # a backend that keeps no results
            return TaskState(UNKNOWN)
        state = STATES.get(str(found.status), UNKNOWN)
        return TaskState(state, found.return_value if state == DONE else None)


# In Celery's messages of a limited task: times put off, number of the retry, if a slot is reserved, which message.
HEADER: Final = "django_throttle"
CELERY_STATES: Final = {
    "PENDING": QUEUED, "RECEIVED": QUEUED, "RETRY": QUEUED, "STARTED": RUNNING,
    "SUCCESS": DONE, "FAILURE": FAILED, "REVOKED": FAILED,
}  # fmt: skip


class CeleryTasks:
    """Celery, whose result backend says what has become of a task; one that it does not know it takes for queued."""

    name = "celery"

    def takes(self, task: object) -> bool:
        return callable(getattr(task, "apply_async", None))

    def can_wait(self, task: object) -> bool:
        return True

    def enqueue(
        self, task: CeleryTask, queue_slot: QueueSlot, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_own: bool
    ) -> Enqueuing:
        own = {"headers": {HEADER: [0, 0, True, ""]}} if is_own else {}
        put = partial(task.apply_async, tuple(args), dict(kwargs), eta=queue_slot.start_time, **own)
        return put, sync_to_async(put, thread_sensitive=False)

    def place(self, task: CeleryTask, enqueued: object) -> str:
        return str(task.name)

    def find(self, place: str, id: str) -> TaskState | None:  # noqa: A002
        found = self._result(place, id)
        try:
            state = CELERY_STATES.get(found.state, QUEUED)  # a state of the site's own is one on the way
        except (AttributeError, NotImplementedError):  # Celery's, where there is no result backend
            return TaskState(UNKNOWN)
        return TaskState(state, found.result if state == DONE else None)

    def _result(self, place: str, id: str) -> Any:  # noqa: A002
        for task in deferred_to:  # each knows its app; a thread may have no current one
            if self.takes(task) and task.name == place:
                return task.AsyncResult(id)
        from celery.result import AsyncResult  # type: ignore[import-untyped]

        return AsyncResult(id)


deferred_to: Final[list[Any]] = []  # the tasks that views name
limited_tasks: Final[list[tuple[str, Any]]] = []  # rules, and the tasks of django.tasks whose runs draw on them
named_by_tasks: Final[dict[str, set[str]]] = {}  # rules, and the names of all tasks whose runs draw on them
QUEUES: Final[tuple[SiteQueue, ...]] = (DjangoTasks(), CeleryTasks())


def queue_of(task: object) -> SiteQueue:
    """The queue of a task; raises TypeError for what is no task."""
    for queue in QUEUES:
        if queue.takes(task):
            return queue
    kind = "a plain function" if inspect.isfunction(task) else f"a {type(task).__name__}"
    raise TypeError(f"defer_to is a task of django.tasks or of Celery, not {kind}: put @task or @shared_task around it")


def queue_named(name: str) -> SiteQueue:
    """The queue of this name; raises LookupError."""
    return {queue.name: queue for queue in QUEUES}[name]

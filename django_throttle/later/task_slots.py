"""Task runs that wait for a slot of a concurrency rule, and are called when a slot is released.

The site's own queue keeps each run, as a message or a row. The run looks for a slot every WAIT_SECONDS by itself, in
case a process that held a slot was killed. The store keeps an entry with which the run can be called earlier.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from django_throttle.core.commands import CallNext, ClaimRun, Enlist
from django_throttle.exceptions import StoreError
from django_throttle.later.site_queues import HEADER, CeleryTasks, deferral_tasks
from django_throttle.local.freed_slots import freed_slots
from django_throttle.local.leases import LeaseKey
from django_throttle.local.shared_clock import shared_now
from django_throttle.stores import get_store

if TYPE_CHECKING:
    from types import ModuleType

    from celery import Celery  # type: ignore[import-untyped]
    from celery import Task as CeleryTask
    from celery.canvas import Signature  # type: ignore[import-untyped]
    from celery.result import AsyncResult  # type: ignore[import-untyped]
    from django.db.models import Model
    from django.tasks import Task, TaskResult

logger = logging.getLogger("django_throttle")

#: Seconds after which a waiting run looks for a slot by itself.
WAIT_SECONDS: Final = 30.0
#: Time to live of a waiting run's entry in the store. Each look renews it.
ENLISTMENT_TTL_MS: Final = 300_000
#: Time to live of the note which message has claimed a run.
CLAIM_TTL_MS: Final = 86_400_000
#: Kinds of Celery messages for one run: a look by itself, a call, and a claim for neither if the run must not start.
WAITING, CALLED, WITHDRAWN = "waiting", "called", "withdrawn"
#: Header of a call's message with the slot to take: the rule's id and the ident.
SLOT_HEADER: Final = f"{HEADER}_slot"

#: Celery apps by the names of tasks that have run in this process.
celery_apps: Final[dict[str, Celery]] = {}


def line_up(
    task: CeleryTask | Task[..., object],
    lease_key: LeaseKey,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    max_waiting: int,
) -> tuple[AsyncResult | TaskResult[..., object], Any] | None:
    """Enqueue a task that waits for a slot. Return its result and its place, or None if ``max_waiting`` tasks wait."""
    return (_line_up_celery if CeleryTasks().takes(task) else _line_up_row)(task, lease_key, args, kwargs, max_waiting)


def _line_up_celery(
    task: CeleryTask, lease_key: LeaseKey, args: Sequence[object], kwargs: Mapping[str, object], max_waiting: int
) -> tuple[AsyncResult, int | None] | None:
    task_id = str(uuid4())
    name = f"{task_id}.0"

    def message(kind: str) -> Signature:
        return task.signature(tuple(args), dict(kwargs)).set(task_id=task_id, headers={HEADER: [0, 0, False, kind]})

    place = enlist(lease_key, name, celery_entry(name, task, message(CALLED)), max_waiting=max_waiting)
    if place == 0:
        return None
    try:
        return message(WAITING).apply_async(eta=next_look()), place
    except Exception:
        claim(name, WITHDRAWN, commit=True)
        raise


def _line_up_row(
    task: Task[..., object], lease_key: LeaseKey, args: Sequence[object], kwargs: Mapping[str, object], max_waiting: int
) -> tuple[TaskResult[..., object], int | None] | None:
    look = next_look()
    due = task.using(run_after=look if settings.USE_TZ else timezone.make_naive(look))
    result = due.enqueue(*args, **kwargs)
    row = getattr(result, "db_result", None)
    if row is None:
        raise ImproperlyConfigured("only Celery and django-tasks-db can call a task when a slot is released")
    place = enlist(lease_key, str(row.pk), row_entry(row), max_waiting=max_waiting)
    if place == 0:
        type(row).objects.filter(pk=row.pk, status="READY").delete()
        return None
    return result, place


def enlist(
    lease_key: LeaseKey, name: str, entry: str, *, is_first: bool = False, max_waiting: int = 10_000
) -> int | None:
    """Enlist a waiting run. Return its place, 0 if too many runs wait, or None if the store does not answer."""
    try:
        place: int = get_store().execute(
            Enlist(*lease_key, name, entry.encode(), ENLISTMENT_TTL_MS, is_first, max_waiting)
        )
    except StoreError:
        return None
    return place


def claim(name: str, message: str, *, commit: bool) -> bool:
    """Return True if no other message has claimed the run. With ``commit``, this message claims it."""
    try:
        claimant: str = get_store().execute(ClaimRun(name, message, CLAIM_TTL_MS if commit else 0))
    except StoreError:
        return True
    return claimant in ("", message)


def call_next(lease_key: LeaseKey) -> None:
    """Call the first run that waits for a slot of this rule and ident."""
    try:
        while (entry := get_store().execute(CallNext(*lease_key))) is not None:
            if _call(lease_key, json.loads(entry)):
                return
    except StoreError:
        logger.debug("the store does not answer: the next task that waits for a slot will look for it by itself")


def _call(lease_key: LeaseKey, entry: list[str]) -> bool:
    """Call a run. Return False if it has run already, or was withdrawn."""
    kind, name, *rest = entry
    try:
        return _call_row(name) if kind == "row" else _call_celery(lease_key, name, *rest)
    except Exception:  # any error of the broker or the database
        logger.exception("a task that waits for a slot could not be called: it will look for the slot by itself")
        enlist(lease_key, name, json.dumps(entry), is_first=True)
        return True


def row_entry(row: Model) -> str:
    return json.dumps(["row", str(row.pk)])


def _call_row(key: str) -> bool:
    from django_tasks_db.models import DBTaskResult

    return bool(DBTaskResult.objects.filter(pk=key, status="READY").update(run_after=shared_now()))


def celery_entry(name: str, task: CeleryTask, signature: Signature) -> str:
    """Return the entry of a Celery run, with its signature serialized by the task's serializer."""
    serializer = task.serializer or task.app.conf.task_serializer
    content_type, encoding, body = _serialization().dumps(dict(signature), serializer=serializer)
    body = base64.b64encode(body.encode() if isinstance(body, str) else body).decode()
    return json.dumps(["celery", name, task.name, content_type, encoding, body])


def _call_celery(lease_key: LeaseKey, name: str, task: str, content_type: str, encoding: str, body: str) -> bool:
    from celery.canvas import Signature
    from celery.utils.time import maybe_iso8601, maybe_make_aware  # type: ignore[import-untyped]

    if not claim(name, CALLED, commit=False):
        return False
    app = next(_apps(task))
    accept = _serialization().prepare_accept_content(app.conf.accept_content)
    content = _serialization().loads(base64.b64decode(body), content_type, encoding, accept=accept)
    signature = Signature.from_dict(content, app=app)
    expires = maybe_iso8601(signature.options.get("expires"))
    if expires and maybe_make_aware(expires, app.timezone) <= app.now():  # RabbitMQ may drop it without notice
        return False
    signature.set(headers={**signature.options["headers"], SLOT_HEADER: list(lease_key)}).apply_async()
    return True


def _serialization() -> ModuleType:
    return import_module("kombu.serialization")


def _apps(task: str) -> Iterator[Celery]:
    from celery import current_app

    if task in celery_apps:
        yield celery_apps[task]
    yield from (deferral.app for deferral in deferral_tasks if CeleryTasks().takes(deferral) and deferral.name == task)
    yield current_app


def next_look() -> datetime:
    """Return the time at which a run that waits from now on looks for a slot by itself."""
    return datetime.fromtimestamp(shared_now().timestamp() + WAIT_SECONDS, UTC)


freed_slots.call_next = call_next

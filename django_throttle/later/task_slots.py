"""Runs of tasks that wait for a slot of a concurrency rule, and are called when one is given back.

The site's own queue keeps each of them all the time, as a message or a row that asks by itself every WAIT_SECONDS: a
process that held a slot may have been killed. What is kept in the store beside that is how to call it earlier.
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
from django_throttle.later.site_queues import HEADER, CeleryTasks, deferred_to
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

# Seconds after which a run that waits asks by itself.
WAIT_SECONDS: Final = 30.0
ENLISTED_MS: Final = 300_000  # for which the store keeps how to call it; asking renews that
CLAIMED_MS: Final = 86_400_000  # for which it is known which message has had a run
# Messages of Celery for one run: that which asks by itself, and that of a call; neither of one that is not to run.
WAITING, CALLED, WITHDRAWN = "waiting", "called", "withdrawn"
# Of Celery's message of a call: the rule's id and the ident whose slot the run is called for.
SLOT_HEADER: Final = f"{HEADER}_slot"

celery_apps: Final[dict[str, Celery]] = {}  # by the names of tasks that have run in this process


def line_up(
    task: CeleryTask | Task[..., object],
    hold: LeaseKey,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    most: int,
) -> tuple[AsyncResult | TaskResult[..., object], Any] | None:
    """Enqueue a task that runs when it has a slot; returns its result to be and its place, None if ``most`` wait."""
    return (_line_up_celery if CeleryTasks().takes(task) else _line_up_row)(task, hold, args, kwargs, most)


def _line_up_celery(
    task: CeleryTask, hold: LeaseKey, args: Sequence[object], kwargs: Mapping[str, object], most: int
) -> tuple[AsyncResult, int | None] | None:
    task_id = str(uuid4())
    name = f"{task_id}.0"

    def message(kind: str) -> Signature:
        return task.signature(tuple(args), dict(kwargs)).set(task_id=task_id, headers={HEADER: [0, 0, False, kind]})

    place = enlist(hold, name, celery_entry(name, task, message(CALLED)), most=most)
    if place == 0:
        return None
    try:
        return message(WAITING).apply_async(eta=next_look()), place
    except Exception:
        claim(name, WITHDRAWN, commit=True)
        raise


def _line_up_row(
    task: Task[..., object], hold: LeaseKey, args: Sequence[object], kwargs: Mapping[str, object], most: int
) -> tuple[TaskResult[..., object], int | None] | None:
    look = next_look()
    due = task.using(run_after=look if settings.USE_TZ else timezone.make_naive(look))
    result = due.enqueue(*args, **kwargs)
    row = getattr(result, "db_result", None)
    if row is None:
        raise ImproperlyConfigured("only Celery and django-tasks-db can call a task when a slot is given back")
    place = enlist(hold, str(row.pk), row_entry(row), most=most)
    if place == 0:
        type(row).objects.filter(pk=row.pk, status="READY").delete()
        return None
    return result, place


def enlist(hold: LeaseKey, name: str, entry: str, *, is_first: bool = False, most: int = 10_000) -> int | None:
    """Note a run that waits; returns its place, 0 for one too many, and None where the store does not answer."""
    try:
        place: int = get_store().execute(Enlist(*hold, name, entry.encode(), ENLISTED_MS, is_first, most))
    except StoreError:
        return None
    return place


def claim(name: str, message: str, *, commit: bool) -> bool:
    """Return True where this message may run, as no other one for the same run has; with ``commit`` it has it then."""
    try:
        found: str = get_store().execute(ClaimRun(name, message, CLAIMED_MS if commit else 0))
    except StoreError:
        return True
    return found in ("", message)


def call_next(hold: LeaseKey) -> None:
    """Call the first run that waits for a slot of this rule and ident."""
    try:
        while (entry := get_store().execute(CallNext(*hold))) is not None:
            if _call(hold, json.loads(entry)):
                return
    except StoreError:
        logger.debug("the next run of a task that waits for a slot asks by itself")


def _call(hold: LeaseKey, entry: list[str]) -> bool:
    """Call this run; False where it has run already, or never will."""
    kind, name, *rest = entry
    try:
        return _call_row(name) if kind == "row" else _call_celery(hold, name, *rest)
    except Exception:  # whatever the broker or the database raises
        logger.exception("a run of a task that waits for a slot was not called, and asks by itself")
        enlist(hold, name, json.dumps(entry), is_first=True)
        return True


def row_entry(row: Model) -> str:
    return json.dumps(["row", str(row.pk)])


def _call_row(key: str) -> bool:
    from django_tasks_db.models import DBTaskResult

    return bool(DBTaskResult.objects.filter(pk=key, status="READY").update(run_after=shared_now()))


def celery_entry(name: str, task: CeleryTask, signature: Signature) -> str:
    """Return what publishes the message of a run of Celery's, serialized as its broker has it."""
    serializer = task.serializer or task.app.conf.task_serializer
    content_type, encoding, body = _serialization().dumps(dict(signature), serializer=serializer)
    body = base64.b64encode(body.encode() if isinstance(body, str) else body).decode()
    return json.dumps(["celery", name, task.name, content_type, encoding, body])


def _call_celery(hold: LeaseKey, name: str, task: str, content_type: str, encoding: str, body: str) -> bool:
    from celery.canvas import Signature
    from celery.utils.time import maybe_iso8601, maybe_make_aware  # type: ignore[import-untyped]

    if not claim(name, CALLED, commit=False):
        return False
    app = next(_apps(task))
    accept = _serialization().prepare_accept_content(app.conf.accept_content)
    content = _serialization().loads(base64.b64decode(body), content_type, encoding, accept=accept)
    signature = Signature.from_dict(content, app=app)
    expires = maybe_iso8601(signature.options.get("expires"))
    if expires and maybe_make_aware(expires, app.timezone) <= app.now():  # RabbitMQ may drop it, and says nothing then
        return False
    signature.set(headers={**signature.options["headers"], SLOT_HEADER: list(hold)}).apply_async()
    return True


def _serialization() -> ModuleType:
    return import_module("kombu.serialization")


def _apps(task: str) -> Iterator[Celery]:
    from celery import current_app

    if task in celery_apps:
        yield celery_apps[task]
    yield from (one.app for one in deferred_to if CeleryTasks().takes(one) and one.name == task)
    yield current_app


def next_look() -> datetime:
    """Return when a run asks by itself that waits from now on."""
    return datetime.fromtimestamp(shared_now().timestamp() + WAIT_SECONDS, UTC)


freed_slots.call_next = call_next

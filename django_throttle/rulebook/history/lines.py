"""Lines of the history, one for each edit, saved in the transaction of the edit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.db import Error, IntegrityError, models, transaction
from django.utils.dateparse import parse_datetime

from django_throttle.core.texts import translatable
from django_throttle.local.shared_clock import shared_now
from django_throttle.rulebook import sources
from django_throttle.translated import to_the_second

if TYPE_CHECKING:
    from django_throttle.models.change import ThrottleChange

logger = logging.getLogger("django_throttle")

MAX_TEXT_CHARS: Final = 4000  # of a description or a reason
MAX_DAYS: Final = 366
MAX_LINES: Final = 100_000
TIME_COLUMNS: Final = ("until", "starts_at")
PRUNE_SECONDS: Final = 600.0  # interval at which a process deletes old lines

State = Mapping[str, object]  # columns of a row, as in JSON


@dataclass(frozen=True, slots=True)
class Editor:
    """Person or process that edits."""

    who: str = ""  #: user name
    via: str = ""  #: "admin", "command", "import", "settings", or a place of the site's own
    reason: str = ""
    action: str = ""  #: name of the edit instead of "added", "changed" or "removed"


UNKNOWN_EDITOR: Final = Editor()
_editor: Final[ContextVar[Editor]] = ContextVar("django_throttle_editor", default=UNKNOWN_EDITOR)


@contextmanager
def editing(who: str, via: str, reason: str = "", action: str = "") -> Iterator[None]:
    """Record the edits inside as edits by this person. ``action`` replaces "added", "changed" or "removed"."""
    token = _editor.set(Editor(who, via, reason, action))
    try:
        yield
    finally:
        _editor.reset(token)


@contextmanager
def because(reason: str, action: str = "") -> Iterator[None]:
    """Record the edits inside with this reason, unless it is empty, and with ``action`` as in ``editing``."""
    editor = _editor.get()
    with editing(editor.who, editor.via, reason.strip() or editor.reason, action or editor.action):
        yield


def record(
    kind: str,
    name: str,
    action: str,
    words: str = "",
    *,
    row: int | None = None,
    before: State | None = None,
    after: State | None = None,
    once: str = "",
    using: str | None = None,
) -> bool:
    """Save a line by the current editor. Return False if a line with the same ``once`` exists.

    ``kind`` is "rule", "override" or "settings", and ``row`` the primary key. If ``words`` are empty, they are the
    differences between ``before`` and ``after``. The line is part of the caller's transaction in the database
    ``using``, by default the database of the rules.
    """
    change = new_line(kind, name, action, words, row=row, before=before, after=after)
    using = using or sources.alias()
    if not once:
        save_lines([change], using)
        return True
    change.once = once[:200]
    try:
        with transaction.atomic(using=using):
            save_lines([change], using)
    except IntegrityError:
        if not _model()._base_manager.using(using).filter(once=change.once).exists():
            raise
        return False
    return True


def new_line(
    kind: str,
    name: str,
    action: str,
    words: str = "",
    *,
    row: int | None = None,
    before: State | None = None,
    after: State | None = None,
) -> ThrottleChange:
    """Return an unsaved line by the current editor."""
    editor = _editor.get()
    return _model()(
        kind=kind,
        name=name[:200],
        action=(editor.action or action)[:30],
        words=(words or "; ".join(changes(before, after)) or "nothing changed")[:MAX_TEXT_CHARS],
        row=row,
        before=before,
        after=after,
        who=_storable(editor.who)[:150],
        via=editor.via[:30],
        reason=_storable(editor.reason)[:MAX_TEXT_CHARS],
    )


def _storable(text: str) -> str:
    """Replace characters that databases cannot store. Arguments from a shell may contain them."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "?")


def save_lines(lines: Iterable[ThrottleChange], using: str) -> None:
    """Save lines. Delete old lines after the commit."""
    _model()._base_manager.using(using).bulk_create(lines, batch_size=500)
    transaction.on_commit(lambda: _prune(using), using=using, robust=True)


def changes(
    before: State | None, after: State | None, labels: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Yield a text for each column that differs, such as "rate: 100/min → 50/min" or "limit: default → 5"."""
    old, new = before or {}, after or {}
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            label = labels.get(name) or name.replace("_", " ")
            describe = _time_in_words if name in TIME_COLUMNS else in_words
            was, now = (describe(state[name]) if name in state else translatable("default") for state in (old, new))
            yield translatable("{label}: {was} → {now}", label=label, was=was, now=now)


def _time_in_words(value: object) -> str:
    moment = parse_datetime(value) if isinstance(value, str) else None
    return to_the_second(moment) if moment else in_words(value)


def in_words(value: object) -> str:
    """Return the value of a column as text."""
    if isinstance(value, bool):
        return translatable("yes") if value else translatable("no")
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if value is not None and text else translatable("none")


def delete_old(using: str) -> int:
    """Delete lines older than MAX_DAYS, and all but the newest MAX_LINES. Return the number of deleted lines.

    The newest line of settings stays, because the next line of settings is compared with it.
    """
    rows = _model()._base_manager.using(using)
    newest = rows.order_by("-pk").values_list("pk", flat=True).first()
    if newest is None:
        return 0
    settings = rows.filter(kind="settings").order_by("-pk").values_list("pk", flat=True).first()
    cutoff = shared_now() - timedelta(days=MAX_DAYS)
    old = rows.filter(models.Q(at__lt=cutoff) | models.Q(pk__lte=newest - MAX_LINES)).exclude(pk=settings or 0)
    return int(old.delete()[0])


_pruned_at: dict[str, float] = {}  # by database, on the monotonic clock


def _prune(using: str) -> None:
    """Delete old lines, once in PRUNE_SECONDS. Raise nothing."""
    now = monotonic()
    if now - _pruned_at.get(using, -PRUNE_SECONDS) < PRUNE_SECONDS:
        return
    _pruned_at[using] = now
    try:
        delete_old(using)
    except Error as error:
        logger.warning("old lines of the history could not be removed, they stay until the next edit: %s", error)


def _model() -> type[ThrottleChange]:
    return apps.get_model("django_throttle", "ThrottleChange")

"""Writes one line of the history for each edit, in the transaction of the edit.

Who edits, where and why is said by ``editing`` around the edit; ``record`` takes the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.db import Error, IntegrityError, models, transaction
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_throttle.core.texts import gettext_lazy
from django_throttle.rulebook import sources
from django_throttle.translated import to_the_second

if TYPE_CHECKING:
    from django_throttle.models.change import ThrottleChange

logger = logging.getLogger("django_throttle")

MOST_WORDS: Final = 4000  # characters of a description in words, or of a reason
MAX_DAYS: Final = 366  # lines are kept for a year
MOST_CHANGES: Final = 100_000  # lines that are kept, the newest
MOMENTS: Final = ("until", "starts_at")  # columns that hold one, as JSON has it
PRUNE_SECONDS: Final = 600.0  # between two looks of a process for lines that are too old

State = Mapping[str, object]  # the columns of a row, as JSON has them


@dataclass(frozen=True, slots=True)
class Editor:
    """Who edits, where (``admin``, ``command``, ``import``, ``settings``), why, and what the edit is called."""

    who: str = ""
    via: str = ""
    reason: str = ""
    action: str = ""


NOBODY: Final = Editor()
_editor: Final[ContextVar[Editor]] = ContextVar("django_throttle_editor", default=NOBODY)


@contextmanager
def editing(who: str, via: str, reason: str = "", action: str = "") -> Iterator[None]:
    """Every edit inside is by this person; ``action`` replaces "added", "changed" or "removed"."""
    token = _editor.set(Editor(who, via, reason, action))
    try:
        yield
    finally:
        _editor.reset(token)


@contextmanager
def because(reason: str, action: str = "") -> Iterator[None]:
    """Every edit inside has this reason, unless it is empty, and ``action`` as in ``editing``."""
    now = _editor.get()
    with editing(now.who, now.via, reason.strip() or now.reason, action or now.action):
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
    """Write one line, by the present editor; False where a line with the same ``once`` is there already.

    ``kind`` is "rule", "override" or "settings", ``row`` the primary key. Empty ``words`` are made of ``before`` and
    ``after``. The line is part of the caller's transaction in the database ``using``, which is that of the rules by
    default.
    """
    change = made(kind, name, action, words, row=row, before=before, after=after)
    using = using or sources.alias()
    if not once:
        keep([change], using)
        return True
    change.once = once[:200]
    try:
        with transaction.atomic(using=using):
            keep([change], using)
    except IntegrityError:
        if not _model()._base_manager.using(using).filter(once=change.once).exists():
            raise
        return False
    return True


def made(
    kind: str,
    name: str,
    action: str,
    words: str = "",
    *,
    row: int | None = None,
    before: State | None = None,
    after: State | None = None,
) -> ThrottleChange:
    """One line by the present editor, not saved."""
    editor = _editor.get()
    return _model()(
        kind=kind,
        name=name[:200],
        action=(editor.action or action)[:30],
        words=(words or "; ".join(changes(before, after)) or "nothing changed")[:MOST_WORDS],
        row=row,
        before=before,
        after=after,
        who=_as_text(editor.who)[:150],
        via=editor.via[:30],
        reason=_as_text(editor.reason)[:MOST_WORDS],
    )


def _as_text(given: str) -> str:
    """Without what databases do not store: a shell passes on bytes that are no text."""
    return given.encode("utf-8", "replace").decode().replace("\x00", "?")


def keep(lines: Iterable[ThrottleChange], using: str) -> None:
    """Save these lines; what is too old is removed once they are committed."""
    _model()._base_manager.using(using).bulk_create(lines, batch_size=500)
    transaction.on_commit(lambda: _prune_sometimes(using), using=using, robust=True)


def changes(
    before: State | None, after: State | None, labels: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """What differs, a text for each column, such as "rate: 100/min → 50/min"; a column at its default is "default"."""
    old, new = before or {}, after or {}
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            label = labels.get(name) or name.replace("_", " ")
            told = _moment if name in MOMENTS else in_words
            was, now = (told(one[name]) if name in one else gettext_lazy("default") for one in (old, new))
            yield gettext_lazy("{label}: {was} → {now}", label=label, was=was, now=now)


def _moment(value: object) -> str:
    moment = parse_datetime(value) if isinstance(value, str) else None
    return to_the_second(moment) if moment else in_words(value)


def in_words(value: object) -> str:
    """What a column holds."""
    if isinstance(value, bool):
        return gettext_lazy("yes") if value else gettext_lazy("no")
    said = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return said if value is not None and said else gettext_lazy("none")


def aged(using: str, now: datetime | None = None) -> int:
    """Remove lines older than MAX_DAYS, and all but the newest MOST_CHANGES; returns how many.

    The newest line of settings stays, as the next one is compared with it.
    """
    rows = _model()._base_manager.using(using)
    newest = rows.order_by("-pk").values_list("pk", flat=True).first()
    if newest is None:
        return 0
    told = rows.filter(kind="settings").order_by("-pk").values_list("pk", flat=True).first()
    cutoff = (now or timezone.now()) - timedelta(days=MAX_DAYS)
    old = rows.filter(models.Q(at__lt=cutoff) | models.Q(pk__lte=newest - MOST_CHANGES)).exclude(pk=told or 0)
    return int(old.delete()[0])


_pruned: dict[str, float] = {}


def _prune_sometimes(using: str) -> None:
    """After a commit: never raises."""
    now = monotonic()
    if now - _pruned.get(using, -PRUNE_SECONDS) < PRUNE_SECONDS:
        return
    _pruned[using] = now
    try:
        aged(using)
    except Error as error:
        logger.warning("old lines of the history could not be removed, they stay until the next edit: %s", error)


def _model() -> type[ThrottleChange]:
    return apps.get_model("django_throttle", "ThrottleChange")

"""Recording of overrides that ended by their own time. Among all processes, each end has one line."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from django.apps import apps
from django.db import Error
from django.dispatch import receiver

from django_throttle.conf import conf
from django_throttle.core import Override
from django_throttle.local.shared_clock import shared_now
from django_throttle.rulebook import sources
from django_throttle.rulebook.current_rules import rules_read
from django_throttle.rulebook.history.lines import MAX_DAYS, record
from django_throttle.signals import overrides_ended

logger = logging.getLogger("django_throttle")

BATCH_SIZE: Final = 500
#: Maximum delay between the end of an override that an operator ends and the line of that edit.
EDIT_SECONDS: Final = 2.0

#: Number of the newest ended overrides that have their lines, if others may lack them: no process could write those.
_lines_up_to: int | None = 0


@receiver(overrides_ended, dispatch_uid="django_throttle.rulebook.history")
def _record(*, overrides: tuple[Override, ...], **_: object) -> None:
    global _lines_up_to
    try:
        for start in range(0, len(overrides), BATCH_SIZE):
            batch = overrides[start : start + BATCH_SIZE]
            _record_ends({override.number: override.until for override in batch})
    except Error as error:
        _lines_up_to = 0
        logger.warning("the history lacks ends of overrides, the next reading tries again: %s", error)


@receiver(rules_read, dispatch_uid="django_throttle.rulebook.history.ended")
def _record_missing(**_: object) -> None:
    """Record overrides that ended while no process ran, or while the database was away, the newest batch first."""
    global _lines_up_to
    if _lines_up_to is None or not conf().DATABASE_RULES:
        return
    try:
        while (ends := _ends_without_edit(_lines_up_to)) is not None and (not ends or _record_ends(ends)):
            _lines_up_to += BATCH_SIZE
        _lines_up_to = None
    except Error as error:
        logger.info("the history may lack ends of overrides, the next reading tries again: %s", error)


def _ends_without_edit(first: int) -> dict[int, float | None] | None:
    """Return the ends that no edit has made, by number of the override: a batch, after the ``first`` newest.

    Return None if there are no more overrides that have ended.
    """
    using, now = sources.alias(), shared_now()
    rows = apps.get_model("django_throttle", "ThrottleOverride")._base_manager.using(using)
    rows = rows.filter(until__lte=now, until__gt=now - timedelta(days=MAX_DAYS)).order_by("-until", "-pk")
    ends = {row.pk: (row.until, row.created_at) for row in rows[first : first + BATCH_SIZE]}
    if not ends:
        return None
    lines = apps.get_model("django_throttle", "ThrottleChange")._base_manager.using(using)
    edits = lines.filter(kind="override", row__in=list(ends)).exclude(action="ran out").order_by("pk")
    last_edits = dict(edits.values_list("row", "at"))
    margin = timedelta(seconds=EDIT_SECONDS)
    return {
        pk: until.timestamp()
        for pk, (until, created_at) in ends.items()
        if last_edits.get(pk, created_at) < until - margin
    }


def _record_ends(ends: dict[int, float | None]) -> bool:
    """Record these ends by number of the override, except where an edit has changed the end meanwhile.

    Return True if a line was missing.
    """
    using = sources.alias()
    rows = apps.get_model("django_throttle", "ThrottleOverride")._base_manager.using(using).filter(pk__in=list(ends))
    unchanged = [row for row in rows if row.until is not None and row.until.timestamp() == ends[row.pk]]
    ended = {f"override:{row.pk}:{row.until.isoformat()}": row for row in unchanged}
    lines = apps.get_model("django_throttle", "ThrottleChange")._base_manager.using(using)
    recorded = set(lines.filter(once__in=list(ended)).values_list("once", flat=True))
    missing = {once: row for once, row in ended.items() if once not in recorded}
    for once, row in missing.items():
        record("override", row.history_name, "ran out", row.meaning, row=row.pk, once=once, using=using)
    return bool(missing)

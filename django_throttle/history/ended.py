"""Tells of overrides that ran out by their own time: one line for each, whichever process writes it."""

from __future__ import annotations

import logging
from typing import Final

from django.apps import apps
from django.db import Error

from django_throttle.core import Override
from django_throttle.history.lines import record
from django_throttle.rulebook import sources
from django_throttle.signals import overrides_ended

logger = logging.getLogger("django_throttle")

AT_ONCE: Final = 500


def connect() -> None:
    """Listen to overrides that end."""
    overrides_ended.connect(_tell, dispatch_uid="django_throttle.history")


def _tell(*, overrides: tuple[Override, ...], **_: object) -> None:
    try:
        for at in range(0, len(overrides), AT_ONCE):
            _tell_some({one.number: one.until for one in overrides[at : at + AT_ONCE]})
    except Error as error:
        logger.warning("the history lacks that overrides ran out, unless another process has told it: %s", error)


def _tell_some(ends: dict[int, float | None]) -> None:
    """By number, when they ended; one that was ended or extended by an edit meanwhile has that edit's line."""
    using = sources.alias()
    rows = apps.get_model("django_throttle", "ThrottleOverride")._base_manager.using(using).filter(pk__in=list(ends))
    over = [row for row in rows if row.until is not None and row.until.timestamp() == ends[row.pk]]
    found = {f"override:{row.pk}:{row.until.isoformat()}": row for row in over}
    lines = apps.get_model("django_throttle", "ThrottleChange")._base_manager.using(using)
    told = set(lines.filter(once__in=list(found)).values_list("once", flat=True))
    for once, row in found.items():
        if once not in told:
            record("override", row.history_name, "ran out", row.meaning, row=row.pk, once=once, using=using)

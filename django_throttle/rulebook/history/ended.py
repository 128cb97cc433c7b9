"""Tells of overrides that ran out by their own time: one line for each, whichever process writes it."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from django.apps import apps
from django.db import Error

from django_throttle.conf import conf
from django_throttle.core import Override
from django_throttle.local.shared_clock import shared_now
from django_throttle.rulebook import sources
from django_throttle.rulebook.current_rules import rules_read
from django_throttle.rulebook.history.lines import MAX_DAYS, record
from django_throttle.signals import overrides_ended

logger = logging.getLogger("django_throttle")

AT_ONCE: Final = 500
EDIT_SECONDS: Final = 2.0  # an edit by which an override ends is written so long after the end at most

_may_lack: bool = True  # lines of overrides that ended while no process could write them


def connect() -> None:
    """Listen to overrides that end, and to the database when it answers."""
    overrides_ended.connect(_tell, dispatch_uid="django_throttle.rulebook.history")
    rules_read.connect(_tell_missed, dispatch_uid="django_throttle.rulebook.history.ended")


def _tell(*, overrides: tuple[Override, ...], **_: object) -> None:
    global _may_lack
    try:
        for at in range(0, len(overrides), AT_ONCE):
            _tell_some({one.number: one.until for one in overrides[at : at + AT_ONCE]})
    except Error as error:
        _may_lack = True
        logger.warning("the history lacks that overrides ran out, the next reading tries again: %s", error)


def _tell_missed(**_: object) -> None:
    """Tell of the overrides that ended while no process ran, or while the database was away."""
    global _may_lack
    if not (_may_lack and conf().DATABASE_RULES):
        return
    _may_lack = False
    try:
        _tell_some(_ran_out())
    except Error as error:
        _may_lack = True
        logger.info("the history may lack overrides that ran out, the next reading tries again: %s", error)


def _ran_out() -> dict[int, float | None]:
    """Return the newest overrides that no edit has ended, with their ends."""
    using, now = sources.alias(), shared_now()
    rows = apps.get_model("django_throttle", "ThrottleOverride")._base_manager.using(using)
    rows = rows.filter(until__lte=now, until__gt=now - timedelta(days=MAX_DAYS)).order_by("-until")
    ends = {row.pk: (row.until, row.created_at) for row in rows[:AT_ONCE]}
    lines = apps.get_model("django_throttle", "ThrottleChange")._base_manager.using(using)
    edits = lines.filter(kind="override", row__in=list(ends)).exclude(action="ran out").order_by("pk")
    edited = dict(edits.values_list("row", "at"))  # last
    margin = timedelta(seconds=EDIT_SECONDS)
    return {pk: until.timestamp() for pk, (until, made) in ends.items() if edited.get(pk, made) < until - margin}


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

"""Tells the rulebook of each committed edit, once per transaction."""

from __future__ import annotations

from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import transaction
from django.db.models.signals import post_delete, post_save

from django_throttle.rulebook import book


class _Batch:
    """The edits of one connection since the last commit that had any."""

    __slots__ = ("__weakref__", "told")

    def __init__(self) -> None:
        self.told = False


_batches: Final[WeakKeyDictionary[Any, _Batch]] = WeakKeyDictionary()


def connect() -> None:
    """Listen to saves and deletions of rules and overrides."""
    for model in ("ThrottleRule", "ThrottleOverride"):
        for signal in (post_save, post_delete):
            signal.connect(_edited, sender=f"django_throttle.{model}", dispatch_uid="django_throttle.edits")


def announce(alias: str) -> None:
    """Tell the rulebook when the present transaction is committed, however often this is called in it."""
    connection = transaction.get_connection(alias)
    batch = _batches.get(connection)
    if batch is None or batch.told:
        batch = _batches[connection] = _Batch()
    transaction.on_commit(partial(_tell, batch), using=alias)


def _tell(batch: _Batch) -> None:
    if not batch.told:
        batch.told = True
        book.changed()


def _edited(*, using: str, **_: object) -> None:
    announce(using)

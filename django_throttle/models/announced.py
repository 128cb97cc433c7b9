"""Rows whose every edit is told to the rulebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.db import models

from django_throttle.rulebook import edits

M = TypeVar("M", bound=models.Model)


class AnnouncedQuerySet(models.QuerySet[M]):
    """Edits in bulk send no signals, so they are announced here."""

    def update(self, **values: Any) -> int:
        changed = super().update(**values)
        edits.announce(self.db)
        return changed

    def bulk_create(self, objs: Iterable[M], *args: Any, **options: Any) -> list[M]:
        created = super().bulk_create(objs, *args, **options)
        edits.announce(self.db)
        return created

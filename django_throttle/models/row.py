"""What rows of rules and of overrides have in common: each is read by the core, which says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import models

from django_throttle.exceptions import InvalidOverride, InvalidRate, InvalidRule
from django_throttle.models.fields import is_text
from django_throttle.rulebook import in_force
from django_throttle.rulebook.sources import sentence

M = TypeVar("M", bound=models.Model)


class AnnouncedQuerySet(models.QuerySet[M]):
    """Edits in bulk send no signals, so they are announced here."""

    def update(self, **values: Any) -> int:
        changed = super().update(**values)
        in_force.announce(self.db)
        return changed

    def bulk_create(self, objs: Iterable[M], *args: Any, **options: Any) -> list[M]:
        created = super().bulk_create(objs, *args, **options)
        in_force.announce(self.db)
        return created


class CheckedRow(models.Model):
    """A row that says what it means, or why it is not in force."""

    class Meta:
        abstract = True

    def read(self) -> Any:
        """The core's value that this row describes; raises InvalidRule, InvalidOverride or InvalidRate."""
        raise NotImplementedError

    def describe(self) -> str:
        """What it means, in words; for a row that makes sense."""
        raise NotImplementedError

    @property
    def fault(self) -> str | None:
        """Why this row is not in force; None when it makes sense."""
        try:
            self.read()
        except (InvalidRule, InvalidOverride, InvalidRate) as error:
            return self._sentence(error)
        return None

    @property
    def meaning(self) -> str:
        """What it means, in words; why it is not in force when it makes no sense."""
        fault = self.fault
        return f"Not in force: {fault}" if fault else self.describe()

    def full_clean(self, *args: Any, **options: Any) -> None:
        """As Django's, with one message for each field: the second would say the same, or contradict it."""
        try:
            super().full_clean(*args, **options)
        except ValidationError as error:
            raise ValidationError({name: found[:1] for name, found in error.error_dict.items()}) from error

    def clean(self) -> None:
        """Refuse texts with NUL characters or surrogates, which databases do not store, and what makes no sense."""
        texts = [
            field for field in self._meta.concrete_fields if isinstance(field, (models.CharField, models.TextField))
        ]
        wrong = [one.name for one in texts if not is_text(str(one.get_prep_value(one.value_from_object(self))))]
        if wrong:
            raise ValidationError(dict.fromkeys(wrong, "A text must not contain NUL characters or surrogates."))
        try:
            self.read()
        except InvalidRate as error:
            raise ValidationError({"rate": str(error)}) from error
        except (InvalidRule, InvalidOverride) as error:
            raise ValidationError({error.option or "algorithm": self._sentence(error)}) from error

    def _sentence(self, error: Exception) -> str:
        return sentence(getattr(self, "name", ""), error)

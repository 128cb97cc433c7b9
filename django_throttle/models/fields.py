"""Columns of the models: texts, numbers, names, rates, and the options of a rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BaseConstraint, CheckConstraint, Q
from django.utils.translation import gettext, gettext_lazy

from django_throttle.core import Rate, texts
from django_throttle.core.options import stored_options
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.translated import capitalised, translated


def split(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names in a comma separated text or an iterable, each once, without the spaces around them."""
    if isinstance(names, str):
        return _split(names)
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


@lru_cache(maxsize=4096)
def _split(names: str) -> tuple[str, ...]:
    return split(names.split(","))


def tidy_rates(text: str) -> str:
    """Return the rates as this package writes them, whatever spaces and capitals were typed. Raise InvalidRate."""
    parts = [(part, text if part.isdecimal() else part) for part in split(text)]  # 0,5/min is one text
    rates = (Rate.parse("".join(part.split()).lower(), calendar=True, typed=typed) for part, typed in parts)
    return ", ".join(dict.fromkeys(map(str, rates)))


def is_text(value: str) -> bool:
    """Return True for text that databases, files and terminals take: without NUL and surrogates."""
    return "\x00" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


class Column(models.Field):  # type: ignore[type-arg]
    """A column whose labels, help and choices are in no migration, nor a class of this package: they may change."""

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, kwargs = super().deconstruct()
        django = next(base for base in type(self).__mro__ if base.__module__.startswith("django.db.models"))
        kept = {key: value for key, value in kwargs.items() if key not in ("verbose_name", "help_text", "choices")}
        return name, f"django.db.models.{django.__name__}", args, kept


class TextColumn(Column, models.CharField):  # type: ignore[type-arg]
    """A short text."""


class NoteColumn(Column, models.TextField):  # type: ignore[type-arg]
    """A long text."""


class SwitchColumn(Column, models.BooleanField):  # type: ignore[type-arg]
    """True or False."""


class MomentColumn(Column, models.DateTimeField):  # type: ignore[type-arg]
    """A moment."""


class WholeColumn(Column, models.PositiveBigIntegerField):  # type: ignore[type-arg]
    """A whole number; the row says its bounds, so that one message says what is wrong."""

    validators = []

    def formfield(self, **options: Any) -> forms.Field | None:
        return super().formfield(**{"min_value": None, "max_value": None, **options})


class RatesField(Column, models.CharField):  # type: ignore[type-arg]
    """One rate or several as text, in its shortest form: "100 / Minute,1000/day" is stored as "100/min, 1000/day"."""

    def to_python(self, value: object) -> str | None:
        text: str | None = super().to_python(value)
        if not text:
            return text
        try:
            return tidy_rates(text)
        except InvalidRate as error:
            raise ValidationError(capitalised(translated(error)), code="invalid") from error

    def get_prep_value(self, value: object) -> str | None:
        text: str | None = super(models.CharField, self).get_prep_value(value)
        try:
            return tidy_rates(str(text)) if text else text
        except InvalidRate:
            return str(text)  # the table's constraint refuses it


class NumberColumn(Column, models.FloatField):  # type: ignore[type-arg]
    """A number; infinity and NaN are refused here, as the driver of MariaDB cannot ask the database's constraint."""

    default_error_messages = {"invalid": gettext_lazy("Write a number, with a point and no comma: 0.5.")}

    def formfield(self, **options: Any) -> forms.Field | None:
        return super().formfield(**{"error_messages": self.default_error_messages, **options})

    def to_python(self, value: object) -> float | None:
        number: float | None = super().to_python(value)
        if number is not None and not isfinite(number):
            raise ValidationError(gettext("“{value}” is not a finite number.").format(value=value), code="invalid")
        return number

    def get_db_prep_save(self, value: object, connection: BaseDatabaseWrapper) -> object:
        number = super().get_db_prep_save(value, connection)
        if isinstance(number, float) and not isfinite(number):
            raise IntegrityError(f"{self.name} must be a finite number, not {number}")
        return number


class NamesField(Column, models.CharField):  # type: ignore[type-arg]
    """A list of names, stored as comma separated text; in Python a tuple."""

    def from_db_value(self, value: str, *_: object) -> tuple[str, ...]:
        return split(value)

    def to_python(self, value: Any) -> tuple[str, ...]:
        return split(value or ())

    def get_prep_value(self, value: object) -> str:
        return ",".join(self.to_python(value))

    def value_to_string(self, obj: models.Model) -> str:
        return self.get_prep_value(self.value_from_object(obj))

    def run_validators(self, value: object) -> None:
        super().run_validators(self.get_prep_value(value))

    def formfield(self, **options: Any) -> forms.Field | None:
        return super().formfield(**{"form_class": NamesInput, **options})


class NamesInput(forms.CharField):
    """The form field of a list of names."""

    def to_python(self, value: Any) -> Any:  # not a text, as Django's field has
        return split(value if isinstance(value, (list, tuple)) else super().to_python(value) or ())

    def prepare_value(self, value: object) -> object:
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value

    def run_validators(self, value: Any) -> None:
        super().run_validators(",".join(value))


class OptionsField(Column, models.JSONField):
    """The options of a rule that have no column of their own, by name, without those at their default."""

    model: Any  # ThrottleRule

    def from_db_value(self, value: str | None, expression: Any, connection: BaseDatabaseWrapper) -> object:
        """Return text that is no JSON as it is, which makes one rule invalid: an error would hide all the others."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> object:
        """Raise InvalidRule for an option that is not in the table, or cannot be read. Expressions are passed on."""
        if not hasattr(value, "resolve_expression"):
            value = stored_options(self.model.core, value)
            for name in self.model.columns() & value.keys():
                raise InvalidRule(texts.gettext_lazy("{option} has a column of its own", option=name), name)
        return super().get_db_prep_save(value, connection)


_RATE: Final = "[1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))"
RATE_SHAPE: Final = f"^{_RATE}(, {_RATE})*$"


def constraints(prefix: str, **conditions: Q) -> list[BaseConstraint]:
    """Return the constraints of a table with a rate and a limit: of these two, and the given conditions by name.

    They have no messages, because ``CheckedRow.clean`` says what is wrong.
    """
    conditions["rate_shape"] = Q(rate="") | Q(rate__regex=RATE_SHAPE)
    conditions["limit_range"] = Q(limit__isnull=True) | Q(limit__gte=1, limit__lte=MAX_LIMIT)
    return [CheckConstraint(name=f"{prefix}_{name}", condition=condition) for name, condition in conditions.items()]

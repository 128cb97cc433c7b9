"""Model fields for texts, numbers, names, rates, and the options of a rule."""

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
from django_throttle.local.shared_clock import shared_now
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
    """Return rates in their shortest notation, without spaces and capitals. Raise InvalidRate."""
    parts = [(part, text if part.isdecimal() else part) for part in split(text)]  # 0,5/min is one text
    rates = (Rate.parse("".join(part.split()).lower(), calendar=True, typed=typed) for part, typed in parts)
    return ", ".join(dict.fromkeys(map(str, rates)))


def is_text(value: str) -> bool:
    """Return True for text without NUL and surrogates, which databases, files and terminals accept."""
    return "\x00" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


class Column(models.Field):  # type: ignore[type-arg]
    """Field whose migrations have Django's class, and no labels, help and choices, so that these may change."""

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, kwargs = super().deconstruct()
        django_class = next(base for base in type(self).__mro__ if base.__module__.startswith("django.db.models"))
        kept = {key: value for key, value in kwargs.items() if key not in ("verbose_name", "help_text", "choices")}
        return name, f"django.db.models.{django_class.__name__}", args, kept


class TextColumn(Column, models.CharField):  # type: ignore[type-arg]
    """Short text."""


class NoteColumn(Column, models.TextField):  # type: ignore[type-arg]
    """Long text."""


class SwitchColumn(Column, models.BooleanField):  # type: ignore[type-arg]
    """True or False."""


class MomentColumn(Column, models.DateTimeField):  # type: ignore[type-arg]
    """Time. What is set at saving is the store's time, because other hosts compare it with theirs."""

    def pre_save(self, model_instance: models.Model, add: bool) -> object:
        if not (self.auto_now or (self.auto_now_add and add)):
            return super().pre_save(model_instance, add)
        moment = shared_now()
        setattr(model_instance, self.attname, moment)
        return moment


class WholeColumn(Column, models.PositiveBigIntegerField):  # type: ignore[type-arg]
    """Whole number. The row itself checks its bounds, so that there is one message."""

    validators = []

    def formfield(self, **options: Any) -> forms.Field | None:
        return super().formfield(**{"min_value": None, "max_value": None, **options})


class RatesField(Column, models.CharField):  # type: ignore[type-arg]
    """Rates as text in their shortest notation: "100 / Minute,1000/day" is stored as "100/min, 1000/day"."""

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
            return str(text)  # the constraint of the table refuses it


class NumberColumn(Column, models.FloatField):  # type: ignore[type-arg]
    """Finite number. The driver of MariaDB cannot send infinity and NaN, so no constraint could refuse them."""

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
    """Names, stored as comma separated text; a tuple in Python."""

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
    """Form field for names."""

    def to_python(self, value: object) -> Any:  # a tuple instead of Django's text
        return split(value if isinstance(value, (list, tuple)) else super().to_python(value) or ())

    def prepare_value(self, value: object) -> object:
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value

    def run_validators(self, value: Any) -> None:
        super().run_validators(",".join(value))


class OptionsField(Column, models.JSONField):
    """Options of a rule without a column, by name. Options at their default are left out."""

    model: Any  # ThrottleRule

    def from_db_value(
        self, value: str | None, expression: models.Expression, connection: BaseDatabaseWrapper
    ) -> object:
        """Return the parsed JSON. Return invalid JSON as text, so that only this rule is not valid."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> object:
        """Raise InvalidRule for an option that does not exist, or whose value is not valid. Pass on expressions."""
        if not hasattr(value, "resolve_expression"):
            value = stored_options(self.model.core, value)
            for name in self.model.columns() & value.keys():
                raise InvalidRule(texts.translatable("{option} has a column of its own", option=name), name)
        return super().get_db_prep_save(value, connection)


_RATE: Final = "[1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))"
RATE_SHAPE: Final = f"^{_RATE}(, {_RATE})*$"


def constraints(prefix: str, **conditions: Q) -> list[BaseConstraint]:
    """Return the constraints of a table: the conditions, by name, and those of its rate and limit.

    They have no messages, because ``CheckedRow.clean`` has them.
    """
    conditions["rate_shape"] = Q(rate="") | Q(rate__regex=RATE_SHAPE)
    conditions["limit_range"] = Q(limit__isnull=True) | Q(limit__gte=1, limit__lte=MAX_LIMIT)
    return [CheckConstraint(name=f"{prefix}_{name}", condition=condition) for name, condition in conditions.items()]

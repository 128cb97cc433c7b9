"""The two kinds of text that a rule is stored as: rates, and names, with commas in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models

from django_throttle.core import Rate
from django_throttle.exceptions import InvalidRate


def split(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names in a comma separated text (or any iterable), each once, without the spaces around them."""
    found = names.split(",") if isinstance(names, str) else names
    return tuple(dict.fromkeys(name.strip() for name in found if name.strip()))


def tidy_rates(text: str) -> str:
    """The rates as this package writes them, whatever spaces and capitals were typed; raises InvalidRate."""
    return ", ".join(dict.fromkeys(str(_parsed(rate)) for rate in split(text)))


def _parsed(typed: str) -> Rate:
    squeezed = "".join(typed.split()).lower()
    try:
        return Rate.parse(squeezed, calendar=True)
    except InvalidRate as error:
        # Whoever typed it shall find it as it was typed.
        raise InvalidRate(str(error).replace(ascii(squeezed), ascii(typed), 1)) from None


def is_tidy(rates: str) -> bool:
    """True when every rate in the text is one."""
    try:
        tidy_rates(rates)
    except InvalidRate:
        return False
    return True


def check_texts(row: models.Model) -> None:
    """Raise ValidationError for what databases do not store as text: NUL, and halves of characters (surrogates)."""
    found = {}
    for field in row._meta.concrete_fields:
        if isinstance(field, (models.CharField, models.TextField)) and not is_text(
            str(field.get_prep_value(field.value_from_object(row)))
        ):
            found[field.name] = "A text has no NUL characters, and no halves of characters."
    if found:
        raise ValidationError(found)


def is_text(given: str) -> bool:
    """Whether databases, files and terminals take it."""
    return "\x00" not in given and not any("\ud800" <= letter <= "\udfff" for letter in given)


class RatesField(models.CharField):  # type: ignore[type-arg]
    """One rate or several as text, in its shortest form: "100 / Minute,1000/day" is stored as "100/min, 1000/day"."""

    description = "Rates"

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return text
        try:
            return tidy_rates(text)
        except InvalidRate as error:
            raise ValidationError(str(error), code="invalid") from error

    def get_prep_value(self, value: Any) -> Any:
        text = super(models.CharField, self).get_prep_value(value)
        try:
            return tidy_rates(str(text)) if text else text
        except InvalidRate:
            return str(text)  # the table's constraint refuses it


class FiniteFloatField(models.FloatField):  # type: ignore[type-arg]
    """A number; infinity and NaN are refused here, as the driver of MariaDB cannot ask the database's constraint."""

    def to_python(self, value: Any) -> Any:
        number = super().to_python(value)
        if number is not None and not isfinite(number):
            raise ValidationError(f"“{value}” is not a finite number.", code="invalid")
        return number

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        number = super().get_db_prep_save(value, connection)
        if isinstance(number, float) and not isfinite(number):
            raise IntegrityError(f"{self.name} is a finite number, not {number}")
        return number

    def deconstruct(self) -> Any:
        # The column is the same, so a migration has nothing to change.
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.FloatField", args, kwargs


class NamesField(models.CharField):  # type: ignore[type-arg]
    """A list of names, stored as comma separated text; in Python a tuple."""

    description = "List of names"

    def read(self, value: Any) -> tuple[Any, ...]:
        """The names in what a row holds: text, or a list."""
        return split(value or ())

    def from_db_value(self, value: str, *_: object) -> tuple[Any, ...]:
        return self.read(value)

    def to_python(self, value: Any) -> Any:
        return self.read(value)

    def get_prep_value(self, value: Any) -> Any:
        return ",".join(map(str, self.read(value)))

    def value_to_string(self, obj: models.Model) -> str:
        return str(self.get_prep_value(self.value_from_object(obj)))

    def run_validators(self, value: Any) -> None:
        super().run_validators(self.get_prep_value(value))

    def formfield(self, **options: Any) -> Any:
        return super().formfield(**{"form_class": NamesInput, "read": self.read, **options})


class NamesInput(forms.CharField):
    """Names that a person types with commas between them; ``read`` makes of the text what a row holds."""

    def __init__(self, *args: Any, read: Callable[[Any], tuple[Any, ...]] = split, **options: Any) -> None:
        super().__init__(*args, **options)
        self.read = read

    def to_python(self, value: Any) -> Any:
        return self.read(value or ())

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value

    def run_validators(self, value: Any) -> None:
        super().run_validators(",".join(map(str, value)))

"""Columns of the models: texts, numbers and lists, and how they are typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models

from django_throttle.core import Rate
from django_throttle.exceptions import InvalidRate


def split(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names in a comma separated text (or any iterable), each once, without the spaces around them."""
    if isinstance(names, str):
        return _split(names)
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


@lru_cache(maxsize=4096)
def _split(names: str) -> tuple[str, ...]:
    return split(names.split(","))


def tidy_rates(text: str) -> str:
    """The rates as this package writes them, whatever spaces and capitals were typed; raises InvalidRate."""
    return ", ".join(dict.fromkeys(str(_parsed(rate)) for rate in split(text)))


def _parsed(typed: str) -> Rate:
    squeezed = "".join(typed.split()).lower()
    try:
        return Rate.parse(squeezed, calendar=True)
    except InvalidRate as error:
        # The message quotes what was typed.
        raise InvalidRate(str(error).replace(ascii(squeezed), ascii(typed), 1)) from None


def is_text(given: str) -> bool:
    """True for text that databases, files and terminals take: without NUL and surrogates."""
    return "\x00" not in given and not any("\ud800" <= letter <= "\udfff" for letter in given)


class Column(models.Field):  # type: ignore[type-arg]
    """A column of which migrations record nothing that is only read: label, help and choices may change without one."""

    recorded = ""  # as which of Django's classes migrations name it; by its own name where there is none

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        kept = {key: value for key, value in kwargs.items() if key not in ("verbose_name", "help_text", "choices")}
        return name, f"django.db.models.{self.recorded}" if self.recorded else path, args, kept


class TextColumn(Column, models.CharField):  # type: ignore[type-arg]
    """A short text."""

    recorded = "CharField"


class NoteColumn(Column, models.TextField):  # type: ignore[type-arg]
    """A long text."""

    recorded = "TextField"


class SwitchColumn(Column, models.BooleanField):  # type: ignore[type-arg]
    """True or False."""

    recorded = "BooleanField"


class MomentColumn(Column, models.DateTimeField):  # type: ignore[type-arg]
    """A moment."""

    recorded = "DateTimeField"


class Unbounded(Column):
    """A whole number whose bounds are the rule's and the constraint's, so that one message says what is wrong."""

    validators = []

    def formfield(self, **options: Any) -> Any:
        return super().formfield(**{"min_value": None, "max_value": None, **options})


class WholeColumn(Unbounded, models.PositiveBigIntegerField):  # type: ignore[type-arg]
    """A whole number of any rule."""

    recorded = "PositiveBigIntegerField"


class SmallWholeColumn(Unbounded, models.PositiveSmallIntegerField):  # type: ignore[type-arg]
    """A whole number that fits two bytes."""

    recorded = "PositiveSmallIntegerField"


class RatesField(Column, models.CharField):  # type: ignore[type-arg]
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


class NumberColumn(Column, models.FloatField):  # type: ignore[type-arg]
    """A number; infinity and NaN are refused here, as the driver of MariaDB cannot ask the database's constraint."""

    recorded = "FloatField"

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


class NamesField(Column, models.CharField):  # type: ignore[type-arg]
    """A list of names, stored as comma separated text; in Python a tuple."""

    description = "List of names"

    def read(self, value: Any) -> tuple[Any, ...]:
        """The names in a text or a list."""
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
    """A form field of names with commas in between; ``read`` returns what a row holds."""

    def __init__(self, *args: Any, read: Callable[[Any], tuple[Any, ...]] = split, **options: Any) -> None:
        super().__init__(*args, **options)
        self.read = read

    def to_python(self, value: Any) -> Any:
        return self.read(value or ())

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value

    def run_validators(self, value: Any) -> None:
        super().run_validators(",".join(map(str, value)))


# A larger share was meant as a percentage: 80 is 80 %, not eighty times the limit.
SURELY_PERCENT = 10


class MethodsField(NamesField):
    """HTTP methods, in capitals."""

    description = "List of HTTP methods"

    def read(self, value: Any) -> tuple[Any, ...]:
        return split(name.upper() for name in split(value or ()))


class NumbersField(NamesField):
    """A list of numbers, sorted; a text that is not a number stays one, which a rule refuses."""

    number: ClassVar[Callable[[str], Any]]

    def read(self, value: Any) -> tuple[Any, ...]:
        found = split(map(str, value) if isinstance(value, (list, tuple)) else value or ())
        try:
            return tuple(sorted(set(map(type(self).number, found))))
        except (ValueError, OverflowError):
            return found


class SharesField(NumbersField):
    """Shares of a limit: 0.8 is stored, 80 % may be typed."""

    description = "List of shares"
    number = float

    def get_prep_value(self, value: Any) -> Any:
        return ",".join(map(_plain, self.read(value)))

    def formfield(self, **options: Any) -> Any:
        return super().formfield(**{"form_class": SharesInput, **options})


class StatusesField(NumbersField):
    """HTTP statuses."""

    description = "List of HTTP statuses"
    number = int


class CostField(Column, models.CharField):  # type: ignore[type-arg]
    """A whole number, or the path of a function, as text; in Python a number or a text."""

    description = "Cost"

    def from_db_value(self, value: str, *_: object) -> Any:
        return _cost(value)

    def to_python(self, value: Any) -> Any:
        return _cost(value)

    def get_prep_value(self, value: Any) -> Any:
        return str(value)

    def run_validators(self, value: Any) -> None:
        super().run_validators(self.get_prep_value(value))

    def formfield(self, **options: Any) -> Any:
        return super().formfield(**{"form_class": CostInput, **options})


class SharesInput(NamesInput):
    """A form field of shares: "80 %, 100 %", or "0.8, 1"."""

    def to_python(self, value: Any) -> Any:
        return tuple(sorted(set(map(_share, split(value or ())))))

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        return ", ".join(f"{_plain(share, 100)} %" if isinstance(share, float) else str(share) for share in value)

    def run_validators(self, value: Any) -> None:
        super().run_validators(tuple(map(_plain, value)))


class CostInput(forms.CharField):
    """A form field of a cost."""

    def to_python(self, value: Any) -> Any:
        return _cost(super().to_python(value))

    def run_validators(self, value: Any) -> None:
        super().run_validators(str(value))


def _cost(value: Any) -> Any:
    text = str(value).strip()
    return int(text) if text.isdecimal() and len(text) < 20 else value


def _share(typed: str) -> float:
    number = typed.removesuffix("%").strip()
    try:
        found = Decimal(number) / (100 if typed != number else 1)
        is_percent = typed == number and found > SURELY_PERCENT
    except ArithmeticError:  # not a number, or none that can be compared
        raise ValidationError(f"{typed!r} is not a share of the limit: write 80 %", code="invalid") from None
    if is_percent:
        raise ValidationError(f"{typed!r} is {number} times the limit; did you mean {number} %?", code="invalid")
    return float(found)


def _plain(number: object, times: int = 1) -> str:
    """The number multiplied, without an exponent and trailing zeros."""
    if not isinstance(number, float):
        return str(number)
    text = format(Decimal(repr(number)) * times, "f")
    return text.rstrip("0").removesuffix(".") if "." in text else text

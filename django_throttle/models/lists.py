"""Lists that are no names (methods, shares, statuses), and a cost: how they are typed, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.db import models

from django_throttle.models.fields import NamesField, NamesInput, split

# Whoever types 80 for a share means 80 %, not eighty times the limit.
SURELY_PERCENT = 10


class MethodsField(NamesField):
    """HTTP methods, in capitals."""

    description = "List of HTTP methods"

    def read(self, value: Any) -> tuple[Any, ...]:
        return split(name.upper() for name in split(value or ()))


class NumbersField(NamesField):
    """A list of numbers, the least first; what is none stays a text, which a rule refuses."""

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


class CostField(models.CharField):  # type: ignore[type-arg]
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
    """Shares as a person writes them: "80 %, 100 %", or "0.8, 1"."""

    def to_python(self, value: Any) -> Any:
        return tuple(sorted(set(map(_share, split(value or ())))))

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        return ", ".join(f"{_plain(share, 100)} %" if isinstance(share, float) else str(share) for share in value)

    def run_validators(self, value: Any) -> None:
        super().run_validators(tuple(map(_plain, value)))


class CostInput(forms.CharField):
    """A number or a path, typed."""

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
    """So many times the number, without an exponent and without digits that say nothing."""
    if not isinstance(number, float):
        return str(number)
    text = format(Decimal(repr(number)) * times, "f")
    return text.rstrip("0").removesuffix(".") if "." in text else text

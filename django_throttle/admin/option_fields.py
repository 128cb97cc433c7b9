"""Form fields for the options of a rule: how each kind of option is typed, read and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib.admin import widgets
from django.core.exceptions import ValidationError

from django_throttle.admin.page import event_labels
from django_throttle.conf import conf
from django_throttle.core.algorithms import Algorithm
from django_throttle.core.descriptions import key_in_words
from django_throttle.core.key import KEY_KINDS, without_setting
from django_throttle.core.options import Choice, Option, Options, key_parts, table
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.models.fields import NumberColumn, split
from django_throttle.rulebook.history.lines import in_words
from django_throttle.rulebook.sources import declared
from django_throttle.translated import capitalised, gettext, joined, translated

# The joined keys that the form offers, of all that are possible.
JOINED_KEYS: Final = ("user+ip", "tenant+user", "tenant+ip")
SURELY_PERCENT: Final = 10  # a larger share was meant as a percentage: 80 is 80 %, not eighty times the limit


def form_options(options_type: type[Options]) -> dict[str, Option]:
    """Return the options that have a form field. Several rates are typed into the field of a single rate."""
    return {name: option for name, option in table(options_type).items() if option.kind != "rates"}


def option_field(option: Option, present: object = None) -> forms.Field:
    """Return the form field of an option, in the active language. A key that is ``present`` is always offered."""
    default = option.initial or option.default
    common: dict[str, Any] = {
        "label": capitalised(gettext(option.title)),
        "help_text": _help(option),
        "required": default not in (None, "", ()),
        "initial": "" if default in (None, MISSING) else default,
    }
    if option.kind == "switch":
        return forms.BooleanField(**{**common, "required": False})
    if option.kind == "events":
        return forms.MultipleChoiceField(**common, choices=event_labels(), widget=forms.CheckboxSelectMultiple)
    if option.kind == "key":
        return forms.ChoiceField(**common, choices=key_choices(str(present or "")))
    if option.choices:
        return forms.ChoiceField(
            **common, choices=[(value, _label(choice)) for value, choice in option.choices.items()]
        )
    if option.kind == "whole":
        return forms.IntegerField(**common, widget=widgets.AdminIntegerFieldWidget)
    if option.kind == "number":
        return forms.FloatField(**common, error_messages=NumberColumn.default_error_messages)
    return OptionInput(option, **common)


def _help(option: Option) -> str:
    text = gettext(option.help)
    functions = declared(option.name) if option.kind == "cost" else ()
    return joined([text, gettext("There is {functions}.", functions=", ".join(functions))]) if functions else text


def _label(choice: Choice | Algorithm) -> str:
    """Return the label of a choice, with the use of an algorithm."""
    label = gettext(choice.label)
    return f"{label} ({gettext(choice.help)})" if isinstance(choice, Algorithm) else label


def key_choices(present: str = "") -> list[tuple[str, str]]:
    """Return the keys that a rule may have on this site, and the key that it has already, with their labels."""
    every = (*KEY_KINDS, *JOINED_KEYS)
    offered = [key for key in every if key == present or not any(without_setting(key_parts(key), conf()))]
    own = {*declared("key"), *([present] if present and present not in offered else [])}
    return [(key, _key_label(key)) for key in (*offered, *sorted(own))]


def _key_label(key: str) -> str:
    return gettext(KEY_KINDS[key].label) if key in KEY_KINDS else capitalised(translated(key_in_words(key)))


class OptionInput(forms.CharField):
    """A form field for an option typed as text: a list with commas in between, plans line by line, a number, a path."""

    def __init__(self, option: Option, **options: Any) -> None:
        widget = forms.Textarea(attrs={"rows": 3}) if option.kind == "plans" else widgets.AdminTextInputWidget
        super().__init__(**{"widget": widget, **options})
        self.option = option

    def to_python(self, value: object) -> Any:  # not a text, as Django's field has
        """Return the value that a rule has. Leave text that cannot be read as it is: the rule says what is wrong."""
        value = READ.get(self.option.kind, str)(super().to_python(value) or "")
        with suppress(InvalidRule, InvalidRate):
            value = self.option.read(value)
        return value

    def prepare_value(self, value: object) -> object:
        if not isinstance(value, (list, tuple)):
            return value
        if self.option.kind == "shares":
            return ", ".join(map(percent, value))
        return ("\n" if self.option.kind == "plans" else ", ").join(map(str, value))


def shown_value(option: Option, value: object) -> str:
    """Return a value as the form field of its option shows it."""
    if option.choices:
        choice = option.choices.get(str(value))
        return gettext(choice.label) if choice else str(value)
    return translated(in_words(value)) if option.kind == "switch" else str(OptionInput(option).prepare_value(value))


def _number(text: str) -> object:
    return int(text) if text.isdecimal() and len(text) < 20 else text


def _share(typed: str) -> float:
    number = typed.removesuffix("%").strip()
    try:
        share = Decimal(number) / (100 if typed != number else 1)
        is_percent = typed == number and share > SURELY_PERCENT
        if not share:  # 0,8 is 0 and 8
            raise ArithmeticError
    except ArithmeticError:  # not a number, or none that can be compared
        fault = gettext("{typed!r} is not a share of the limit: write 80 %, or 0.8 with a point", typed=typed)
        raise ValidationError(fault, code="invalid") from None
    if is_percent:
        fault = gettext("{typed!r} is {number} times the limit; did you mean {number} %?", typed=typed, number=number)
        raise ValidationError(fault, code="invalid")
    return float(share)


def percent(share: object) -> str:
    """Return a share of the limit as it is typed: 80 % for 0.8."""
    if not isinstance(share, float):
        return str(share)
    text = format(Decimal(repr(share)) * 100, "f")
    return f"{text.rstrip('0').removesuffix('.') if '.' in text else text} %"


# Readers of typed text by the kind of the option. Text of any other kind is the value.
READ: Final[Mapping[str, Callable[[str], object]]] = {
    **dict.fromkeys(("names", "scopes", "methods", "audience", "results"), split),
    "statuses": lambda text: tuple(map(_number, split(text))),
    "shares": lambda text: tuple(map(_share, split(text))),
    "plans": lambda text: tuple(line.strip() for line in text.splitlines() if line.strip()),
    "cost": _number,
    "reserve": _number,
}

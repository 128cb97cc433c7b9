"""The form of a rule, in the admin's pages and in its list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from django_throttle.conf import conf
from django_throttle.core import words
from django_throttle.core.checks import KEYS
from django_throttle.models import ThrottleRule
from django_throttle.rulebook.diff import FIELDS
from django_throttle.rulebook.sources import declared

KEY_LABELS: Final = {
    "user": "User",
    "ip": "Address",
    "user_or_ip": "User or address",
    "api_key": "API key, else user or address",
    "session": "Session",
    "tenant": "Tenant",
    "connection": "One WebSocket",
    "everyone": "Everyone together",
}
# Of all that can be joined, what most sites want.
JOINED_KEYS: Final = ("user+ip", "tenant+user", "tenant+ip")
EVENT_LABELS: Final = {event: noun[2][0].upper() + noun[2][1:] for event, noun in words.NOUNS.items()}
# What no door of this version reports: a rule for it would never do anything.
UNREPORTED: Final = frozenset(("task",))


class RuleForm(forms.ModelForm):  # type: ignore[type-arg]
    """One rule; events as checkboxes, keys as a list of those that exist on this site."""

    class Meta:
        model = ThrottleRule
        fields = ("name", *FIELDS)
        widgets = {"description": forms.Textarea(attrs={"rows": 3})}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "events" in self.fields:
            self.fields["events"] = _alike(self.fields["events"], _EventsField(choices=EVENT_LABELS.items()))
            present = (*self.instance.events, *(self["events"].value() or ()))
            self.fields["events"].widget.choices = event_choices(present)
        if "key" in self.fields:
            self.fields["key"] = _alike(self.fields["key"], forms.ChoiceField(choices=key_choices(self.instance.key)))
        if "cost" in self.fields and (functions := declared("cost")):
            self.fields["cost"].help_text += f" There is {', '.join(functions)}."

    def add_error(self, field: str | None, error: Any) -> None:
        """In the list, a row shows few fields; what is wrong with another one is said of the whole row."""
        if isinstance(error, ValidationError) and hasattr(error, "error_dict"):
            for name, errors in error.error_dict.items():
                super().add_error(name if name in self.fields else None, list(errors))
        else:
            super().add_error(field if field in (None, NON_FIELD_ERRORS) or field in self.fields else None, error)


class RowForm(RuleForm):
    """A rule in the list: a rate or a limit to type in, whichever the rule has."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "rate" in self.fields:
            self.fields["rate"].widget = forms.TextInput(attrs={"size": max(8, len(self.instance.rate))})
        spare = "rate" if self.instance.algorithm == "concurrency" else "limit"
        if spare in self.fields and not getattr(self.instance, spare):
            self.fields[spare].widget = forms.HiddenInput()


class PreviewForm(RuleForm):
    """The same form without a question to the database, for each key that is pressed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.instance.validate_constraints = lambda exclude=None: None  # they are asked of the database

    def validate_unique(self) -> None:
        pass


class _EventsField(forms.MultipleChoiceField):
    widget = forms.CheckboxSelectMultiple

    def to_python(self, value: Any) -> Any:
        return tuple(super().to_python(value))


def _alike(old: forms.Field, new: forms.Field) -> forms.Field:
    new.label, new.help_text, new.required, new.initial = old.label, old.help_text, old.required, old.initial
    return new


def event_choices(present: Iterable[str] = ()) -> list[tuple[str, str]]:
    """The events that a door reports, and those that a rule has all the same."""
    shown = {*EVENT_LABELS} - UNREPORTED | {*present}
    return [(event, label) for event, label in EVENT_LABELS.items() if event in shown]


def key_choices(present: str = "") -> list[tuple[str, str]]:
    """The keys that a rule may have on this site, and the one that it has."""
    offered = [key for key in (*KEYS, *JOINED_KEYS) if conf().TENANT or key == present or "tenant" not in key]
    known = [(key, KEY_LABELS.get(key) or words.who(key).capitalize()) for key in offered]
    own = {*declared("key"), *([present] if present and present not in offered else [])}
    return known + [(key, words.who(key).capitalize()) for key in sorted(own)]

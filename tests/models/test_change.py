"""A line of the history is kept the same in every language, and read in that of the reader."""

from __future__ import annotations

import pytest
from django.utils import translation

from django_throttle.models import ThrottleChange, ThrottleOverride


@pytest.mark.parametrize(
    ("kind", "value", "line", "read"),
    [
        ("user", "42", "Override User 42 added", "Benutzer 42"),
        ("ip", "203.0.113.0/24", "Override Network 203.0.113.0/24 added", "Netz 203.0.113.0/24"),
        ("group", "editors", "Override Group editors added", "Gruppe editors"),
    ],
)
def test_a_line_says_the_same_whoever_edits(kind: str, value: str, line: str, read: str) -> None:
    override = ThrottleOverride(kind=kind, value=value)
    with translation.override("de"):
        change = ThrottleChange(kind="override", name=override.history_name, action="added")
        assert change.get_kind_display() == "Ausnahme"
        assert str(override) == override.named() == read
    assert str(change) == line


def test_what_was_done_and_where_is_read_in_the_language_of_the_reader() -> None:
    line = ThrottleChange(kind="rule", name="api", action="discarded", via="import")
    over = ThrottleChange(kind="override", name="User 7", action="ran out", via="import")  # which a command noticed
    scheduled = ThrottleChange(kind="rule", action="promoted", who="its start time", via="schedule")
    assert (str(line), line.by, scheduled.by) == ("Rule api discarded", "somebody (import)", "its start time")
    assert (str(over), over.by) == ("Override User 7 ran out", "its end time")
    with translation.override("de"):
        assert (str(line), line.by, scheduled.by) == ("Regel api verworfen", "jemand (Import)", "zur Startzeit")
        assert (str(over), over.by) == ("Ausnahme User 7 abgelaufen", "zur Endzeit")


def test_the_columns_of_a_form_have_labels_in_the_language_of_the_reader() -> None:
    with translation.override("de"):
        names = {str(field.verbose_name) for field in ThrottleOverride._meta.concrete_fields}
        assert {"Regeln", "Wirkung", "Faktor", "Rate", "Limit", "bis", "Begründung"} <= names
        models = [str(model._meta.verbose_name_plural) for model in (ThrottleOverride, ThrottleChange)]
        assert models == ["Ausnahmen", "Änderungen"]

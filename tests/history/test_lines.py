"""The history's lines: what they say, that each is there once, and that they do not grow for ever."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from django_throttle import history
from django_throttle.history import lines as recording
from django_throttle.models import ThrottleChange

pytestmark = pytest.mark.django_db


def test_a_line_says_who_what_and_why() -> None:
    with history.editing("anna", "admin", "a customer asked"):
        assert history.record("rule", "api", "changed", before={"rate": "1/min"}, after={"rate": "2/min"}, row=3)
    line = ThrottleChange.objects.get()
    assert (line.who, line.via, line.reason, line.kind, line.name) == (
        "anna",
        "admin",
        "a customer asked",
        "rule",
        "api",
    )
    assert (line.words, line.before, line.after, line.row) == (
        "rate: 1/min → 2/min", {"rate": "1/min"}, {"rate": "2/min"}, 3,
    )  # fmt: skip


def test_a_reason_inside_goes_before_the_one_around_it_and_an_empty_one_does_not() -> None:
    with history.editing("anna", "admin", "around"):
        with history.because("inside"):
            history.record("rule", "api", "changed", "words")
        with history.because("  "):
            history.record("rule", "api", "changed", "words")
    history.record("rule", "api", "changed", "words")
    assert list(ThrottleChange.objects.values_list("reason", "who")) == [
        ("", ""),
        ("around", "anna"),
        ("inside", "anna"),
    ]


def test_what_is_told_once_has_one_line_even_inside_a_transaction() -> None:
    with transaction.atomic():
        assert history.record("override", "User 7", "ended", "its time has come", once="override:7:ended")
        assert not history.record("override", "User 7", "ended", "its time has come", once="override:7:ended")
    assert ThrottleChange.objects.count() == 1


def test_changes_name_lists_switches_and_defaults() -> None:
    before, after = {"scopes": ["a", "b"], "strict": True, "burst": 3}, {"scopes": [], "strict": False, "limit": 5}
    assert list(history.changes(before, after)) == [
        "scopes: a, b → none", "strict: yes → no", "burst: 3 → default", "limit: default → 5",
    ]  # fmt: skip
    assert list(history.changes(None, None)) == []


def test_long_texts_are_cut() -> None:
    with history.editing("w" * 500, "v" * 500, "r" * 9000):
        history.record("rule", "n" * 500, "a" * 500, "x" * 9000)
    line = ThrottleChange.objects.get()
    assert [len(text) for text in (line.who, line.via, line.name, line.action)] == [150, 30, 200, 30]
    assert len(line.words) == len(line.reason) == recording.MOST_WORDS


def test_old_lines_are_removed_but_the_newest_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("settings", "settings", "rule", "rule"):
        history.record(kind, "api", "changed", "words")
    ThrottleChange.objects.update(at=timezone.now() - timedelta(days=400))
    history.record("rule", "new", "changed", "words")
    assert history.aged("default") == 3
    assert list(ThrottleChange.objects.values_list("kind", "name")) == [("rule", "new"), ("settings", "api")]
    monkeypatch.setattr(recording, "MOST_CHANGES", 2)
    for number in range(4):
        history.record("rule", f"r{number}", "changed", "words")
    history.aged("default")
    assert list(ThrottleChange.objects.values_list("name", flat=True)) == ["r3", "r2", "api"]


def test_nothing_is_removed_from_an_empty_history() -> None:
    assert history.aged("default") == 0


@pytest.mark.django_db(transaction=True)
def test_old_lines_go_once_an_edit_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PRUNE_SECONDS", 0.0)
    history.record("rule", "old", "changed", "words")
    ThrottleChange.objects.update(at=timezone.now() - timedelta(days=400))
    history.record("rule", "new", "changed", "words")
    assert list(ThrottleChange.objects.values_list("name", flat=True)) == ["new"]

"""The line of an override that ran out: one over all processes, and none where an edit came first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.utils import timezone

from django_throttle.history import ended
from django_throttle.models import ThrottleChange, ThrottleOverride
from django_throttle.rulebook import Snapshot
from django_throttle.signals import overrides_ended

pytestmark = pytest.mark.django_db


def made() -> ThrottleOverride:
    until = timezone.now() - timedelta(seconds=1)
    return ThrottleOverride.objects.create(kind="user", value="7", effect="exempt", reason="test", until=until)


def tell(row: ThrottleOverride) -> None:
    overrides_ended.send_robust(sender=Snapshot, overrides=(row.as_override(),))


def lines() -> list[str]:
    return list(ThrottleChange.objects.filter(action="ran out").values_list("words", flat=True))


def test_it_is_told_once_whoever_tells_it() -> None:
    row = made()
    tell(row)
    tell(row)
    assert lines() == [row.meaning]


def test_one_that_was_extended_meanwhile_has_not_run_out() -> None:
    row = made()
    ThrottleOverride.objects.filter(pk=row.pk).update(until=timezone.now() + timedelta(hours=1))
    tell(row)
    assert lines() == []


def test_a_database_that_fails_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def fail(*args: object, **options: object) -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(ended, "record", fail)
    tell(made())
    assert "the history lacks" in caplog.text

"""A candidate is kept as the columns of its rule, promoted by hand or by the clock, and every step has a line."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.admin import ModelAdmin, site
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.http import HttpRequest
from django.test import RequestFactory
from django.utils import timezone

from django_throttle.admin.rules import ThrottleRuleAdmin
from django_throttle.console.admin.rules import CANDIDATE
from django_throttle.console.models import ThrottleCandidate
from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule
from django_throttle.rulebook import sources
from django_throttle.rulebook.history import edits

pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate() -> ThrottleCandidate:
    ThrottleRule.objects.create(name="api", rate="5/min", scopes="a")
    candidate = ThrottleCandidate.from_row(ThrottleRule(name="api", rate="3/min", scopes="a, b"), "api", "anna")
    candidate.save()
    return candidate


def test_promoted_it_replaces_the_rule_with_lines(candidate: ThrottleCandidate) -> None:
    candidate.promote()
    row = ThrottleRule.objects.get()
    assert (row.rate, row.scopes) == ("3/min", ("a", "b"))
    assert not ThrottleCandidate.objects.exists()
    lines = list(ThrottleChange.objects.values_list("kind", "action", "words")[:2])
    assert lines[1] == ("rule", "promoted", "rate: 5/min → 3/min; scopes: a → a, b")
    assert lines[0][:2] == ("candidate", "promoted")


def test_its_time_promotes_it_once(candidate: ThrottleCandidate) -> None:
    candidate.starts_at = timezone.now() + timedelta(hours=1)
    candidate.save()
    sources.promote_due()
    assert ThrottleRule.objects.get().rate == "5/min"
    ThrottleCandidate.objects.update(starts_at=timezone.now())
    sources.promote_due()
    sources.promote_due()
    assert ThrottleRule.objects.get().rate == "3/min"
    assert ThrottleChange.objects.filter(via="schedule", kind="rule").count() == 1


def test_one_that_makes_no_sense_is_skipped_and_stays(candidate: ThrottleCandidate) -> None:
    ThrottleCandidate.objects.update(options={"name": "api", "rate": "soon"}, starts_at=timezone.now())
    reading = sources.read()
    assert ("candidates", "api (candidate)") in {fault[:2] for fault in reading.faults}
    sources.promote_due()
    candidate.refresh_from_db()
    assert candidate.starts_at is None
    assert ThrottleRule.objects.get().rate == "5/min"


@pytest.mark.parametrize(
    ("share", "fault"), [(-0.1, "from 0 to 1"), (1.5, "from 0 to 1"), (10, "from 0 to 1"), (0.5, "same key")]
)
def test_a_share_is_between_none_and_all_of_the_same_key(
    candidate: ThrottleCandidate, share: float, fault: str
) -> None:
    ThrottleRule.objects.update(key="ip")
    candidate.full_clean()
    candidate.share = share
    with pytest.raises(ValidationError, match=fault):
        candidate.full_clean()


def promote(row: ThrottleCandidate) -> None:
    row.promote()


def discard(row: ThrottleCandidate) -> None:
    for candidate in ThrottleCandidate.objects.filter(pk=row.pk):
        candidate.delete()


def by_its_time(_: ThrottleCandidate) -> None:
    sources.promote_due()


def revert(_: ThrottleCandidate) -> None:
    edits.revert(ThrottleChange.objects.filter(kind="rule", action="changed").latest("pk"))


def edit(_: ThrottleCandidate) -> None:
    ThrottleRule.objects.get(name="api").save()


def staff() -> HttpRequest:
    request = RequestFactory().post("/", {CANDIDATE: "yes"})
    request.user, request._messages = User(username="anna"), Mock()  # type: ignore[attr-defined]
    return request


def end_now(_: ThrottleCandidate) -> None:
    site.get_model_admin(ThrottleOverride).end_now(staff(), ThrottleOverride.objects.all())


def end_by_command(_: ThrottleCandidate) -> None:
    try:
        call_command("throttle_override", "end", "1", stdout=StringIO())
    except CommandError as error:
        raise ValidationError(str(error)) from error


def save_candidate(_: ThrottleCandidate) -> None:
    row, request = ThrottleRule.objects.get(name="other"), staff()
    with transaction.atomic():
        site.get_model_admin(ThrottleRule).save_model(request, row, Mock(cleaned_data={}), True)


GONE = "The candidate was promoted or discarded meanwhile."
REVERTED = "It is as it was before this edit: there is nothing to revert."


@pytest.mark.parametrize(
    ("act", "said", "lines"),
    [
        (promote, GONE, 2), (by_its_time, None, 2), (discard, None, 1), (revert, REVERTED, 1), (edit, None, 0),
        (end_now, None, 1), (save_candidate, None, 1), (end_by_command, "nothing was ended: 1 is not in force", 1),
    ],
)  # fmt: skip
def test_of_four_who_edit_at_once_on_sqlite_one_does(
    act: Callable[[ThrottleCandidate], None], said: str | None, lines: int, tmp_path: Path, django_db_blocker: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    options = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3"), "OPTIONS": {}}
    monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], **options})
    monkeypatch.setattr(ModelAdmin, "log_change", Mock())  # its table is not there
    monkeypatch.setattr(ThrottleRuleAdmin, "warn_of_names", Mock())  # it takes long
    together = Barrier(4)

    def begin() -> int:
        for app in ("django_throttle", "throttle_console"):
            call_command("migrate", app, verbosity=0)
        ThrottleRule.objects.create(name="other", rate="6/min")
        ThrottleOverride.objects.create(kind="user", value="1", effect="block", reason="abuse")
        rule = ThrottleRule.objects.create(name="api", rate="6/min")
        candidate = ThrottleCandidate.from_row(ThrottleRule(name="api", rate="3/min"), "api", "anna")
        candidate.starts_at = timezone.now()
        candidate.save()
        rule.rate = "5/min"
        rule.save()
        return int(candidate.pk)

    def go(pk: int) -> list[str]:
        row = ThrottleCandidate.objects.get(pk=pk)  # before another thread ends it
        together.wait()
        try:
            act(row)
        except ValidationError as error:
            return error.messages
        finally:
            connections.close_all()
        return []

    with django_db_blocker.unblock(), ThreadPoolExecutor(4) as threads:
        pk = threads.submit(begin).result()
        before = threads.submit(ThrottleChange.objects.count).result()
        messages = sorted(chain.from_iterable(threads.map(go, [pk] * 4)))
        assert threads.submit(ThrottleChange.objects.count).result() == before + lines
        threads.submit(connections.close_all).result()
    assert messages == ([said] * 3 if said else [])

"""Settings and database: both are in force, the database wins, a bad row is skipped, and a thread reads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_throttle import rulebook
from django_throttle.core import Rule
from django_throttle.models import ThrottleRule
from django_throttle.rulebook.sources import Reader
from tests.forks import holds_in_child
from tests.inside import book, thread_of
from tests.raw_rows import force
from tests.rulebook.conftest import charged, names
from tests.servers import wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.django_db
def test_both_sources_are_in_force_the_database_wins_and_what_makes_no_sense_is_skipped(
    rules: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rules(api={"rate": "10/min"}, login={"rate": "5/min"}, off={"rate": "5/min"}, bad={"rate": "1/s", "burts": 3})
    ThrottleRule.objects.create(name="api", rate="20/min")
    ThrottleRule.objects.create(name="extra", rate="1/s")
    ThrottleRule.objects.create(name="off", rate="10/min", enabled=False)
    ThrottleRule.objects.create(name="login", rate="10/min")
    force(ThrottleRule, {"name": "login"}, rate="nonsense")
    snapshot = rulebook.refresh()
    assert [name for name, *_ in charged(snapshot, "any", "request")] == ["api", "extra", "login"]
    assert snapshot.by_name("api") == Rule("api", "20/min")
    assert snapshot.by_name("login") == Rule("login", "5/min"), "a bad row leaves the rule of settings in force"
    assert "rule 'bad' from settings is skipped" in caplog.text


@pytest.mark.row("F58")
@pytest.mark.django_db
@pytest.mark.parametrize(
    "columns",
    [
        {"limit": -1, "algorithm": "concurrency", "rate": "", "events": "connection"}, {"events": "connection"},
        {"rate": "5/0m"}, {"rate": "nonsense"}, {"rate": ""}, {"rate": "5/month"}, {"rate": "5/min, 6/min"},
        {"algorithm": "sundial"}, {"key": "("}, {"key": "os.abort"}, {"events": "request,sneeze"},
        {"scopes": " , "}, {"resolution": 0}, {"cost": 2**62}, {"cost": "free"}, {"cost": "os.abort"}, {"burst": 5},
        {"refill": "sometimes"}, {"max_delay": -1}, {"timezone": "Mars/Olympus"}, {"name": "bad\x00name"},
        {"methods": "PSOT"}, {"methods": "POST", "events": "message"}, {"audience": "nobody"},
        {"count_on": "often"}, {"warn_at": "80 %"}, {"warn_at": "nan"}, {"enforce_at": -1}, {"enforce_at": "twice"},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_row_is_skipped_with_one_line_and_the_others_work(
    rules: Any, columns: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    ThrottleRule.objects.create(name="good", rate="7/min")
    ThrottleRule.objects.create(name="bad", rate="5/min")
    force(ThrottleRule, {"name": "bad"}, **columns)
    for _ in range(3):
        snapshot = rulebook.refresh()
    assert charged(snapshot, "any", "request") == [("good", "user:1", 1)]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "django_throttle"]
    assert "from database is skipped" in line


@pytest.mark.row("F57")
@pytest.mark.django_db(transaction=True)
def test_a_missing_table_is_one_warning(rules: Any, caplog: pytest.LogCaptureFixture) -> None:
    rules(api={"rate": "10/min"})
    with connection.schema_editor() as editor:
        editor.delete_model(ThrottleRule)
    try:
        assert names(rulebook.refresh()) == names(rulebook.refresh()) == ["api"]
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(ThrottleRule)
    (line,) = caplog.messages
    assert ThrottleRule._meta.db_table in line.partition("run `manage.py migrate` (")[2]
    assert "\n" not in line
    ThrottleRule.objects.create(name="extra", rate="1/s")
    assert names(rulebook.current()) == ["api", "extra"]


@pytest.fixture
def readings() -> list[str | None]:
    return []


def test_it_keeps_its_thread_until_nobody_asks(readings: list[str | None]) -> None:
    reader, threads = Reader(readings.append, idle=0.2), set()
    for number in range(5):
        reader.ask(str(number))
        threads.add(thread_of(reader))
        assert reader.wait(5)
    assert (readings, len(threads)) == (["0", "1", "2", "3", "4"], 1)
    wait_until(lambda: not threads.copy().pop().is_alive())
    reader.ask("again")
    assert reader.wait(5) and readings[-1] == "again"
    reader.end()
    assert not reader.ask("ended") and readings[-1] == "again"


@pytest.mark.row("F56")
def test_nobody_waits_for_a_reading_that_hangs() -> None:
    began, go_on = threading.Event(), threading.Event()
    seen: list[str | None] = []

    def hang(version: str | None) -> None:
        seen.append(version)
        began.set()
        go_on.wait(10)

    reader = Reader(hang)
    for _ in range(100):
        reader.ask("first")
    assert began.wait(5)
    reader.ask("second")
    assert not reader.wait(0.01)
    reader.end()
    go_on.set()
    wait_until(lambda: (thread := thread_of(reader)) is None or not thread.is_alive())
    assert seen == ["first"]


def test_a_reading_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str | None] = []

    def fail(version: str | None) -> None:
        asked.append(version)
        raise RuntimeError("anything")

    reader = Reader(fail, idle=0.1)
    for version in ("first", "second"):
        reader.ask(version)
        assert reader.wait(5)
    reader.end()
    assert asked == ["first", "second"]
    assert "the rules could not be read" in caplog.text


@pytest.mark.usefixtures("servers")
def test_other_settings_and_a_fork_have_a_reader_of_their_own(settings: Any) -> None:
    first = book().reader
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "PREFIX": "other"}
    second = book().reader
    assert second is not first
    assert not first.ask(None), "it was told to end"
    assert holds_in_child(lambda: book().reader is not second and book().reader.ask(None))

"""What settings and the database say: both are in force, the database wins, and a bad row is skipped."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from django_throttle import rulebook
from django_throttle.core import Rule
from django_throttle.models import ThrottleRule
from django_throttle.rulebook import sources
from django_throttle.stores import MemoryStore
from tests.inside import book
from tests.raw_rows import force
from tests.rulebook.conftest import charged, names


@pytest.mark.django_db
class TestMerge:
    def test_both_sources_are_in_force_and_the_database_wins(self, rules: Any) -> None:
        rules(api={"rate": "10/min"}, login={"rate": "5/min"})
        ThrottleRule.objects.create(name="api", rate="20/min")
        ThrottleRule.objects.create(name="extra", rate="1/s")
        snapshot = rulebook.refresh()
        assert names(snapshot) == ["api", "extra", "login"]
        assert snapshot.by_name("api") == Rule("api", "20/min")

    def test_a_disabled_row_suspends_the_rule_of_settings(self, rules: Any) -> None:
        rules(api={"rate": "10/min"})
        ThrottleRule.objects.create(name="api", rate="10/min", enabled=False)
        assert charged(rulebook.refresh(), "any", "request") == []

    def test_without_the_database_only_settings_count(
        self, settings: Any, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        ThrottleRule.objects.create(name="extra", rate="1/s")
        settings.DJANGO_THROTTLE = {"RULES": {"api": {"rate": "1/s"}}, "DATABASE_RULES": False}
        with django_assert_num_queries(0):
            assert names(rulebook.current()) == ["api"]

    def test_a_rule_of_settings_that_makes_no_sense_is_skipped(
        self, rules: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        rules(good={"rate": "1/s"}, bad={"rate": "1/s", "burts": 3})
        assert names(rulebook.refresh()) == ["good"]
        assert "rule 'bad' from settings is skipped" in caplog.text

    def test_rules_that_are_no_dictionary_are_none(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RULES": ["api"]}
        assert rulebook.refresh().rules == ()


@pytest.mark.django_db
class TestRows:
    def insert(self, row: str, **columns: Any) -> None:
        """A row as a slip of raw SQL leaves it, past the constraints."""
        ThrottleRule.objects.create(name=row, rate="5/min")
        force(ThrottleRule, {"name": row}, **columns)

    @pytest.mark.row("F58")
    @pytest.mark.parametrize(
        "columns",
        [
            {"limit": -1, "algorithm": "concurrency", "rate": "", "events": "connection"},
            {"events": "connection"},
            {"rate": "5/0m"},
            {"rate": "nonsense"},
            {"rate": ""},
            {"algorithm": "sundial"},
            {"key": "("},
            {"key": "os.abort"},
            {"events": "request,sneeze"},
            {"scopes": " , "},
            {"resolution": 0},
            {"cost": 2**62},
            {"burst": 5},
            {"refill": "sometimes"},
            {"max_delay": -1},
            {"timezone": "Mars/Olympus"},
            {"rate": "5/month"},
            {"rate": "5/min, 6/min"},
            {"name": "bad\x00name"},
            {"methods": "PSOT"},
            {"methods": "POST", "events": "message"},
            {"audience": "nobody"},
            {"count_on": "often"},
            {"warn_at": "80 %"},
            {"warn_at": "nan"},
            {"enforce_at": -1},
            {"enforce_at": "twice"},
            {"cost": "free"},
            {"cost": "os.abort"},
        ],
        ids=str,
    )
    def test_a_bad_row_is_skipped_with_one_line_and_the_others_work(
        self, rules: Any, columns: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        ThrottleRule.objects.create(name="good", rate="7/min")
        self.insert("bad", **columns)
        for _ in range(3):
            snapshot = rulebook.refresh()
        assert names(snapshot) == ["good"]
        assert charged(snapshot, "any", "request") == [("good", "user:1", 1)]
        lines = [record.getMessage() for record in caplog.records if record.name == "django_throttle"]
        assert len(lines) == 1
        assert "from database is skipped" in lines[0]

    def test_a_bad_row_leaves_the_rule_of_settings_in_force(self, rules: Any) -> None:
        rules(api={"rate": "10/min"})
        self.insert("api", rate="nonsense")
        assert rulebook.refresh().by_name("api") == Rule("api", "10/min")

    def test_a_callable_that_settings_name_may_be_used(self, rules: Any) -> None:
        rules(tenants={"rate": "1/s", "key": "os.path.basename", "enabled": False})
        ThrottleRule.objects.create(name="mine", rate="2/s", key="os.path.basename")
        assert "mine" in names(rulebook.refresh())


@pytest.mark.django_db
def test_a_database_in_memory_is_left_to_its_own_thread(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    if not sources.is_private():
        pytest.skip("only SQLite can be in memory")
    with django_assert_num_queries(0):
        rulebook.poll(MemoryStore())
    assert book().reader.wait(0)


@pytest.mark.django_db(transaction=True)
class TestTrouble:
    @pytest.mark.row("F57")
    def test_a_missing_table_is_one_warning(self, rules: Any, caplog: pytest.LogCaptureFixture) -> None:
        rules(api={"rate": "10/min"})
        with connection.schema_editor() as editor:
            editor.delete_model(ThrottleRule)
        try:
            assert names(rulebook.refresh()) == ["api"]
            assert names(rulebook.refresh()) == ["api"]
        finally:
            with connection.schema_editor() as editor:
                editor.create_model(ThrottleRule)
        (line,) = caplog.records
        why = line.getMessage().partition("run `manage.py migrate` (")[2]
        assert ThrottleRule._meta.db_table in why
        assert "\n" not in line.getMessage()
        ThrottleRule.objects.create(name="extra", rate="1/s")
        assert names(rulebook.current()) == ["api", "extra"]

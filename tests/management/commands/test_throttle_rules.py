"""manage.py throttle_rules: list, check, export, import, candidates, log."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import OperationalError, ProgrammingError, connection
from django.utils import timezone, translation

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.models import ThrottleCandidate, ThrottleChange, ThrottleOverride, ThrottleRule
from django_throttle.recording import RecordFlusher, recorder
from django_throttle.rulebook import sources
from django_throttle.signals import overrides_ended
from django_throttle.stores import get_store
from tests.recording.calls import By

pytestmark = pytest.mark.django_db


def run(*words: str) -> str:
    said = io.StringIO()
    call_command("throttle_rules", *words, stdout=said, stderr=said, no_color=True)
    return said.getvalue()


@pytest.fixture(autouse=True)
def settings_rules(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"site": {"rate": "100/min"}}, "AGENT": False}


class TestList:
    def test_each_rule_has_a_line_with_its_source_and_its_words(self) -> None:
        ThrottleRule.objects.create(name="api", rate="5/s", key="user")
        ThrottleRule.objects.create(name="site", rate="6/s", enabled=False)
        assert run("list").splitlines() == [
            "api   database                     each user: 5 requests per second",
            "site  database, replaces settings  each user or address: 6 requests per second, switched off",
        ]

    def test_it_says_when_nothing_is_refused(self, settings: Any) -> None:
        assert "SHADOW" not in run("list")
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "SHADOW": True}
        assert run("list").endswith("SHADOW is on in the settings: rules only record, and nothing is refused\n")

    def test_a_skipped_rule_is_named_and_so_is_that_there_is_none(self, settings: Any) -> None:
        row = ThrottleRule.objects.create(name="api", rate="5/s", key="os.abort")
        assert "api (database) is skipped: the key 'os.abort'" in run("list")
        row.delete()
        settings.DJANGO_THROTTLE = {}
        assert run("list") == "There are no rules.\n"


class TestCheck:
    def test_all_is_well(self) -> None:
        assert run("check") == "1 rule, nothing wrong\n"

    def test_all_bad_rules_are_named_in_the_language_in_force(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RULES": {"bad": {"rate": "often"}}}
        ThrottleRule.objects.create(name="api", rate="5/s", key="os.abort")
        said = io.StringIO()
        with translation.override("de"), pytest.raises(CommandError, match="2 Regeln") as caught:
            call_command("throttle_rules", "check", stderr=said, skip_checks=False)
        assert caught.value.returncode == 1 and not isinstance(caught.value, SystemCheckError)
        assert "bad (Einstellungen): 'often' ist keine Rate" in said.getvalue() and "api (Datenbank)" in said.getvalue()

    def test_what_only_djangos_checks_find_fails_too(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RULES": {"site": {"rate": "100/min", "key": "no.such"}}}
        with pytest.raises(SystemCheckError, match="E005"):
            call_command("throttle_rules", "check", skip_checks=False)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "line", ["list", "check", "export", "import FILE", "import FILE --dry-run", "throttle_override list"]
)
def test_without_its_table_it_says_to_migrate(line: str, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text('{"api": {"rate": "5/s"}}')
    words = line.replace("FILE", str(tmp_path / "rules.json")).split()
    model = ThrottleOverride if "override" in line else ThrottleRule
    with connection.schema_editor() as editor:
        editor.delete_model(model)
    try:
        with pytest.raises(CommandError, match=r"^.*run `manage\.py migrate`.*$"):
            call_command(*words) if "override" in line else run(*words)
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(model)


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (ProgrammingError('relation "django_throttle_throttlerule" does not exist\nLINE 1: SELECT'), True),
        (OperationalError("(1146, \"Table 'site.django_throttle_throttlerule' doesn't exist\")"), True),
        (ProgrammingError("permission denied for table django_throttle_throttlerule"), False),
        (OperationalError("database is locked"), False),
        (OperationalError(), False),
    ],
    ids=str,
)
def test_only_a_missing_table_needs_migrating(error: Exception, advised: bool) -> None:
    assert ("migrate" in sources.advice(error)) is advised
    assert "\n" not in sources.advice(error)


def test_the_help_says_what_becomes_of_an_option_that_a_file_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("import", "--help")
    assert "goes back to its default" in " ".join(capsys.readouterr().out.split())


class TestLog:
    def test_it_says_who_changed_what_and_why(self, tmp_path: Path) -> None:
        file = tmp_path / "rules.json"
        file.write_text('{"api": {"rate": "5/s"}, "other": {"rate": "1/s"}}')
        run("import", str(file), "--reason", "first\nrules")
        ThrottleRule.objects.filter(name="api").update(rate="7/s")
        newest, oldest = run("log", "api").splitlines()
        assert newest.endswith("somebody: Rule api changed: rate: 5/s → 7/s")
        assert oldest.endswith("(import): Rule api added: each user or address: 5 requests per second – first rules")
        assert len(run("log").splitlines()) == 3
        assert run("log", "--most", "1").count("\n") == 1

    def test_the_time_is_that_of_the_site(self) -> None:
        ThrottleRule.objects.create(name="api", rate="5/s")
        ThrottleChange.objects.update(at=datetime(2030, 1, 31, 23, 0, tzinfo=UTC))
        with timezone.override("Asia/Tokyo"):
            assert "  2030-02-01 08:00:00 JST  somebody: Rule api added" in run("log", "api")

    def test_what_ran_out_did_so_by_itself_and_moments_are_told_to_the_second(self) -> None:
        until = datetime(2020, 1, 31, 18, 0, 0, 123456, UTC)
        row = ThrottleOverride.objects.create(kind="user", value="7", effect="block", reason="abuse", until=until)
        overrides_ended.send_robust(sender=None, overrides=(row.as_override(),))
        row.until = until.replace(minute=5)
        row.save()
        with timezone.override("Asia/Tokyo"):
            row.until = None
            row.save()
            endless, extended, ended, _ = (
                line.partition("  ")[2].partition("  ")[2] for line in run("log").splitlines()
            )
        assert ended == "its end time: Override User 7 ran out: blocked"
        assert extended.endswith(": until: 2020-01-31 18:00:00 UTC → 2020-01-31 18:05:00 UTC")
        assert endless.endswith(": until: 2020-02-01 03:05:00 JST → default")
        newest, *_ = json.loads(run("log", "--json"))
        assert newest["before"]["until"] == "2020-01-31T18:05:00.123456+00:00"

    def test_as_json(self) -> None:
        assert (run("log"), run("log", "--json")) == ("Nothing was changed.\n", "[]\n")
        ThrottleRule.objects.create(name="api", rate="5/s").delete()
        removed, added = json.loads(run("log", "api", "--json"))
        assert (removed["action"], removed["before"], removed["after"]) == (
            "removed",
            {"name": "api", "rate": "5/s"},
            None,
        )
        assert (added["name"], added["before"], added["after"]["rate"]) == ("api", None, "5/s")
        assert {"at", "who", "via", "reason", "words", "id", "kind", "row"} <= set(added)

    def test_a_name_that_no_rule_has(self) -> None:
        ThrottleRule.objects.create(name="search", rate="5/s")
        for also in ((), ("--json",)):
            with pytest.raises(CommandError, match=r"'serach'.*Did you mean 'search'"):
                run("log", "serach", *also)
        with pytest.raises(CommandError, match="a whole number from 1"):
            run("log", "--most", "0")
        ThrottleRule.objects.all().delete()
        assert len(run("log", "search").splitlines()) == 2, "the history of a rule that is gone"


class TestCandidates:
    @pytest.fixture(autouse=True)
    def with_redis(self, settings: Any, redis_url: str) -> Iterator[None]:
        settings.DJANGO_THROTTLE = {"RULES": {}, "AGENT": False, "REDIS": redis_url, "DEADLINE": 5.0}
        recorder.take()
        yield
        recorder.take()

    def test_each_is_compared_with_its_rule(self) -> None:
        assert run("candidates") == "There are no candidates.\n"
        ThrottleRule.objects.create(name="api", rate="5/s")
        row = ThrottleCandidate.of(ThrottleRule(name="api", rate="3/s"), "api", "anna")
        row.share = 0.1
        row.save()
        rulebook.refresh()
        for _ in range(4):
            limiter.decide(Facts("page", ("request",), By("user:1"), ident="user:1"))
        RecordFlusher(get_store())()
        said = run("candidates", "api")
        assert said.startswith("api: each user or address: 3 requests per second, enforced for 0.1 of all\n")
        assert "  Calls: 4\n  Both would refuse: 0\n" in said
        (found,) = json.loads(run("candidates", "--json"))
        assert (found["name"], found["share"], found["starts_at"], found["calls"]) == ("api", 0.1, None, 4)
        assert found["only_candidate"] == sum(one["candidate"] for one in found["minutes"])
        assert found["live_holds"]["calls"] + found["candidate_holds"]["calls"] == 4
        with pytest.raises(CommandError, match="There is no rule 'other'"):
            run("candidates", "other", "--json")
        row.delete()
        assert run("candidates", "api", "--json") == "[]\n"

    def test_in_memory_nobody_else_knows(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"STORE": "memory"}
        with pytest.raises(CommandError, match="only each process knows"):
            run("candidates")

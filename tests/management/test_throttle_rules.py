"""manage.py throttle_rules: list, check, export, import, log."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError
from django.core.management.base import SystemCheckError
from django.db import IntegrityError, connection
from django.utils import timezone, translation

from django_throttle.management.rules_file import MAX_BYTES
from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule
from tests.management.shell import run as typed

pytestmark = pytest.mark.django_db
Put = Callable[[object], str]


def run(*words: str, **options: Any) -> str:
    return typed("throttle_rules", *words, **options)


@pytest.fixture(autouse=True)
def settings_rules(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"site": {"rate": "100/min"}}}


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def put(content: object) -> str:
        path = tmp_path / "rules.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(path)

    return put


def test_each_rule_is_listed_with_its_source_and_its_words(settings: Any) -> None:
    row = ThrottleRule.objects.create(name="api", rate="5/s", key="user")
    ThrottleRule.objects.create(name="site", rate="6/s", enabled=False)
    assert run("list").splitlines() == [
        "api   database                     each user: 5 requests per second",
        "site  database, replaces settings  each user or address: 6 requests per second, switched off",
    ]
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "SHADOW": True}
    assert run("list").endswith("SHADOW is on in the settings: rules only record, and nothing is refused\n")
    row.key = "os.abort"
    row.save()
    assert "api (database) is skipped: the key 'os.abort'" in run("list")
    ThrottleRule.objects.all().delete()
    settings.DJANGO_THROTTLE = {}
    assert run("list") == "There are no rules.\n"


def test_a_check_names_all_bad_rules_in_the_language_in_force(settings: Any) -> None:
    assert run("check") == "1 rule, nothing wrong\n"
    settings.DJANGO_THROTTLE = {"RULES": {"site": {"rate": "100/min", "key": "no.such"}}}
    with pytest.raises(SystemCheckError, match="E005"):  # what only Django's checks find
        run("check", skip_checks=False)
    settings.DJANGO_THROTTLE = {"RULES": {"bad": {"rate": "often"}}}
    ThrottleRule.objects.create(name="api", rate="5/s", key="os.abort")
    assert "api (database)" in run("list")
    with translation.override("de"), pytest.raises(CommandError, match="2 Regeln") as caught:
        run("check", skip_checks=False)
    assert caught.value.returncode == 1 and not isinstance(caught.value, SystemCheckError)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("line", ["throttle_rules check", "throttle_rules import FILE", "throttle_override list"])
def test_without_its_table_it_says_to_migrate(line: str, put: Put) -> None:
    model = ThrottleOverride if "override" in line else ThrottleRule
    with connection.schema_editor() as editor:
        editor.delete_model(model)
    try:
        with pytest.raises(CommandError, match=r"^.*run `manage\.py migrate`.*$"):
            typed(line.replace("FILE", put({"api": {"rate": "5/s"}})))
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(model)


QUOTA = {
    "rate": "10000/month", "algorithm": "fixed_window", "methods": ["POST", "PUT"], "count_on": [401, 403],
    "audience": ["group:night shift", "staff"], "warn_at": [0.8, 1.0], "enforce_at": 2.5, "cost": "os.path.getsize",
}  # fmt: skip


class TestExport:
    def test_exports_can_be_imported_and_pasted_into_settings(self, settings: Any, put: Put, tmp_path: Path) -> None:
        priced = {"rate": "9/s", "cost": "os.path.getsize"}
        settings.DJANGO_THROTTLE = {"RULES": {"priced": priced}}
        rules = {"api": {"rate": "5/s", "scopes": ["a", "b"], "events": ["request", "message"]}, "quota": QUOTA}
        rules["sockets"] = {"limit": 5, "algorithm": "concurrency", "events": ["connection"]}
        run("import", put(rules))
        exported = run("export")
        assert json.loads(exported) == rules
        assert json.loads(run("export", "--all")) == {**rules, "priced": priced}
        with pytest.raises(CommandError, match="cannot write"):
            run("export", "--output", str(tmp_path / "no" / "such"))
        assert run("export", "--output", str(tmp_path / "out.json")) == ""
        assert (tmp_path / "out.json").read_text() == exported
        assert run("import", str(tmp_path / "out.json"), "--replace").endswith("0 removed, 3 unchanged\n")
        settings.DJANGO_THROTTLE = {"RULES": json.loads(exported), "DATABASE_RULES": False}
        assert "api      settings  each user or address: 5 requests per second" in run("list")


class TestImport:
    RULES = {"api": {"rate": "5/s"}, "login": {"rate": "3/min", "key": "ip", "description": "Since the attack."}}

    def test_it_adds_changes_and_keeps_and_with_replace_deletes(self, put: Put) -> None:
        ThrottleRule.objects.create(name="api", rate="9/s", options={"strict": True})
        ThrottleRule.objects.create(name="old", rate="9/s")
        changes = [
            "+ login    each address: 3 requests per minute", "~ api    each user or address: 5 requests per second",
            "    rate: 9/s → 5/s", "    strict: yes → default", "1 added, 1 changed, 0 removed, 0 unchanged",
        ]  # fmt: skip
        *dry, total = run("import", put(self.RULES), "--dry-run").splitlines()
        assert [*dry, total] == [*changes[:-1], f"{changes[-1]} (dry run: nothing was written)"]
        assert set(ThrottleRule.objects.values_list("rate")) == {("9/s",)}
        assert run("import", put(self.RULES)).splitlines() == changes
        rows = sorted(ThrottleRule.objects.values_list("name", "rate", "description"))
        assert rows == [("api", "5/s", ""), ("login", "3/min", "Since the attack."), ("old", "9/s", "")]
        assert "- old    each user or address: 9 requests per second" in run("import", put(self.RULES), "--replace")
        assert not ThrottleRule.objects.filter(name="old").exists()

    def test_standard_input_and_a_byte_order_mark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = io.BytesIO(b"\xef\xbb\xbf" + json.dumps(self.RULES).encode())
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=raw))
        assert "2 added" in run("import", "-")
        with pytest.raises(CommandError, match="cannot read"):
            run("import", "/no/such.json")

    @pytest.mark.row("A58")
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"burts": 3}, "rule 'api': there is no option 'burts'; did you mean 'burst'?"),
            *(({name: 1}, f"there is no option '{name}'") for name in ("updated_at", "id", "batched")),
            ({"rate": "often"}, "rule 'api': 'often' is not a rate"),
            ({"enabled": "yes"}, "enabled must be True or False"),
            ({"scopes": "search"}, "scopes must be a list such as"),
            ({"scopes": ["x" * 1001]}, "scopes: "),
            ({"scopes": [" search "]}, "unlike ' search '"),
            ({"key": "ip+os.abort"}, "the key 'os.abort' is used by no rule in settings"),
            ({"unit": "units", "measure": "os.abort"}, "measure 'os.abort' is used by no"),
            ({"cost": "os.abort"}, "the cost 'os.abort' is used by no rule in settings"),
            ({"description": ["a"]}, "description must be text"),
        ],
        ids=str,
    )
    def test_wrong_options_are_refused_with_the_whole_file(self, put: Put, options: dict[str, Any], said: str) -> None:
        with pytest.raises(CommandError) as caught:
            run("import", put({"fine": {"rate": "1/s"}, "api": {"rate": "5/s", **options}, "bad": {"rate": "x"}}))
        first, *lines = str(caught.value).splitlines()
        assert (first, len(lines), said in lines[0]) == ("nothing was imported:", 2, True), "all is said at once"
        assert not ThrottleRule.objects.exists()

    @pytest.mark.row("A58")
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ({"api": "5/s"}, "its options are an object"), ({"": {"rate": "5/s"}}, "a name must have 1 to 100"),
            (["api"], "an object of rules"), (b"\xff\xfe\x00", "not UTF-8"),
            (b'{"a": {"rate": "1/s"}, "a": {"rate": "2/s"}}', "'a' is there twice"),
            (b'{"a": {"rate": "1/s", "rate": "2/s"}}', "'rate' is there twice"),
            (b'{"a": {"rate": "1/s", "cost": NaN}}', "NaN is not a number"),
            (b'{"a": {"rate": "1/s", "cost": ' + b"9" * 5000 + b"}}", "the file is not JSON"),
            (b"[" * 200_000, "nested too deeply"), (b" " * (MAX_BYTES + 1), "larger than 1,000,000 bytes"),
        ],
        ids=lambda value: str(value)[:40],
    )  # fmt: skip
    def test_what_is_no_file_of_rules_is_refused(self, put: Put, content: object, said: str) -> None:
        with pytest.raises(CommandError) as caught:
            run("import", put(content))
        assert said in str(caught.value)
        assert not ThrottleRule.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_it_is_one_transaction(self, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(self: ThrottleRule, *args: object, **options: object) -> None:
            raise RuntimeError("half way")

        ThrottleRule.objects.create(name="old", rate="9/s")
        monkeypatch.setattr(ThrottleRule, "delete", fail)
        with pytest.raises(RuntimeError):
            run("import", put(self.RULES), "--replace")
        assert list(ThrottleRule.objects.values_list("name", flat=True)) == ["old"]

    def test_names_that_are_one_to_a_database_are_said(self, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: ThrottleRule, **options: object) -> None:
            raise IntegrityError("twice")

        monkeypatch.setattr(ThrottleRule, "save", refuse)
        cases = {("api", "API", "b"): "'API' and 'api' are one name to this database", ("b",): "import again"}
        for names, said in cases.items():
            with pytest.raises(CommandError, match=said):
                run("import", put({name: {"rate": "5/s"} for name in names}))


class TestLog:
    def test_it_says_who_changed_what_and_why(self, put: Put) -> None:
        assert (run("log"), run("log", "--json")) == ("Nothing was changed.\n", "[]\n")
        run("import", put({"api": {"rate": "5/s"}, "other": {"rate": "1/s"}}), "--reason", "first\nrules")
        ThrottleRule.objects.filter(name="api").update(rate="7/s")
        newest, oldest = run("log", "api").splitlines()
        assert newest.endswith("somebody: Rule api changed: rate: 5/s → 7/s")
        assert oldest.endswith("(import): Rule api added: each user or address: 5 requests per second – first rules")
        assert (run("log").count("\n"), run("log", "--most", "1").count("\n")) == (3, 1)
        changed, added = json.loads(run("log", "api", "--json"))
        assert (changed["before"]["rate"], changed["after"]["rate"], added["before"]) == ("5/s", "7/s", None)
        assert {"at", "who", "via", "reason", "words", "id", "kind", "row", "name", "action"} <= set(added)
        ThrottleChange.objects.update(at=datetime(2030, 1, 31, 23, 0, tzinfo=UTC))
        with timezone.override("Asia/Tokyo"):
            assert "  2030-02-01 08:00:00 JST  somebody: Rule api changed" in run("log", "api")

    def test_a_name_that_no_rule_has(self) -> None:
        ThrottleRule.objects.create(name="search", rate="5/s")
        with pytest.raises(CommandError, match=r"'serach'.*Did you mean 'search'"):
            run("log", "serach", "--json")
        with pytest.raises(CommandError, match="a whole number from 1"):
            run("log", "--most", "0")
        ThrottleRule.objects.all().delete()
        assert run("log", "search").count("\n") == 2, "the history of a rule that is gone"

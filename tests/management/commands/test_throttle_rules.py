"""manage.py throttle_rules: list, check, export, import."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connection

from django_throttle.models import ThrottleRule
from django_throttle.rulebook import sources
from django_throttle.rulebook.file import MAX_BYTES

pytestmark = pytest.mark.django_db


def run(*words: str) -> str:
    said = io.StringIO()
    call_command("throttle_rules", *words, stdout=said, stderr=said, no_color=True)
    return said.getvalue()


@pytest.fixture
def put(tmp_path: Path) -> Any:
    """Writes a file of rules; returns its path."""

    def write(content: object) -> str:
        path = tmp_path / "rules.json"
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(raw)
        return str(path)

    return write


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

    def test_what_is_skipped_is_named(self) -> None:
        ThrottleRule.objects.create(name="api", rate="5/s", key="os.abort")
        assert "api (database) is skipped: the key 'os.abort'" in run("list")

    def test_it_says_when_nothing_is_refused(self, settings: Any) -> None:
        assert "SHADOW" not in run("list")
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "SHADOW": True}
        assert run("list").endswith("SHADOW is on in the settings: rules only record, and nothing is refused\n")

    def test_none_at_all(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {}
        assert run("list") == "There are no rules.\n"


class TestCheck:
    def test_all_is_well(self) -> None:
        assert run("check") == "1 rule, nothing wrong\n"

    def test_a_bad_row_is_named_and_fails(self) -> None:
        ThrottleRule.objects.create(name="api", rate="5/s", key="os.abort")
        said = io.StringIO()
        with pytest.raises(CommandError, match="1 rule cannot be used") as caught:
            call_command("throttle_rules", "check", stderr=said)
        assert caught.value.returncode == 1
        assert "api (database): the key 'os.abort'" in said.getvalue()

    def test_so_does_a_bad_rule_of_settings(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RULES": {"bad": {"rate": "often"}}}
        with pytest.raises(CommandError, match="1 rule cannot be used"):
            run("check")


class TestExport:
    def test_what_is_exported_can_be_imported(self, tmp_path: Path) -> None:
        ThrottleRule.objects.create(name="api", rate="5/s", scopes="a,b", events="request,message", description="why")
        ThrottleRule.objects.create(name="sockets", limit=5, algorithm="concurrency", events="connection")
        out = tmp_path / "out.json"
        assert run("export", "--output", str(out)) == ""
        assert out.read_text() == run("export")
        assert run("import", str(out), "--replace") == "0 added, 0 changed, 0 removed, 2 unchanged\n"
        ThrottleRule.objects.all().delete()
        run("import", str(out))
        assert run("export") == out.read_text()

    def test_it_can_be_pasted_into_settings(self, settings: Any) -> None:
        ThrottleRule.objects.create(name="api", rate="5/s", burst=9, algorithm="gcra")
        settings.DJANGO_THROTTLE = {"RULES": json.loads(run("export")), "DATABASE_RULES": False}
        assert "api  settings  each user or address: 5 requests per second, bursts up to 9" in run("list")

    def test_rules_of_settings_come_along_when_asked_for(self) -> None:
        ThrottleRule.objects.create(name="api", rate="5/s")
        assert list(json.loads(run("export"))) == ["api"]
        assert list(json.loads(run("export", "--all"))) == ["api", "site"]

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(CommandError, match="cannot write"):
            run("export", "--output", str(tmp_path / "no" / "such"))


QUOTA = {
    "rate": "10000/month",
    "algorithm": "fixed_window",
    "methods": ["POST", "PUT"],
    "audience": ["group:night shift", "staff"],
    "count_on": [401, 403],
    "warn_at": [0.8, 1.0],
    "enforce_at": 2.5,
    "cost": "os.path.getsize",
}


class TestQuota:
    """Every option of a rule makes the round trip, and a change of each is shown."""

    @pytest.fixture(autouse=True)
    def priced(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RULES": {"priced": {"rate": "9/s", "cost": "os.path.getsize"}}, "AGENT": False}

    def test_it_comes_back_as_it_went(self, put: Any) -> None:
        run("import", put({"quota": QUOTA}))
        exported = json.loads(run("export"))
        assert exported == {"quota": QUOTA}
        assert "0 added, 0 changed, 0 removed, 1 unchanged" in run("import", put(exported))
        assert json.loads(run("export", "--all"))["priced"] == {"rate": "9/s", "cost": "os.path.getsize"}

    def test_each_change_is_a_line(self, put: Any) -> None:
        run("import", put({"quota": QUOTA}))
        less = {"rate": "10000/month", "algorithm": "fixed_window", "warn_at": [0.5]}
        lines = run("import", put({"quota": less}), "--dry-run").splitlines()
        for line in (
            "    methods: POST, PUT → none",
            "    audience: group:night shift, staff → none",
            "    count_on: 401, 403 → none",
            "    warn_at: 0.8, 1.0 → 0.5",
            "    enforce_at: 2.5 → 1.0",
            "    cost: os.path.getsize → 1",
        ):
            assert line in lines

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"methods": ["PSOT"]}, "there is no method 'PSOT'; did you mean 'POST'?"),
            ({"methods": "POST"}, "methods is a list of names"),
            ({"audience": ["Staff"]}, "did you mean 'staff'?"),
            ({"warn_at": ["80 %"]}, "warn_at has shares of the limit"),
            ({"warn_at": [1.5]}, "never gets to 1.5 times the limit"),
            ({"enforce_at": "2"}, "enforce_at is a number"),
            ({"count_on": ["4xx"]}, "count_on has HTTP statuses"),
            ({"cost": "os.abort"}, "the cost 'os.abort' is used by no rule in settings"),
            ({"cost": True}, "cost is a whole number"),
        ],
        ids=str,
    )
    def test_what_makes_no_sense_is_refused_by_its_name(self, put: Any, options: dict[str, Any], said: str) -> None:
        with pytest.raises(CommandError, match="nothing was imported") as caught:
            run("import", put({"quota": {"rate": "9/s", **options}}))
        assert said in str(caught.value)
        assert not ThrottleRule.objects.exists()


class TestImport:
    RULES = {"api": {"rate": "5/s"}, "login": {"rate": "3/min", "key": "ip", "description": "Since the attack."}}

    def test_it_adds_changes_and_keeps(self, put: Any) -> None:
        ThrottleRule.objects.create(name="api", rate="9/s", strict=True)
        ThrottleRule.objects.create(name="old", rate="9/s")
        assert run("import", put(self.RULES)).splitlines() == [
            "+ login    each address: 3 requests per minute",
            "~ api    each user or address: 5 requests per second",
            "    rate: 9/s → 5/s",
            "    strict: yes → no",
            "1 added, 1 changed, 0 removed, 0 unchanged",
        ]
        assert sorted(ThrottleRule.objects.values_list("name", "rate")) == [
            ("api", "5/s"),
            ("login", "3/min"),
            ("old", "9/s"),
        ]
        assert ThrottleRule.objects.get(name="login").description == "Since the attack."

    def test_replace_deletes_what_the_file_lacks(self, put: Any) -> None:
        ThrottleRule.objects.create(name="old", rate="9/s")
        assert "- old    each user or address: 9 requests per second" in run("import", put(self.RULES), "--replace")
        assert not ThrottleRule.objects.filter(name="old").exists()

    def test_a_dry_run_writes_nothing(self, put: Any) -> None:
        said = run("import", put(self.RULES), "--dry-run")
        assert "2 added, 0 changed, 0 removed, 0 unchanged (dry run: nothing was written)" in said
        assert not ThrottleRule.objects.exists()

    def test_standard_input(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = io.BytesIO(json.dumps(self.RULES).encode())
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=raw))
        assert "2 added" in run("import", "-")

    def test_a_byte_order_mark_is_welcome(self, put: Any) -> None:
        assert "2 added" in run("import", put(b"\xef\xbb\xbf" + json.dumps(self.RULES).encode()))

    @pytest.mark.row("A58")
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ({"api": {"rate": "5/s", "burts": 3}}, "rule 'api': there is no option 'burts'; did you mean 'burst'?"),
            ({"api": {"rate": "5/s", "updated_at": "now"}}, "there is no option 'updated_at'"),
            ({"api": {"rate": "5/s", "id": 1}}, "there is no option 'id'"),
            ({"api": {"rate": "often"}}, "rule 'api': 'often' is not a rate"),
            ({"api": {"rate": 5}}, "rule 'api': "),
            ({"api": {"rate": "5/s", "enabled": "yes"}}, "enabled is True or False"),
            ({"api": {"rate": "5/s", "scopes": "search"}}, "scopes is a list of names"),
            ({"api": {"rate": "5/s", "scopes": ["x" * 1001]}}, "scopes: "),
            ({"api": {"rate": "5/s", "key": "os.abort"}}, "the key 'os.abort' is used by no rule in settings"),
            ({"api": {"rate": "5/s", "key": "ip+os.abort"}}, "the key 'os.abort' is used by no rule in settings"),
            ({"api": {"rate": "5/s", "description": ["a"]}}, "description is text"),
            ({"api": "5/s"}, "its options are an object"),
            ({"": {"rate": "5/s"}}, "a name is 1 to 100"),
            ({"api": {"rate": "5/s", "scopes": ["a,b"]}}, "scopes: a name has no comma and no space around it"),
            ({"api": {"rate": "5/s", "scopes": [" search "]}}, "unlike ' search '"),
            (["api"], "an object of rules"),
            (b"rules: {}", "the file is not JSON"),
            (b"\xff\xfe\x00", "not UTF-8"),
            (b'{"a": {"rate": "1/s"}, "a": {"rate": "2/s"}}', "'a' is there twice"),
            (b'{"a": {"rate": "1/s", "rate": "2/s"}}', "'rate' is there twice"),
            (b'{"a": {"rate": "1/s", "cost": NaN}}', "NaN is not a number"),
            (b'{"a": {"rate": "1/s", "cost": 1e999}}', "cost is a whole number"),
            (b'{"a": {"rate": "1/s", "cost": ' + b"9" * 5000 + b"}}", "the file is not JSON"),
            (b"[" * 200_000, "nested too deeply"),
            (b" " * (MAX_BYTES + 1), "larger than 1,000,000 bytes"),
        ],
        ids=lambda value: str(value)[:60],
    )
    def test_what_is_no_file_of_rules_is_refused_whole(self, put: Any, content: object, said: str) -> None:
        if isinstance(content, dict):
            content = {"fine": {"rate": "1/s"}, **content}
        with pytest.raises(CommandError) as caught:
            run("import", put(content))
        assert said in str(caught.value)
        assert not ThrottleRule.objects.exists()

    def test_all_that_is_wrong_is_said_at_once(self, put: Any) -> None:
        with pytest.raises(CommandError) as caught:
            run("import", put({"one": {"rate": "x"}, "two": {"rat": "y"}}))
        assert str(caught.value).splitlines()[0] == "nothing was imported:"
        assert len(str(caught.value).splitlines()) == 3

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(CommandError, match="cannot read"):
            run("import", str(tmp_path / "nothing.json"))

    @pytest.mark.django_db(transaction=True)
    def test_it_is_one_transaction(self, put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(self: ThrottleRule, *args: object, **options: object) -> None:
            raise RuntimeError("half way")

        ThrottleRule.objects.create(name="old", rate="9/s")
        monkeypatch.setattr(ThrottleRule, "delete", fail)
        with pytest.raises(RuntimeError):
            run("import", put(self.RULES), "--replace")
        assert list(ThrottleRule.objects.values_list("name", flat=True)) == ["old"]


def test_names_that_differ_in_their_capitals_alone(put: Any) -> None:
    path = put({"api": {"rate": "1/s"}, "API": {"rate": "2/s"}})
    if connection.vendor != "mysql":
        assert "2 added" in run("import", path)
        return
    with pytest.raises(CommandError, match="nothing was imported: 'API' and 'api' are one name to this database"):
        run("import", path)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("todo", [["list"], ["check"], ["export"], ["import", "FILE"], ["import", "FILE", "--dry-run"]])
def test_without_its_table_it_says_to_migrate(todo: list[str], put: Any) -> None:
    path = put({"api": {"rate": "5/s"}})
    with connection.schema_editor() as editor:
        editor.delete_model(ThrottleRule)
    try:
        with pytest.raises(CommandError) as caught:
            run(*(path if word == "FILE" else word for word in todo))
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(ThrottleRule)
    assert "run `manage.py migrate`" in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_the_demo_rules_can_be_imported() -> None:
    path = Path(__file__).parents[3] / "testproject" / "rules.json"
    assert "0 changed, 0 removed" in run("import", str(path))

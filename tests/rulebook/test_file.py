"""A file of rules: what is exported can be imported, and what is no file of rules is refused whole."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

from django_throttle.models import ThrottleRule
from django_throttle.rulebook.file import MAX_BYTES
from tests.management.commands.test_throttle_rules import run

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def settings_rules(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"site": {"rate": "100/min"}}, "AGENT": False}


@pytest.fixture
def put(tmp_path: Path) -> Any:
    """Writes a file of rules; returns its path."""

    def write(content: object) -> str:
        path = tmp_path / "rules.json"
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(raw)
        return str(path)

    return write


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

    def test_what_a_rule_of_sockets_counts_is_written_out(self) -> None:
        ThrottleRule.objects.create(name="sockets", limit=5, algorithm="concurrency", events="connection")
        assert json.loads(run("export"))["sockets"]["events"] == ["connection"]

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
            ({"api": {"rate": "5/s", "batched": True}}, "there is no option 'batched'"),
            ({"api": {"rate": "often"}}, "rule 'api': 'often' is not a rate"),
            ({"api": {"rate": 5}}, "rule 'api': "),
            ({"api": {"rate": "5/s", "enabled": "yes"}}, "enabled must be True or False"),
            ({"api": {"rate": "5/s", "scopes": "search"}}, "scopes must be a list such as"),
            ({"api": {"rate": "5/s", "scopes": ["x" * 1001]}}, "scopes: "),
            ({"api": {"rate": "5/s", "key": "os.abort"}}, "the key 'os.abort' is used by no rule in settings"),
            ({"api": {"rate": "5/s", "key": "ip+os.abort"}}, "the key 'os.abort' is used by no rule in settings"),
            ({"api": {"rate": "5/s", "cost": "os.abort"}}, "the cost 'os.abort' is used by no rule in settings"),
            (
                {"api": {"rate": "5/s", "unit": "rows", "reserve": "os.abort"}},
                "the reserve 'os.abort' is used by no rule in settings",
            ),
            (
                {"api": {"rate": "5/s", "unit": "units", "measure": "os.abort"}},
                "the measure 'os.abort' is used by no rule in settings",
            ),
            ({"api": {"rate": "5/s", "description": ["a"]}}, "description must be text"),
            ({"api": "5/s"}, "its options are an object"),
            ({"": {"rate": "5/s"}}, "a name must have 1 to 100"),
            ({"api": {"rate": "5/s", "scopes": ["a,b"]}}, "scopes: a name has no comma and no space around it"),
            ({"api": {"rate": "5/s", "scopes": [" search "]}}, "unlike ' search '"),
            (["api"], "an object of rules"),
            (b"rules: {}", "the file is not JSON"),
            (b"\xff\xfe\x00", "not UTF-8"),
            (b'{"a": {"rate": "1/s"}, "a": {"rate": "2/s"}}', "'a' is there twice"),
            (b'{"a": {"rate": "1/s", "rate": "2/s"}}', "'rate' is there twice"),
            (b'{"a": {"rate": "1/s", "cost": NaN}}', "NaN is not a number"),
            (b'{"a": {"rate": "1/s", "cost": 1e999}}', "cost must be a whole number"),
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


def test_the_demo_rules_can_be_imported() -> None:
    path = Path(__file__).parents[2] / "testproject" / "rules.json"
    assert "0 changed, 0 removed" in run("import", str(path))

"""Every command, and each of its options, takes whatever is typed: it does it, or says in a line what is wrong."""

import argparse
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import BaseCommand, CommandError, call_command, get_commands, load_command_class

from django_throttle.core.rule import OPTIONS
from django_throttle.management import ShellCommand
from django_throttle.models import ThrottleRule
from tests.pages import DOCS

pytestmark = pytest.mark.django_db
JUNK = [
    "", " ", "\x00", "a\x00b", "\ud800", "a\ud800", "x,\ud800", str(2**63), str(-(2**63) - 1), str(2**31), "9" * 5000,
    "1e400", "nan", "inf", "-1", "0", "1.5", "\u0663", "\U0001f986", "{}", "[", "*" * 2000, "x" * 100_000, "a,b", "\n",
    "user:\ud800", "ip:\x00", "0001-01-01", "9999-12-31T23:59:59", "9999-12-31T23:59:59-14:00",
    "0001-01-01T00:00:00+14:00", "2030-13-45", "99999999999999d", "/", "/dev/null/x", "\x00.png", "\ud800.svg",
    "999999999999999/day", "1000000000000000/day",
]  # fmt: skip
OURS = {name: app for name, app in sorted(get_commands().items()) if app.startswith("django_throttle")}
OVERRIDE = "throttle_override add ip 192.0.2.1 --reason x --block"
#: Lines that work; each of their words, and each option that they could have, is replaced by junk.
LINES = [
    OVERRIDE,
    *(f"throttle_override add {kind} x --reason x --block" for kind in ("user", "group", "api_key", "tenant")),
    *("throttle_override end 1", "throttle_override list", "throttle_reset user:1", "throttle_costs"),
    *("throttle_backtest rules.json --log log", "throttle_backtest rules.json --recorded hour", "throttle_overview"),
    *("throttle_explain ip:192.0.2.1", "throttle_inspect", "throttle_rules list", "throttle_rules check"),
    *("throttle_rules export", "throttle_rules import rules.json", "throttle_candidates", "throttle_rules log"),
    "refresh_connections --once",
]


def parser_of(command: str, words: list[str]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = load_command_class(OURS[command], command).create_parser("manage.py", command)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices[words[0]]  # type: ignore[no-any-return]
    return parser


DJANGOS = {action.dest for action in BaseCommand().create_parser("manage.py", "any")._actions}


def junk_lines(line: str) -> Iterator[list[str]]:
    """The line with "JUNK" in place of each of its words, and after each option that takes a value."""
    command, *words = line.split()
    yield [command, *words]
    for place, word in enumerate(words):
        if not word.startswith("--"):
            yield [command, *words[:place], "JUNK", *words[place + 1 :]]
    for action in parser_of(command, words)._actions if line == OVERRIDE or words[:1] != ["add"] else ():
        if action.option_strings and action.dest not in DJANGOS and action.option_strings[-1] not in words:
            yield [command, *words, action.option_strings[-1], *([] if action.nargs == 0 else ["JUNK"])]


@pytest.fixture(autouse=True)
def site(settings: Any, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "RULES": {"api": {"rate": "5/min"}}}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.json").write_text('{"api": {"rate": "1/min", "key": "user_or_ip"}}')
    lines = [json.dumps({"time": 1e9, "user": junk, "scope": junk, "method": junk}) for junk in 2 * JUNK]
    (tmp_path / "log").write_text("\n".join([*lines, *JUNK]), errors="surrogatepass")
    User.objects.create_user("anna")
    Group.objects.create(name="support")


def run(*words: str) -> None:
    """As from a shell whose terminal is strict about what it is given."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    call_command(*words, stdout=out, stderr=err)
    out.flush()


def faults(*words: str) -> list[str]:
    try:
        run(*words)
    except CommandError:
        return []
    except Exception as error:  # noqa: BLE001 - whatever it is
        return [f"{words}: {type(error).__name__}: {error}"]
    return []


@pytest.mark.parametrize("line", LINES)
def test_whatever_is_typed(line: str) -> None:
    for words in junk_lines(line):
        for junk in JUNK if "JUNK" in words else [""]:
            assert faults(*(junk if word == "JUNK" else word for word in words)) == []


VALUES: list[Any] = [*JUNK, 2**63, -(2**63), 10**400, 1e300, -1, 0, 1.5, True, None, [], {}, [[]], ["\ud800"], ["\x00"]]


@pytest.mark.parametrize("option", [*OPTIONS, "description", "nothing", None])
def test_whatever_a_file_of_rules_holds(option: str | None, tmp_path: Path) -> None:
    files = [{"api": {"rate": "5/min", option: value}} for value in VALUES] if option else []
    for rules in files or [{name: {"rate": "5/min"}} for name in JUNK]:
        (tmp_path / "rules.json").write_text(json.dumps(rules))
        assert faults("throttle_rules", "import", "rules.json") == []
        if ThrottleRule.objects.exists():
            assert faults("throttle_rules", "list") == faults("throttle_rules", "export", "--output", "out.json") == []
            ThrottleRule.objects.all().delete()


def test_no_command_is_left_out() -> None:
    assert {*OURS} == {line.split()[0] for line in LINES}
    assert all(isinstance(load_command_class(app, name), ShellCommand) for name, app in OURS.items())


def test_a_reader_who_goes_ends_a_command_without_a_traceback(servers: None, redis_url: str) -> None:
    own = {"DJANGO_SETTINGS_MODULE": "testproject.settings", "REDIS_URL": redis_url}
    line = [sys.executable, "-m", "django", "throttle_overview", "--json"]
    with Popen(line, cwd=DOCS.parent, env={**os.environ, **own}, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 1, said
    assert not any(word in said for word in ("BrokenPipeError", "Traceback", "CommandError")), said


@pytest.mark.parametrize(
    ("line", "in_memory"),
    [
        ("throttle_explain ip:192.0.2.1", ""),
        ("throttle_overview", "only each process knows what it decided"),
        ("throttle_costs", "only each process knows what its requests used"),
        *(
            (line, 'is "memory"')
            for line in ("throttle_inspect", "throttle_reset user:1", "refresh_connections --once")
        ),
    ],
)
def test_a_store_that_knows_nothing_is_said_plainly(settings: Any, line: str, in_memory: str) -> None:
    for store, said in (
        ({"REDIS": "redis://127.0.0.1:1/0"}, "Redis does not answer"),
        ({"REDIS": "http://localhost"}, "Redis URL begins with"),
        ({"STORE": "memory"}, in_memory),
    ):
        settings.DJANGO_THROTTLE = {**store, "RULES": {"api": {"rate": "5/min"}}}
        with pytest.raises(CommandError, match=said) if said else nullcontext():
            run(*line.split())

"""A database is chosen by its address, and a server of our own leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testproject.databases import database_settings
from testproject.services import NotRunning
from tests.databases import SERVERS, execute, new_database, program
from tests.servers import wait_until

PROGRAMS = {"postgresql": "initdb", "mariadb": "mariadbd"}


@pytest.mark.parametrize(
    ("address", "engine", "name", "place"),
    [
        ("", "sqlite3", ":memory:", ("", "", "", "")),
        ("site.sqlite3", "sqlite3", "site.sqlite3", ("", "", "", "")),
        ("postgresql://anna:p%40ss@db:5433/site", "postgresql", "site", ("anna", "p@ss", "db", "5433")),
        ("postgres://db/site", "postgresql", "site", ("", "", "db", "")),
        ("mysql://anna@db/my%20site", "mysql", "my site", ("anna", "", "db", "")),
        ("mariadb://db:3307/site", "mysql", "site", ("", "", "db", "3307")),
    ],
)
def test_an_address_becomes_settings(address: str, engine: str, name: str, place: tuple[str, ...]) -> None:
    found = database_settings(address)
    assert (found["ENGINE"], found["NAME"]) == (f"django.db.backends.{engine}", name)
    assert tuple(found.get(key, "") for key in ("USER", "PASSWORD", "HOST", "PORT")) == place


@pytest.mark.parametrize(("address", "told"), [("oracle://db/site", "oracle"), ("postgresql", "make test DATABASE=")])
def test_an_address_that_leads_nowhere_is_said(address: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        database_settings(address)


def test_without_a_name_of_a_server_the_command_runs_as_it_is() -> None:
    shown = [sys.executable, "-c", "import os; print(os.environ['DATABASE'])"]
    command = [sys.executable, "-m", "tests.databases", *shown]
    environment = {**os.environ, "DATABASE": "site.sqlite3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "site.sqlite3\n"


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
class TestServers:
    @pytest.fixture(autouse=True)
    def installed(self, name: str) -> None:
        try:
            program(PROGRAMS[name])
        except NotRunning as reason:
            pytest.skip(str(reason))

    def test_a_server_is_there_for_a_while_and_leaves_nothing_behind(
        self, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with SERVERS[name]() as server:
            execute(server.url, "CREATE TABLE one (number integer)")
            monkeypatch.setenv("DATABASE", server.url)
            with new_database(tmp_path) as database:
                execute(database, "CREATE TABLE one (number integer)")
        assert not server.folder.exists()
        assert not is_running(server.process.pid)

    def test_it_ends_with_whoever_started_it(self, name: str) -> None:
        start = f"from time import sleep; from tests.databases import SERVERS; server = SERVERS['{name}']()"
        code = f"{start}; print(server.process.pid, server.folder, flush=True); sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(lambda: not is_running(int(pid)) and not Path(folder).exists(), timeout=20)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

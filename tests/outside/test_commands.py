"""Every line with ``manage.py`` of every page is typed in the quickstart's project."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.console.test_backtest import LOG
from tests.outside.environments import EXTRAS, ROOT
from tests.outside.pages import BLOCKS, commands, page
from tests.outside.project import DEADLINE, Project, at_once
from tests.servers import RedisServer, need_file, slack, wait_until

COMMANDS = tuple(commands(BLOCKS))
MANAGE = "python manage.py "
ENDLESS = f"{MANAGE}refresh_connections"
PLAYED = ("README.md", "drf.rst", "saas.rst", "tasks.rst", "validation.rst")  # by tests of their own
NAMED = sorted({command.block.page for command in COMMANDS if command.line.startswith(MANAGE)} - {*PLAYED})
CLONE = '"./django_throttle['
# Of Django 6.1, whose own check for a deployment refuses what its startproject writes.
MAILERS = 'MAILERS = {"default": {"BACKEND": "django.core.mail.backends.smtp.EmailBackend"}}'
ANNA = "from django.contrib.auth.models import User; User.objects.create_user('anna', 'anna@example.com', pk=42)"


@pytest.fixture(scope="module")
def project(site_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with RedisServer() as redis:
        project = Project(site_python, tmp_path_factory.mktemp("commands") / "mysite", redis.url).start()
        project.write(*(block for block in page("quickstart.rst") if block.file))
        project.append("mysite/settings.py", DEADLINE + MAILERS)
        project.write(*(block for block in page("rollout.rst") if block.file == "try.json"))
        need_file(LOG)
        shutil.copy(LOG, project.folder / "access.log.gz")
        project.manage("migrate")
        project.python_code(ANNA)
        yield project


@pytest.fixture(scope="module")
def typed(project: Project) -> dict[str, Future[dict[str, str]]]:
    return at_once({name: partial(type_all, project, name) for name in NAMED})


def type_all(project: Project, name: str) -> dict[str, str]:
    site = project.copy(project.folder.parent / name)
    lines = [command.line for command in commands(page(name)) if command.line.startswith(MANAGE)]
    return {line: site.shell(line) for line in lines if line != ENDLESS}


@pytest.mark.parametrize("name", NAMED)
def test_the_lines_of_a_page(name: str, typed: dict[str, Future[dict[str, str]]]) -> None:
    typed[name].result(timeout=120)


def test_what_is_printed_is_what_the_page_shows(typed: dict[str, Future[dict[str, str]]]) -> None:
    printed = typed["rollout.rst"].result(timeout=120)
    (told,) = (text for line, text in printed.items() if "throttle_backtest" in line)
    text = (ROOT / "docs" / "howto" / "rollout.rst").read_text(encoding="utf-8")
    shown = {line.strip() for line in text.splitlines()}
    assert len(told.splitlines()) == 4 and {line.strip() for line in told.splitlines()} <= shown
    printed = typed["overrides.rst"].result(timeout=120)
    (listed,) = (text for line, text in printed.items() if line.endswith("throttle_override list"))
    assert all(subject in listed for subject in ("acme", "203.0.113.0/24", "User 42"))


def test_who_is_connected(project: Project) -> None:
    inspect, *_ = (command.line for command in commands(page("admin.rst")) if "throttle_inspect" in command.line)
    with project.served(["uvicorn"]) as ports:
        origin = f"http://127.0.0.1:{ports['uvicorn']}"
        with connect(f"ws{origin[4:]}/ws/chat/", origin=origin) as socket:  # type: ignore[arg-type]
            socket.send("1")
            assert socket.recv(timeout=10) == "1"
            # A busy process answers late, and is then taken for one without sockets.
            wait_until(lambda: project.shell(inspect).startswith("1 socket open in 1 process"), timeout=slack(20))
            with project.process(ENDLESS, "refresher") as process:
                wait_until(lambda: "connections 1 held" in project.log("refresher").read_text(), timeout=slack(30))
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0


def test_the_line_of_pip_names_extras_that_there_are() -> None:
    lines = [command.line for command in COMMANDS if CLONE in command.line]
    assert lines
    for extras in re.findall(r"django_throttle\[([\w,]+)\]", " ".join(lines)):
        assert {*extras.split(",")} <= {*EXTRAS.split(",")}

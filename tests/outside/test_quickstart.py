"""The quickstart, word for word, on every server; each row of the table below is a server and a Redis of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.outside.pages import Command, assert_shown, commands, page
from tests.outside.project import DEADLINE, SERVERS, SOCKETS, Project
from tests.servers import RedisServer, need_binary, slack, wait_until

PAGE = page("quickstart.rst")
COMMANDS = tuple(commands(PAGE))
CLIENT = "python try_chat.py"
LISTED = next(command for command in COMMANDS if command.line == "python manage.py throttle_rules list")


def named(beginning: str) -> list[Command]:
    found = COMMANDS[: COMMANDS.index(LISTED)] if beginning.startswith("curl") else COMMANDS
    return [command for command in found if command.line.startswith(beginning)]


class Row:
    """What a reader does with one server, from the first request to the last socket."""

    def __init__(self, project: Project, server: str, port: int) -> None:
        self.project, self.server, self.port = project, server, port

    def __call__(self) -> None:
        printed = ""
        for command in named("curl"):
            printed = self.type(command.line)
            assert_shown(command.answer, printed)
        (told,) = re.findall(r"(?i)^Retry-After: (\d+)", printed, re.MULTILINE)
        assert 1 <= int(told) <= 22, "two windows, and a tenth"
        assert f"Try again in {told} second" in printed
        if self.server in SOCKETS:
            reset, retry = named("python manage.py throttle_reset")[0].line, named("curl -i")[0].line
            self.type(reset)  # of which a process that refuses by itself hears within a second
            wait_until(lambda: "HTTP/1.1 200" in self.type(retry), timeout=slack(10), every=0.2)
            self.type(reset)
            self.sockets()

    def sockets(self) -> None:
        (client,) = named(CLIENT)
        *frames, refused = client.answer
        if self.server == "daphne":  # which cannot send a response in place of a handshake, as the page says
            refused = refused.replace("429", "403")
        assert_shown([*frames, refused], self.type(client.line))

    def type(self, line: str) -> str:
        return self.project.shell(line.replace("8000", str(self.port)))


@pytest.fixture(scope="module")
def quickstart(site_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with RedisServer() as redis:
        project = Project(site_python, tmp_path_factory.mktemp("quickstart") / "mysite", redis.url)
        project.start().write(*(block for block in PAGE if block.file))
        (migrate,) = named("python manage.py migrate")
        project.shell(migrate.line)
        yield project


@pytest.fixture(scope="module")
def rows(quickstart: Project) -> Iterator[dict[str, Future[None]]]:
    need_binary("curl")
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(SERVERS)))
        yield {server: pool.submit(play, quickstart, server) for server in SERVERS}


def play(quickstart: Project, server: str) -> None:
    with RedisServer() as redis:
        project = quickstart.copy(quickstart.folder.parent / server.replace(" ", "-"), redis.url)
        project.append("mysite/settings.py", DEADLINE)
        with project.served([server]) as ports:
            client = project.folder / "try_chat.py"
            client.write_text(client.read_text(encoding="utf-8").replace("8000", str(ports[server])), encoding="utf-8")
            try:
                Row(project, server, ports[server])()
            except AssertionError as error:
                raise AssertionError(f"{error}\n{server} wrote:\n{project.log(server).read_text()[-3000:]}") from None


@pytest.mark.parametrize("server", SERVERS)
def test_requests_and_sockets(server: str, rows: dict[str, Future[None]]) -> None:
    rows[server].result(timeout=120)


def test_commands_are_as_shown(quickstart: Project) -> None:
    (check,) = named("python manage.py check")
    assert_shown(check.answer, quickstart.shell(check.line))
    listed = quickstart.shell(LISTED.line)
    assert "api" in listed and "sockets" in listed

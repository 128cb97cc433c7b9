"""The quickstart, word for word, on every server; each row of the table below is a server and a Redis of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.outside.answers import assert_shown
from tests.outside.pages import BLOCKS, Command, commands, page
from tests.outside.project import SERVERS, SOCKETS, Project
from tests.servers import RedisServer, need_binary, slack

PAGE = page("quickstart.rst")
COMMANDS = tuple(commands(PAGE))
CLIENT = "python try_chat.py"
(NOTED,) = (block.code.strip() for block in PAGE if block.language == "text")
IN_A_SECOND = 1.1  # what is promised of a budget that is given back


(LISTED,) = (command for command in COMMANDS if command.line == "python manage.py throttle_rules list")
# What a reader does in the admin: the form of the rule in settings, with another rate.
EDIT = """
from django.contrib.auth.models import User
from django.template import Template
from django.test import Client
from django.test.utils import instrumented_test_render

Template._render = instrumented_test_render  # so that an answer has its form
anna = Client(SERVER_NAME="localhost")
anna.force_login(User.objects.create_superuser("anna"))
page = "/admin/django_throttle/throttlerule/add/?replace=api"
form = anna.get(page).context["adminform"].form
told = {field.html_name: "" if field.value() is None else field.value() for field in form}
answer = anna.post(page, {**{name: value for name, value in told.items() if value is not False}, "rate": "2/10s"})
assert answer.status_code == 302, answer.content.decode()
"""


def named(beginning: str) -> list[Command]:
    """The commands before the rule is edited."""
    found = COMMANDS[: COMMANDS.index(LISTED)] if beginning.startswith("curl") else COMMANDS
    return [command for command in found if command.line.startswith(beginning)]


class Row:
    """What a reader does with one server, from the first request to the last socket."""

    def __init__(self, project: Project, server: str, port: int) -> None:
        self.project, self.server, self.port = project, server, port

    def __call__(self) -> dict[str, float]:
        took = self.wait_as_told(self.requests())
        if self.server in SOCKETS:
            for _ in range(2):  # the second time the slots of the first are free again
                self.type(named("python manage.py throttle_reset")[0].line)
                time.sleep(slack(IN_A_SECOND))
                self.sockets()
        return took

    def requests(self) -> int:
        """Every curl of the page gives the answer shown; returns the seconds of the last refusal."""
        printed = ""
        for command in named("curl"):
            printed = self.type(command.line)
            assert_shown(command.answer, printed)
        (told,) = re.findall(r"(?i)^Retry-After: (\d+)", printed, re.MULTILINE)
        assert 1 <= int(told) <= 22, "two windows, and a tenth"
        assert f"available in {told} second" in printed
        assert NOTED in self.project.log(self.server).read_text(encoding="utf-8")
        return int(told)

    def wait_as_told(self, told: int) -> dict[str, float]:
        """Retry-After is no shorter than it has to be, and no longer than by rounding up and a tenth."""
        began = time.monotonic()  # half a second after the refusal, where the machine is busy
        needed = (told - 1) / 1.1 - 0.7
        time.sleep(max(0.0, needed - 1))
        early = self.type(named("curl -i")[0].line)
        asked = time.monotonic() - began
        assert asked > needed or "HTTP/1.1 429" in early, f"told {told} s, let in after {asked} s"
        time.sleep(max(0.0, told - asked))
        if "HTTP/1.1 429" in early:
            assert "HTTP/1.1 200" in self.type(named("curl -i")[0].line), f"told {told} s, refused after them"
        return {"told": told, "early": asked}

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
    """The project of the page, with its tables."""
    with RedisServer() as redis:
        project = Project(site_python, tmp_path_factory.mktemp("quickstart") / "mysite", redis.url)
        project.start().write(*(block for block in PAGE if block.file))
        (migrate,) = named("python manage.py migrate")
        project.shell(migrate.line)
        yield project


@pytest.fixture(scope="module")
def rows(quickstart: Project) -> Iterator[dict[str, Future[dict[str, float]]]]:
    """All rows, played at the same time."""
    need_binary("curl")
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(SERVERS)))
        yield {server: pool.submit(play, quickstart, server) for server in SERVERS}


def play(quickstart: Project, server: str) -> dict[str, float]:
    with RedisServer() as redis:
        project = quickstart.copy(quickstart.folder.parent / server.replace(" ", "-"), redis.url)
        (project.folder / ".curlrc").write_text("silent\nshow-error\n", encoding="utf-8")
        # This machine is busy with other servers; nothing here is about deadlines.
        project.append("mysite/settings.py", 'DJANGO_THROTTLE["DEADLINE"] = 5.0\n')
        with project.served([server]) as ports:
            client = project.folder / "try_chat.py"
            client.write_text(client.read_text(encoding="utf-8").replace("8000", str(ports[server])), encoding="utf-8")
            try:
                return Row(project, server, ports[server])()
            except AssertionError as error:
                raise AssertionError(f"{error}\n{server} wrote:\n{project.log(server).read_text()[-3000:]}") from None


@pytest.mark.parametrize("server", SERVERS)
def test_requests_and_sockets(server: str, rows: dict[str, Future[dict[str, float]]]) -> None:
    print(server, rows[server].result(timeout=120))


def test_a_rule_is_edited_in_the_admin(quickstart: Project) -> None:
    """The admin has its static files on the page's server, and what is saved there is listed, and holds."""
    need_binary("curl")
    (proof,) = (command for command in COMMANDS[COMMANDS.index(LISTED) :] if command.line.startswith("curl"))
    with RedisServer() as redis:
        project = quickstart.copy(quickstart.folder.parent / "edited", redis.url)
        project.append("mysite/settings.py", 'DJANGO_THROTTLE["DEADLINE"] = 5.0\n')
        with project.served(["uvicorn"]) as ports:

            def curl(line: str) -> str:
                return project.shell(line.replace("8000", str(ports["uvicorn"])))

            login = curl("curl -s http://127.0.0.1:8000/admin/login/")
            files = re.findall(r"(?:href|src)=\"(/static/[^\"]+)", login)
            assert len(files) > 2
            for file in files:
                assert curl(f'curl -s -o /dev/null -w "%{{http_code}}" http://127.0.0.1:8000{file}') == "200"
            project.python_code(EDIT)
            assert_shown(LISTED.answer, project.shell(LISTED.line))
            time.sleep(slack(IN_A_SECOND))
            assert_shown(proof.answer, curl(proof.line))


def test_the_page_has_what_is_played() -> None:
    assert len(named("curl")) == 3
    every = [command for command in commands(BLOCKS) if "curl" in command.line and command.block.page != "README.md"]
    assert len(every) == 4, "another page shows a curl that nobody plays"
    assert named(CLIENT)[0].answer[-1] == "the third socket: 429"
    assert {block.file for block in PAGE} >= {
        *("mysite/settings.py", "mysite/views.py", "mysite/urls.py", "mysite/consumers.py", "mysite/asgi.py"),
        "try_chat.py",
    }


def test_the_checks_have_nothing_to_say(quickstart: Project) -> None:
    (check,) = named("python manage.py check")
    assert_shown(check.answer, quickstart.shell(check.line))


def test_the_commands_for_rules(quickstart: Project) -> None:
    listed, exported, imported = (
        quickstart.shell(command.line) for command in named("python manage.py throttle_rules")
    )
    assert "api" in listed and "sockets" in listed
    assert exported == ""
    assert "api" in imported


def test_without_a_request(quickstart: Project) -> None:
    """The engine and its lease, typed into a shell."""
    shell = [block.code for block in PAGE if block.caption == "python manage.py shell"]
    assert len(shell) == 2
    (quickstart.folder / "typed").write_text("\n".join(shell), encoding="utf-8")
    assert quickstart.shell("python manage.py shell < typed").endswith("the report is rendered here\n")

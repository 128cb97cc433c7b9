"""Pages that are played from top to bottom, word for word: files are written, commands typed, answers compared."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from websockets.sync.client import connect

from testproject.services import free_port
from tests.outside.pages import Block, Command, assert_shown, commands, page
from tests.outside.project import DEADLINE, Project, is_served
from tests.outside.test_commands import MAILERS
from tests.servers import RedisServer, need_binary, slack, wait_until

NOT_TYPED = ("pip ", "django-admin ", "cd ", "python manage.py createsuperuser")
SERVE = "python manage.py runserver"
ADD, RESET = "python manage.py throttle_override add", "python manage.py throttle_reset"
CONSUMER = """
import os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path

application = get_asgi_application()
from mysite.orders import OrderConsumer

routes = URLRouter([path("ws/orders/", OrderConsumer.as_asgi())])
application = ProtocolTypeRouter({"http": application, "websocket": routes})
"""


class Reader:
    """Does what a page says; a server that runs is started again when a file has changed, as runserver does."""

    def __init__(self, project: Project) -> None:
        self.project, self.port, self.runs, self.written = project, free_port(), False, set[str]()
        self.server, self.is_stale, self.is_relieved, self.url = ExitStack(), True, False, ""

    def read(self, blocks: tuple[Block, ...]) -> None:
        with self.server:
            for block in blocks:
                if block.file and block.language == "python":
                    self.write(block)
                for command in commands((block,)):
                    if command.line.startswith(SERVE):
                        self.runs = True
                    elif command.line.startswith("curl -i") and self.is_relieved:
                        wait_until(partial(self.shows, command), timeout=slack(10), every=0.2)
                        self.is_relieved = False
                    elif not command.line.startswith(NOT_TYPED):
                        assert_shown(command.answer, self.type(command.line))
                    if command.line.startswith(ADD):  # of which the server hears within a second
                        self.is_relieved = True
                    elif command.line.startswith(RESET):
                        wait_until(self.passes, timeout=slack(10), every=0.2)
                        self.type(command.line)  # for the calls of the wait

    def write(self, block: Block) -> None:
        self.project.append(block.file, block.code, anew=not block.is_appended and block.file not in self.written)
        self.written.add(block.file)
        self.is_stale = True

    def shows(self, command: Command) -> bool:
        with suppress(AssertionError):
            assert_shown(command.answer, self.type(command.line))
            return True
        return False

    def passes(self) -> bool:
        return "HTTP/1.1 200" in self.type(f"curl -i {self.url}")

    def type(self, line: str) -> str:
        if self.runs and self.is_stale and line.startswith("curl"):
            self.server.close()
            self.port = free_port()
            self.project.append("mysite/settings.py", DEADLINE)
            self.server.enter_context(self.project.process(f"{SERVE} --noreload {self.port}", "runserver"))
            wait_until(lambda: is_served(self.port), timeout=slack(60), every=0.1)
            self.is_stale = False
        if line.startswith("curl -i"):
            self.url = line.rsplit(maxsplit=1)[-1]
        return self.project.shell(line.replace("8000", str(self.port)))


@pytest.fixture
def reader(site_python: Path, tmp_path: Path, redis: RedisServer) -> Reader:
    need_binary("curl")
    with redis.client() as client:
        client.flushall()
    project = Project(site_python, tmp_path / "mysite", redis.url).start()
    project.append("mysite/settings.py", MAILERS)
    return Reader(project)


@pytest.mark.parametrize("name", ["saas.rst", "drf.rst"])
def test_a_page_from_an_empty_project(reader: Reader, name: str) -> None:
    reader.read(page(name))


def test_a_view_and_a_consumer_share_what_is_left_after_validation(reader: Reader) -> None:
    quickstart = [block for block in page("quickstart.rst") if block.file == "mysite/settings.py"]
    for block in quickstart:
        reader.write(block)
    reader.read(page("validation.rst"))
    reader.project.append("mysite/asgi.py", CONSUMER, anew=True)
    with ExitStack() as stack:
        port = stack.enter_context(reader.project.served(["uvicorn"]))["uvicorn"]
        socket = stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws/orders/"))
        for order, error in (({"book": 0}, "invalid"), ({"book": 7}, "too_many_orders")):
            socket.send(json.dumps(order))
            assert json.loads(socket.recv(timeout=10))["error"] == error


SWITCHING = page("switching.rst")
(CLASSES,) = (block for block in SWITCHING if "REST_FRAMEWORK" in block.sets and "BurstThrottle" in block.code)
SETTINGS = """
INSTALLED_APPS += ["rest_framework", "django_throttle"]
DJANGO_THROTTLE = {"REDIS": "redis://localhost:6379/0", "DEADLINE": 5.0}
REST_FRAMEWORK = {}
"""
URLS = """
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView


class PlainView(APIView):
    throttle_scope = "search"

    def get(self, request):
        return Response({"found": []})


urlpatterns = [path("search", PlainView.as_view())]
"""


def test_throttle_classes_of_a_site_which_imports_them_while_it_is_being_imported(reader: Reader) -> None:
    site = reader.project
    site.append("mysite/settings.py", SETTINGS + CLASSES.code)
    site.append("mysite/urls.py", URLS, anew=True)
    site.write(*(block for block in SWITCHING if block.file == "mysite/throttles.py"))
    with site.served() as ports:
        url = f"http://127.0.0.1:{ports['gunicorn sync']}/search?q=[1-11]"
        statuses = site.shell(f'curl -s -o /dev/null -w "%{{http_code}}\\n" "{url}"').split()
    assert statuses == ["200"] * 10 + ["429"]


README = page("README.md")
README_SETTINGS, README_URLS, *_ = (block.code for block in README if block.language == "python")
MIGRATE, RUNSERVER, CURL = (command for command in commands(README) if command.line.startswith(("python", "curl")))


@pytest.mark.parametrize("has_redis", [True, False])
@pytest.mark.row("R17")
def test_sixty_seconds(site_python: Path, tmp_path: Path, has_redis: bool) -> None:
    need_binary("curl")
    redis = RedisServer()
    url = redis.url
    try:
        if not has_redis:
            redis.stop()
        play_readme(Project(site_python, tmp_path / "mysite", url).start(), has_redis)
    finally:
        redis.stop()


def play_readme(project: Project, has_redis: bool) -> None:
    project.append("mysite/settings.py", README_SETTINGS + DEADLINE)
    project.append("mysite/urls.py", README_URLS, anew=True)
    project.shell(MIGRATE.line)
    port = free_port()
    with project.process(f"{RUNSERVER.line} --noreload {port}", "runserver"):
        wait_until(lambda: is_served(port), timeout=slack(60), every=0.1)
        curl = CURL.line.replace("8000", str(port))
        answer = project.shell(curl)
        shown = CURL.answer if has_redis else [line for line in CURL.answer if not line.startswith("RateLimit")]
        assert_shown(shown, answer)
        assert ("ratelimit" in answer.lower()) == has_redis
        more = f'curl -o /dev/null -w "%{{http_code}}\\n" "http://127.0.0.1:{port}/search?q=[1-110]"'
        statuses = project.shell(more).split()
        assert set(statuses[:99]) == {"200"} and "429" in statuses[99:]  # a new minute in between lets some more pass
        wait_until(lambda: re.search("(?i)^Retry-After: [0-9]+", project.shell(curl), re.MULTILINE))
        assert ("Redis does not answer" in project.log("runserver").read_text()) == (not has_redis)


TASKS = page("tasks.rst")
COMMANDS = {command.line: command for command in commands(TASKS)}
_, MIGRATE_TASKS, ENQUEUE, WORKER = COMMANDS
TIME = re.compile(r"\d\d:\d\d:\d\d")


def times(printed: str) -> list[datetime]:
    return [datetime.strptime(f"{text}+0000", "%H:%M:%S%z") for text in TIME.findall(printed)]


def test_each_mail_waits_for_its_turn(site_python: Path, tmp_path: Path) -> None:
    with RedisServer() as redis:
        project = Project(site_python, tmp_path / "mysite", redis.url).start()
        project.write(*(block for block in page("quickstart.rst") if block.sets and block.file))
        project.write(*(block for block in TASKS if block.file))
        project.append("mysite/settings.py", DEADLINE)
        project.shell(MIGRATE_TASKS)
        printed_times = project.shell(ENQUEUE)
        for shown, printed in zip(COMMANDS[ENQUEUE].answer, printed_times.splitlines(), strict=True):
            assert TIME.sub("N", shown) == TIME.sub("N", printed)
        second, third = times(printed_times)
        assert (third - second).seconds == 6
        with project.process(WORKER, "worker"):
            log = project.log("worker")
            wait_until(lambda: log.read_text().count("an invoice for user 1") == 3, timeout=slack(30), every=0.2)
        sent = [line for line in log.read_text().splitlines() if "an invoice" in line]
        assert [TIME.sub("N", line) for line in sent] == [TIME.sub("N", line) for line in COMMANDS[WORKER].answer]
        _, *moments = times("\n".join(sent))
        late = [
            (start - slot).seconds for start, slot in zip(moments, (second, third), strict=True)
        ]  # past midnight too
        assert max(late) < slack(5), late

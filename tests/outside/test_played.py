"""Pages that are played from top to bottom, word for word: files are written, commands typed, answers compared."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.sync.client import connect

from testproject.services import free_port
from tests.outside.answers import assert_shown
from tests.outside.pages import Block, commands, page
from tests.outside.project import Project, is_served
from tests.outside.test_commands import MAILERS
from tests.servers import RedisServer, need_binary, slack, wait_until

NOT_TYPED = ("pip ", "django-admin ", "cd ")
SERVE = "python manage.py runserver"
RELIEF = ("python manage.py throttle_override add", "python manage.py throttle_reset")
DEADLINE = 'DJANGO_THROTTLE["DEADLINE"] = 5.0'  # this machine is busy; nothing here is about deadlines
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
        self.server, self.is_stale, self.url = ExitStack(), True, ""

    def read(self, blocks: tuple[Block, ...]) -> None:
        with self.server:
            for block in blocks:
                if block.file and block.language == "python":
                    self.write(block)
                for command in commands((block,)):
                    if command.line.startswith(SERVE):
                        self.runs = True
                    elif not command.line.startswith(NOT_TYPED):
                        assert_shown(command.answer, self.type(command.line))
                    if command.line.startswith(RELIEF):  # of which the server hears within a second
                        wait_until(self.passes, timeout=slack(10), every=0.2)
                        if "reset" in command.line:  # for the calls of the wait
                            self.type(command.line)

    def write(self, block: Block) -> None:
        self.project.append(block.file, block.code, anew=not block.is_appended and block.file not in self.written)
        self.written.add(block.file)
        self.is_stale = True

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
    (project.folder / ".curlrc").write_text("silent\nshow-error\n", encoding="utf-8")
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

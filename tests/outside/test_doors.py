"""Each documented way in, on a site in a process of its own: calls to the limit, and one more."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.outside.pages import BLOCKS, page
from tests.outside.project import Project, at_once
from tests.servers import RedisServer

DOORS = page("doors.rst")
PROTECTED = next(block for block in BLOCKS if "def protected(" in block.code)
APPS = 'INSTALLED_APPS += ["rest_framework", "django_throttle"]'
# A view, and a consumer, that no door guards by itself.
PLAIN_VIEW = """
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView


class PlainView(APIView):
    throttle_scope = "search"

    def get(self, request):
        return Response({"found": []})


urlpatterns = [path("search", PlainView.as_view())]
"""
PLAIN_SOCKETS = """
import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
django_application = get_asgi_application()

from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.routing import ProtocolTypeRouter
from django.urls import path

from mysite.routing import protected


class Echo(AsyncJsonWebsocketConsumer):
    async def receive_json(self, content):
        await self.send_json(content)


routes = [path("ws/", Echo.as_asgi())]
application = ProtocolTypeRouter({"http": django_application, "websocket": protected(routes)})
"""
RULES = {
    "page": {"rate": "3/min", "key": "ip", "scopes": ["admin:login"]},
    "search": {"rate": "3/min", "key": "ip", "scopes": ["of the decorator alone"]},
    "logins": {"rate": "3/min", "key": "ip", "scopes": ["of the decorator alone"], "count_on": [401]},
    "views": {"rate": "9/min", "key": "ip", "scopes": ["search"]},
    "chat": {"rate": "3/min", "key": "ip", "scopes": ["chat"], "events": ["message"]},
}
WAYS = {
    "middleware": ("GET", "/admin/login/", 200),
    "decorator": ("GET", "/search", 200),
    "Ninja": ("GET", "/api/search?q=1", 200),
    "Ninja, counting errors": ("POST", "/api/login?name=anna&password=wrong", 401),
    "RuleThrottle, at a cost": ("GET", "/view", 200),
}
addresses = (f"127.0.0.{number}" for number in itertools.count(2))


def settings(redis: str, **given: Any) -> str:
    """DJANGO_THROTTLE, as it would stand in a module of settings."""
    return f"DJANGO_THROTTLE = { ({'REDIS': redis, 'DEADLINE': 5.0, **given})!r}\n"


def answers(port: int, times: int, method: str, path: str) -> list[Any]:
    """As many answers as one client gets, which has an address of its own."""
    client = HTTPConnection("127.0.0.1", port, timeout=30, source_address=(next(addresses), 0))
    try:
        return [answer(client, method, path) for _ in range(times)]
    finally:
        client.close()


def answer(client: HTTPConnection, method: str, path: str) -> Any:
    client.request(method, path, headers={"Accept": "application/json"})
    response = client.getresponse()
    response.read()
    return response


def assert_limited(made: list[Any], passed: int, status: int = 200) -> None:
    """So many pass, and the next is told when to come again."""
    assert [response.status for response in made] == [status] * passed + [429]
    assert 1 <= int(made[-1].headers["Retry-After"]) <= 132, "two windows, and a tenth"


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def fresh(site_python: Path, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project as django-admin makes it."""
    return Project(site_python, tmp_path_factory.mktemp("doors") / "mysite", redis.url).start()


@pytest.fixture(scope="module")
def port(fresh: Project) -> Iterator[int]:
    """What the page of the doors shows, all in one site."""
    site = fresh.copy(fresh.folder.parent / "together")
    site.append("mysite/settings.py", APPS)
    site.write(*(block for block in DOORS if block.file and (not block.sets or block.sets == {"MIDDLEWARE"})))
    site.append("mysite/routing.py", PROTECTED.code)
    site.append("mysite/asgi.py", PLAIN_SOCKETS, anew=True)
    site.append("mysite/settings.py", settings(fresh.redis, RULES=RULES))
    site.manage("migrate")
    with site.served(["uvicorn"]) as ports:
        yield ports["uvicorn"]


@pytest.mark.parametrize("way", WAYS)
def test_a_way_in_of_requests(way: str, port: int) -> None:
    method, path, status = WAYS[way]
    assert_limited(answers(port, 4, method, path), 3, status)


def test_the_asgi_middleware(port: int) -> None:
    with connect(f"ws://127.0.0.1:{port}/ws/", origin="http://127.0.0.1") as socket:  # type: ignore[arg-type]
        got = []
        for number in range(4):
            socket.send(str(number))
            got.append(json.loads(socket.recv(timeout=10)))
    assert got[:3] == [0, 1, 2]
    assert got[3]["code"] == "rate_limited" and got[3]["rule"] == "chat"


def classes(*names: str, **rates: str) -> str:
    return f"REST_FRAMEWORK = { ({'DEFAULT_THROTTLE_CLASSES': names, 'DEFAULT_THROTTLE_RATES': rates})!r}\n"


# The settings of each site, and how many requests of one address pass.
DEFAULTS: dict[str, tuple[Callable[[], str], int]] = {
    "RuleThrottle": (lambda: shown("django_throttle.drf.RuleThrottle"), 3),
    "AnonRateThrottle": (lambda: classes("django_throttle.drf.AnonRateThrottle", anon="4/min"), 4),
    "UserRateThrottle": (lambda: classes("django_throttle.drf.UserRateThrottle", user="5/min"), 5),
    "ScopedRateThrottle": (lambda: classes("django_throttle.drf.ScopedRateThrottle", search="6/min"), 6),
    "a subclass": (lambda: classes("mysite.throttles.BurstThrottle"), 60),
    "all of them, as shown": (lambda: shown("mysite.throttles.BurstThrottle"), 10),
}


def shown(text: str) -> str:
    """The block of settings that has this text in it."""
    (code,) = (block.code for block in DOORS if "REST_FRAMEWORK" in block.sets and text in block.code)
    return code


@pytest.fixture(scope="module")
def played(fresh: Project) -> dict[str, Future[list[Any]]]:
    return at_once({name: partial(play, fresh, name) for name in DEFAULTS})


def play(fresh: Project, name: str) -> list[Any]:
    given, passed = DEFAULTS[name]
    with RedisServer() as redis:
        site = fresh.copy(fresh.folder.parent / name.replace(" ", "-"), redis.url)
        site.append("mysite/settings.py", APPS)
        site.append("mysite/settings.py", given())
        site.append("mysite/settings.py", settings(redis.url, RULES={"api": {"rate": "3/min"}}))
        site.write(*(block for block in DOORS if block.file == "mysite/throttles.py"))
        site.append("mysite/urls.py", PLAIN_VIEW, anew=True)
        with site.served(["gunicorn sync"]) as ports:
            return answers(ports["gunicorn sync"], passed + 1, "GET", "/search")


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_classes(name: str, played: dict[str, Future[list[Any]]]) -> None:
    """They are imported by REST framework while it is being imported itself."""
    assert_limited(played[name].result(timeout=120), DEFAULTS[name][1])

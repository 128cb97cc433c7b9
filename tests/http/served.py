"""A site for real servers; the environment says what they need.

REDIS_URL  where they count     RULES  the rules in force, as JSON     SETTINGS  other settings, as JSON
MIDDLEWARE  Django's setting, as JSON, where it is another than ours alone
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from io import BytesIO
from typing import Any, ClassVar

import django
from django.conf import settings
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import path
from redis import Redis

LONG = 30.0


def caller(request: Any) -> str:
    """Each test is a caller of its own."""
    return str(request.path.rpartition("/")[2])


def quick(request: HttpRequest, name: str) -> HttpResponse:
    return HttpResponse(str(os.getpid()))


def login(request: HttpRequest, name: str) -> HttpResponse:
    time.sleep(0.001)
    return HttpResponse(status=200 if request.GET.get("password") == "right" else 401)


def begin(name: str) -> None:
    """Tell the test that the view runs, and holds what it holds."""
    with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        redis.set(f"begun:{name}", 1, ex=60)


async def wait(request: HttpRequest, name: str) -> HttpResponse:
    await asyncio.sleep(LONG)
    return HttpResponse("done")


async def parts() -> AsyncIterator[bytes]:
    while True:
        yield b"part " * 1000
        await asyncio.sleep(0.01)


def stream(request: HttpRequest, name: str) -> StreamingHttpResponse:
    def slowly() -> Iterator[bytes]:
        while True:
            yield b"part " * 1000
            time.sleep(0.01)

    return StreamingHttpResponse(parts() if hasattr(request, "scope") else slowly())


def size(request: Any, name: str) -> HttpResponse:
    """Answers with how many bytes the view has read, by the way that it was told to."""
    return HttpResponse(str(READ[request.GET.get("by", "body")](request)))


def by_pieces(stream: Any) -> int:
    return sum(map(len, iter(lambda: stream.read(1000), b"")))


READ: dict[str, Callable[[Any], int]] = {
    "body": lambda request: len(request.body), "read": by_pieces,
    "raw": lambda request: by_pieces(request.META["wsgi.input"]), "nothing": lambda request: 0,
}  # fmt: skip


class Failing(BytesIO):
    def __init__(self, at: int) -> None:
        super().__init__(b"x" * 100_000)
        self.at = at

    def read(self, count: int | None = -1) -> bytes:
        if self.tell() >= self.at:
            raise OSError("the disk is broken")
        return super().read(count)


async def afailing(at: int) -> AsyncIterator[bytes]:
    for _ in range(at):
        await asyncio.sleep(0.01)
        yield b"part " * 1000
    raise ZeroDivisionError


async def silent() -> AsyncIterator[bytes]:
    await asyncio.sleep(LONG)
    yield b"part"


async def afew() -> AsyncIterator[bytes]:
    yield b"part"


def failing(at: int) -> Iterator[bytes]:
    for _ in range(at):
        yield b"part " * 1000
    raise ZeroDivisionError


def broken(request: HttpRequest, name: str) -> HttpResponseBase:
    """A response that fails while it is sent: ``kind`` and at which part, the first being 0."""
    kind, at = request.GET["kind"], int(request.GET.get("at", "0"))
    begin(name)
    if kind == "file":
        return FileResponse(Failing(at * 1000))
    if kind == "header":  # which most servers do not send, so that nothing is streamed
        response = StreamingHttpResponse(afew() if hasattr(request, "scope") else iter([b"part"]))
        response["X-Reflected"] = "\0"
        return response
    if kind == "silent":
        return StreamingHttpResponse(silent())
    return StreamingHttpResponse((afailing if kind == "async" else failing)(at))


def routes() -> list[Any]:
    from rest_framework.request import Request
    from rest_framework.views import APIView

    from django_throttle.decorators import throttle
    from django_throttle.drf import RuleThrottle

    class Api(APIView):
        authentication_classes: ClassVar[Any] = []
        throttle_classes: ClassVar[Any] = [RuleThrottle]
        throttle_scope = "drf"
        does: Any = None

        def get(self, request: Request, name: str) -> Any:
            return self.does(request._request, name)

        def post(self, request: Request, name: str) -> Any:
            return self.does(request, name)

    found: list[Any] = []
    views = {"quick": quick, "login": login, "wait": wait, "stream": stream}
    views |= {"size": size, "broken": broken}
    for doing, view in views.items():
        found.append(path(f"middleware/{doing}/<name>", view, name="middleware"))
        found.append(path(f"decorator/{doing}/<name>", throttle("slots")(view)))
        if doing != "wait":
            found.append(path(f"drf/{doing}/<name>", Api.as_view(does=staticmethod(view))))
    return found


def configure() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    settings.MIDDLEWARE = json.loads(os.environ.get("MIDDLEWARE", '["django_throttle.middleware.ThrottleMiddleware"]'))
    settings.ROOT_URLCONF = __name__
    settings.LOGGING_CONFIG = None
    settings.DJANGO_THROTTLE = {
        "REDIS": os.environ["REDIS_URL"],
        "RULES": json.loads(os.environ["RULES"]),
        "DATABASE_RULES": False,
        "DEADLINE": 5.0,  # this machine may be busy with other tests; nothing here is about deadlines
        "PROCESS_TTL": 2.0,
        **json.loads(os.environ.get("SETTINGS", "{}")),
    }
    django.setup()
    urlpatterns.extend(routes())


urlpatterns: list[Any] = []

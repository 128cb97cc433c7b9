"""A site whose answers spend while they stream, for real servers: the recipes of the page on streams.

As ``tests.http.served``, whose environment it needs. ``/<kind>/<tenant>`` streams until its budget is used up, and
counts in Redis what it spends. One tenant asks a server at a time.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.urls import path
from redis import Redis

from tests.http import served
from tests.pages import shown

redis = Redis.from_url(os.environ["REDIS_URL"])
PAUSE = 0.001


def tenant(call: Any) -> str:
    where = call["path"] if isinstance(call, dict) else call.path
    return str(where.rpartition("/")[2])


exporting: list[str] = []


def orders() -> Iterator[Any]:
    while True:
        time.sleep(PAUSE)
        yield redis.incrby(f"spent:{exporting[-1]}")


async def tokens(call: Any) -> AsyncIterator[Any]:
    name = call["tenant"] if isinstance(call, dict) else tenant(call)
    while True:
        await asyncio.sleep(PAUSE)
        yield redis.incrby(f"spent:{name}")


def recipe(text: str, **modules: Any) -> dict[str, Any]:
    """The names of a recipe, which imports these modules of its site."""
    sys.modules.setdefault("mysite", ModuleType("mysite"))
    for name, function in modules.items():
        module = sys.modules[f"mysite.{name}"] = ModuleType(f"mysite.{name}")
        setattr(module, function.__name__, function)
    found: dict[str, Any] = {"__name__": "mysite.recipe"}
    exec(next(code for code in shown("streams") if text in code), found)
    return found


served.configure()
ExportView = recipe("class ExportView", orders=orders)["ExportView"]


class Export(ExportView):  # type: ignore[misc]
    def get(self, request: Any, name: str) -> Any:
        exporting.append(name)
        return super().get(request)


answer = recipe("async def answer", model=tokens)["answer"]
Answers = recipe("class Answers", model=tokens)["Answers"]


async def answered(request: Any, name: str) -> Any:
    return await answer(request)


served.urlpatterns += [path("export/<name>", Export.as_view()), path("answer/<name>", answered)]
wsgi = get_wsgi_application()
asgi = ProtocolTypeRouter(
    {"http": get_asgi_application(), "websocket": URLRouter([path("chat/<name>", Answers.as_asgi())])}
)
print(f"{__name__} is loaded by process", os.getpid(), flush=True)

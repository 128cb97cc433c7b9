"""A site whose requests use its database, for real servers; each request tells Redis what Django's query log lists.

As ``tests.http.served``, whose environment it needs; DATABASE is the address of a migrated database with groups.
``/<kind>/<name>?queries=`` is a request of so many queries, and one more.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, ClassVar

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.db.backends.signals import connection_created
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from redis import Redis

from tests.http import served

TRANSACTION = re.compile("BEGIN|COMMIT|ROLLBACK")


def log_queries(connection: Any, **_: object) -> None:
    connection.force_debug_cursor = True


def tell(request: HttpRequest) -> None:
    """Runs when all else that the request needs is done, in the thread that has its connection."""
    listed = [one for one in connection.queries_log if not TRANSACTION.match(one["sql"] or "")]
    name = served.who(request)
    with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        redis.rpush(f"logged:{name}", len(listed))
        redis.rpush(f"metered:{name}", request.throttle.meter.queries)  # type: ignore[attr-defined]


def query_log(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """The outermost middleware."""

    def answered(request: HttpRequest) -> Any:
        response = get_response(request)
        response._resource_closers.append(partial(tell, request))
        return response

    return answered


def groups(request: Any) -> Iterator[int]:
    from django.contrib.auth.models import Group

    for number in range(int(request.GET.get("queries", 3))):
        yield Group.objects.filter(pk__gt=number).count()


def last() -> Any:
    """A query that is made when it is rendered."""
    from django.contrib.auth.models import Group

    return Group.objects.values_list("name", flat=True)


def sync(request: HttpRequest, name: str) -> HttpResponse:
    sum(groups(request))
    return HttpResponse(str(list(last())))


async def awaited(request: HttpRequest, name: str) -> HttpResponse:
    from django.contrib.auth.models import Group

    for _ in range(int(request.GET["queries"])):
        await Group.objects.acount()
    return HttpResponse(str([name async for name in last()]))


def stream(request: HttpRequest, name: str) -> StreamingHttpResponse:
    def parts() -> Iterator[str]:
        for number in groups(request):
            yield f"{number} "
        yield str(list(last()))

    return StreamingHttpResponse(parts())


async def astream(request: HttpRequest, name: str) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[str]:
        answer = await awaited(request, name)
        yield answer.content.decode()

    return StreamingHttpResponse(parts())


def template(request: HttpRequest, name: str) -> HttpResponse:
    sum(groups(request))
    return TemplateResponse(request, engines["django"].from_string("{{ groups|join:' ' }}"), {"groups": last()})


async def ahang(request: HttpRequest, name: str) -> HttpResponse:
    await awaited(request, name)
    served.begin(name)
    await asyncio.sleep(served.LONG)
    return HttpResponse("done")


def routes() -> list[Any]:
    from rest_framework.request import Request
    from rest_framework.response import Response
    from rest_framework.views import APIView

    from django_throttle.decorators import throttle
    from django_throttle.drf import RuleThrottle

    class Lazy(APIView):
        authentication_classes: ClassVar[Any] = []
        throttle_classes: ClassVar[Any] = [RuleThrottle]

        def get(self, request: Request, name: str) -> Response:
            sum(groups(request._request))
            return Response({"groups": last()})

    views = {"sync": sync, "async": awaited, "stream": stream, "astream": astream, "template": template}
    views |= {"ahang": ahang, "drf": Lazy.as_view(), "decorated": throttle("queries")(template)}
    return [path(f"{kind}/<name>", view) for kind, view in views.items()]


connection_created.connect(log_queries)
served.configure()
settings.ROOT_URLCONF = __name__
urlpatterns = routes()
asgi, wsgi = get_asgi_application(), get_wsgi_application()
print(__name__, "is loaded by process", os.getpid(), flush=True)

"""A site with every entry point, sync and async: what a view does is the last part of its path.

``/<entry point>/<doing>``. While a view or another callable runs it notes in ``seen`` how many slots this process
holds. X-User names the user of a request, and X-Cost is its cost where code says it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from inspect import iscoroutinefunction
from io import BytesIO
from typing import Any, ClassVar

import httpx
from adrf.views import APIView as AsyncAPIView
from channels.generic.websocket import AsyncWebsocketConsumer, WebsocketConsumer
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator, sync_and_async_middleware
from django.views import View
from ninja import NinjaAPI
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.later.site_queues import tasks_module
from django_throttle.stores import get_store
from django_throttle.tasks import throttled_task

RULE = "api"
MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
PARTS = (b"one ", b"two ", b"three")

seen: list[int] = []
task = import_module(tasks_module()).task


def cost(request: HttpRequest, *_: Any, **__: Any) -> int:
    return int(request.headers.get("X-Cost", "1"))


@sync_and_async_middleware
def log_in(get_response: Any) -> Any:
    def identify(request: HttpRequest) -> HttpRequest:
        if pk := request.headers.get("X-User"):
            request.user = User(pk=int(pk))
        return request

    async def alogged_in(request: HttpRequest) -> Any:
        return await get_response(identify(request))

    return alogged_in if iscoroutinefunction(get_response) else lambda request: get_response(identify(request))


class Authenticate(BaseAuthentication):
    def authenticate(self, request: Request) -> Any:
        pk = request.headers.get("X-User")
        return (User(pk=int(pk)), None) if pk else None


def parts() -> Iterator[bytes]:
    yield from PARTS


async def aparts() -> AsyncIterator[bytes]:
    for part in PARTS:
        await asyncio.sleep(0)
        yield part


def template(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, engines["django"].from_string("rendered"))


def stream(request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(aparts() if isinstance(request, ASGIRequest) else parts())


def fail(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


def missing(request: HttpRequest) -> HttpResponse:
    raise Http404


def denied(request: HttpRequest) -> HttpResponse:
    raise PermissionDenied


DOINGS: dict[str, Callable[[HttpRequest], HttpResponseBase]] = {
    "ok": lambda request: HttpResponse("ok"),
    "login": lambda request: HttpResponse(status=int(request.GET["status"])), "template": template, "stream": stream,
    "file": lambda request: FileResponse(BytesIO(b"".join(PARTS))), "fail": fail, "missing": missing,
    "denied": denied,
}  # fmt: skip


def do(request: HttpRequest, doing: str) -> Any:
    seen.append(len(get_store().leases))
    return DOINGS[doing](request)


async def ado(request: HttpRequest, doing: str) -> Any:
    await asyncio.sleep(0)
    return do(request, doing)


class ByRule:
    authentication_classes: ClassVar[Any] = [Authenticate]
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    throttle_cost = staticmethod(cost)


class Api(ByRule, APIView):
    def get(self, request: Request, doing: str) -> Response:
        return do(request._request, doing)


class AsyncApi(ByRule, AsyncAPIView):
    async def get(self, request: Request, doing: str) -> Any:
        return await ado(request._request, doing)


class ThreePerMinute(UserRateThrottle):
    rate = "3/min"


class DropIn(Api):
    throttle_classes: ClassVar[Any] = [ThreePerMinute]


class AsyncDropIn(AsyncApi):
    throttle_classes: ClassVar[Any] = [ThreePerMinute]


@throttle(RULE, cost=cost)
class Class(View):
    def get(self, request: HttpRequest, doing: str) -> HttpResponseBase:
        return do(request, doing)


@throttle(RULE, cost=cost)
class AsyncClass(View):
    async def get(self, request: HttpRequest, doing: str) -> HttpResponseBase:
        return await ado(request, doing)


@method_decorator(throttle(RULE, cost=cost), name="get")
class Method(APIView):
    authentication_classes: ClassVar[Any] = [Authenticate]

    def get(self, request: Request, doing: str) -> Response:
        return do(request._request, doing)


ninja = NinjaAPI(urls_namespace="ninja")


@ninja.get("sync/{doing}")
@throttle(RULE, cost=cost)
def operation(request: HttpRequest, doing: str) -> Any:
    return do(request, doing)


@ninja.get("async/{doing}")
@throttle(RULE, cost=cost)
async def aoperation(request: HttpRequest, doing: str) -> Any:
    return await ado(request, doing)


# What gets no request: a function, a task, a transport; the user who calls is an argument.


def work(user: User, cost: int = 1) -> str:
    seen.append(len(get_store().leases))
    return "done"


async def awork(user: User, cost: int = 1) -> str:
    await asyncio.sleep(0)
    return work(user)


OPTIONS: dict[str, Any] = {"ident": lambda user, **_: user, "cost": lambda user, cost=1: cost}
function, afunction = throttle(RULE, **OPTIONS)(work), throttle(RULE, **OPTIONS)(awork)
task_function = throttled_task(RULE, **OPTIONS)(work)
django_task, adjango_task = (throttled_task(RULE, **OPTIONS)(task()(one)) for one in (work, awork))


def answered(request: httpx.Request) -> httpx.Response:
    seen.append(len(get_store().leases))
    return httpx.Response(200, content=parts())


async def aanswered(request: httpx.Request) -> httpx.Response:
    seen.append(len(get_store().leases))
    return httpx.Response(200, content=aparts())


class PlainEcho(AsyncWebsocketConsumer):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.send(text_data, bytes_data)


class Echo(ThrottledConsumerMixin, PlainEcho):
    throttle_scope = "chat"

    def throttle_cost(self, message: Any) -> int:
        return int(message["text"])


class SyncEcho(ThrottledConsumerMixin, WebsocketConsumer):
    throttle_scope = "chat"
    throttle_cost = Echo.throttle_cost

    def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        self.send(text_data, bytes_data)


def frame_cost(message: Any) -> int:
    return int(message["text"])


SOCKETS = {
    "consumer": Echo.as_asgi(),
    "synchronous consumer": SyncEcho.as_asgi(),
    "ASGI middleware": ThrottleMiddleware(PlainEcho.as_asgi(), "chat", cost=frame_cost),
}


urlpatterns = [
    path("middleware/<doing>", do, name="view"), path("async-middleware/<doing>", ado, name="aview"),
    path("decorated/<doing>", throttle(RULE, cost=cost)(do)),
    path("async-decorated/<doing>", throttle(RULE, cost=cost)(ado)), path("class/<doing>", Class.as_view()),
    path("async-class/<doing>", AsyncClass.as_view()), path("method/<doing>", Method.as_view()),
    path("drf/<doing>", Api.as_view()), path("async-drf/<doing>", AsyncApi.as_view()),
    path("drop-in/<doing>", DropIn.as_view()), path("async-drop-in/<doing>", AsyncDropIn.as_view()),
    path("ninja/", ninja.urls),
]  # fmt: skip

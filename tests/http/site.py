"""A site with every door of HTTP, sync and async: what a view does is the last part of its path.

``/<door>/<doing>``. While a view runs it notes in ``seen`` how many slots this process holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from io import BytesIO
from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from ninja import NinjaAPI, Status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import Refused
from django_throttle.stores import get_store

RULE = "api"
MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
PARTS = (b"one ", b"two ", b"three")

seen: list[int] = []


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
    "login": lambda request: HttpResponse(status=int(request.GET["status"])),
    "template": template,
    "stream": stream,
    "file": lambda request: FileResponse(BytesIO(b"".join(PARTS))),
    "fail": fail,
    "missing": missing,
    "denied": denied,
}


def do(request: HttpRequest, doing: str) -> Any:
    seen.append(len(get_store().leases))
    return DOINGS[doing](request)


async def ado(request: HttpRequest, doing: str) -> Any:
    await asyncio.sleep(0)
    return do(request, doing)


class Api(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [RuleThrottle]

    def get(self, request: Request, doing: str) -> Response:
        return do(request._request, doing)


@throttle(RULE)
class Class(View):
    def get(self, request: HttpRequest, doing: str) -> HttpResponseBase:
        return do(request, doing)


@throttle(RULE)
class AsyncClass(View):
    async def get(self, request: HttpRequest, doing: str) -> HttpResponseBase:
        return await ado(request, doing)


@method_decorator(throttle(RULE), name="get")
class Method(APIView):
    authentication_classes: ClassVar[Any] = []

    def get(self, request: Request, doing: str) -> Response:
        return do(request._request, doing)


ninja = NinjaAPI(urls_namespace="ninja")


@ninja.get("sync/{doing}")
@throttle(RULE)
def operation(request: HttpRequest, doing: str) -> Any:
    return do(request, doing)


@ninja.get("async/{doing}")
@throttle(RULE)
async def aoperation(request: HttpRequest, doing: str) -> Any:
    return await ado(request, doing)


@ninja.get("plain/{doing}", response={200: Any, 401: Any})
@throttle(RULE)
def said(request: HttpRequest, doing: str) -> Any:
    """Answers as operations do: with what is to be a response, or with its status first."""
    return Status(int(request.GET["status"]), {"doing": doing}) if "status" in request.GET else {"doing": doing}


@throttle(RULE, ident="everyone")
def send(doing: str) -> str:
    seen.append(len(get_store().leases))
    return {"ok": "sent"}[doing]


@throttle(RULE, ident="everyone")
async def asend(doing: str) -> str:
    await asyncio.sleep(0)
    return send.__wrapped__(doing)  # type: ignore[attr-defined]


def called(request: HttpRequest, doing: str) -> HttpResponse:
    """A view that calls what is limited; the middleware answers for it."""
    try:
        return HttpResponse(send(doing))
    except Refused:
        return HttpResponse(status=429)


async def acalled(request: HttpRequest, doing: str) -> HttpResponse:
    try:
        return HttpResponse(await asend(doing))
    except Refused:
        return HttpResponse(status=429)


urlpatterns = [
    path("middleware/<doing>", do, name="view"),
    path("async-middleware/<doing>", ado, name="aview"),
    path("decorated/<doing>", throttle(RULE)(do)),
    path("async-decorated/<doing>", throttle(RULE)(ado)),
    path("class/<doing>", Class.as_view()),
    path("async-class/<doing>", AsyncClass.as_view()),
    path("method/<doing>", Method.as_view()),
    path("drf/<doing>", Api.as_view()),
    path("called/<doing>", called),
    path("async-called/<doing>", acalled),
    path("ninja/", ninja.urls),
]

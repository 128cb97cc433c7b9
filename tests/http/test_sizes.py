"""Rules that count bytes: what a request's body weighs, at every door, and together with messages."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.http.visit import size_of
from django_throttle.middleware import ThrottleMiddleware
from tests.doors import Enforce, enforcer
from tests.sockets.guarded import Line, texts

enforce = pytest.fixture(enforcer)
VOLUME = {"rate": "100/min", "unit": "bytes", "key": "everyone", "algorithm": "fixed_window"}


def post(size: int) -> HttpRequest:
    return RequestFactory().post("/", "x" * size, content_type="text/plain")


class TestDoors:
    def test_the_middleware(self, enforce: Enforce) -> None:
        enforce(volume=VOLUME)
        ask = ThrottleMiddleware(lambda request: HttpResponse("done"))
        responses = [ask(post(size)) for size in (70, 31, 30)]
        assert [response.status_code for response in responses] == [200, 429, 200]
        assert responses[0].headers["RateLimit-Policy"] == '"volume";q=100;qu="content-bytes";w=60'
        assert responses[0].headers["RateLimit"].startswith('"volume";r=30;t=')

    def test_what_carries_nothing_is_free(self, enforce: Enforce) -> None:
        enforce(volume={**VOLUME, "rate": "1/min"})
        ask = ThrottleMiddleware(lambda request: HttpResponse("done"))
        assert [ask(RequestFactory().get("/")).status_code for _ in range(3)] == [200] * 3

    def test_the_throttle_class_behind_the_middleware_charges_once(self, enforce: Enforce) -> None:
        class Upload(APIView):
            authentication_classes = ()
            throttle_classes = [RuleThrottle]

            def post(self, request: Any) -> Response:
                return Response()

        enforce(volume=VOLUME)
        view = Upload.as_view()
        both = ThrottleMiddleware(view)
        factory = APIRequestFactory()
        asked = [factory.post("/", "x" * 40, content_type="text/plain") for _ in range(3)]
        assert [both(asked[0]).status_code, view(asked[1]).status_code, view(asked[2]).status_code] == [200, 200, 429]

    def test_the_decorator(self, enforce: Enforce) -> None:
        enforce(volume=VOLUME)
        view = throttle("volume")(lambda request: HttpResponse())
        assert [view(post(size)).status_code for size in (60, 60)] == [200, 429]

    async def test_requests_and_messages_share_a_volume(self, enforce: Enforce) -> None:
        enforce(volume={**VOLUME, "events": ["request", "message"]})
        ask = ThrottleMiddleware(lambda request: HttpResponse())
        line = await Line().open()
        line.send("x" * 60)
        await line.until(lambda: texts(line))
        assert [ask(post(size)).status_code for size in (41, 40)] == [429, 200]
        line.send("x")
        await line.until(lambda: line.told("error"))
        await line.close()


class TestSizes:
    @pytest.mark.parametrize(("length", "size"), [("7", 7), ("", 0), ("many", 0), ("-1", 0), ("²", 0), (None, 0)])
    def test_by_the_header(self, length: str | None, size: int) -> None:
        request = post(3)
        request.META["CONTENT_LENGTH"] = length
        assert size_of(request) == size

    def test_in_chunks_it_is_what_has_been_read(self) -> None:
        with SpooledTemporaryFile() as body:
            body.write(b"x" * 5000)
            body.seek(0)
            scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"transfer-encoding", b"chunked")]}
            request = ASGIRequest({**scope, "query_string": b""}, body)
            assert (size_of(request), request.body) == (5000, b"x" * 5000)

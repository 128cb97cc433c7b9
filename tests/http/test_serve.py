"""Rules that count bytes: what a request's body weighs, at every door."""

from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from rest_framework.request import Request
from rest_framework.views import APIView

from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import Refused
from django_throttle.http.request_state import size_of
from django_throttle.middleware import ThrottleMiddleware
from tests.doors import Enforce

VOLUME = {"rate": "100/min", "unit": "bytes", "key": "everyone", "algorithm": "fixed_window"}


def post(size: int) -> HttpRequest:
    return RequestFactory().post("/", "x" * size, content_type="text/plain")


def test_the_middleware(enforce: Enforce) -> None:
    enforce(volume=VOLUME)
    ask = ThrottleMiddleware(lambda request: HttpResponse("done"))
    responses = [ask(post(size)) for size in (70, 31, 30)]
    assert [response.status_code for response in responses] == [200, 429, 200]
    assert ask(RequestFactory().get("/")).status_code == 200, "what carries nothing is free"
    assert responses[0].headers["RateLimit-Policy"] == '"volume";q=100;qu="content-bytes";w=60'
    assert responses[0].headers["RateLimit"].startswith('"volume";r=30;t=')


class TestSizes:
    LENGTHS = [("7", 7), ("", 0), ("many", 0), ("-1", 0), ("²", 0), (None, 0), ("+7", 7), (" 7 ", 7), ("1_0", 10)]

    @pytest.mark.parametrize(("length", "size"), [*LENGTHS, pytest.param("9" * 5000, 0, id="too long")])
    def test_by_the_header_where_django_goes_by_it(self, length: str | None, size: int) -> None:
        request = wsgi(b"x" * 20, CONTENT_LENGTH=length)
        assert size_of(request) == size
        assert len(request.read()) == size

    @pytest.mark.parametrize(
        "headers",
        [
            [], [(b"transfer-encoding", b"chunked")],
            [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")], [(b"content-length", b"9" * 5000)],
        ],
    )  # fmt: skip
    def test_by_what_was_read_before_there_was_a_request(self, headers: list[tuple[bytes, bytes]]) -> None:
        with SpooledTemporaryFile() as body:
            body.write(b"x" * 5000)
            body.seek(0)
            scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}
            request = ASGIRequest(scope, body)
            assert (size_of(request), request.read()) == (5000, b"x" * 5000)
            assert size_of(request) == 5000, "what a view has read, it has read"


def wsgi(body: bytes, **environ: Any) -> WSGIRequest:
    base = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": BytesIO(body), "wsgi.input_terminated": True}
    return WSGIRequest({**base, **environ})


READS = {
    "read": lambda given: given.read(), "pieces": lambda given: b"".join(iter(lambda: given.read(7), b"")),
    "line": lambda given: given.readline() + given.readline() + given.readline(),
    "short lines": lambda given: b"".join(iter(lambda: given.readline(3), b"")),
    "lines": lambda given: b"".join(given.readlines()), "iteration": b"".join,
}  # fmt: skip


class TestPastDjango:
    """A WSGI server's own input: its bytes are charged as they are read."""

    @pytest.mark.parametrize("read", READS)
    @pytest.mark.parametrize("door", ["middleware", "decorator", "drf", "drf behind the middleware"])
    def test_counts_what_is_read(self, enforce: Enforce, door: str, read: str) -> None:
        enforce(volume=VOLUME)
        answers: list[bytes] = []

        def view(request: Any) -> HttpResponse:
            answers.append(READS[read](request.META["wsgi.input"]))
            return HttpResponse()

        class Upload(APIView):
            authentication_classes = ()
            throttle_classes = [RuleThrottle]

            def post(self, request: Request) -> HttpResponse:
                return view(request)

        doors = {
            "middleware": lambda: caught(ThrottleMiddleware(view)), "decorator": lambda: throttle("volume")(view),
            "drf": Upload.as_view, "drf behind the middleware": lambda: caught(ThrottleMiddleware(Upload.as_view())),
        }  # fmt: skip
        ask = doors[door]()
        body = b"x" * 19 + b"\n" + b"y" * 19 + b"\n"
        responses = [ask(wsgi(body)) for _ in range(3)]
        assert [response.status_code for response in responses] == [200, 200, 429]
        assert answers == [body, body]
        assert responses[2].headers["Retry-After"] == "60"
        assert ask(wsgi(b"x" * 20, CONTENT_LENGTH="20")).status_code == 429 if read == "short lines" else True


def caught(door: ThrottleMiddleware) -> Any:
    inner = door.get_response

    def get_response(request: HttpRequest) -> Any:
        try:
            return inner(request)
        except Refused as error:
            return door.process_exception(request, error)

    door.get_response = get_response
    return door

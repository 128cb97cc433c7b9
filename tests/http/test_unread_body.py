"""Bodies: what they weigh at every door, and one that cannot be read leaves the answer of the site as it is."""

import json
from contextlib import suppress
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import Any, ClassVar

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.contrib.graphql import operation_cost
from django_throttle.contrib.logins import login_name
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import InvalidIdent, Refused
from django_throttle.http.request_state import size_of
from django_throttle.identity import site_functions
from django_throttle.middleware import ThrottleMiddleware
from tests.doors import Enforce
from tests.inside import unsaid

FORM, JSON, MULTIPART = "application/x-www-form-urlencoded", "application/json", "multipart/form-data; boundary=x"
HERE = __name__
MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
PART = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
UPLOAD = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n%s\r\n'
BASE64 = UPLOAD.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n", 1)
BODIES: dict[str, tuple[bytes, str]] = {
    "bad json": (b"[1, 2", JSON), "bad multipart": (b"no part\r\n", "multipart/form-data"),
    "bad base64": (BASE64 % b"abcde" + b"--x--\r\n", MULTIPART),
    "too many fields": (b"&".join([b"a=1"] * 1100), FORM),
    "too many parts": (PART % (b"a", b"1") * 1100 + b"--x--\r\n", MULTIPART),
    "too many files": (UPLOAD % b"1" * 200 + b"--x--\r\n", MULTIPART), "too much": (b"a=" + b"b" * 70_000, FORM),
    "too much json": (json.dumps(["b" * 70_000]).encode(), JSON),
    "too much in parts": (PART % (b"a", b"b" * 70_000) + b"--x--\r\n", MULTIPART),
    "another charset": (b"a=1", f"{FORM}; charset=latin-1"), "unknown type": (b"a", "application/x-unknown"),
    "empty form": (b"--x--\r\n", MULTIPART), "form": (b"a=1&a=2", FORM), "json": (b'{"a": 1}', JSON),
    "multipart": (PART % (b"a", b"1") + UPLOAD % b"file" + b"--x--\r\n", MULTIPART),
    "large file": (PART % (b"a", b"1") + UPLOAD % (b"file" * 100_000) + b"--x--\r\n", MULTIPART),
}  # fmt: skip


def reads_post(request: HttpRequest) -> HttpResponse:
    return JsonResponse(
        [request.POST.lists(), sorted((name, file.size) for name, file in request.FILES.items())],
        safe=False,
        json_dumps_params={"default": list},
    )


def reads_body(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.body)


def reads_stream(request: HttpRequest) -> HttpResponse:
    parts = request.read(0), request.read(10), request.readline(3), request.readline(), request.read()
    return HttpResponse(repr(parts))


def reads_files(request: HttpRequest) -> HttpResponse:
    return JsonResponse({name: file.read().decode() for name, file in request.FILES.items()})


def reads_nothing(request: HttpRequest) -> HttpResponse:
    return HttpResponse("nothing")


def cost_by_post(request: Any, **_: Any) -> int:
    return 1 + len(request.POST)


def cost_by_post_handled(request: Any) -> int:
    try:
        return 1 + len(request.POST)
    except Exception:  # noqa: BLE001
        return 2


def cost_by_body(request: Any) -> int:
    return 1 + len(json.loads(request.body))


def plan_by_post(request: Any) -> str:
    return str(request.POST.get("plan", ""))


def by_files(request: Any) -> int:
    return sum(len(file.read()) for file in request.FILES.values())


def by_closed_files(request: Any) -> int:
    total = by_files(request)
    for file in request.FILES.values():
        file.close()
    return total


def by_stream(request: Any) -> int:
    with suppress(ValueError):
        return len(request.read()) + int(request.POST.get("missing", "no number"))
    return 1


def by_lines(request: Any) -> str:
    raise LookupError(len(list(request)))


def cost_by_data(self: Any, request: Any) -> int:
    return 1 + len(request.data)


class Bare(APIView):
    parser_classes = (JSONParser, FormParser, MultiPartParser)
    reads = True

    def post(self, request: Any) -> Response:
        return Response({name: str(value) for name, value in dict(request.data).items()} if self.reads else "nothing")


class Limited(Bare):
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    throttle_scope = "limited"
    throttle_cost = cost_by_data


VIEWS = {view.__name__: view for view in (reads_post, reads_body, reads_stream, reads_files, reads_nothing)}
COSTS: dict[str, Any] = {
    "post": cost_by_post, "handled": cost_by_post_handled, "body": cost_by_body, "graphql": operation_cost,
    "login": lambda request: len(login_name(request) or ""), "start": lambda request: len(request.read(12)),
    "files": by_files, "closed": by_closed_files,
}  # fmt: skip
READERS: dict[str, Any] = {name: {"cost": cost} for name, cost in COSTS.items()}
READERS |= {"ident": {"ident": plan_by_post}, "handled ident": {"ident": cost_by_post_handled}}
urlpatterns = [
    *[path(f"bare/{name}", view) for name, view in VIEWS.items()],
    path("bare/rest", Bare.as_view()),
    path("bare/rest-reads-nothing", type("Nothing", (Bare,), {"reads": False}).as_view()),
    *[
        path(f"{by}/{name}", throttle("api", **options)(view))
        for by, options in READERS.items()
        for name, view in VIEWS.items()
    ],
    path("data/rest", Limited.as_view()),
]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 60_000


def ask(where: str, body: str) -> tuple[int, bytes]:
    sent, kind = BODIES[body]
    answer = Client(raise_request_exception=False).generic("POST", where, sent, content_type=kind)
    return answer.status_code, answer.content


async def aask(where: str, body: str) -> tuple[int, bytes]:
    sent, kind = BODIES[body]
    answer = await AsyncClient(raise_request_exception=False).generic("POST", where, sent, content_type=kind)
    return answer.status_code, answer.content


@pytest.mark.parametrize("kind", ["bad", "too", "large", "other"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("cost", READERS)
def test_under_the_decorator(enforce: Enforce, cost: str, view: str, kind: str) -> None:
    enforce(api={"rate": "999999/min"})
    for body in BODIES:
        if not (body.startswith(kind) or (kind == "other" and not body.startswith(("bad", "too", "large")))):
            continue
        if body == "large file" and cost != "body" and view in ("reads_body", "reads_stream"):
            continue  # a function has parsed the form, which is larger than what Django keeps in memory
        if (body, cost, view) == ("large file", "closed", "reads_files"):
            continue  # 500, as the file cannot be read again
        assert ask(f"/{cost}/{view}", body) == ask(f"/bare/{view}", body), body


def options_by(function: str) -> dict[str, dict[str, Any]]:
    path = f"{HERE}.{function}"
    return {"cost": {"cost": path}, "key": {"key": path}, "plans": {"key": "ip", "plans": {f"{path}:a": "9/min"}}}


@pytest.mark.parametrize("function", ["cost_by_post", "cost_by_post_handled"])
@pytest.mark.parametrize("option", options_by(""))
def test_a_malformed_body_that_is_too_large_to_be_kept(
    enforce: Enforce, settings: Any, option: str, function: str
) -> None:
    enforce(api={"rate": "999999/min", **options_by(function)[option]})
    settings.MIDDLEWARE = MIDDLEWARE
    sent = UPLOAD % (b"file" * 100_000) + BASE64 % b"abcde" + b"--x--\r\n"
    for view, status in (("reads_nothing", 200), ("reads_post", 400), ("rest", 400)):
        answer = Client(raise_request_exception=False).post(f"/bare/{view}", sent, content_type=MULTIPART)
        assert answer.status_code == status, view


@pytest.mark.parametrize("function", ["by_stream", "by_lines"])
@pytest.mark.parametrize("option", [*options_by(""), "tenant"])
def test_a_stream_that_is_too_large_to_be_kept(
    enforce: Enforce, settings: Any, caplog: Any, monkeypatch: Any, option: str, function: str
) -> None:
    """The view gets an error, not an empty form."""
    unsaid(site_functions, monkeypatch)
    path = f"{HERE}.{function}"
    enforce(api={"rate": "999999/min", **options_by(function).get(option, {"key": "tenant"})})
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, **({"TENANT": path} if option == "tenant" else {})}
    settings.MIDDLEWARE = MIDDLEWARE
    for view, status in (("reads_nothing", 200), ("reads_post", 500), ("reads_stream", 500), ("rest", 500)):
        assert ask(f"/bare/{view}", "large file")[0] == status, view
    (line,) = [record.getMessage() for record in caplog.records if record.name == "django_throttle"]
    assert path in line or option == "tenant"
    assert "reads the body as a stream, which the view then cannot read: " in line
    request = RequestFactory().generic("POST", "/", BODIES["large file"][0], MULTIPART)
    with pytest.raises(InvalidIdent, match=f"{function} reads the body as a stream"):
        throttle("api", ident=globals()[function])(reads_post)(request)


@pytest.mark.parametrize(("cost", "view"), [("post", "reads_post"), ("handled", "reads_nothing"), ("data", "rest")])
async def test_on_an_event_loop(enforce: Enforce, cost: str, view: str) -> None:
    enforce(api={"rate": "999999/min"})
    for body in BODIES:
        assert await aask(f"/{cost}/{view}", body) == await aask(f"/bare/{view}", body), body


@pytest.mark.parametrize("view", ["reads_post", "reads_nothing", "rest", "rest-reads-nothing"])
@pytest.mark.parametrize("option", ["cost", "reserve", "plans", "several"])
def test_by_a_function_of_a_rule(enforce: Enforce, option: str, view: str, settings: Any, caplog: Any) -> None:
    plain = {body: ask(f"/bare/{view}", body) for body in BODIES}
    cost = {"cost": f"{HERE}.cost_by_post"}
    options: dict[str, list[dict[str, Any]]] = {
        "cost": [cost],
        "reserve": [{"unit": "units", "reserve": f"{HERE}.cost_by_post"}],
        "plans": [{"plans": {f"{HERE}.plan_by_post:pro": "9999999/min"}}],
        "several": [cost, {"cost": f"{HERE}.cost_by_post_handled"}, cost],
    }
    enforce(**{f"rule{at}": {"rate": "999999/min", **each} for at, each in enumerate(options[option])})
    settings.MIDDLEWARE = MIDDLEWARE
    assert {body: ask(f"/bare/{view}", body) for body in BODIES} == plain
    assert not [record for record in caplog.records if record.name == "django_throttle"]


class Broken:
    def read(self, size: int = -1) -> bytes:
        raise OSError("it has left")

    readline = read


@pytest.mark.parametrize("kind", [JSON, FORM, MULTIPART])
@pytest.mark.parametrize("view", [*VIEWS, "rest"])
@pytest.mark.parametrize("cost", [*COSTS, "data"])
def test_a_client_that_leaves_while_it_sends(enforce: Enforce, cost: str, view: str, kind: str) -> None:
    enforce(api={"rate": "999999/min"})
    if (view == "rest") is not (cost == "data"):
        return
    client = Client(raise_request_exception=False)
    extra: Any = {"wsgi.input": Broken(), "CONTENT_LENGTH": "100"}
    plain, limited = (client.generic("POST", f"/{by}/{view}", b"", content_type=kind, **extra) for by in ("bare", cost))
    assert (limited.status_code, limited.content) == (plain.status_code, plain.content)


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


WAYS = {
    "read": lambda given: given.read(), "pieces": lambda given: b"".join(iter(lambda: given.read(7), b"")),
    "line": lambda given: given.readline() + given.readline() + given.readline(),
    "short lines": lambda given: b"".join(iter(lambda: given.readline(3), b"")),
    "lines": lambda given: b"".join(given.readlines()), "iteration": b"".join,
}  # fmt: skip


class TestPastDjango:
    """A WSGI server's own input: its bytes are charged as they are read."""

    @pytest.mark.parametrize("read", WAYS)
    @pytest.mark.parametrize("door", ["middleware", "decorator", "drf", "drf behind the middleware"])
    def test_counts_what_is_read(self, enforce: Enforce, door: str, read: str) -> None:
        enforce(volume=VOLUME)
        answers: list[bytes] = []

        def view(request: Any) -> HttpResponse:
            answers.append(WAYS[read](request.META["wsgi.input"]))
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

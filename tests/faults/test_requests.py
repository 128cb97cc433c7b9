"""Real requests to a view while Redis hangs: each is answered in time, and as its rule's failure policy says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from django.core.wsgi import get_wsgi_application
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.drf import RuleThrottle
from django_throttle.stores.failures import FAILURES_IN_A_ROW
from testproject.check.standstill import elapsed
from tests.faults.conftest import BOUND, DEADLINE
from tests.servers import RedisServer, wait_until

POLICIES = {"local": 200, "allow": 200, "deny": 503}
LIMIT = 100


class Search(APIView):
    """Limited by the rule of the scope that the address names."""

    throttle_classes = [RuleThrottle]
    authentication_classes = ()

    @property
    def throttle_scope(self) -> str:
        return str(self.kwargs["scope"])

    def get(self, request: Request, scope: str) -> Response:
        return Response({"found": scope})


urlpatterns = [path("<slug:scope>", Search.as_view())]


class Answer(NamedTuple):
    """What a client has of one request; ``ours`` are its seconds without those in which the machine stood still."""

    status: int
    retry_after: str | None
    seconds: float
    ours: float


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, as a WSGI server has them."""

    daemon_threads = True


class Quiet(WSGIRequestHandler):
    """Keeps its log out of the test's output."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(settings: Any, server: RedisServer) -> Iterator[int]:
    """The port of a server in front of the view."""
    settings.ROOT_URLCONF = __name__
    settings.DJANGO_THROTTLE = {
        "REDIS": server.url,
        "DEADLINE": DEADLINE,
        "DATABASE_RULES": False,
        "AGENT": False,
        "RULES": {
            policy: {"rate": f"{LIMIT}/h", "scopes": [policy], "key": "ip", "on_store_failure": policy}
            for policy in POLICIES
        },
    }
    with make_server("127.0.0.1", 0, get_wsgi_application(), server_class=Server, handler_class=Quiet) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running.server_port
        running.shutdown()
        thread.join()


@pytest.fixture
def ask(site: int) -> Callable[[str], Answer]:
    """One GET on a connection of its own, timed from before it is opened."""

    def ask(scope: str) -> Answer:
        started = time.monotonic()
        connection = HTTPConnection("127.0.0.1", site, timeout=10)
        connection.request("GET", f"/{scope}")
        response: HTTPResponse = connection.getresponse()
        response.read()
        seconds, ours = time.monotonic() - started, elapsed(started)
        connection.close()
        return Answer(response.status, response.headers["Retry-After"], seconds, ours)

    return ask


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F03")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_is_answered_by_its_policy_in_time(
    policy: str, server: RedisServer, ask: Callable[[str], Answer], figure: Callable[..., None]
) -> None:
    for _ in range(3):
        wait_until(lambda: ask(policy).status == 200, every=0.1)
    server.pause()
    answers = [ask(policy) for _ in range(2 * FAILURES_IN_A_ROW)]
    server.resume()
    slowest = max(answer.ours for answer in answers) * 1000
    figure("longest answer to a request", slowest, "ms")
    assert {answer.status for answer in answers} == {POLICIES[policy]}
    for answer in answers:
        assert (answer.retry_after is not None) is (policy == "deny")
        assert policy != "deny" or 1 <= int(answer.retry_after or 0) <= 10
    assert min(answer.seconds for answer in answers[:FAILURES_IN_A_ROW]) >= DEADLINE * 0.9, "Redis was not asked"
    assert slowest <= BOUND * 1000
    wait_until(lambda: ask(policy).status == 200, every=0.1)


@pytest.mark.usefixtures("stopwatch")
def test_a_share_that_is_used_up_is_a_429(server: RedisServer, ask: Callable[[str], Answer]) -> None:
    assert ask("local").status == 200
    server.pause()
    answers = [ask("local") for _ in range(LIMIT + 5)]
    server.resume()
    assert [answer.status for answer in answers] == [200] * (LIMIT - 1) + [429] * 6  # one was used up before
    assert all(answer.retry_after for answer in answers[LIMIT - 1 :])
    assert max(answer.ours for answer in answers) <= BOUND

"""Requests to a view while Redis hangs: each is answered in time, and as its rule's failure policy says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.test import Client
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
    """An answer; ``ours`` are its seconds without those in which the machine stood still."""

    status: int
    retry_after: str | None
    seconds: float
    ours: float


@pytest.fixture
def ask(settings: Any, server: RedisServer) -> Callable[[str], Answer]:
    settings.ROOT_URLCONF = __name__
    rule = {"rate": f"{LIMIT}/h", "key": "ip"}
    rules = {policy: {**rule, "scopes": [policy], "on_store_failure": policy} for policy in POLICIES}
    own = {"REDIS": server.url, "DEADLINE": DEADLINE, "DATABASE_RULES": False, "AGENT": False}
    settings.DJANGO_THROTTLE = {**own, "RULES": rules}

    def ask(scope: str) -> Answer:
        started = time.monotonic()
        answer = Client().get(f"/{scope}")
        return Answer(answer.status_code, answer.get("Retry-After"), time.monotonic() - started, elapsed(started))

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

"""``assert_throttled`` knows a refusal whatever it comes as, and says in a sentence what was otherwise."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient, APIRequestFactory
from rest_framework.views import APIView

from django_throttle.core import Rule
from django_throttle.core.decision import Reason
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import Cause, Refused, StoreError
from django_throttle.limiter import Limiter, adecide, decide
from django_throttle.stores import MemoryStore
from django_throttle.testing import assert_throttled, override_rules, use_up
from tests.observe.conftest import FACTS

RULES: dict[str, Any] = {"api": {"rate": "3/min", "key": "everyone", "algorithm": "fixed_window"}}


class Search(APIView):
    throttle_classes = [RuleThrottle]
    authentication_classes = ()
    throttle_scope = "search"

    def get(self, request: Request) -> Response:
        return Response()


@throttle("api")
def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


@throttle("api")
async def apage(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


@throttle("api", ident="everyone")
def send() -> str:
    return "sent"


urlpatterns = [path("search", Search.as_view()), path("page", page), path("apage", apage)]


@pytest.fixture(autouse=True)
def our_urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


ONCE = Limiter([Rule("api", "1/min")], MemoryStore(lambda: 0.0))
YES, NO = ONCE.acquire("user:1"), ONCE.acquire("user:1")
STORE_FAILED = NO._replace(outcomes=(NO.outcomes[0]._replace(reason=Reason.STORE_FAILED),))


@override_rules(RULES)
class TestCalling:
    @pytest.mark.parametrize("where", ["/search", "/page"])
    def test_a_client(self, where: str) -> None:
        answer = assert_throttled(lambda: APIClient().get(where), after=3, times=2, rule="api")
        assert answer.status_code == 429
        assert answer["Retry-After"]

    def test_it_calls_once_by_default(self) -> None:
        calls = []
        use_up("api", "everyone")
        assert_throttled(lambda: calls.append(1) or Client().get("/page"))
        assert len(calls) == 1

    def test_any_callable(self) -> None:
        error = assert_throttled(send, after=3, rule="api")
        assert isinstance(error, Refused)

    def test_a_view_without_a_client_is_known_by_its_signal(self) -> None:
        view = Search.as_view()
        assert_throttled(lambda: view(APIRequestFactory().get("/")), after=3, rule="api")

    def test_a_decision(self) -> None:
        assert_throttled(lambda: decide(FACTS), after=3, rule="api")

    def test_nothing_refused(self) -> None:
        send()
        assert assert_throttled(send, after=2, times=0) == "sent"

    def test_another_error_is_none(self) -> None:
        with pytest.raises(ZeroDivisionError):
            assert_throttled(lambda: 1 / 0)

    async def test_asynchronous_calls_are_awaited_before(self) -> None:
        with pytest.raises(TypeError, match="await each call"):
            assert_throttled(lambda: adecide(FACTS))
        assert_throttled([await adecide(FACTS) for _ in range(5)], after=3, rule="api")

    async def test_answers_of_the_asynchronous_client(self) -> None:
        client = AsyncClient()
        assert_throttled([await client.get("/apage") for _ in range(5)], after=3, rule="api")

    def test_after_its_time_it_passes_again(self) -> None:
        with override_rules(RULES) as clock:
            answer = assert_throttled(lambda: Client().get("/page"), after=3)
            clock.tick(int(answer["Retry-After"]))
            assert_throttled(lambda: Client().get("/page"), after=3)


class TestAnswers:
    @pytest.mark.parametrize(
        "answer",
        [HttpResponse(status=429), Response(status=429), NO, Refused(NO), Throttled(wait=5)],
        ids=lambda answer: type(answer).__name__,
    )
    def test_one(self, answer: Any) -> None:
        assert assert_throttled(answer) is answer

    @pytest.mark.parametrize(
        ("answers", "how"),
        [
            ([NO], {}),
            ([NO, NO], {}),
            ([YES, YES, NO, NO], {"after": 2}),
            ([YES, NO, YES], {"after": 1, "times": 1}),
            ([NO, YES, NO], {"times": 2}),
            ([YES, YES], {"times": 0}),
            ((answer for answer in (YES, NO)), {"after": 1}),
        ],
        ids=range(7),
    )
    def test_several(self, answers: Any, how: dict[str, int]) -> None:
        assert_throttled(answers, **how, rule="api")


def case(given: Any, message: str, **how: Any) -> Any:
    return pytest.param(given, message, how, id=message)


@pytest.mark.parametrize(
    ("given", "message", "how"),
    [
        case(YES, "call 1 should have been refused, but was let through"),
        case(HttpResponse(), "call 1 should have been refused, but was answered with status 200"),
        case(lambda: YES, "call 3 should have been refused, but was let through", after=2),
        case([YES, NO, NO], "call 2 was refused by rule 'api', though the first 2 should pass", after=2),
        case([YES, NO, NO], "call 3 was refused by rule 'api', though only 1 should be", after=1, times=1),
        case([NO, YES, NO], "2 of 3 calls were refused, not 3", times=3),
        case([YES, YES], "only 2 calls were made", after=2),
        case([YES, NO], "only 2 calls were made", after=1, times=2),
        case([], "no call was made"),
        case(NO, "refused by rule 'api', not by 'mail'", rule="mail"),
        case(
            HttpResponse(status=429),
            f"nobody knows which rule refused: {HttpResponse(status=429)!r} came from no test client",
            rule="api",
        ),
        case(STORE_FAILED, "call 1 should have been refused, but was turned away by rule 'api' as the store failed"),
        case(
            HttpResponse(status=503), "call 1 should have been refused, but was answered with status 503"
        ),
    ],
)  # fmt: skip
def test_what_a_failure_says(given: Any, message: str, how: dict[str, Any]) -> None:
    with pytest.raises(AssertionError) as failed:
        assert_throttled(given, **how)
    assert str(failed.value).splitlines()[0] == message


def test_a_store_that_fails_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError(Cause.UNAVAILABLE)

    store = MemoryStore()
    monkeypatch.setattr(store, "execute", fail)
    limiter = Limiter([Rule("api", "1/min", on_store_failure="deny")], store)
    with pytest.raises(AssertionError, match="by rule 'api' as the store failed"):
        assert_throttled(lambda: limiter.acquire("user:1"))


@override_rules({"api": {"rate": "10000/hour", "key": "ip"}})
def test_a_rule_of_ten_thousand_an_hour_takes_milliseconds(client: Client) -> None:
    began = time.perf_counter()
    use_up("api", "ip:127.0.0.1", leaving=2)
    assert_throttled(lambda: client.get("/page"), after=2, rule="api")
    milliseconds = (time.perf_counter() - began) * 1000
    print(f"10,000/hour at a view: {milliseconds:.0f} ms")
    assert milliseconds < 1000


def test_it_leaves_no_receiver_behind() -> None:
    from django_throttle.signals import throttled

    receivers: Callable[[], list[Any]] = lambda: list(throttled.receivers)  # noqa: E731
    before = receivers()
    with pytest.raises(ZeroDivisionError):
        assert_throttled(lambda: 1 / 0)
    assert receivers() == before


class TestFrames:
    ERROR = {"type": "error", "code": "rate_limited", "rule": "chat", "retry_after": 1.5}

    def test_a_frame_that_refuses_is_a_refusal(self) -> None:
        assert assert_throttled(self.ERROR, rule="chat") == self.ERROR
        assert assert_throttled(json.dumps(self.ERROR), rule="chat") == self.ERROR
        assert_throttled([{"echo": 1}, "2", "three", self.ERROR], after=3, times=1)

    @pytest.mark.parametrize("frame", [{"type": "error", "code": "idle"}, {"type": "news"}, "hello", "[1]"], ids=str)
    def test_any_other_was_let_through(self, frame: Any) -> None:
        with pytest.raises(AssertionError, match="let through"):
            assert_throttled(frame)

    def test_a_text_that_is_no_frame_is_shown(self) -> None:
        with pytest.raises(AssertionError, match="refused, but was let through: 'foo'"):
            assert_throttled("foo")

    def test_one_of_another_rule(self) -> None:
        with pytest.raises(AssertionError, match="refused by rule 'chat', not by 'api'"):
            assert_throttled(self.ERROR, rule="api")

    def test_what_is_no_answer_is_said(self) -> None:
        with pytest.raises(TypeError, match="an answer is a response"):
            assert_throttled([(True, None)])

"""The test kit: rules for one test, what assertions say, and a clock that stands still."""

import json
import unittest
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import SimpleTestCase, override_settings
from django.urls import path
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient
from rest_framework.views import APIView

from django_throttle import rulebook
from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.checks import scopes
from django_throttle.core import Override, Rule
from django_throttle.core.decision import Reason
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.exceptions import InvalidCost, InvalidIdent, InvalidRule, Refused
from django_throttle.limiter import Limiter, adecide, allows, decide
from django_throttle.models import ThrottleRule
from django_throttle.rulebook import Snapshot
from django_throttle.stores import MemoryStore, get_store, pin
from django_throttle.testing import FrozenClock, assert_throttled, override_rules, use_up
from tests.inside import book
from tests.observe.conftest import CALL

ONE: dict[str, Any] = {"one": {"rate": "2/hour", "key": "everyone", "algorithm": "fixed_window"}}
OTHER: dict[str, Any] = {"other": {"rate": "5/hour", "key": "everyone"}}
SETTINGS: dict[str, Any] = {"RULES": {"site": {"rate": "9/min"}}, "DATABASE_RULES": False}


def names() -> list[str]:
    return [rule.name for rule in rulebook.current().rules]


def passed(calls: int) -> int:
    return sum(decide(CALL).allowed for _ in range(calls))


@pytest.fixture(autouse=True)
def site(settings: Any) -> Iterator[None]:
    settings.DJANGO_THROTTLE, settings.ROOT_URLCONF = SETTINGS, __name__
    assert names() == ["site"]
    yield
    assert names() == ["site"]
    assert (pin(None), book().pinned) == (None, None)


@pytest.mark.parametrize("rules", [ONE, [Rule("one", "2/hour", key="everyone", algorithm="fixed_window")]])
def test_these_rules_and_no_others_on_a_clock_that_stands_still(rules: Any) -> None:
    context = override_rules(rules)
    for _ in range(2):
        with context as clock:
            assert (names(), passed(5)) == (["one"], 2)
            clock.tick(3599)
            assert passed(5) == 0
            clock.tick(1)
            assert passed(5) == 2


def test_nested_and_merged() -> None:
    with override_rules(ONE) as outer:
        assert passed(1) == 1
        with override_rules({**OTHER, "one": {**ONE["one"], "rate": "3/hour"}}, merge=True) as inner:
            assert inner is not outer
            assert (names(), passed(5)) == (["one", "other"], 3), "counted from nothing"
        assert (names(), passed(5)) == (["one"], 1), "and what the outer one has counted is there still"


def test_overrides_stay_where_rules_are_merged() -> None:
    free = Override(subject="user:somebody", effect="exempt")
    rulebook.pin(Snapshot([Rule("one", "1/hour", key="user")], overrides=[free]))
    try:
        for merge, passing in ((True, 5), (False, 1)):
            with override_rules([Rule("one", "1/hour", key="user")], merge=merge):
                assert passed(5) == passing
    finally:
        rulebook.pin(None)


@pytest.mark.parametrize("rules", [{"one": {"rate": "x"}}, {"one": {"rat": "1/s"}}, [Rule("a", "1/s")] * 2], ids=str)
def test_rules_that_make_no_sense_are_refused_where_they_are_written(rules: Any) -> None:
    with pytest.raises((InvalidRule, ValueError)):
        override_rules(rules)


def test_without_parentheses_it_says_how_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"write @override_rules\(\{.*\}\)"):
        override_rules(lambda: None)  # type: ignore[arg-type]


@pytest.mark.django_db
def test_what_is_edited_meanwhile_is_in_force_afterwards() -> None:
    with override_settings(DJANGO_THROTTLE={**SETTINGS, "DATABASE_RULES": True}):
        assert names() == ["site"]
        with override_rules(ONE):
            ThrottleRule.objects.create(name="edited", rate="5/s")
            rulebook.refresh()
            assert names() == ["one"]
        assert names() == ["edited", "site"]


async def test_merging_does_not_block_the_loop_for_the_first_reading() -> None:
    with override_settings(DJANGO_THROTTLE={**SETTINGS, "PREFIX": "unread"}):
        async with override_rules(ONE, merge=True):
            assert names() == ["one", "site"]


def test_a_test_case() -> None:
    @override_settings(DJANGO_THROTTLE={**SETTINGS, "PREFIX": "case"})
    @override_rules(ONE)
    class Case(SimpleTestCase):
        def setUp(self) -> None:
            self.first = decide(CALL)

        async def test_set_up_is_inside(self) -> None:
            assert (self.first.rule, (await adecide(CALL)).allowed, passed(5)) == ("one", True, 0)

        @override_rules(OTHER)
        def test_with_others(self) -> None:
            assert names() == ["other"]

        def test_that_fails(self) -> None:
            raise ZeroDivisionError

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert result.failures == []
    assert (result.testsRun, len(result.errors)) == (3, 1), result.errors


async def test_a_class_for_pytest() -> None:
    async def later(self: object) -> list[str]:
        return names()

    members = {"test_now": lambda self: names(), "test_later": later, "test_number": 7, "other": lambda self: names()}
    tests = override_rules(ONE)(type("Tests", (), members))()
    assert (tests.test_now(), await tests.test_later(), tests.test_number) == (["one"], ["one"], 7)
    assert tests.other() == ["site"]


@override_rules([Rule("search", "10000/hour", key="user")])
@pytest.mark.row("R11")
@pytest.mark.django_db
def test_ten_thousand_calls_at_once() -> None:
    User.objects.create(pk=42)
    for leaving in (2, 5):
        use_up("search", "user:42", leaving=leaving)
    assert [bool(allows("search", "user:42")) for _ in range(3)] == [True, True, False], "what is left already stays"


RATES = [
    Rule("a", "1/s", key="user"),
    Rule("all", rates=("10/hour", "20/day"), key="everyone"),
    Rule("burst", "5/s", key="user", algorithm="token_bucket", burst=7),
    Rule("slots", limit=2, algorithm="concurrency", events=("connection",)),
]


@override_rules(RATES)
@pytest.mark.django_db
def test_only_a_rate_in_force_can_be_used_up_by_an_ident_with_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    User.objects.create(pk=42)
    for name in ("slots", "nothing"):
        with pytest.raises(InvalidRule, match=f"no rate named '{name}' is in force, but: a"):
            use_up(name, "user:1")
    for value in ("anna", "43"):
        with pytest.raises(InvalidIdent, match=f"'user:{value}': No user has the id, .*'{value}'"):
            use_up("a", f"user:{value}")
    for ident, fault in (("42", "has no kind: "), ("usr:42", "the rule ")):
        with pytest.raises(InvalidIdent, match=f"'{ident}'.*{fault}.*'a' counts by user.*'user:42'"):
            use_up("a", ident)
    with pytest.raises(InvalidCost):
        use_up("a", "user:1", leaving=-1)
    for rule, limit in (("a", 1), ("burst", 7), ("all", 10)):
        ident = "everyone" if rule == "all" else "user:42"
        use_up(rule, ident, leaving=limit)
        with pytest.raises(InvalidCost, match=f"allows '{ident}' {limit} at once, so leaving cannot be {limit + 1}"):
            use_up(rule, ident, leaving=limit + 1)
    monkeypatch.setattr(scopes, "_asked_names", lambda: {"a"})
    use_up("a", "ip:192.0.2.1")
    monkeypatch.setattr(scopes, "_asked_names", set)
    for rule, ident, like in (
        ("a", "ip:192.0.2.1", "user:42"),
        ("a", "group:x", "user:"),
        ("all", "user:42", "everyone"),
    ):
        with pytest.raises(InvalidIdent, match=f"'{ident}': the rule '{rule}' counts by .*, so write one like '{like}"):
            use_up(rule, ident)
    use_up("a", "account:5")
    use_up("all", "everyone")


RULES: dict[str, Any] = {"api": {"rate": "3/min", "key": "everyone", "algorithm": "fixed_window"}}


SLOTS = {"algorithm": "concurrency", "events": ["connection"]}


class Tab(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    pass


class Search(APIView):
    throttle_classes = [RuleThrottle]
    authentication_classes = ()

    def get(self, request: Request) -> Response:
        return Response()


@throttle("api")
def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@throttle("api", ident="everyone")
def send() -> str:
    return "sent"


urlpatterns = [
    path("search", Search.as_view()), path("page", page),
    path("drop-in", Search.as_view(throttle_classes=[UserRateThrottle])),
]  # fmt: skip


ONCE = Limiter([Rule("api", "1/min")], MemoryStore(lambda: 0.0))
YES, NO = ONCE.acquire("user:1"), ONCE.acquire("user:1")
STORE_FAILED = NO._replace(outcomes=(NO.outcomes[0]._replace(reason=Reason.STORE_FAILED),))


@pytest.mark.parametrize("where", ["/search", "/page"])
@override_rules(RULES)
def test_a_client(where: str) -> None:
    answer = assert_throttled(lambda: APIClient().get(where), after=3, times=2, rule="api")
    assert (answer.status_code, "Retry-After" in answer) == (429, True)


@override_rules(RULES)
def test_any_callable() -> None:
    assert assert_throttled(send, after=2, times=0) == "sent"
    assert isinstance(assert_throttled(send, after=1, rule="api"), Refused)


@override_rules(RULES)
async def test_asynchronous_calls_are_awaited_before() -> None:
    with pytest.raises(TypeError, match="await each call"):
        assert_throttled(lambda: adecide(CALL))
    assert_throttled([await adecide(CALL) for _ in range(5)], after=3, rule="api")


ERROR = {"type": "error", "code": "rate_limited", "rule": "chat", "retry_after": 1.5}


@pytest.mark.parametrize(
    "answer",
    [HttpResponse(status=429), Response(status=429), NO, Refused(NO), Throttled(wait=5), ERROR],
    ids=lambda answer: type(answer).__name__,
)
def test_a_refusal_by_itself(answer: Any) -> None:
    assert assert_throttled(answer) is answer


@pytest.mark.parametrize(
    ("answers", "how"),
    [
        ([NO, NO], {}), ([YES, YES, NO, NO], {"after": 2}), ((answer for answer in (YES, NO)), {"after": 1}),
        ([NO, YES, NO], {"times": 2}),
        ([{"echo": 1}, "2", "three", json.dumps({**ERROR, "rule": "api"})], {"after": 3, "times": 1}),
    ],
    ids=range(5),
)  # fmt: skip
def test_several_answers(answers: Any, how: dict[str, int]) -> None:
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
            f"the rule that refused is unknown: {HttpResponse(status=429)!r} came from no test client",
            rule="api",
        ),
        case(STORE_FAILED, "call 1 should have been refused, but was turned away by rule 'api' as the store failed"),
        case("foo", "call 1 should have been refused, but was let through: 'foo'"),
    ],
)  # fmt: skip
def test_what_a_failure_says(given: Any, message: str, how: dict[str, Any]) -> None:
    with pytest.raises(AssertionError) as failed:
        assert_throttled(given, **how)
    assert str(failed.value).splitlines()[0] == message


@override_rules([Rule("api", "5/min", key="ip")])
def test_a_failure_says_what_was_counted_under_which_ident() -> None:
    use_up("api", "ip:2001:db8::1", leaving=1)
    counts = {"2001:db8::2": "5 of 5 calls under 'ip:2001:db8::/64'", "127.0.0.1": "1 of 5 calls under 'ip:127"}
    for address, count in counts.items():
        client = APIClient(REMOTE_ADDR=address)
        with pytest.raises(AssertionError, match=f"answered with status 200\nrule 'api' has counted {count}"):
            assert_throttled(lambda client=client: client.get("/search"))
    with override_rules({}), pytest.raises(AssertionError, match="no rule has counted the last call"):
        assert_throttled(lambda: APIClient().get("/search"))
    with pytest.raises(InvalidIdent, match="'ip:nowhere': "):
        use_up("api", "ip:nowhere")


@pytest.mark.parametrize("way", ["setting", "fixture"])
def test_a_run_without_limits(way: str, settings: Any, request: pytest.FixtureRequest) -> None:
    if way == "fixture":
        request.getfixturevalue("throttle_unlimited")
    else:
        settings.DJANGO_THROTTLE = {**SETTINGS, "TESTS": "unlimited"}
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": {"api": {"rate": "1/day", "key": "everyone"}}}
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"user": "1/day"}}
    for path_ in ("/search", "/page", "/drop-in"):
        assert_throttled([APIClient().get(path_) for _ in range(3)], after=3, times=0)
    assert [send(), send()] == ["sent"] * 2
    assert all(allows("api", "everyone") for _ in range(3)), "no name of a rule is missing"
    with pytest.raises(AssertionError, match=r"no rule has counted the last call \(.* put rules in force"):
        assert_throttled(lambda: APIClient().get("/drop-in"))
    with pytest.raises(InvalidRule, match=r"in force, but: none \(.*\"unlimited\""):
        use_up("api", "everyone")
    with override_rules({}, merge=True):
        assert_throttled(lambda: APIClient().get("/page"), after=1, rule="api")
        assert_throttled(lambda: APIClient().get("/drop-in"), after=1)
    assert_throttled([APIClient().get("/page") for _ in range(3)], after=3, times=0)
    settings.DJANGO_THROTTLE = SETTINGS


def test_what_is_no_answer_is_said() -> None:
    with pytest.raises(TypeError, match="an answer must be a response"):
        assert_throttled([(True, None)])
    with pytest.raises(ZeroDivisionError):
        assert_throttled(lambda: 1 / 0)


@override_rules({"tabs": {"limit": 1, "key": "ip", **SLOTS, "at_limit": "evict_oldest"}})
async def test_a_new_socket_closes_the_oldest() -> None:
    old, new = (WebsocketCommunicator(Tab.as_asgi(), "/") for _ in range(2))
    for socket in (old, new):
        socket.scope["client"] = ["127.0.0.1", 50_000]
        assert (await socket.connect())[0]
    assert (await old.receive_json_from())["code"] == "evicted"
    assert (await old.receive_output())["code"] == 4430
    assert await new.receive_nothing(0)
    await new.disconnect()


def test_the_clock_stands_still_and_moves_without_losing_a_microsecond() -> None:
    assert FrozenClock()() == datetime(2023, 11, 16, tzinfo=UTC).timestamp()
    clock = FrozenClock(0)
    for _ in range(1000):
        clock.tick(0.000001)
    assert clock() == 0.001
    clock.tick(-0.0005)
    assert clock() == clock() == 0.0005


def test_the_clock_stands_at_any_moment_that_has_a_time_zone() -> None:
    east = timezone(timedelta(hours=2))
    for moment in (1_700_000_000, 1_700_000_000.0, datetime(2023, 11, 15, 0, 13, 20, tzinfo=east)):
        clock = FrozenClock()
        clock.move_to(moment)
        assert clock() == FrozenClock(moment)() == 1_700_000_000
    with pytest.raises(ValueError, match="no time zone"):
        FrozenClock(datetime(2024, 1, 1))  # noqa: DTZ001 (that is the point)


def test_the_fixtures_of_pytest(throttle_store: MemoryStore, throttle_rules: Callable[..., None]) -> None:
    assert get_store() is throttle_store
    throttle_rules(ONE)
    assert passed(1) == 1
    throttle_rules(OTHER, merge=True)
    assert (names(), passed(2)) == (["one", "other"], 1), "on the same store"

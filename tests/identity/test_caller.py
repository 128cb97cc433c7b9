"""Who is asking has one ident, whichever server and door the call came through; and what a call costs."""

import logging
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.test import RequestFactory

from django_throttle import identity
from django_throttle.core import Rule
from django_throttle.core.ledger import Ledger
from django_throttle.identity import AsgiCaller, RequestCaller, site_functions
from django_throttle.identity.call import Call
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.identity.site_functions import cost_of, own_function
from tests.callers import ANNA
from tests.inside import unsaid

pytestmark = pytest.mark.django_db
PATH = "tests.identity.test_caller.named"
returned: Any = None


def named(subject: object) -> Any:
    """A key function of a site; returns what the test says."""
    return returned() if callable(returned) else returned


async def later() -> str:
    return "acme"


@pytest.fixture(autouse=True)
def nobody_warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    unsaid(site_functions, monkeypatch)
    identity.caller.warned_keys.clear()
    yield
    identity.caller.warned_keys.clear()


def over(address: object) -> RequestCaller:
    request = RequestFactory().get("/")
    request.META["REMOTE_ADDR"] = address
    return RequestCaller(request)


class TestWithoutAddress:
    @pytest.mark.parametrize("caller", [over(""), over("unix:"), AsgiCaller({}), AsgiCaller({"client": None})])
    @pytest.mark.parametrize("key", ["ip", "user_or_ip"])
    def test_the_rule_does_not_apply_and_the_log_says_so_once(self, caller: Any, key: str, caplog: Any) -> None:
        for _ in range(3):
            assert caller.ident(key) is None
        (line,) = caplog.records
        assert line.levelno == logging.WARNING
        assert f"rules of key {key!r} do not apply" in line.getMessage()

    def test_what_a_client_may_have_written_is_cut_short(self, caplog: pytest.LogCaptureFixture) -> None:
        over("x\n" * 10_000).ident("ip")
        assert len(caplog.records[0].getMessage()) < 300
        assert "\n" not in caplog.records[0].getMessage()


class TestKeyFunctions:
    @pytest.mark.parametrize(
        ("value", "ident"),
        [
            ("acme", f"{PATH}:acme"), (5, f"{PATH}:5"), (0, f"{PATH}:0"), (Decimal("1.5"), f"{PATH}:1.5"),
            (UUID(int=1), f"{PATH}:00000000-0000-0000-0000-000000000001"), (None, None), ("", None),
        ],
    )  # fmt: skip
    def test_a_text_or_a_number_names_the_caller(self, monkeypatch: Any, value: object, ident: str | None) -> None:
        monkeypatch.setattr("tests.identity.test_caller.returned", value)
        assert AsgiCaller({}).ident(PATH) == ident

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (later, "not coroutine; it must not be async"), (object(), "not object"), (b"acme", "not bytes"),
            ({"acme"}, "not set"),
        ],
    )  # fmt: skip
    def test_what_would_be_another_caller_each_time_counts_by_the_address(
        self, monkeypatch: pytest.MonkeyPatch, value: object, said: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("tests.identity.test_caller.returned", value)
        assert [over("192.0.2.1").ident(PATH) for _ in range(2)] == ["ip:192.0.2.1"] * 2
        (line,) = caplog.records
        assert f"the key '{PATH}' returns a text, a number or None, {said}" in str(line.exc_info)


def test_an_ident_counts_under_the_keys_that_give_it() -> None:
    keys = ("user", "ip", "user_or_ip", "api_key", "session", "tenant", "everyone", "user+ip", "ip+user")
    found = {
        name: [key for key in keys if KnownCaller(name).ident(key)] for name in ("user:1", "ip:::1", "user+ip:1+2")
    }
    assert found == {
        "user:1": ["user", "user_or_ip", "api_key", "everyone"],
        "ip:::1": ["ip", "user_or_ip", "api_key", "everyone"],
        "user+ip:1+2": ["everyone", "user+ip"],
    }
    assert KnownCaller("everyone").ident("everyone") == "everyone"


def test_what_is_known_of_a_user(django_user_model: Any, settings: Any) -> None:
    user = django_user_model.objects.create_user("anna", is_staff=True)
    known = KnownCaller(f"user:{user.pk}")
    assert known.has("staff", "user") and known.is_("authenticated") and not known.is_("anonymous")
    settings.DJANGO_THROTTLE = {"TENANT": "user.username"}
    assert known.ident("tenant") == "tenant:anna"
    assert known.ident("tenant+user") == f"tenant+user:tenant:anna+user:{user.pk}"


@pytest.mark.parametrize("value", ["\x00", "9" * 400, "\ud800", "x", "-1", ""])
def test_a_user_who_cannot_be(value: str) -> None:
    assert KnownCaller(f"user:{value}").has("staff", "user") is None


def test_why_a_key_does_not_count() -> None:
    assert "look up user+ip:" in KnownCaller("user:1").why_not("user+ip")
    assert "by itself" in KnownCaller("user:1").why_not("connection")


API, SLOTS = Rule("api", "9/min"), Rule("api", limit=3, algorithm="concurrency")
UPLOADS = Rule("api", "9/min", unit="bytes")


@pytest.mark.parametrize(
    ("rule", "charged", "cost", "due"),
    [
        (API, {("api", "user:2"): 1}, 3, 3),
        (API, {("other", "user:1"): 1}, 3, 3),
        (API, {("api", "user:1"): 1}, 3, 2),
        (API, {("api", "user:1"): 1}, 9, 8),
        (API, {("api", "user:1"): 1}, 10, 10),  # it never fits: the refusal is to say so
        (API, {("api", "user:1"): 3}, 3, None),
        (API, {("api", "user:1"): 5}, 3, None),
        (SLOTS, {("api", "user:1"): 1}, 3, None),
        (UPLOADS, {("api", "user:1"): 1}, 3, None),
    ],
    ids=str,
)
def test_only_what_no_door_has_charged_is_due(rule: Rule, charged: dict[Any, int], cost: int, due: int | None) -> None:
    call = Call("search", ("request",), ANNA, cost, charged=Ledger.of_costs(charged)).due(rule, "user:1")
    assert (call and call.cost) == due


JUNK = [-1000, True, False, float("nan"), float("inf"), 0.5, 1.0, "1", None, []]
FRAME = {"type": "websocket.receive", "text": "x"}


async def awaited(frame: Any) -> int:
    return 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        *((lambda frame, junk=junk: junk, f"gives {junk!r}, not a whole number, 0 or more") for junk in JUNK),
        (lambda frame: int(frame["text"]), "raised this"),
        (awaited, "must not be async"),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_anything_else_counts_1_and_is_said_once(function: Any, message: str, caplog: Any) -> None:
    assert [cost_of(function, FRAME), cost_of(function, FRAME)] == [1, 1]
    (record,) = caplog.records
    assert message in record.message
    assert (record.exc_info and record.exc_info[0]) == (ValueError if message == "raised this" else None)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(lambda request: 1, 1), (lambda self, request: 2, 2), (lambda *arguments: len(arguments), 2), (lambda self: 1, 1)],
)
def test_a_function_of_a_class_gets_the_instance_where_it_has_a_place_for_it(function: Any, arguments: int) -> None:
    door = type("Door", (), {"cost": function})()
    cost = own_function(door.cost)
    assert cost() == 1 if function.__code__.co_varnames == ("self",) else cost("request") == arguments

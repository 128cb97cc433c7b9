"""Who is asking has one ident, whichever server and door the call came through."""

import logging
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.test import RequestFactory

from django_throttle import identity
from django_throttle.identity import AsgiCaller, RequestCaller
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.runtime import LogThrottle

pytestmark = pytest.mark.django_db
PATH = "tests.identity.test_caller.named"
returned: Any = None


def named(subject: object) -> Any:
    """A key function of a site; returns what the test says."""
    return returned() if callable(returned) else returned


async def later() -> str:
    return "acme"


@pytest.fixture(autouse=True)
def nobody_warned() -> Iterator[None]:
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
        monkeypatch.setattr("django_throttle.identity.site_functions._log_throttle", LogThrottle())
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
    assert known.is_certain and known.is_("staff") and known.is_("authenticated") and not known.is_("anonymous")
    settings.DJANGO_THROTTLE = {"TENANT": "user.username"}
    assert known.ident("tenant") == "tenant:anna"
    assert known.ident("tenant+user") == f"tenant+user:tenant:anna+user:{user.pk}"


@pytest.mark.parametrize("value", ["\x00", "9" * 400, "\ud800", "x", "-1", ""])
def test_a_user_who_cannot_be(value: str) -> None:
    assert not KnownCaller(f"user:{value}").is_certain


def test_why_a_key_does_not_count() -> None:
    assert "ask for user+ip:" in KnownCaller("user:1").why_not("user+ip")
    assert "by itself" in KnownCaller("user:1").why_not("connection")

"""manage.py throttle_reset: what was used up is there again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import DatabaseError

from django_throttle.core import Rule
from django_throttle.identity.keys import api_key
from django_throttle.limiter import Limiter
from django_throttle.management.commands import throttle_reset
from django_throttle.rulebook import sources
from tests.connections.evictions import redis_store
from tests.inside import count_in
from tests.management.shell import run

pytestmark = pytest.mark.django_db
RULES: dict[str, dict[str, Any]] = {
    "api": {"rate": "2/h", "key": "user"},
    "bucket": {"rate": "2/h", "key": "user", "algorithm": "gcra"},
    "flood": {"rate": "100/s", "key": "user", "algorithm": "damper"},
    "sockets": {"limit": 2, "key": "user", "algorithm": "concurrency"},
    "inward": {"rate": "2/s", "key": "connection", "events": ["message"]},
}
RATES = [Rule.from_options(name, RULES[name]) for name in ("api", "bucket")]
SOCKETS = Rule.from_options("sockets", RULES["sockets"])


def reset(*words: str) -> str:
    return run("throttle_reset", *words)


@pytest.fixture
def store(settings: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings.DJANGO_THROTTLE = {"RULES": RULES, "AGENT": False, "DATABASE_RULES": False}
    store = redis_store(redis_url)
    count_in(store, monkeypatch)
    return store


def test_every_rate_or_only_some_are_full_again_and_what_is_open_stays(store: Any) -> None:
    limiter = Limiter([*RATES, SOCKETS], store)
    for ident in ("user:1", "user:2"):
        assert limiter.acquire(ident).allowed and limiter.acquire(ident).allowed
    assert reset("user:1", "--rules", "bucket") == "user:1: 1 budget full again\n"
    assert [Limiter([rule], store).peek("user:1").remaining for rule in RATES] == [0, 2]
    assert reset("user:1") == "user:1: 1 budget full again\n"
    assert [Limiter(RATES, store).peek(ident).remaining for ident in ("user:1", "user:2")] == [2, 0]
    assert Limiter([SOCKETS], store).peek("user:1").remaining == 0


def test_a_user_is_typed_as_for_an_override(store: Any) -> None:
    anna = User.objects.create_user("anna", email="anna@example.org")
    assert reset("anna") == f"anna (user:{anna.pk}): nothing was counted\n"
    for typed in (str(anna.pk), f"user:{anna.pk}", "anna", "user:anna", "ANNA@example.org", "user:anna@example.org"):
        Limiter(RATES, store).acquire(f"user:{anna.pk}")
        assert reset(typed) == f"user:{anna.pk}: 2 budgets full again\n"


def test_any_other_ident_is_typed_as_it_is_counted(store: Any) -> None:
    user = User.objects.create_user("anna")
    key, login = str(api_key("3f" * 20)), "django_throttle.logins.login_name:anna"
    for typed, ident in (
        ("203.0.113.9", "ip:203.0.113.9"),
        ("::ffff:203.0.113.9", "ip:203.0.113.9"),
        ("ip:2001:db8::1", "ip:2001:db8::/64"),
        ("2001:db8::5/64", "ip:2001:db8::/64"),
        ("203.0.113.9/32", "ip:203.0.113.9"),
        *((typed, typed) for typed in ("everyone", "user:org-5", "user:4711", "account:anna", "session:ip:5")),
        (f"api_key:{'3f' * 20}", key),
        ("tenant+user:tenant:acme+user:anna", f"tenant+user:tenant:acme+user:{user.pk}"),
        ("django_throttle.logins.login_name:Anna", login),
    ):
        Limiter(RATES, store).acquire(ident)
        assert reset(typed) == f"{ident}: 2 budgets full again\n"
    assert "nothing was counted" in reset("tenant+user:acme,1")
    said = reset("account:bob")
    assert "nothing was counted" in said and "user:42" in said


def test_a_database_that_fails_is_said(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(typed: str, **_: object) -> str:
        raise DatabaseError("no such table: auth_user")

    reading = sources.read()
    with monkeypatch.context() as patch:
        patch.setattr(sources, "read", lambda: replace(reading, failure=DatabaseError("no such table")))
        assert reset("everyone").startswith("only rules of the settings")
    monkeypatch.setattr(throttle_reset, "read_ident", fail)
    Limiter(RATES, store).acquire("user:1")
    said = ["no user can be looked up: no such table: auth_user", "user:1: 2 budgets full again"]
    assert reset("user:1").splitlines() == said


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        *(
            (typed, f"No user has .* '{who}'")
            for typed, who in (("bob", "bob"), ("user:bob", "bob"), ("42000", "42000"))
        ),
        *(("ip:999.1.1.1", "'999.1.1.1' is not an address"), ("ip:", "is not an address"), ("", "ident")),
        ("203.0.113.7/24", "203.0.113.0/24 has no budget of its own"),
        ("ip:2001:db8::1/128", "write 2001:db8::/64"),
        ("ip:203.0.113.0/33", "is not a network"),
        ("user:1 --rules ap", "ap"),
        ("user:1 --rules drf-anon", "'drf-anon' is a limit of REST framework's throttles, not a rule"),
    ],
)
def test_who_is_nobody_or_no_rule_is_an_error(store: Any, typed: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        reset(*(typed.split() or [""]))

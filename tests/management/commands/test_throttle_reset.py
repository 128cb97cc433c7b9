"""manage.py throttle_reset: what was used up is there again."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError

from django_throttle.connections.open_sockets import open_sockets
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.core import Rule
from django_throttle.identity.keys import api_key
from django_throttle.limiter import Limiter
from django_throttle.management.commands import throttle_reset
from django_throttle.rulebook import sources
from tests.connections.evictions import redis_store
from tests.connections.recorder import Recorder, sockets
from tests.inside import count_in

pytestmark = pytest.mark.django_db
RULES: dict[str, dict[str, Any]] = {
    "api": {"rate": "2/h", "key": "user"},
    "bucket": {"rate": "2/h", "key": "user", "algorithm": "gcra"},
    "flood": {"rate": "100/s", "key": "user", "algorithm": "damper"},
    "sockets": {"limit": 2, "key": "user", "algorithm": "concurrency"},
    "inward": {"rate": "2/s", "key": "connection", "events": ["message"]},
}
SHARED = [Rule.from_options(name, options) for name, options in RULES.items() if options["key"] == "user"]
RATES = [rule for rule in SHARED if rule.name in ("api", "bucket")]


def run(*words: str) -> str:
    said = io.StringIO()
    call_command("throttle_reset", *words, stdout=said, stderr=said, no_color=True)
    return said.getvalue()


@pytest.fixture
def store(settings: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings.DJANGO_THROTTLE = {"RULES": RULES, "AGENT": False, "DATABASE_RULES": False}
    store = redis_store(redis_url)
    count_in(store, monkeypatch)
    return store


def test_every_rate_is_full_again_and_what_is_open_stays(store: Any) -> None:
    limiter = Limiter([rule for rule in SHARED if not rule.is_damper], store)
    for ident in ("user:1", "user:2"):
        assert limiter.acquire(ident).allowed
        assert limiter.acquire(ident).allowed
    assert run("user:1") == "user:1: 2 budgets full again\n"
    held = Limiter([SHARED[-1]], store)
    assert [Limiter(RATES, store).peek(ident).remaining for ident in ("user:1", "user:2")] == [2, 0]
    assert held.peek("user:1").remaining == 0


def test_only_some_rules(store: Any) -> None:
    for rule in RATES:
        Limiter([rule], store).acquire("user:1")
    assert run("user:1", "--rules", "bucket") == "user:1: 1 budget full again\n"
    assert [Limiter([rule], store).peek("user:1").remaining for rule in RATES] == [1, 2]


def test_sockets_are_told(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    open_sockets.clear()
    (socket,) = sockets(("a", "user:1"))
    resets: list[str] = []
    monkeypatch.setattr(Recorder, "reset", lambda self: resets.append(self.id))
    Reconciler(store).beat()
    duties = SocketControl(store)
    duties()
    Limiter(RATES, store).acquire("user:1")
    run("user:1")
    duties()
    assert resets == [socket.id]
    open_sockets.clear()


@pytest.mark.parametrize(
    "typed", ["{pk}", "user:{pk}", "anna", "user:anna", "ANNA@example.org", "user:anna@example.org"]
)
def test_a_user_is_typed_as_for_an_override(store: Any, typed: str) -> None:
    anna = User.objects.create_user("anna", email="anna@example.org")
    Limiter(RATES, store).acquire(f"user:{anna.pk}")
    assert run(typed.format(pk=anna.pk)) == f"user:{anna.pk}: 2 budgets full again\n"


@pytest.mark.parametrize("typed", ["{pk}", "user:{pk}"])
def test_what_may_be_several_users_is_an_error(store: Any, typed: str) -> None:
    anna = User.objects.create_user("anna")
    User.objects.create_user(str(anna.pk))
    for command, words in (("throttle_reset", ()), ("throttle_override", ("--block", "--reason", "spam"))):
        given = (typed,) if not words else ("add", "user", "{pk}")
        with pytest.raises(CommandError, match=rf"users match: anna \(id {anna.pk}\), {anna.pk} "):
            call_command(command, *(word.format(pk=anna.pk) for word in given), *words)


@pytest.mark.parametrize(
    ("typed", "ident"),
    [
        ("203.0.113.9", "ip:203.0.113.9"),
        ("ip:203.0.113.9", "ip:203.0.113.9"),
        ("::ffff:203.0.113.9", "ip:203.0.113.9"),
        ("2001:db8::1", "ip:2001:db8::/64"),
        ("ip:2001:db8::1", "ip:2001:db8::/64"),
        ("ip:2001:db8::/64", "ip:2001:db8::/64"),
        ("2001:db8::5/64", "ip:2001:db8::/64"),
        ("203.0.113.9/32", "ip:203.0.113.9"),
        ("everyone", "everyone"),
        ("user:org-5", "user:org-5"),
        ("user:4711", "user:4711"),
        ("account:anna", "account:anna"),
        ("session:ip:5", "session:ip:5"),
    ],
)
def test_any_other_ident_is_typed_as_it_is_counted(store: Any, typed: str, ident: str) -> None:
    User.objects.create_user("everyone")
    Limiter(RATES, store).acquire(ident)
    assert run(typed) == f"{ident}: 2 budgets full again\n"


def test_without_a_database_an_ident_is_taken_as_it_is(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(typed: str, **_: object) -> str:
        raise DatabaseError("no such table: auth_user")

    monkeypatch.setattr(throttle_reset, "read_ident", fail)
    Limiter(RATES, store).acquire("user:1")
    assert run("user:1").splitlines() == [
        "no user can be looked up: no such table: auth_user", "user:1: 2 budgets full again"
    ]  # fmt: skip


@pytest.mark.parametrize("typed", ["ip:203.0.113.9", "ip:2001:db8::/64", "everyone", "account:bob"])
def test_an_ident_that_nobody_counted(store: Any, typed: str) -> None:
    said = run(typed)
    assert "nothing was counted" in said and "user:42" in said


def test_a_user_of_whom_nothing_was_counted_is_named_as_typed(store: Any) -> None:
    anna = User.objects.create_user("anna")
    assert run("anna") == f"anna (user:{anna.pk}): nothing was counted\n"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("bob", "No user has .* 'bob'"),
        ("user:bob", "No user has .* 'bob'"),
        ("42000", "No user has .* '42000'"),
        ("999.1.1.1", "No user has the id"),
        ("ip:999.1.1.1", "'999.1.1.1' is not an address"),
        ("ip:", "is not an address"),
        ("ip:203.0.113.0/24", "203.0.113.0/24 has no budget of its own"),
        ("203.0.113.7/24", "203.0.113.0/24 has no budget of its own"),
        ("2001:db8::/48", "2001:db8::/48 has no budget of its own"),
        ("ip:2001:db8::1/128", "write 2001:db8::/64"),
        ("ip:203.0.113.0/33", "is not a network"),
    ],
)
def test_who_is_nobody_is_an_error(store: Any, typed: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        run(typed)


def test_what_a_site_s_own_function_names_users_by_is_not_looked_up(
    store: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DJANGO_THROTTLE = {
        **settings.DJANGO_THROTTLE,
        "USER_IDENT": "tests.management.commands.test_throttle_reset.organisation",
    }
    count_in(store, monkeypatch)
    assert "nothing was counted" in run("user:org-5")
    with pytest.raises(CommandError, match="No user has the id"):
        run("org-5")


def organisation(user: User) -> str:
    return f"org-{user.pk}"


def test_a_database_that_fails_is_said(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = sources.read()
    monkeypatch.setattr(sources, "read", lambda: replace(reading, failure=DatabaseError("no such table")))
    assert run("everyone").startswith("only rules of the settings")


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (("user:1",), {"STORE": "memory"}, 'is "memory"'),
        (("user:1",), {"REDIS": "redis://127.0.0.1:1/0"}, "nothing was reset"),
        (("user:1", "--rules", "ap"), {}, "ap"),
        (
            ("user:1", "--rules", "drf-anon"),
            {},
            "'drf-anon' is a limit of REST framework's throttles, not a rule",
        ),
        (("",), {}, "ident"),
    ],
    ids=str,
)
def test_it_says_plainly_what_is_wrong(
    settings: Any, redis_url: str, words: tuple[str, ...], given: dict[str, str], said: str
) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "RULES": RULES, "AGENT": False, "DATABASE_RULES": False, **given}
    with pytest.raises(CommandError, match=said):
        run(*words)


def test_idents_are_written_as_throttle_explain_takes_them(store: Any) -> None:
    user = User.objects.create(username="anna")
    key = str(api_key("3f" * 20))
    for ident in (key, f"tenant+user:tenant:acme+user:{user.pk}", "django_throttle.logins.login_name:anna"):
        Limiter([RATES[0]], store).acquire(ident)
    assert run(f"api_key:{'3f' * 20}") == f"{key}: 1 budget full again\n"
    assert "1 budget full again" in run("tenant+user:tenant:acme+user:anna")
    assert "1 budget full again" in run("django_throttle.logins.login_name:Anna")
    assert "nothing was counted" in run("tenant+user:acme,1")

"""manage.py throttle_override and throttle_reset: what the admin does, from a shell."""

import io
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import DatabaseError
from django.utils import timezone, translation

from django_throttle.core import Rule
from django_throttle.drf import UserRateThrottle
from django_throttle.identity.keys import api_key
from django_throttle.limiter import Limiter
from django_throttle.management.commands import throttle_reset
from django_throttle.models import ThrottleOverride
from django_throttle.rulebook import sources
from tests.connections.evictions import redis_store
from tests.inside import count_in
from tests.management.shell import run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("site")]
IP = "ip 192.0.2.7"


def add(line: str) -> str:
    return run(f"throttle_override add {line} --reason", "a launch")


@pytest.fixture
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"api": {"rate": "100/min"}, "mail": {"rate": "9/min"}, "wrong": {"rate": "often"}}
    settings.DJANGO_THROTTLE = {"RULES": rules}
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"uploads": "20/day"}}
    monkeypatch.setattr("getpass.getuser", lambda: "root")


class Burst(UserRateThrottle):
    rate, scope = "5/min", "burst"


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("ip 192.0.2.7/24 --block", "Network 192.0.2.0/24: blocked"),
        ("user anna --exempt --rules api", "User {pk}: exempt from api"),
        ("group support --times 3 --rules api ap*", "Group support: 3 × the limit of api and ap*"),
        ("tenant acme --rate 500/Min --limit 9", "Tenant acme: 500/min and 9 at once instead of"),
        ("ip 192.0.2.7 --block --rules drf-anon drf-user drf-burst drf-uploads drf-*", "Address 192.0.2.7: blocked"),
    ],
)
def test_it_is_stored_and_said(line: str, meaning: str) -> None:
    anna = User.objects.create_user("anna")
    said = add(line)
    row = ThrottleOverride.objects.get()
    assert said.startswith(f"{row.pk}  {meaning.format(pk=anna.pk)}") and "a launch (root)" in said
    assert row.created_by == "root" and row.until is not None
    assert timedelta(hours=1.9) < row.until - timezone.now() <= timedelta(hours=2)


def test_how_long_and_an_api_key_from_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for how in ("--for 30m", "--until 2100-01-31T18:00", "--endless"):
        add(f"{IP} --block {how}")
    endless, moment, short = (row.until for row in ThrottleOverride.objects.all())
    assert (endless, str(moment)) == (None, "2100-01-31 18:00:00+00:00")
    assert short is not None and short - timezone.now() <= timedelta(minutes=30)
    monkeypatch.setattr("sys.stdin", io.StringIO("canary-4711\n"))
    assert "canary" not in add("api_key - --block") + str(ThrottleOverride.objects.values())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f"{IP} --block --exempt", "say what happens"), (f"{IP} --times 0", "A factor must be more than 0"),
        (f"{IP} --times 0,5", "Factor: Write a number, with a point and no comma: 0.5."),
        (f"{IP} --rate 1,000/min", "'1,000/min' is not a rate: the number must be whole"),
        *((f"{IP} --block --rules {name}", "Did you mean 'api'") for name in ("apii", "API")),
        (f"{IP} --block --rules wrong", "rule 'wrong': 'often' is not a rate: write"),
        (f"{IP} --block --rules drf-bust", "There is no rule 'drf-bust'. Did you mean"),
        (f"{IP} --block --for ever", "'ever' is not a duration"),
        (f"{IP} --block --for 400d", "'400d' is not a duration of 366 days at most"),
        (f"{IP} --block --until 2030-99-01T00:00", "is not a moment"),
        (f"{IP} --block --until 9999-12-31T23:59", "Until 9998 at the latest"), ("shoe 1 --block", "invalid choice"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(line: str, why: str) -> None:
    with pytest.raises(CommandError, match=re.escape(why)):
        add(line)
    assert not ThrottleOverride.objects.exists()
    with translation.override("de"), pytest.raises(CommandError, match=r"^Wer: 'here' ist keine Adresse"):
        add("ip here --block")


def test_it_says_what_precedes_it_and_no_more() -> None:
    add(f"{IP} --rate 5/min --rules api --until 2100-01-31T18:00")
    add(f"{IP} --block --rules mail --endless")
    api, mail = ThrottleOverride.objects.in_force().order_by("pk")
    line, *warnings = add(f"{IP} --exempt").splitlines()
    assert "exempt from every rule" in line
    replaced = "5/min instead of the limit of api, until 2100-01-31 18:00:00 UTC"
    nothing = "Until it ends, this one does nothing there."
    assert sorted(warnings) == [
        f"Override {api.pk} precedes this one for api: {replaced}. {nothing}",
        f"Override {mail.pk} precedes this one for mail: blocked from what mail covers, without an end. {nothing}",
    ]
    with translation.override("de"):
        assert f"Ausnahme {mail.pk} geht dieser bei mail vor: gesperrt" in add(f"{IP} --times 2 --rules mail")
    assert "precedes" not in add("ip 192.0.2.8 --exempt")


def test_what_is_in_force_is_listed_and_ended() -> None:
    assert run("throttle_override list") == "No override is in force.\n"
    assert run("throttle_override list --all") == "There are no overrides.\n"
    add(f"{IP} --block")
    add("ip 192.0.2.8 --block --endless")
    second, first = ThrottleOverride.objects.all()
    line, _ = run("throttle_override list").splitlines()
    assert line == f"{second.pk}  Address 192.0.2.8: blocked, without an end: a launch (root)"
    assert run("throttle_override end", str(first.pk)).startswith(f"ended: {first.pk}  Address 192.0.2.7")
    assert [line.split()[0] for line in run("throttle_override list").splitlines()] == [str(second.pk)]
    assert len(run("throttle_override list --all").splitlines()) == 2
    with pytest.raises(CommandError, match=f"nothing was ended: {first.pk} is not in force"):
        run("throttle_override end", str(second.pk), str(first.pk))
    assert ThrottleOverride.objects.in_force().count() == 1


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
    settings.DJANGO_THROTTLE = {"RULES": RULES, "DATABASE_RULES": False}
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


def test_a_user_or_any_other_ident_is_typed_as_for_an_override(store: Any) -> None:
    anna = User.objects.create_user("anna", email="anna@example.org")
    assert reset("anna") == f"anna (user:{anna.pk}): nothing was counted\n"
    for typed, ident in (
        *((typed, f"user:{anna.pk}") for typed in ("anna", "ANNA@example.org", "user:anna")),
        ("::ffff:203.0.113.9", "ip:203.0.113.9"),
        ("2001:db8::5/64", "ip:2001:db8::/64"),
        (f"api_key:{'3f' * 20}", str(api_key("3f" * 20))),
        ("tenant+user:tenant:acme+user:anna", f"tenant+user:tenant:acme+user:{anna.pk}"),
        ("django_throttle.contrib.logins.login_name:Anna", "django_throttle.contrib.logins.login_name:anna"),
    ):
        Limiter(RATES, store).acquire(ident)
        assert reset(typed) == f"{ident}: 2 budgets full again\n"
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
        *(("user:bob", "No user has .* 'bob'"), ("ip:", "is not an address"), ("", "ident")),
        ("203.0.113.7/24", "203.0.113.0/24 has no budget of its own"),
        ("ip:2001:db8::1/128", "write 2001:db8::/64"),
        ("ip:203.0.113.0/33", "is not a network"),
        ("user:1 --rules drf-anon", "'drf-anon' is a limit of REST framework's throttles, not a rule"),
    ],
)
def test_who_is_nobody_or_no_rule_is_an_error(store: Any, typed: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        reset(*(typed.split() or [""]))

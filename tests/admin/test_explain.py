"""The admin's page that says why somebody is refused: what it says, and what leads on from it."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleOverride
from django_throttle.observe.reports import ident_for_logs
from django_throttle.recording import own_records
from django_throttle.stores import RedisStore
from tests import doors
from tests.admin.conftest import text, url
from tests.doors import BOTH, Enforce
from tests.servers import free_port

pytestmark = pytest.mark.django_db
PAGE, RESET = url("explain"), url("explain_reset")


@pytest.fixture(autouse=True)
def nothing_recorded() -> None:
    own_records.forget()


def page(client: Client, **asked: str) -> str:
    answer = client.get(PAGE, asked)
    assert answer.status_code == 200 and "no-store" in answer["Cache-Control"]
    return answer.content.decode()


def words(client: Client, **asked: str) -> str:
    return text(client.get(PAGE, asked))


def refuse(ident: str) -> None:
    while limiter.decide(Facts("search", ("request",), KnownCaller(ident), method="POST")).allowed:
        pass


@BOTH
def test_it_says_why_or_that_nobody_can_tell(enforce: Enforce, operator: Client) -> None:
    enforce(api={"rate": "2/min", "key": "user"}, sockets={"limit": 5, "algorithm": "concurrency"})
    anna = User.objects.create_user("anna")
    refuse(f"user:{anna.pk}")
    for typed in ("anna", f"user:{anna.pk}", ident_for_logs(f"user:{anna.pk}")):
        said = words(operator, ident=typed, scope="search", method="post")
        assert f"A POST to search by user:{anna.pk} would be refused by rule 'api': 2 of 2 used, free in" in said
        assert "sockets it counts open WebSockets" in said
    enforce(login={"rate": "2/min", "key": "django_throttle.logins.login_name"})
    said = words(operator, ident="anna", scope="search")
    assert f"A request to search by user:{anna.pk}: nobody can tell, because of rule 'login': it counts each" in said
    assert "ask for django_throttle.logins.login_name:anna" in said
    assert "There is no method 'PSOT'; did you mean 'POST'?" in words(operator, ident="anna", method="psot")


@BOTH
def test_a_reset_is_for_the_caller_alone(enforce: Enforce, operator: Client) -> None:
    enforce(api={"rate": "2/min"}, all={"rate": "2/min", "key": "everyone"})
    refuse("ip:192.0.2.1")
    said = text(operator.post(RESET, {"ident": "192.0.2.1", "scope": "search"}, follow=True))
    assert "The budgets of ip:192.0.2.1 are full again." in said
    assert "refused by rule 'all'" in said and "api allowed 0 2" in said
    assert LogEntry.objects.get().object_repr == "ip:192.0.2.1"
    assert "This names nobody." in text(operator.post(RESET, {"ident": "\x00"}, follow=True))


def test_relief_is_a_form_that_only_has_to_be_saved(enforce: Enforce, operator: Client) -> None:
    enforce(api={"rate": "2/min"}, DATABASE_RULES=True)
    refuse("ip:192.0.2.1")
    (href,) = re.findall(r'id="explain-relief"[^>]*href="([^"]*)"', page(operator, ident="192.0.2.1"))
    form = operator.get(unescape(href)).context["adminform"].form
    fields = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    assert (given["kind"], given["value"], given["rules"], given["lasting"]) == ("ip", "192.0.2.1", "api", "7200")
    assert operator.post(unescape(href), given).status_code == 302
    override = ThrottleOverride.objects.get()
    assert (override.effect, override.factor) == ("multiply", 2) and "would be refused by rule 'api'" in override.reason
    override.delete()
    ThrottleOverride.objects.create(kind="ip", value="192.0.2.0/24", effect="block", reason="an abuse")
    rulebook.refresh()
    said = words(operator, ident="192.0.2.1")
    assert "would be refused by override" in said and "an abuse" in said


@pytest.mark.usefixtures("redis_server")
def test_redis_that_does_not_answer(enforce: Enforce, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(api={"rate": "2/min"})
    doors.count_in(RedisStore(f"redis://127.0.0.1:{free_port()}/0"), monkeypatch)
    assert "does not answer" in words(operator, ident="192.0.2.1")
    assert "Nothing was reset" in text(operator.post(RESET, {"ident": "192.0.2.1"}, follow=True))

"""The admin's page that says why somebody is refused: who sees it, what leads on from it, and what is inert."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import translation

from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleOverride
from django_throttle.observe.reports import ident_for_logs
from django_throttle.recording import own_records, recorder
from django_throttle.stores import RedisStore
from tests import doors
from tests.admin.conftest import user
from tests.admin.test_rules import NASTY
from tests.doors import BOTH, Enforce
from tests.recording.test_recorder import refusal
from tests.servers import free_port

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)
PAGE = reverse("admin:django_throttle_explain")
RESET = reverse("admin:django_throttle_explain_reset")


@pytest.fixture
def viewer(client: Client) -> Client:
    client.force_login(user("view_throttlerule"))
    return client


def page(client: Client, **asked: str) -> str:
    answer = client.get(PAGE, asked)
    assert answer.status_code == 200 and "no-store" in answer["Cache-Control"]
    return answer.content.decode()


def words(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", html)))


def refuse(ident: str) -> None:
    while limiter.decide(Facts("search", ("request",), KnownCaller(ident), method="POST")).allowed:
        pass


@BOTH
def test_it_says_why(enforce: Enforce, viewer: Client) -> None:
    enforce(api={"rate": "2/min", "key": "user"}, sockets={"limit": 5, "algorithm": "concurrency"})
    anna = User.objects.create_user("anna")
    refuse(f"user:{anna.pk}")
    for typed in ("anna", f"user:{anna.pk}", ident_for_logs(f"user:{anna.pk}")):
        text = words(page(viewer, ident=typed, scope="search", method="post"))
        assert f"A POST to search by user:{anna.pk} would be refused by rule 'api': 2 of 2 used, free in" in text
        assert "sockets it counts open WebSockets" in text


@BOTH
def test_it_says_where_nobody_can_tell(enforce: Enforce, viewer: Client) -> None:
    enforce(api={"rate": "2/min", "key": "user"}, login={"rate": "2/min", "key": "django_throttle.logins.login_name"})
    anna = User.objects.create_user("anna")
    text = words(page(viewer, ident="anna", scope="search"))
    assert f"A request to search by user:{anna.pk}: nobody can tell, because of rule 'login': it counts each" in text
    assert "api allowed 0 2" in text and "ask for django_throttle.logins.login_name:anna" in text


def test_events_and_reasons_are_words_of_the_reader(enforce: Enforce, viewer: Client) -> None:
    own_records.forget()  # what other tests of this process have recorded
    enforce(api={"rate": "2/min"})
    refuse("ip:192.0.2.1")
    with translation.override("de"):
        html = page(viewer, ident="192.0.2.1", event="request")
    assert '<option value="request" selected>HTTP-Anfragen</option>' in html
    assert "HTTP-Anfragen (POST) api über dem Limit" in words(html)


def test_a_method_that_there_is_not_is_said(enforce: Enforce, viewer: Client) -> None:
    enforce(api={"rate": "2/min"})
    text = words(page(viewer, ident="192.0.2.1", method="psot"))
    assert "There is no method 'PSOT'; did you mean 'POST'?" in text and "would be" not in text


def test_who_may_only_look_changes_nothing(enforce: Enforce, viewer: Client) -> None:
    enforce(api={"rate": "2/min"})
    refuse("ip:192.0.2.1")
    html = page(viewer, ident="192.0.2.1")
    assert "explain-relief" not in html and "explain-reset" not in html and "explain-sockets" not in html
    assert viewer.post(RESET, {"ident": "192.0.2.1"}).status_code == 403
    assert "would be refused" in page(viewer, ident="192.0.2.1")


def test_who_sees_it(client: Client) -> None:
    assert client.get(PAGE).status_code == 302
    client.force_login(user("view_throttleconnection"))
    assert client.get(PAGE).status_code == 403
    assert client.get(RESET).status_code == 405


@BOTH
def test_a_reset_is_for_the_caller_alone(enforce: Enforce, operator: Client) -> None:
    enforce(api={"rate": "2/min"}, all={"rate": "2/min", "key": "everyone"})
    refuse("ip:192.0.2.1")
    answer = operator.post(RESET, {"ident": "192.0.2.1", "scope": "search"}, follow=True)
    text = words(answer.content.decode())
    assert "The budgets of ip:192.0.2.1 are full again." in text
    assert "refused by rule 'all'" in text and "api allowed 0 2" in text
    assert LogEntry.objects.get().object_repr == "ip:192.0.2.1"
    assert operator.get(RESET).status_code == 405
    answer = operator.post(RESET, {"ident": "\x00"}, follow=True)
    assert "This names nobody." in words(answer.content.decode())


def test_relief_is_a_form_that_only_has_to_be_saved(enforce: Enforce, operator: Client) -> None:
    enforce(api={"rate": "2/min"}, DATABASE_RULES=True)
    refuse("ip:192.0.2.1")
    (href,) = re.findall(r'id="explain-relief"[^>]*href="([^"]*)"', page(operator, ident="192.0.2.1"))
    form = operator.get(unescape(href)).context["adminform"].form
    fields = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    assert (given["kind"], given["value"], given["rules"], given["lasting"]) == ("ip", "192.0.2.1", "api", "7200")
    answer = operator.post(unescape(href), given)
    assert answer.status_code == 302
    (made,) = ThrottleOverride.objects.all()
    assert (made.effect, made.factor) == ("multiply", 2) and "would be refused by rule 'api'" in made.reason


def test_overrides_with_their_reasons(enforce: Enforce, operator: Client) -> None:
    enforce(api={"rate": "2/min"}, DATABASE_RULES=True)
    ThrottleOverride.objects.create(kind="ip", value="192.0.2.0/24", effect="block", reason="<script>abuse")
    from django_throttle import rulebook

    rulebook.refresh()
    html = page(operator, ident="192.0.2.1")
    assert "would be refused by override" in words(html)
    assert "<script>abuse" not in html and "&lt;script&gt;abuse" in html


@pytest.mark.parametrize("field", ["ident", "scope", "method", "event"])
def test_whatever_is_asked_is_inert(enforce: Enforce, operator: Client, field: str) -> None:
    enforce(**{"<b>api</b>": {"rate": "2/min"}})
    for nasty in (NASTY, "\x00", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "x" * 9999, "order:1"):
        html = page(operator, **{"ident": "192.0.2.1", field: nasty})
        assert "<script>alert" not in html and (len(nasty) < 30 or nasty not in html)
        assert operator.post(RESET, {"ident": "192.0.2.1", field: nasty}).status_code == 302
    assert "<b>api</b>" not in page(operator, ident="192.0.2.1")
    assert "would be" in page(operator, ident="192.0.2.1")


@pytest.mark.parametrize("field", ["scope", "method", "event", "ident", "rule"])
def test_whatever_was_recorded_is_inert(enforce: Enforce, operator: Client, settings: Any, field: str) -> None:
    own_records.forget()
    rule = NASTY[:30] if field == "rule" else "api"
    enforce(**{rule: {"rate": "1/min"}}, RECORD_IDENTS=True)
    given = {"scope": "search", "method": "GET", "event": "request", "ident": "ip:192.0.2.1", field: NASTY}
    call = Facts(given["scope"], (given["event"],), KnownCaller(given["ident"]), method=given["method"])
    recorder.happened(call, refusal(rule, given["ident"]), 0.001)
    html = page(operator, ident=ident_for_logs(given["ident"]) if field == "ident" else given["ident"])
    assert "Nothing was recorded" not in html
    assert "<img src=x" not in html and "<img src=x" in unescape(html)
    own_records.forget()


def test_redis_that_does_not_answer(enforce: Enforce, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(api={"rate": "2/min"})
    doors.count_in(RedisStore(f"redis://127.0.0.1:{free_port()}/0"), monkeypatch)
    assert "does not answer" in words(page(operator, ident="192.0.2.1"))
    answer = operator.post(RESET, {"ident": "192.0.2.1"}, follow=True)
    assert "Nothing was reset" in words(answer.content.decode())


def test_the_lists_lead_there(enforce: Enforce, operator: Client) -> None:
    enforce(api={"rate": "2/min"})
    for name in ("throttlerule", "throttleoverride"):
        listed = operator.get(reverse(f"admin:django_throttle_{name}_changelist")).content.decode()
        assert f'href="{PAGE}"' in listed
        assert f'href="{reverse(f"admin:django_throttle_{name}_add")}"' in listed
    assert "explain-form" in page(operator)

"""The command that says why somebody is refused."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError
from django.utils import translation

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleOverride
from django_throttle.observe.reports import ident_for_logs
from django_throttle.recording import RecordFlusher, own_records
from django_throttle.stores import RedisStore
from tests import doors
from tests.doors import BOTH, Enforce
from tests.management.shell import run

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own_records.forget()  # what other tests of this process have recorded: after many, few refusals are sampled
    monkeypatch.setattr("django_throttle.management.commands.throttle_explain.ANSWER_SECONDS", 0.0)


def explain(line: str) -> str:
    return run(f"throttle_explain {line}")


def refuse(ident: str, scope: str = "search", store: Any = None) -> None:
    while limiter.decide(Facts(scope, ("request",), KnownCaller(ident), method="POST")).allowed:
        pass
    if isinstance(store, RedisStore):
        RecordFlusher(store)()


@BOTH
def test_in_words_and_in_the_json_that_is_promised(enforce: Enforce, django_user_model: Any) -> None:
    sockets = {"limit": 5, "algorithm": "concurrency", "scopes": ["search"]}
    enforce(api={"rate": "2/min", "scopes": ["search"], "key": "user"}, sockets=sockets)
    ident = f"user:{django_user_model.objects.create_user('anna').pk}"
    before = json.loads(explain(f"{ident} --scope search --json"))
    assert (before["would"], before["recent"]) == ("allowed", [])
    refuse(ident)
    found = json.loads(explain("anna --scope search --method post --json"))
    assert (found["ident"], found["tag"], found["would"]) == (ident, ident_for_logs(ident), "refused")
    (rule,) = found["rules"]
    assert (rule["name"], rule["limit"], rule["used"], rule["remaining"], rule["override"]) == ("api", 2, 2, 0, None)
    assert 0 < rule["reset_after"] <= 120
    assert found["connections"]["open"] == 0
    assert json.loads(explain("anna --scope elsewhere --json"))["rules"] == []
    assert json.loads(explain(f"{ident_for_logs(ident)} --json"))["ident"] == ident, "a log line leads to a user"
    first, second, third, *recent = explain("anna --scope search --method POST").splitlines()
    assert first.startswith(f"A POST to search by {ident} would be refused by rule 'api': 2 of 2 used, free in")
    assert second.startswith("  refused  api: 2 of 2 used") and ", counted over 60 s, full again in" in second
    assert third == "  -        sockets: it counts open WebSockets"
    assert all("to search by rule 'api' (over the limit)" in line for line in recent)


def test_an_override_is_a_sentence_with_what_it_does_its_end_and_its_reason(enforce: Enforce) -> None:
    enforce(api={"rate": "2/min"}, DATABASE_RULES=True)
    until = datetime(2126, 1, 31, 18, 0, 0, 123456, UTC)
    for options, terms in (
        ({"effect": "multiply", "factor": 3, "until": until}, "3 × the limit of every rule, until 2126-01-31 18:00:00"),
        ({"effect": "replace", "rate": "9/min"}, "9/min instead of the limit of every rule, without an end"),
        ({"effect": "block", "rules": ("chat",)}, "blocked from what chat covers, without an end"),
        ({"effect": "exempt", "rules": ("chat",)}, "exempt from chat, without an end"),
    ):
        row = ThrottleOverride.objects.create(kind="ip", value="192.0.2.1", reason="a\n launch", **options)
        rulebook.refresh()
        said = explain("192.0.2.1").splitlines()[-1].replace(" UTC", "")
        assert said == f"  override {row.pk} for Address 192.0.2.1: {terms}: a launch"
        row.delete()


def test_where_nobody_can_tell(enforce: Enforce, django_user_model: Any) -> None:
    enforce(api={"rate": "2/min", "key": "user"}, login={"rate": "2/min", "key": "django_throttle.logins.login_name"})
    user = django_user_model.objects.create_user("anna")
    first, second, third = explain("anna").splitlines()
    assert first.startswith(f"A request by user:{user.pk}: nobody can tell, because of rule 'login': it counts each")
    assert (second, third[:18]) == ("  allowed  api: 0 of 2 used, counted over 60 s", "  ?        login: ")
    assert json.loads(explain("anna --json"))["would"] is None
    refuse(f"user:{user.pk}")
    assert "would be refused by rule 'api'" in explain("anna")


@BOTH
def test_what_was_refused_is_told_in_the_reader_s_language_and_in_json_by_names(enforce: Enforce) -> None:
    store = enforce(api={"rate": "2/min"}, all={"rate": "4000/min", "scopes": ["all"]})
    for _ in range(3):  # calls of a decorated function
        limiter.decide(Facts("api", (), KnownCaller("ip:192.0.2.1"), rule="api"))
    refuse("ip:192.0.2.1", "x\n  refused\x1b[2J", store)
    with translation.override("de"):
        told, found = explain("ip:192.0.2.1"), json.loads(explain("ip:192.0.2.1 --json"))
    assert "abgelehnt: 1 Anfrage an x\\n  refused\\x1b[2J durch Regel 'api' (über dem Limit), 2" in told
    assert all(map(str.isprintable, told.splitlines())), "a scope that a client chose adds no line"
    assert {(one["event"], one["reason"]) for one in found["recent"]} == {("request", "exceeded"), ("", "exceeded")}
    assert "refused: 1 call to api by rule 'api' (over the limit), 2" in explain("ip:192.0.2.1")
    for language, said in (("fr", "sur 4\xa0000"), ("es", "de 4\xa0000"), ("en", "of 4,000")):
        with translation.override(language):
            assert said in explain("ip:192.0.2.1 --scope all")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nobody", "No user has the id, name or e-mail address 'nobody'"),
        ("usr:42", "'usr' is no kind of identity; did you mean 'user'? Write one like user:42"),
        ("session:", "only the kind"),
        ("00000000", "has the tag 00000000"),
        ("ip:10.0.0.0/8", "no budget of its own"),
        ("everyone --method PSOT", "there is no method 'PSOT'; did you mean 'POST'?"),
        ("everyone --event dance", "the event is one of request,"),
    ],
)
def test_it_says_plainly_what_is_wrong(enforce: Enforce, typed: str, said: str) -> None:
    enforce(api={"rate": "2/min"})
    with pytest.raises(CommandError, match=re.escape(said)):
        explain(typed)

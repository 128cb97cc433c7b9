"""Explain is never wrong: of idents that only the code makes, and of plans that only a request tells."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.management import CommandError, call_command
from django.test import RequestFactory
from rest_framework.authentication import TokenAuthentication

from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.core import Rule
from django_throttle.decorators import throttle
from django_throttle.identity import HttpWho
from django_throttle.identity.caller import IdentWho
from django_throttle.limiter import Limiter
from django_throttle.observe.reports import ident_for_logs
from django_throttle.stores import get_store
from tests import doors
from tests.doors import Enforce

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)
HERE = f"{__name__}."


class KeyAuthentication(TokenAuthentication):
    model = LogEntry  # a row that has a user


def explain(ident: str, **options: str) -> Any:
    out = io.StringIO()
    call_command("throttle_explain", ident, "--json", **options, stdout=out)
    return json.loads(out.getvalue())


def plan_of_key(request: Any) -> str:
    return str(request.auth.object_repr)


def plan_of_user(request: Any) -> str:
    return str(request.user.first_name)


def plan_of_header(request: Any) -> str:
    return str(getattr(request, "headers", {}).get("Plan", "free"))


@pytest.mark.parametrize(
    ("function", "would"), [("plan_of_key", "allowed"), ("plan_of_user", "allowed"), ("plan_of_header", None)]
)
def test_the_plan_of_an_api_key(
    enforce: Enforce, settings: Any, django_user_model: Any, function: str, would: str | None
) -> None:
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [f"{HERE}KeyAuthentication"]}
    plan = f"{HERE}{function}:pro"
    enforce(api={"rate": "2/hour", "key": "api_key", "plans": {plan: "100/hour"}})
    user = django_user_model.objects.create_user("anna", first_name="pro")
    row = LogEntry.objects.create(user=user, object_repr="pro", action_flag=CHANGE)
    request: Any = RequestFactory().get("/", headers={"plan": "pro"})
    request.user, request.auth = user, row
    who = HttpWho(request)
    assert all(limiter.decide(Facts("search", ("request",), who, method="GET")).allowed for _ in range(5))
    for typed in (
        f"api_key:admin.logentry:{row.pk}",
        str(who.ident("api_key")),
        ident_for_logs(str(who.ident("api_key"))),
    ):
        told = explain(typed)
        assert (told["would"], told["rules"][0]["used"]) == (would, 5 if would else 2)
        if would is None:
            assert "nobody can tell, because of rule 'api'" in told["sentence"]
            assert told["sentence"].endswith(f"Only {HERE}{function} can tell, from a request.")
        else:
            assert told["rules"][0]["plan"] == plan


def use(times: int) -> None:
    for _ in range(times):
        assert Limiter([Rule("api", "10/hour", key="tenant")], get_store()).acquire("tenant:acme").allowed


def test_where_all_plans_agree_it_is_certain(enforce: Enforce) -> None:
    enforce(api={"rate": "5/hour", "key": "tenant", "plans": {f"{HERE}plan_of_header:pro": "10/hour"}})
    for calls, would in ((3, "allowed"), (3, None), (4, "refused")):
        use(calls)
        assert explain("tenant:acme")["would"] == would


def test_an_audience_that_nobody_can_tell_refuses_nobody_for_certain(enforce: Enforce) -> None:
    enforce(api={"rate": "1/hour", "key": "tenant", "audience": ["staff"]})
    assert explain("tenant:acme")["would"] == "allowed"
    use(1)
    told = explain("tenant:acme")
    assert told["would"] is None and "(if the caller is staff)" in told["sentence"]


@pytest.mark.parametrize("ident", ["account:anna", "anna b.", "42-7", "shop.views.order:7", "x" * 400])
def test_idents_that_a_decorator_makes(enforce: Enforce, ident: str) -> None:
    enforce(mails={"rate": "2/hour", "scopes": ["none"]}, all={"rate": "1/hour", "key": "everyone", "scopes": ["x"]})

    @throttle("mails", ident=lambda: ident)
    def send() -> bool:
        return True

    with pytest.raises(CommandError):
        explain(ident)
    for used, would in ((1, "allowed"), (2, "refused")):
        send()
        told = explain(ident)
        assert [(rule["name"], rule["used"]) for rule in told["rules"]] == [("mails", used)]
        assert told["would"] == would, told["sentence"]


def test_an_ident_that_two_ways_count(enforce: Enforce, django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("anna")
    enforce(mails={"rate": "1/hour", "key": "ip"}, api={"rate": "9/hour", "key": "user"})

    @throttle("mails", ident=lambda: f"user:{user.pk}")
    def send() -> bool:
        return True

    assert explain("anna")["would"] == "allowed"
    send()
    told = explain("anna")
    assert told["would"] is None and [rule["name"] for rule in told["rules"]] == ["api", "mails"]
    assert f"(where the code names user:{user.pk} itself)" in told["sentence"]


def test_hosts_and_groups(enforce: Enforce) -> None:
    group = "django_throttle.publishing.group"
    enforce(crm={"rate": "1/hour", "scopes": ["crm"]}, rooms={"rate": "1/hour", "key": group, "events": ["publish"]})
    assert explain("host:crm.example")["would"] == "allowed"
    facts = Facts("crm", (), IdentWho("host:crm.example"), rule="crm", ident="host:crm.example")
    assert limiter.decide(facts).allowed
    assert explain("host:crm.example")["would"] == "refused"
    assert explain("group:default:lobby")["would"] == "allowed"
    assert [rule["name"] for rule in explain("group:default:lobby")["rules"]] == ["rooms"]

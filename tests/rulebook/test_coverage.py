"""Which rules count a call, and why the others do not."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.core import Override, Rule
from django_throttle.explain import explain
from django_throttle.find_caller import find_caller
from django_throttle.identity import HttpWho
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.coverage import Call
from tests import doors
from tests.doors import BOTH, Enforce
from tests.test_explain import told

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)


@BOTH
def test_rules_that_do_not_count_the_call_say_why(enforce: Enforce) -> None:
    store = enforce(
        audience={"rate": "1/min", "audience": ["authenticated"], "key": "ip"},
        events={"rate": "1/min", "events": ["message"]},
        frames={"rate": "1/s", "key": "connection", "events": ["message"]},
        key={"rate": "1/min", "key": "user"},
        methods={"rate": "1/min", "methods": ["GET"]},
        off={"rate": "1/min", "enabled": False},
        elsewhere={"rate": "1/min", "scopes": ["chat"]},
    )
    found = {one.rule.name: one.why for one in told(store).others}
    assert found == {
        "audience": "it is for authenticated only, and ip:192.0.2.1 is not",
        "events": "it counts WebSocket messages",
        "frames": "it counts WebSocket messages",
        "key": "it counts each user, so ip:192.0.2.1 is not who it counts: ask for user:42",
        "methods": "it counts GET only",
    }
    assert told(store).rules == []
    assert told(store).sentence == "A POST to search by ip:192.0.2.1 would be allowed: no rule that refuses counts it."


def test_of_a_user_it_knows_groups_and_of_a_tenant_that_it_knows_none(enforce: Enforce, django_user_model: Any) -> None:
    staff = django_user_model.objects.create_user("boss", is_staff=True)
    store = enforce(
        staff={"rate": "9/min", "audience": ["staff"], "key": "user"},
        acme={"rate": "9/min", "audience": ["staff"], "key": "tenant"},
        TENANT="user.username",
    )
    assert [(one.outcome.rule, one.outcome.ident) for one in told(store, f"user:{staff.pk}").rules] == [
        ("acme", "tenant:boss"),
        ("staff", f"user:{staff.pk}"),
    ]
    (only,) = told(store, "tenant:acme").rules
    assert only.counting.assumed == "if the caller is staff"


def named(subject: Any) -> str:
    return "somebody"


NAMED, LOGIN = f"{__name__}.named", "django_throttle.logins.login_name"


@BOTH
@pytest.mark.parametrize(
    ("key", "like"),
    [
        (NAMED, f"{NAMED}:VALUE"),
        (LOGIN, f"{LOGIN}:anna"),
        ("tenant", "tenant:acme"),
        ("tenant+user", "tenant+user:tenant:acme+user:{pk}"),
        (f"ip+{NAMED}", f"ip+{NAMED}:ip:203.0.113.9+{NAMED}:VALUE"),
    ],
)
def test_of_what_it_cannot_know_it_says_that_nobody_can_tell(
    enforce: Enforce, django_user_model: Any, key: str, like: str
) -> None:
    anna = django_user_model.objects.create_user("anna")
    rule = {"rate": "1/min", "key": key}
    store = enforce(api={"rate": "9/min"}, other=rule, TENANT=NAMED)
    found, like = told(store, f"user:{anna.pk}"), like.format(pk=anna.pk)
    assert (found.would, found.as_json()["would"], found.as_json()["not_counting"][0]["doubtful"]) == (None, None, True)
    assert found.sentence.startswith(
        f"A POST to search by user:{anna.pk}: nobody can tell, because of rule 'other': it"
    )
    assert found.sentence.endswith(f"and what it counts user:{anna.pk} by is not known here: ask for {like}.")
    assert find_caller(like, rulebook.current(), store).name.partition(":")[0] == key
    asked = told(store, like)
    assert asked.would == "allowed" and "other" in [one.outcome.rule for one in asked.rules]


@BOTH
def test_what_cannot_refuse_the_caller_leaves_no_doubt(enforce: Enforce, django_user_model: Any) -> None:
    anna = django_user_model.objects.create_user("anna")
    store = enforce(
        elsewhere={"rate": "1/min", "key": NAMED, "scopes": ["chat"]},
        methods={"rate": "1/min", "key": NAMED, "methods": ["GET"]},
        guests={"rate": "1/min", "key": "ip", "audience": ["anonymous"]},
        quiet={"rate": "1/min", "key": NAMED, "action": "shadow"},
        address={"rate": "1/min", "key": "ip"},
        session={"rate": "1/min", "key": "session"},
        tenants={"rate": "1/min", "key": "tenant"},
        TENANT="user.email",
    )
    found = told(store, f"user:{anna.pk}")
    assert found.would == "allowed" and "is not known here: ask for ip:203.0.113.9" in str(found.others[0].why)
    enforce(users={"rate": "1/min", "key": "user"}, both={"rate": "1/min", "key": "user+session"})
    assert told(store).would == "allowed"
    now = Snapshot([Rule("other", "1/min", key=NAMED)], [Override(subject="ip:192.0.2.1", effect="exempt")])
    assert explain(store, now, Call("search"), KnownCaller("ip:192.0.2.1")).would == "allowed"


@BOTH
def test_an_api_key_may_come_with_any_call(enforce: Enforce, django_user_model: Any) -> None:
    anna = django_user_model.objects.create_user("anna")
    store = enforce(key={"rate": "1/min", "key": "api_key"}, KEY_SECRET="a")
    found = told(store, f"user:{anna.pk}")
    assert (found.would, found.rules[0].counting.assumed) == (None, "if the caller sends no API key")
    assert found.sentence.endswith("because of rule 'key': 0 of 1 used (if the caller sends no API key).")
    request = RequestFactory().post("/")
    request.auth = "3f" * 20  # type: ignore[attr-defined]
    assert limiter.decide(Facts("search", ("request",), HttpWho(request), method="POST")).allowed
    typed = find_caller(f"api_key:{'3f' * 20}", rulebook.current(), store).name
    assert (typed, told(store, typed).would) == (HttpWho(request).ident("api_key"), "refused")
    assert find_caller(typed, rulebook.current(), store).name == typed

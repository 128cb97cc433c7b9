"""Which rules count a call, and why the others do not."""

from __future__ import annotations

from typing import Any

import pytest

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
        "key": "it counts each user, so ip:192.0.2.1 is not who it counts: ask for user:…",
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

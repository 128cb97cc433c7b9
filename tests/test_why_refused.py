"""All that an operator is told of a caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.connections import overview
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleOverride
from django_throttle.observe.reports import ident_for_logs
from django_throttle.recording import RecordFlusher, own_records
from django_throttle.rulebook.coverage import Call
from django_throttle.stores import RedisStore
from django_throttle.why_refused import Answer, answer
from tests import doors
from tests.connections.recorder import sockets
from tests.doors import BOTH, Enforce, Store

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)


def test_overrides_with_their_reasons_the_one_that_precedes_first(enforce: Enforce) -> None:
    store = enforce(api={"rate": "1/min"}, DATABASE_RULES=True)
    user = User.objects.create_user("anna")
    common: dict[str, Any] = {"kind": "user", "value": str(user.pk), "rules": "*"}
    ThrottleOverride.objects.create(**common, effect="multiply", factor=3, reason="a campaign")
    ThrottleOverride.objects.create(**common, effect="block", reason="<b>abuse")
    found = answer(store, rulebook.refresh(), Call("search"), "anna")
    assert [row.reason for row in found.rows] == ["<b>abuse", "a campaign"]
    told = found.as_json()
    assert [one["reason"] for one in told["overrides"]] == ["<b>abuse", "a campaign"]
    assert (told["would"], told["rules"][0]["override"]["reason"]) == ("refused", "<b>abuse")


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    open_sockets.clear()
    overview.look_again()
    own_records.forget()
    yield
    open_sockets.clear()


def test_open_sockets(enforce: Enforce) -> None:
    store = enforce(api={"rate": "1/min"})
    sockets(("a", "ip:192.0.2.1"), ("b", "ip:192.0.2.1"), ("c", "ip:192.0.2.11"))
    found: Answer = answer(store, rulebook.current(), Call(), "192.0.2.1")
    assert (found.open, found.is_whole) == (2, True)


def refused(ident: str, store: Store, scope: str = "search") -> None:
    facts = Facts(scope, ("request",), KnownCaller(ident), method="POST")
    while limiter.decide(facts).allowed:
        pass
    limiter.decide(facts)
    if isinstance(store, RedisStore):
        RecordFlusher(store)()


@BOTH
def test_what_was_refused_lately_also_by_the_reference_of_an_error(enforce: Enforce) -> None:
    store = enforce(api={"rate": "2/min"})
    refused("ip:192.0.2.1", store)
    found = answer(store, rulebook.current(), Call(), "192.0.2.1")
    one, before = found.recent
    assert (one.scope, one.method, one.rule, one.reason) == ("search", "POST", "api", "exceeded")
    assert one.at > before.at
    assert found.alike == [(2, one)]
    assert [each["at"] for each in found.as_json()["recent"]] == [one.at.isoformat(), before.at.isoformat()]
    assert answer(store, rulebook.current(), Call(), "192.0.2.2").recent == []
    by_tag = answer(store, rulebook.current(), Call(), ident_for_logs("ip:192.0.2.1"))
    assert (by_tag.explanation, by_tag.recent) == (None, [one, before])
    assert by_tag.as_json()["would"] is None


@BOTH
def test_of_a_scope_that_is_asked_about_only_its_refusals_are_told(enforce: Enforce) -> None:
    store = enforce(api={"rate": "2/min"})
    for scope in ("search", "chat" * 50):
        refused("ip:192.0.2.1", store, scope)
    for typed in ("192.0.2.1", ident_for_logs("ip:192.0.2.1")):
        found = {asked: answer(store, rulebook.current(), Call(asked), typed).recent for asked in ("chat" * 50, "cha")}
        assert {one.scope for one in found["chat" * 50]} == {"chat" * 25}, "as it is recorded"
        assert found["cha"] == []
        assert {one.scope for one in answer(store, rulebook.current(), Call(), typed).recent} == {"search", "chat" * 25}


@BOTH
def test_a_reference_names_an_address_that_is_recorded_in_clear(enforce: Enforce) -> None:
    store = enforce(api={"rate": "2/min"}, RECORD_IDENTS=True)
    refused("ip:192.0.2.1", store)
    told = answer(store, rulebook.current(), Call("search"), ident_for_logs("ip:192.0.2.1")).explanation
    assert told is not None and (told.who.name, told.would) == ("ip:192.0.2.1", "refused")

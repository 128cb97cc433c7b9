"""The part of a rule's form that tries it on recorded calls before it is saved: what it says, and to whom."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_throttle import limiter
from django_throttle.backtest import SPANS
from django_throttle.call_facts import Facts
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleRule
from django_throttle.recording import RecordFlusher, own_records, places
from django_throttle.stores import RedisStore
from tests.admin.conftest import NASTY, form, url, user
from tests.doors import BOTH, Enforce

pytestmark = pytest.mark.django_db
ADD, TRIAL = url("throttlerule_add"), url("trial")
LOG = {"rate": "5/hour", "algorithm": "sliding_log"}


@pytest.fixture(autouse=True)
def nothing_recorded() -> Iterator[None]:
    own_records.forget()
    yield
    own_records.forget()


def record(store: Any, calls: dict[str, int], scope: str = "search") -> None:
    """Decide so many requests of each of these idents, by the rules in force."""
    for ident, times in calls.items():
        for _ in range(times):
            limiter.decide(Facts(scope, ("request",), KnownCaller(ident), method="GET"))
    if isinstance(store, RedisStore):
        RecordFlusher(store)()


@pytest.fixture
def site(enforce: Enforce) -> Any:
    """The store; the rule ``api`` is in force, and has refused some of these calls."""
    store = enforce(api=LOG)
    record(store, {"ip:192.0.2.1": 9, "ip:192.0.2.2": 3, "ip:192.0.2.3": 1})
    return store


def rule(**values: Any) -> ThrottleRule:
    return ThrottleRule.objects.create(**{"name": "api", **LOG, **values})


def tried(client: Client, row: ThrottleRule | None = None, span: str = "hour", **values: Any) -> Any:
    posted = form(client, url("throttlerule_change", row.pk) if row else ADD, **values)
    return client.post(f"{TRIAL}?row={row.pk if row else ''}", {**posted, "span": span})


def sides(answer: Any) -> dict[str, tuple[int, int]]:
    return {side["name"]: (side["one"].refused, len(side["one"].idents)) for side in answer.context["sides"]}


def remarks(answer: Any) -> str:
    return " ".join(answer.context["remarks"])


@BOTH
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.row("R09")
def test_both_rules_as_the_command_replays_them(operator: Client, site: Any, span: str, tmp_path: Path) -> None:
    answer = tried(operator, rule(), span, rate="2/hour")
    out = io.StringIO()
    rules = {"live rule": LOG, "edited rule": {**LOG, "rate": "2/hour"}}
    (tmp_path / "try.json").write_text(json.dumps(rules))
    call_command("throttle_backtest", str(tmp_path / "try.json"), "--recorded", span, "--json", stdout=out)
    told = json.loads(out.getvalue())
    said = {name: (one["refused"], one["idents"]) for name, one in told["rules"].items()}
    assert sides(answer) == said == {"live rule": (4, 1), "edited rule": (8, 2)}
    assert answer.context["calls"] == told["calls"] == 13
    most = [(row["ident"], row["numbers"]) for row in answer.context["affected"]]
    assert most == [(places.hashed("ip:192.0.2.1"), [4, 7]), (places.hashed("ip:192.0.2.2"), [0, 1])]
    text = answer.content.decode()
    assert "100.00% of the callers" in text and "192.0.2" not in text
    assert "live rule: 4 refused, 4 at most in one of" in text


def test_a_mistake_in_the_form_is_told(operator: Client, site: Any) -> None:
    text = tried(operator, rule(), rate="many", name=NASTY).content.decode()
    assert "Nothing was tried, as the form has a mistake" in text and "&#x27;many&#x27;" in text
    assert "<table" not in text and NASTY not in text
    assert operator.get(TRIAL).status_code == 405


@pytest.mark.row("A53")
def test_names_in_clear_are_inert_and_lead_to_their_explanation(operator: Client, enforce: Enforce) -> None:
    record(enforce(api=LOG, RECORD_IDENTS=True), {"user:<b>&ident=x": 9}, NASTY)
    text = tried(operator, rule(name=NASTY), rate="2/hour").content.decode()
    assert NASTY not in text and "user:<b>" not in text
    assert f'<a href="{url("explain")}?ident=user%3A%3Cb%3E%26ident%3Dx">' in text


def test_who_may_only_see_tries_the_live_rule_and_others_nothing(client: Client, site: Any) -> None:
    row, seer = rule(), user("view_throttlerule")
    trial = f"{TRIAL}?row={row.pk}"
    assert client.post(trial).status_code == 302
    client.force_login(seer)
    assert 'id="rule-trial-hour"' in client.get(url("throttlerule_change", row.pk)).content.decode()
    answer = client.post(trial, {"span": "hour"})
    assert sides(answer) == {"live rule": (4, 1)}
    assert remarks(answer) == "You may not edit rules."
    seer.user_permissions.clear()
    assert client.post(trial).status_code == 403

"""Hints: what is said of a rule, and only once it is known."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_throttle.core import Rule
from django_throttle.recording.cells import Minute
from django_throttle.recording.hints import STRICT_IDENTS, Hints, refused_idents
from django_throttle.recording.read import Recorded, Sample
from django_throttle.rulebook import Snapshot

AT = timezone.now()
DAY, MONTH = timedelta(days=1), timedelta(days=30)
IDLE, BUSY, STRICT = Minute(AT), Minute(AT, allowed=5), Minute(AT, allowed=5, refused={"exceeded": 1})
API = Rule("api", "5/min", scopes=["search"])


def seen(tags: dict[str, str], outcome: str = "allowed", scope: str = "search") -> Recorded:
    rule = "api" if outcome == "refused" else ""
    return Recorded(AT, scope, "GET", "request", next(iter(tags.values()), ""), rule, "", 1, outcome, 1.0, tags)


def said(recorded: Minute, known: timedelta, *rules: Rule, calls: list[Recorded] | None = None) -> list[str]:
    """Of the first rule, where the site has the scopes "search" and "chat"."""
    sampled = Sample(calls or [], [], {"whole": 1.0, "refused": 1.0})
    given = rules or (API,)
    return Hints(Snapshot(given), known, sampled, frozenset(["search", "chat"])).of(given[0], recorded)


def test_hints_need_time() -> None:
    assert said(IDLE, timedelta(hours=23)) == said(BUSY, 28 * DAY) == said(STRICT, MONTH) == []
    assert said(IDLE, DAY) == ["It has decided nothing in 1 day: its scope or key matches nobody."]
    assert said(BUSY, MONTH) == ["It has refused nothing in 30 days."]
    assert said(IDLE, MONTH, Rule("api", "5/min", enabled=False)) == []


def test_calls_in_the_scope_that_its_key_does_not_match() -> None:
    (hint,) = said(IDLE, DAY, calls=[seen({"other": "ip:1"})])
    assert hint == (
        "It has decided nothing in 1 day: there were calls in its scope, and none matched its key (user_or_ip), "
        "methods or audience."
    )
    assert "matches nobody" in said(IDLE, DAY, calls=[seen({"other": "ip:1"}, scope="chat")])[0]


def test_a_scope_that_nothing_has() -> None:
    typo = Rule("api", "5/min", scopes=["serach", "ch[x]*"])
    assert said(IDLE, timedelta(0), typo) == ["No route or consumer that was found has its scope (serach, ch[x]*)."]
    assert said(BUSY, timedelta(0), typo) == [], "somebody calls it all the same, such as by @throttle"
    assert said(IDLE, timedelta(0), Rule("api", "5/min", scopes=["s*h"])) == []
    assert said(IDLE, timedelta(0), Rule("api", "5/min", scopes=["mail"], events=["task"])) == []


def test_a_stricter_rule_beside_it() -> None:
    (hint,) = said(BUSY, MONTH, API, Rule("all", "4/min"))
    assert hint == "It never refuses first: rule 'all' counts the same calls, and is as strict or stricter."


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_many_callers_that_are_refused_much(share: float) -> None:
    many = round((STRICT_IDENTS + 2) * share) + 1
    calls = [seen({"api": f"{number}"}, outcome) for number in range(many) for outcome in ("allowed", "refused")]
    calls += [seen({"api": "content"}) for _ in range(100)] + [seen({"api": "content"}, "refused")]
    calls += [seen({"api": "0", "other": "0"})]
    sampled = Sample(calls, [], {"whole": share, "refused": 1.0})
    assert refused_idents(sampled, "api") == round(many / share)
    assert refused_idents(sampled, "other") == 0
    hints = Hints(Snapshot([API]), DAY, sampled, frozenset())
    assert hints.of(API, STRICT) == [
        f"In the last day it refused more than 10% of the calls of about {round(many / share)} callers."
    ]
    assert Hints(Snapshot([API]), DAY / 2, sampled, frozenset()).of(API, STRICT) == []

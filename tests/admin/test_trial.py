"""The part of a rule's form that tries it before it is saved: what it says, to whom, and in a real browser."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import Page, expect

from django_throttle import limiter
from django_throttle.backtest import SPANS
from django_throttle.call_facts import Facts
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleCandidate, ThrottleRule
from django_throttle.recording import RecordFlusher, own_records, places
from django_throttle.stores import RedisStore
from tests import doors
from tests.admin.conftest import user
from tests.admin.test_connections_page import ANSWER, browser, site
from tests.admin.test_explain_page import page
from tests.admin.test_history import form, rule_page
from tests.doors import BOTH, REDIS, Enforce
from tests.inside import counters
from tests.servers import slack, wait_until

__all__ = ["browser", "page", "site"]
enforce = pytest.fixture(doors.enforcer)
ADD = reverse("admin:django_throttle_throttlerule_add")
TRIAL = reverse("admin:django_throttle_trial")
HOSTILE = "<script>alert(1)</script>"


def record(store: Any, calls: dict[str, int], **facts: Any) -> None:
    """Decide so many requests of each of these idents, by the rules in force."""
    for ident, times in calls.items():
        for _ in range(times):
            given = {"scope": "search", "method": "GET", **facts}
            limiter.decide(Facts(events=("request",), who=KnownCaller(ident), **given))
    if isinstance(store, RedisStore):
        RecordFlusher(store)()


@pytest.fixture
def site_rule(enforce: Enforce) -> Any:
    """The store; the rule ``api`` is in force, in the table of rules too, and has refused some of these calls."""
    own_records.forget()
    store = enforce(api={"rate": "5/hour", "algorithm": "sliding_log"})
    record(store, {"ip:192.0.2.1": 9, "ip:192.0.2.2": 3, "ip:192.0.2.3": 1})
    yield store
    own_records.forget()


def rule(**values: Any) -> ThrottleRule:
    return ThrottleRule.objects.create(**{"name": "api", "rate": "5/hour", "algorithm": "sliding_log", **values})


def tried(client: Client, row: ThrottleRule | None = None, span: str = "hour", **values: Any) -> Any:
    posted = form(client, rule_page(row) if row else ADD, **values)
    return client.post(f"{TRIAL}?row={row.pk if row else ''}", {**posted, "span": span})


def sides(answer: Any) -> dict[str, tuple[int, int]]:
    return {side["name"]: (side["one"].refused, len(side["one"].idents)) for side in answer.context["sides"]}


def remarks(answer: Any) -> str:
    return " ".join(answer.context["remarks"])


@BOTH
@pytest.mark.django_db
@pytest.mark.parametrize("span", SPANS)
def test_both_rules_as_the_command_replays_them(operator: Client, site_rule: Any, span: str, tmp_path: Path) -> None:
    row = rule()
    answer = tried(operator, row, span, rate="2/hour")
    out = io.StringIO()
    rates = {"live rule": "5/hour", "edited rule": "2/hour"}
    rules = {name: {"rate": rate, "algorithm": "sliding_log"} for name, rate in rates.items()}
    (tmp_path / "try.json").write_text(json.dumps(rules))
    call_command("throttle_backtest", str(tmp_path / "try.json"), "--recorded", span, "--json", stdout=out)
    told = json.loads(out.getvalue())
    said = {name: (one["refused"], one["idents"]) for name, one in told["rules"].items()}
    assert sides(answer) == said == {"live rule": (4, 1), "edited rule": (8, 2)}
    assert answer.context["calls"] == told["calls"] == 13
    most = [(row["ident"], row["numbers"]) for row in answer.context["affected"]]
    hashed = places.hashed
    assert most == [(hashed("ip:192.0.2.1"), [4, 7]), (hashed("ip:192.0.2.2"), [0, 1])]
    text = answer.content.decode()
    assert "100.00% of the callers" in text
    assert "live rule: 4 refused, 4 at most in one of" in text
    assert "edited rule: 8 refused, 8 at most in one of" in text
    assert "192.0.2" not in text


@pytest.mark.django_db
def test_nothing_is_saved_and_nobody_charged(operator: Client, site_rule: Any) -> None:
    row, before = rule(), repr(counters(site_rule))
    assert sides(tried(operator, row, rate="1/hour"))["edited rule"] == (10, 2)
    assert repr(counters(site_rule)) == before
    row.refresh_from_db()
    assert row.rate == "5/hour"
    assert not ThrottleCandidate.objects.exists()


@pytest.mark.django_db
def test_a_rule_that_is_new_or_stands_in_for_one_of_settings(operator: Client, site_rule: Any) -> None:
    new = tried(operator, name="other", rate="2/hour", algorithm="sliding_log")
    assert sides(new) == {"edited rule": (8, 2)}
    assert remarks(new) == "There is no live rule to compare with."
    assert sides(tried(operator, name="", rate="2/hour", algorithm="sliding_log")) == {"edited rule": (8, 2)}
    stands_in = tried(operator, name="api", rate="2/hour", algorithm="sliding_log")
    assert sides(stands_in) == {"live rule": (4, 1), "edited rule": (8, 2)}


@pytest.mark.django_db
def test_what_cannot_be_tried_is_said_in_a_sentence(operator: Client, site_rule: Any) -> None:
    row = rule()
    for values, why in (
        ({"algorithm": "concurrency", "events": ["connection"], "rate": "", "limit": 5}, "not those of requests"),
        ({"unit": "db_ms", "reserve": 5}, "what calls cost"),
        ({"algorithm": "damper", "rate": "5/s"}, "by chance"),
        ({"key": "user"}, "no recorded call was counted by user"),
    ):
        answer = tried(operator, row, **values)
        assert why in remarks(answer), values
        assert sides(answer) == {"live rule": (4, 1)}
    noted = remarks(tried(operator, row, enabled=False, action="shadow", events=["request", "message"]))
    assert "edited rule is switched off" in noted
    assert "edited rule only records" in noted
    assert noted.count("Requests are replayed, other events are not.") == 1


@pytest.mark.django_db
def test_a_mistake_in_the_form_is_told(operator: Client, site_rule: Any) -> None:
    answer = tried(operator, rule(), rate="many", name=HOSTILE)
    text = answer.content.decode()
    assert "Nothing was tried, as the form has a mistake" in text
    assert "&#x27;many&#x27;" in text
    assert "<table" not in text
    assert operator.get(TRIAL).status_code == 405


@pytest.mark.django_db
def test_nothing_recorded(operator: Client, enforce: Enforce) -> None:
    own_records.forget()
    enforce(api={"rate": "5/hour"})
    answer = tried(operator, rule())
    assert "No requests were recorded in the last hour." in answer.content.decode()
    enforce(api={"rate": "5/hour"}, RECORD=False)
    answer = tried(operator, rule(name="b"), "day")
    assert "in the last day. The setting RECORD is off." in answer.content.decode()


@pytest.mark.django_db
def test_names_in_clear_are_inert_and_lead_to_their_explanation(operator: Client, enforce: Enforce) -> None:
    own_records.forget()
    store = enforce(api={"rate": "5/hour", "algorithm": "sliding_log"}, RECORD_IDENTS=True)
    record(store, {f"user:{HOSTILE}&ident=x": 9}, scope=HOSTILE)
    text = tried(operator, rule(name=HOSTILE), rate="2/hour").content.decode()
    assert HOSTILE not in text
    explain = reverse("admin:django_throttle_explain")
    assert f'<a href="{explain}?ident=user%3A%3Cscript%3Ealert%281%29%3C%2Fscript%3E%26ident%3Dx">' in text
    own_records.forget()


@pytest.mark.django_db
def test_who_may_only_see_tries_the_live_rule_and_others_nothing(client: Client, site_rule: Any) -> None:
    row, seer = rule(), user("view_throttlerule")
    client.force_login(seer)
    page = client.get(rule_page(row)).content.decode()
    assert 'id="rule-trial-hour"' in page
    answer = client.post(f"{TRIAL}?row={row.pk}", {"span": "hour"})
    assert sides(answer) == {"live rule": (4, 1)}
    assert remarks(answer) == "You may not edit rules."
    seer.user_permissions.clear()
    assert client.post(f"{TRIAL}?row={row.pk}").status_code == 403
    client.logout()
    assert client.post(f"{TRIAL}?row={row.pk}").status_code == 302


@REDIS
@pytest.mark.django_db
def test_the_largest_sample_is_tried_within_a_second(operator: Client, enforce: Enforce) -> None:
    store: Any = enforce(api={"rate": "5/hour", "algorithm": "sliding_log"})
    now, row = int(timezone.now().timestamp()), rule()
    for age in range(places.SLOTS):
        slot = now // places.SLOT - age
        most = places.MOST_RECENT if age <= places.RECENT_SLOTS else places.MOST_OLDER
        first = slot * places.SLOT
        made = [
            [first + n * (min(places.SLOT, now - first) / most), "search", "GET", "request", "allowed", "", "", 1]
            for n in range(most)
        ]
        entries = [b"\2" + json.dumps([*one, {f"{n % 40:016x}": ["api"]}]).encode() for n, one in enumerate(made)]
        name = store.process_key(places.sample_name("whole", slot))
        args = [f"f{age}", 1, 10**8, 10**8, places.MOST_RECENT, places.MOST_OLDER, 2, *entries]
        keys = [store.process_key("rec:seen:x"), name, f"{name}:level", f"{name}:older", f"{name}:older:level"]
        store.call("sample", keys, args)
    began = time.perf_counter()
    answer = tried(operator, row, "day", rate="2/hour")
    assert time.perf_counter() - began < slack(1)
    assert answer.context["calls"] > 3000
    assert answer.context["share"] == 0.25
    text = answer.content.decode()
    assert "25.00% of the callers" in text
    told = {side["name"]: side for side in answer.context["sides"]}
    assert told["edited rule"]["refused"].startswith(f"{told['edited rule']['one'].refused * 4:,} (")
    assert text.count("95 % confidence") == 1


def test_in_a_browser_a_stricter_limit_is_tried_and_saved_as_a_candidate(page: Page) -> None:
    for _ in range(15):
        assert page.request.get("/api/search?q=a").ok
    page.locator(".field-rule a").first.click()  # "api"
    hour, answer = page.get_by_role("button", name="Try on the last hour"), page.locator("#rule-trial-answer")

    def is_recorded() -> bool:
        hour.click()
        expect(answer).to_have_attribute("aria-busy", "false")
        return "15 recorded calls" in answer.inner_text()

    wait_until(is_recorded, timeout=ANSWER)  # processes send what they recorded every two seconds
    refused = page.locator("#rule-trial-refused td")
    expect(refused).to_have_text(["0", "0"])

    page.fill("[name=rate]", "5/hour")
    page.fill("[name=burst]", "5")
    expect(page.locator("#rule-trial-stale")).to_be_visible()
    hour.focus()
    began = time.perf_counter()
    page.keyboard.press("Enter")
    expect(refused).to_have_text(["0", "10"])
    assert time.perf_counter() - began < slack(1)
    expect(page.locator("#rule-trial-stale")).to_be_hidden()
    expect(page.get_by_role("img", name="edited rule: 10 refused")).to_be_visible()
    expect(page.locator("#rule-trial-most tbody tr")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    page.fill("[name=rate]", "many")
    page.get_by_role("button", name="Try on the last day").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was tried, as the form has a mistake")
    page.fill("[name=rate]", "5/hour")
    page.get_by_role("button", name="Save as candidate").click()
    expect(page.locator(".success")).to_contain_text("The candidate of api counts beside it")

"""Fields of a rule: what may be typed in each, and how it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.models import ThrottleRule
from tests.models.test_rule import RATE, row


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("10/S,1000/day", "10/s, 1000/day"),
        ("100/minute", "100/min"),
        (" 100 / Min ", "100/min"),
        ("60/60s", "60/min"),
        ("1000/24h", "1000/day"),
    ],
)
def test_a_rate_is_stored_in_its_shortest_form(typed: str, stored: str) -> None:
    saved = row(rate=typed)
    saved.save()
    saved.refresh_from_db()
    assert saved.rate == stored
    cleaned = row(name="other", rate=typed)
    cleaned.full_clean()
    assert cleaned.rate == stored
    assert ThrottleRule.objects.filter(rate=typed).count() == 1


@pytest.mark.django_db
def test_names_may_be_given_as_text_or_as_a_list() -> None:
    row(**RATE, scopes=" search, chat,search ", events=["request", "message"]).save()
    saved = ThrottleRule.objects.get()
    assert saved.scopes == ("search", "chat")
    assert saved.events == ("request", "message")


@pytest.mark.django_db
def test_methods_are_stored_in_capitals_and_numbers_in_order() -> None:
    row(**RATE, methods="post, Get,post", count_on="403, 401", warn_at=[1, "0.8"], audience="staff , group:x").save()
    saved = ThrottleRule.objects.get()
    assert (saved.methods, saved.count_on) == (("POST", "GET"), (401, 403))
    assert (saved.warn_at, saved.audience) == ((0.8, 1.0), ("staff", "group:x"))
    assert ThrottleRule.objects.filter(methods=["post", "get"], warn_at=(0.8, 1), count_on=(401, 403)).count() == 1


@pytest.mark.django_db
def test_a_cost_is_a_number_or_a_function_that_settings_name(settings: Any) -> None:
    row(**RATE, cost="3").save()
    assert ThrottleRule.objects.get().as_rule().cost == 3
    settings.DJANGO_THROTTLE = {"RULES": {"graphql": {"rate": "9/min", "cost": "os.path.getsize"}}}
    row(**RATE, name="priced", cost="os.path.getsize").save()
    assert ThrottleRule.objects.get(name="priced").as_rule().cost == "os.path.getsize"
    assert "os.path.getsize" in ThrottleRule.objects.get(name="priced").meaning

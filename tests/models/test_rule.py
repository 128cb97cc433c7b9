"""What an operator can mistype is refused three times: by the form, by the row, and by the database."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError

from django_throttle.core import Rule
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.core.rule import OPTIONS
from django_throttle.models import ThrottleRule

RATE = {"rate": "5/min"}
SOCKETS = {"algorithm": "concurrency", "limit": 5, "events": ("connection",)}

# Options that make no sense, and the field under which an operator reads so.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**RATE, "name": ""}, "name"),
    ({**RATE, "name": "a\nb"}, "name"),
    ({**RATE, "name": "x" * 101}, "name"),
    ({"rate": ""}, "rate"),
    ({"rate": "0/min"}, "rate"),
    ({"rate": "5/600w"}, "rate"),
    ({"rate": "5 per minute"}, "rate"),
    ({**RATE, **SOCKETS}, "rate"),
    ({**SOCKETS, "limit": None}, "limit"),
    ({**SOCKETS, "limit": 0}, "limit"),
    ({**RATE, "limit": 5000}, "limit"),
    ({**RATE, "burst": 10}, "burst"),
    ({**RATE, "burst": 0, "algorithm": "gcra"}, "burst"),
    ({**RATE, "resolution": 0}, "resolution"),
    ({"rate": "5/month"}, "rate"),
    ({**RATE, "refill": "interval"}, "refill"),
    ({**RATE, "refill": "sometimes", "algorithm": "token_bucket"}, "refill"),
    ({**RATE, "timezone": "UTC"}, "timezone"),
    ({"rate": "5/day", "timezone": "Mars/Olympus", "algorithm": "fixed_window"}, "timezone"),
    ({**RATE, "action": "delay"}, "action"),
    ({**RATE, "max_delay": 1, "algorithm": "leaky_bucket"}, "max_delay"),
    ({**RATE, "max_delay": -1, "action": "delay", "algorithm": "leaky_bucket"}, "max_delay"),
    ({**RATE, "max_delay": float("inf"), "action": "delay", "algorithm": "leaky_bucket"}, "max_delay"),
    ({**RATE, "resolution": 6, "algorithm": "fixed_window"}, "resolution"),
    ({**RATE, "strict": True, "algorithm": "fixed_window"}, "strict"),
    ({**RATE, "cost": 0}, "cost"),
    ({**RATE, "cost": 6}, "cost"),
    ({**SOCKETS, "cost": 2}, "cost"),
    ({**SOCKETS, "count_denied": True}, "count_denied"),
    ({**SOCKETS, "events": ("request",)}, "events"),
    ({**RATE, "events": ("sneeze",)}, "events"),
    ({**RATE, "events": ()}, "events"),
    ({**RATE, "scopes": ()}, "scopes"),
    ({**RATE, "scopes": ("x" * 1001,)}, "scopes"),
    ({**RATE, "key": "os.abort"}, "key"),
    ({**RATE, "algorithm": "sundial"}, "algorithm"),
    ({**RATE, "action": "scold"}, "action"),
    ({**RATE, "on_store_failure": "pray"}, "on_store_failure"),
    ({**RATE, "methods": ("PSOT",)}, "methods"),
    ({**RATE, "methods": ("GET",), "events": ("request", "message")}, "methods"),
    ({**RATE, "audience": ("nobody",)}, "audience"),
    ({**RATE, "audience": ("staff", "tenant")}, "audience"),
    ({**RATE, "audience": ("anonymous",), "key": "user"}, "audience"),
    ({**RATE, "count_on": (99,)}, "count_on"),
    ({**RATE, "count_on": ("often",)}, "count_on"),
    ({**RATE, "count_on": (401,), "events": ("message",)}, "count_on"),
    ({**SOCKETS, "count_on": (401,)}, "count_on"),
    ({**RATE, "warn_at": ("often",)}, "warn_at"),
    ({**RATE, "warn_at": (-0.5,)}, "warn_at"),
    ({**RATE, "warn_at": (1.5,)}, "warn_at"),
    ({**SOCKETS, "warn_at": (0.8,)}, "warn_at"),
    ({**RATE, "enforce_at": 0.5}, "enforce_at"),
    ({**RATE, "enforce_at": 101}, "enforce_at"),
    ({**SOCKETS, "enforce_at": 2}, "enforce_at"),
    ({**RATE, "enforce_at": 2, "action": "delay", "algorithm": "leaky_bucket"}, "enforce_at"),
    ({**RATE, "unit": "litres"}, "unit"),
    ({**RATE, "unit": "bytes", "events": ("connect",)}, "unit"),
    ({**SOCKETS, "unit": "bytes"}, "unit"),
    ({**SOCKETS, "at_limit": "evict"}, "at_limit"),
    ({**RATE, "at_limit": "evict_oldest"}, "at_limit"),
    ({**RATE, "key": "connection"}, "key"),
    ({**SOCKETS, "key": "connection"}, "key"),
    ({**RATE, "cost": "five"}, "cost"),
    ({**RATE, "cost": "shop.limits.price"}, "cost"),
]


def row(**options: Any) -> ThrottleRule:
    return ThrottleRule(**{"name": "rule", **options})


@pytest.mark.row("A49")
@pytest.mark.django_db
@pytest.mark.parametrize(("options", "field"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_it_is_refused_under_the_field_where_it_is_mended(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        row(**options).full_clean()
    assert next(iter(caught.value.message_dict)) == field
    assert all(message.strip() for message in caught.value.messages)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "rule",
    [
        Rule("plain", "100/min"),
        Rule("both", rates=("10/s", "1000/day"), algorithm="token_bucket", refill="interval"),
        Rule("month", "1000/month", algorithm="fixed_window", timezone="Europe/Berlin"),
        Rule("queue", "5/s", algorithm="leaky_bucket", action="delay", max_delay=2.5),
        Rule(
            "all", "10/s", algorithm="gcra", burst=20, scopes=("search", "api:*"), events=("request", "message"),
            key="ip", cost=2, count_denied=True, action="shadow", on_store_failure="deny", enabled=False,
        ),
        Rule("window", "5/10m", resolution=6, strict=True, key="everyone"),
        Rule(
            "quota", "10000/month", algorithm="fixed_window", methods=("POST", "PUT"), warn_at=(0.8, 1, 0.333),
            audience=("group:night shift", "group:a:b", "staff"), enforce_at=2.5, count_on=(401, 403),
        ),
        Rule("plans", "5/s", algorithm="gcra", plans=["group:gold users = 9/s", "staff = 7/s burst 50"]),
        Rule("queue later", "5/s", algorithm="leaky_bucket", action="shadow", max_delay=2.5),
        Rule("open", limit=3, algorithm="concurrency", events=("connection", "inflight"), at_limit="evict_idle"),
    ],
    ids=lambda rule: rule.name,
)  # fmt: skip
def test_a_rule_survives_the_table(rule: Rule) -> None:
    row = ThrottleRule.of(rule)
    row.full_clean()
    row.save()
    again = ThrottleRule.objects.get(name=rule.name)
    assert again.as_rule() == rule
    assert (again.scopes, again.events) == (rule.scopes, rule.events)


@pytest.mark.django_db
def test_fixtures_carry_it() -> None:
    options = {"scopes": ("search", "chat"), "warn_at": (0.8, 1.0), "count_on": (401,), "methods": ("POST",), "cost": 2}
    row(**RATE, **options, description="why").save()
    text = serializers.serialize("json", ThrottleRule.objects.all())
    ThrottleRule.objects.all().delete()
    for each in serializers.deserialize("json", text):
        each.save()
    assert ThrottleRule.objects.get().as_rule() == Rule("rule", "5/min", **options)


def test_every_option_of_a_rule_is_a_field_and_every_field_explains_itself() -> None:
    fields = {field.name: field for field in ThrottleRule._meta.get_fields()}
    assert set(fields) == {"id", "name", "description", "updated_at", *OPTIONS} - {"rates"}
    assert [name for name, field in fields.items() if not field.help_text and name not in ("id", "updated_at")] == []


def test_it_says_what_it_means_or_why_it_does_not() -> None:
    assert row(**RATE).meaning == "each user or address: 5 requests per minute"
    assert row(**RATE).fault is None and row(**RATE).as_rule() == Rule("rule", "5/min")
    assert row(**RATE, cost=9).meaning.startswith("Not in force: one call costs 9")


@pytest.mark.parametrize("limit", [10**15, 10**40])
def test_a_limit_that_is_too_large_is_refused_by_one_message(limit: int) -> None:
    with pytest.raises(ValidationError) as caught:
        row(**{**SOCKETS, "limit": limit}).full_clean(validate_unique=False, validate_constraints=False)
    message = f"“Limit” must be a whole number from 1 to {MAX_LIMIT:,}, not {limit}"
    assert caught.value.message_dict == {"limit": [message]}

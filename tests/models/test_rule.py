"""What an operator can mistype is refused three times: by the form, by the row, and by the database."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from django_throttle.core import Rule
from django_throttle.core.options import ACTIONS, ALGORITHMS, FAILURE_POLICIES, REFILLS
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.core.rule import OPTIONS
from django_throttle.models import ThrottleRule
from django_throttle.rulebook.file import row_of
from tests.raw_rows import write

RATE = {"rate": "5/min"}
SOCKETS = {"algorithm": "concurrency", "limit": 5, "events": ("connection",)}

# Options that make no sense, and the field under which an operator reads so.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**RATE, "name": ""}, "name"),
    ({**RATE, "name": "a\nb"}, "name"),
    ({**RATE, "name": "x" * 101}, "name"),
    ({"rate": ""}, "rate"),
    ({"rate": "0/min"}, "rate"),
    ({"rate": "-5/min"}, "rate"),
    ({"rate": "5/0s"}, "rate"),
    ({"rate": "5/600w"}, "rate"),
    ({"rate": "5 per minute"}, "rate"),
    ({"rate": f"{2**63}/min"}, "rate"),
    ({**RATE, **SOCKETS}, "rate"),
    ({**SOCKETS, "limit": None}, "limit"),
    ({**SOCKETS, "limit": 0}, "limit"),
    ({**SOCKETS, "limit": 10**18}, "limit"),
    ({**RATE, "limit": 5000}, "limit"),
    ({**RATE, "burst": 10}, "burst"),
    ({**RATE, "burst": 0, "algorithm": "gcra"}, "burst"),
    ({"rate": "1/366d", "burst": MAX_LIMIT, "algorithm": "gcra"}, "burst"),
    ({**RATE, "resolution": 0}, "resolution"),
    ({**RATE, "resolution": 61}, "resolution"),
    ({"rate": "5/month"}, "rate"),
    ({"rate": "5/min, 6/min"}, "rate"),
    ({"rate": ", ".join(f"5/{n}s" for n in range(1, 12))}, "rate"),
    ({"rate": "20000/day", "algorithm": "sliding_log"}, "rate"),
    ({**RATE, "refill": "interval"}, "refill"),
    ({**RATE, "refill": "sometimes", "algorithm": "token_bucket"}, "refill"),
    ({**RATE, "timezone": "UTC"}, "timezone"),
    ({"rate": "5/day", "timezone": "Mars/Olympus", "algorithm": "fixed_window"}, "timezone"),
    ({**RATE, "timezone": "UTC", "algorithm": "fixed_window"}, "rate"),
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
    ({**RATE, "events": ("request", "connection")}, "events"),
    ({**RATE, "events": ("sneeze",)}, "events"),
    ({**RATE, "events": ()}, "events"),
    ({**RATE, "scopes": ()}, "scopes"),
    ({**RATE, "scopes": ("x" * 1001,)}, "scopes"),
    ({**RATE, "key": "shoe_size"}, "key"),
    ({**RATE, "key": "os.abort"}, "key"),
    ({**RATE, "algorithm": "sundial"}, "algorithm"),
    ({**RATE, "action": "scold"}, "action"),
    ({**RATE, "on_store_failure": "pray"}, "on_store_failure"),
    ({**RATE, "methods": ("PSOT",)}, "methods"),
    ({**RATE, "methods": ("GET",), "events": ("request", "message")}, "methods"),
    ({**RATE, "audience": ("nobody",)}, "audience"),
    ({**RATE, "audience": ("group:",)}, "audience"),
    ({**RATE, "audience": ("staff", "tenant")}, "audience"),
    ({**RATE, "audience": ("anonymous",), "key": "user"}, "audience"),
    ({**RATE, "count_on": (99,)}, "count_on"),
    ({**RATE, "count_on": (600,)}, "count_on"),
    ({**RATE, "count_on": ("often",)}, "count_on"),
    ({**RATE, "count_on": (401,), "events": ("message",)}, "count_on"),
    ({**SOCKETS, "count_on": (401,)}, "count_on"),
    ({**RATE, "warn_at": ("often",)}, "warn_at"),
    ({**RATE, "warn_at": (-0.5,)}, "warn_at"),
    ({**RATE, "warn_at": (float("nan"),)}, "warn_at"),
    ({**RATE, "warn_at": (0.0,)}, "warn_at"),
    ({**RATE, "warn_at": (1.5,)}, "warn_at"),
    ({**SOCKETS, "warn_at": (0.8,)}, "warn_at"),
    ({**RATE, "enforce_at": 0.5}, "enforce_at"),
    ({**RATE, "enforce_at": 101}, "enforce_at"),
    ({**RATE, "enforce_at": float("nan")}, "enforce_at"),
    ({**SOCKETS, "enforce_at": 2}, "enforce_at"),
    ({**RATE, "enforce_at": 2, "action": "delay", "algorithm": "leaky_bucket"}, "enforce_at"),
    ({"rate": f"{MAX_LIMIT}/day", "enforce_at": 2}, "enforce_at"),
    ({"rate": "9000/day", "algorithm": "sliding_log", "enforce_at": 2}, "enforce_at"),
    ({**RATE, "unit": "litres"}, "unit"),
    ({**RATE, "unit": "bytes", "events": ("connect",)}, "unit"),
    ({**RATE, "unit": "bytes", "events": ("message", "publish")}, "unit"),
    ({**SOCKETS, "unit": "bytes"}, "unit"),
    ({**SOCKETS, "at_limit": "evict"}, "at_limit"),
    ({**RATE, "at_limit": "evict_oldest"}, "at_limit"),
    ({**RATE, "key": "connection"}, "key"),
    ({**RATE, "key": "connection", "events": ("message", "connect")}, "key"),
    ({**SOCKETS, "key": "connection"}, "key"),
    ({**RATE, "cost": "five"}, "cost"),
    ({**RATE, "cost": "-1"}, "cost"),
    ({**RATE, "cost": "shop.limits.price"}, "cost"),
]

# What only the rule as a whole can tell, which no constraint of a column sees.
BEYOND_CONSTRAINTS = (
    {"name": "a\nb"}, {"rate": "5/600w"}, {"rate": "5/month"}, {"rate": "5/min, 6/min"}, {"rate": "20000/day"},
    {"rate": ", ".join(f"5/{n}s" for n in range(1, 12))}, {"timezone": "Mars/Olympus"},
    {"timezone": "UTC", "algorithm": "fixed_window"}, {"cost": 6}, {"burst": MAX_LIMIT}, {"key": "os.abort"},
    {"resolution": 6}, {"strict": True}, {"cost": 2}, {"count_denied": True}, {"cost": "shop.limits.price"},
    {"audience": ("anonymous",)}, {"warn_at": (0.0,)}, {"warn_at": (1.5,)}, {"rate": f"{MAX_LIMIT}/day"},
    {"rate": "9000/day"},
)  # fmt: skip


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


def _beyond(options: dict[str, Any]) -> bool:
    return any(mark.items() <= options.items() for mark in BEYOND_CONSTRAINTS) or "x" * 101 in str(options)


CONSTRAINED = [options for options, _ in WRONG if not _beyond(options)]


@pytest.mark.row("A49")
@pytest.mark.django_db
@pytest.mark.parametrize("options", CONSTRAINED, ids=str)
def test_the_database_refuses_it_too(options: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ThrottleRule.objects.bulk_create([row(**options)])
    assert not ThrottleRule.objects.exists()


@pytest.mark.row("A49")
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rate", "5 per minute"),
        ("rate", "0/min"),
        ("rate", "5/min,"),
        ("limit", 7),
        ("cost", 0),
        ("burst", 3),
        ("resolution", 99),
        ("algorithm", "sundial"),
        ("events", "request,"),
        ("events", "connection"),
        ("scopes", ""),
        ("key", "shoe"),
        ("refill", "interval"),
        ("timezone", "UTC"),
        ("max_delay", 1),
        ("action", "delay"),
        ("methods", "post"),
        ("methods", "POST,"),
        ("audience", "nobody"),
        ("audience", "group: "),
        ("count_on", "4xx"),
        ("count_on", "401, 403"),
        ("warn_at", "80 %"),
        ("warn_at", "1e3"),
        ("enforce_at", 0),
        ("enforce_at", 1000),
        ("cost", "free"),
        ("cost", "1.5."),
    ],
)
def test_raw_sql_is_refused_too(column: str, value: object) -> None:
    row(**RATE).save()
    with pytest.raises(IntegrityError), transaction.atomic():
        write(ThrottleRule, **{column: value})


@pytest.mark.row("A52")
@pytest.mark.django_db
def test_a_name_is_there_once() -> None:
    row(**RATE).save()
    with pytest.raises(ValidationError) as caught:
        row(rate="9/s").full_clean()
    assert "name" in caught.value.message_dict
    with pytest.raises(IntegrityError), transaction.atomic():
        ThrottleRule.objects.bulk_create([row(rate="9/s")])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "rule",
    [
        Rule("plain", "100/min"),
        Rule("sockets", limit=5, algorithm="concurrency"),
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
        Rule("queue later", "5/s", algorithm="leaky_bucket", action="shadow", max_delay=2.5),
        Rule("uploads", limit=3, algorithm="concurrency", events=("inflight",), methods=("POST",)),
        Rule("open", limit=3, algorithm="concurrency", events=("connection", "inflight"), at_limit="evict_idle"),
    ],
    ids=lambda rule: rule.name,
)  # fmt: skip
def test_a_rule_survives_the_table(rule: Rule) -> None:
    row = row_of(rule)
    row.full_clean()
    row.save()
    again = ThrottleRule.objects.get(name=rule.name)
    assert again.as_rule() == rule
    assert (again.scopes, again.events) == (rule.scopes, rule.events)


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


def test_defaults_are_those_of_a_rule() -> None:
    assert row(**RATE).as_rule() == Rule("rule", "5/min")


@pytest.mark.parametrize(
    ("field", "known"),
    [("algorithm", ALGORITHMS), ("action", ACTIONS), ("refill", REFILLS), ("on_store_failure", FAILURE_POLICIES)],
)
def test_every_choice_has_a_label(field: str, known: tuple[str, ...]) -> None:
    assert {choice for choice, _ in ThrottleRule._meta.get_field(field).choices} == set(known)


def test_it_says_what_it_means_or_why_it_does_not() -> None:
    assert row(**RATE).meaning == "each user or address: 5 requests per minute"
    assert row(**RATE).fault is None
    assert row(**RATE, cost=9).meaning.startswith("Not in force: one call costs 9")

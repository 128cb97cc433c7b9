"""What an operator can mistype is refused three times: by the form, by the row, and by the database."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction

from django_throttle.core import Rule
from django_throttle.core.checks import ACTIONS, ALGORITHMS, FAILURE_POLICIES, REFILLS
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.core.rule import OPTIONS
from django_throttle.models import ThrottleRule
from django_throttle.rulebook.file import row_of

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
    ({**SOCKETS, "limit": 2**31 - 1}, "limit"),
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
]

# What only the rule as a whole can tell, which no constraint of a column sees.
BEYOND_CONSTRAINTS = (
    {"name": "a\nb"}, {"rate": "5/600w"}, {"rate": "5/month"}, {"rate": "5/min, 6/min"}, {"rate": "20000/day"},
    {"rate": ", ".join(f"5/{n}s" for n in range(1, 12))}, {"timezone": "Mars/Olympus"},
    {"timezone": "UTC", "algorithm": "fixed_window"}, {"cost": 6}, {"burst": MAX_LIMIT}, {"key": "os.abort"},
    {"resolution": 6}, {"strict": True}, {"cost": 2}, {"count_denied": True},
)  # fmt: skip


def row(**options: Any) -> ThrottleRule:
    return ThrottleRule(**{"name": "rule", **options})


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


@pytest.mark.django_db
@pytest.mark.parametrize("options", CONSTRAINED, ids=str)
def test_the_database_refuses_it_too(options: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ThrottleRule.objects.bulk_create([row(**options)])
    assert not ThrottleRule.objects.exists()


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
    ],
)
def test_raw_sql_is_refused_too(column: str, value: object) -> None:
    row(**RATE).save()
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f'UPDATE django_throttle_throttlerule SET "{column}" = %s', [value])


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
def test_fixtures_carry_it() -> None:
    row(**RATE, scopes=("search", "chat"), description="why").save()
    text = serializers.serialize("json", ThrottleRule.objects.all())
    ThrottleRule.objects.all().delete()
    for each in serializers.deserialize("json", text):
        each.save()
    assert ThrottleRule.objects.get().as_rule() == Rule("rule", "5/min", scopes=("search", "chat"))


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

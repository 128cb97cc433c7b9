"""What an operator can mistype is refused three times: by the form, by the row, and by the database."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from django_throttle.core import Rule
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.core.rule import OPTIONS
from django_throttle.models import ThrottleOverride, ThrottleRule
from django_throttle.rulebook.sources import from_database
from tests.raw_rows import write

pytestmark = pytest.mark.django_db
RATE = {"rate": "5/min"}
SOCKETS = {"algorithm": "concurrency", "limit": 5, "events": ("connection",)}
QUEUE = {**RATE, "algorithm": "leaky_bucket", "action": "delay"}


def wrong(base: dict[str, Any], **faults: list[Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Options of which one makes no sense, and the field under which an operator reads so."""
    return (({**base, field: value}, field) for field, values in faults.items() for value in values)


WRONG = [
    *wrong(RATE, name=["", "a\nb", "x" * 101], rate=["", "0/min", "5/600w", "5 per minute", "5/month"], limit=[5000]),
    *wrong(RATE, burst=[10], resolution=[0], refill=["interval"], timezone=["UTC"], action=["delay", "scold"]),
    *wrong(RATE, cost=[0, 6, "five", "shop.limits.price"], events=[("sneeze",), ()], scopes=[(), ("x" * 1001,)]),
    *wrong(
        RATE,
        key=["os.abort", "connection", "", "user+", "+ip", "user ip"],
        algorithm=["sundial"],
        on_store_failure=["pray"],
        unit=["litres"],
    ),
    *wrong(RATE, methods=[("PSOT",)], audience=[("nobody",), ("staff", "tenant")], count_on=[(99,), ("often",)]),
    *wrong(RATE, warn_at=[("often",), (-0.5,), (1.5,)], enforce_at=[0.5, 101], at_limit=["evict_oldest"]),
    *wrong(SOCKETS, rate=["5/min"], limit=[None, 0], cost=[2], count_denied=[True], events=[("request",)]),
    *wrong(SOCKETS, count_on=[(401,)], warn_at=[(0.8,)], enforce_at=[2], unit=["bytes"], at_limit=["evict"]),
    *wrong(SOCKETS, key=["connection"]),
    *wrong({**RATE, "algorithm": "gcra"}, burst=[0]),
    *wrong({**RATE, "algorithm": "token_bucket"}, refill=["sometimes"]),
    *wrong({**RATE, "algorithm": "leaky_bucket"}, max_delay=[1]),
    *wrong(QUEUE, max_delay=[-1, float("inf"), None], enforce_at=[2]),
    *wrong({"rate": "5/day", "algorithm": "fixed_window"}, timezone=["Mars/Olympus"], resolution=[6], strict=[True]),
    *wrong({**RATE, "events": ("request", "message")}, methods=[("GET",)]),
    *wrong({**RATE, "events": ("message",)}, count_on=[(401,)]),
    *wrong({**RATE, "events": ("connect",)}, unit=["bytes"]),
    *wrong({**RATE, "key": "user"}, audience=[("anonymous",)]),
]
# What only the rule as a whole can tell, which no constraint of a column sees.
BEYOND_CONSTRAINTS = [
    *({"name": "a\nb"}, {"rate": "5/600w"}, {"rate": "5/month"}, {"timezone": "Mars/Olympus"}, {"cost": 6}),
    *({"key": "os.abort"}, {"cost": 2}, {"count_denied": True}, {"cost": "shop.limits.price"}, {"warn_at": (1.5,)}),
    *({"audience": ("anonymous",)}, {"algorithm": "sundial"}, {"max_delay": None}, {"methods": ("PSOT",)}),
]


def row(**options: Any) -> ThrottleRule:
    return ThrottleRule(**{"name": "rule", **options})


@pytest.mark.row("A49")
@pytest.mark.parametrize(("options", "field"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_it_is_refused_under_the_field_where_it_is_mended_and_by_the_database(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        row(**options).full_clean()
    assert next(iter(caught.value.message_dict)) == field
    assert all(message.strip() for message in caught.value.messages)
    if any(mark.items() <= options.items() for mark in BEYOND_CONSTRAINTS) or "x" * 101 in str(options):
        return
    with pytest.raises(IntegrityError), transaction.atomic():
        ThrottleRule.objects.bulk_create([row(**options)])
    assert not ThrottleRule.objects.exists()


@pytest.mark.row("A49")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rate", "5 per minute"), ("rate", "0/min"), ("rate", "5/min,"), ("limit", 7), ("cost", 0), ("cost", "free"),
        ("cost", "1.5."), ("burst", 3), ("resolution", 99), ("algorithm", "sun dial"), ("algorithm", ""),
        ("events", "request,"), ("events", "connection"), ("scopes", ""), ("key", "shoe size"), ("refill", "interval"),
        ("timezone", "UTC"), ("max_delay", 1), ("action", "delay"), ("methods", "post"), ("methods", "POST,"),
        ("audience", "nobody"), ("audience", "group: "), ("plans", "group:x 5/min"), ("warn_at", "80 %"),
        ("plans", "group:x = 5/min\n\nstaff = 5/min"), ("count_on", "6xx"), ("count_on", "401, 403"),
        ("warn_at", "1e3"), ("enforce_at", 0), ("enforce_at", 1000),
    ],
)  # fmt: skip
def test_raw_sql_is_refused_too(column: str, value: object) -> None:
    row(**RATE).save()
    with pytest.raises(IntegrityError), transaction.atomic():
        write(ThrottleRule, **{column: value})


@pytest.mark.row("A52")
def test_a_name_is_there_once() -> None:
    row(**RATE).save()
    with pytest.raises(ValidationError) as caught:
        row(rate="9/s").full_clean()
    assert "name" in caught.value.message_dict
    with pytest.raises(IntegrityError), transaction.atomic():
        ThrottleRule.objects.bulk_create([row(rate="9/s")])


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
def test_a_rule_survives_the_table_and_fixtures(rule: Rule) -> None:
    row = ThrottleRule.of(rule)
    row.full_clean()
    row.save()
    text = serializers.serialize("json", ThrottleRule.objects.all())
    ThrottleRule.objects.all().delete()
    for each in serializers.deserialize("json", text):
        each.save()
    again = ThrottleRule.objects.get(name=rule.name)
    assert again.as_rule() == rule
    assert (again.scopes, again.events) == (rule.scopes, rule.events)


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ({"rate": "10/S,1000/day"}, {"rate": "10/s, 1000/day"}),
        ({"rate": " 100 / Min "}, {"rate": "100/min"}),
        ({"rate": "60/60s"}, {"rate": "60/min"}),
        ({"rate": "1000/24h"}, {"rate": "1000/day"}),
        ({"scopes": " search, chat,search "}, {"scopes": ("search", "chat")}),
        ({"events": ["request", "message"]}, {"events": ("request", "message")}),
        ({"methods": "post, Get,post", "count_on": "403, 401"}, {"methods": ("POST", "GET"), "count_on": (401, 403)}),
        (
            {"methods": "query, Version-Control", "count_on": "5xx, 401"},
            {"methods": ("QUERY", "VERSION-CONTROL"), "count_on": (401, "5xx")},
        ),
        ({"warn_at": [1, "0.8"]}, {"warn_at": (0.8, 1.0)}),
        ({"audience": "staff , group:x"}, {"audience": ("staff", "group:x")}),
        ({"cost": "3"}, {"cost": 3}),
        ({"cost": "os.path.getsize"}, {"cost": "os.path.getsize"}),
    ],
    ids=str,
)
def test_what_is_typed_is_stored_in_its_shortest_form(settings: Any, typed: Any, stored: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"graphql": {"rate": "9/min", "cost": "os.path.getsize"}}}
    row(**{**RATE, **typed}).save()
    saved = ThrottleRule.objects.get(**typed)  # which is a query of the stored form
    assert {name: getattr(saved.as_rule() if name == "cost" else saved, name) for name in stored} == stored
    cleaned = row(**{**RATE, **typed, "name": "other"})
    cleaned.full_clean()
    assert {name: getattr(cleaned.as_rule() if name == "cost" else cleaned, name) for name in stored} == stored


def test_every_option_is_a_field_and_words_need_no_migration() -> None:
    fields = {field.name for field in ThrottleRule._meta.get_fields()}
    assert fields == {"id", "name", "description", "updated_at", *OPTIONS} - {"rates"}
    for model in (ThrottleRule, ThrottleOverride):
        for field in model._meta.local_concrete_fields:
            assert field.name == "id" or not {"help_text", "verbose_name", "choices"} & {*field.deconstruct()[3]}
        assert {key for check in model._meta.constraints for key in check.deconstruct()[2]} == {"condition", "name"}


def test_it_says_what_it_means_or_why_it_does_not() -> None:
    assert row(**RATE).meaning == "each user or address: 5 requests per minute"
    assert row(**RATE).fault is None and row(**RATE).as_rule() == Rule("rule", "5/min")
    assert row(**RATE, cost=9).meaning.startswith("Not in force: one call costs 9")
    for limit in (10**15, 10**40):
        with pytest.raises(ValidationError) as caught:
            row(**{**SOCKETS, "limit": limit}).full_clean(validate_unique=False, validate_constraints=False)
        message = f"“Limit” must be a whole number from 1 to {MAX_LIMIT:,}, not {limit}"
        assert caught.value.message_dict == {"limit": [message]}


@pytest.mark.parametrize("key", ["nobody", "user+everyone", "user+nobody"])
def test_a_key_of_another_version_is_stored_and_not_in_force(key: str) -> None:
    row(**RATE, key=key).save()
    found = from_database()
    assert not found.rules and "key" in found.faults["rule"]


@pytest.mark.parametrize(
    "options", [{"key": "tenant"}, {"key": "user+tenant"}, {"audience": ("tenant:acme",)}], ids=str
)
def test_a_rule_by_tenant_needs_to_know_who_that_is(settings: Any, options: dict[str, Any]) -> None:
    settings.DJANGO_THROTTLE = {"AGENT": False}
    made = row(**RATE, **options)
    assert "TENANT" in str(made.fault)
    settings.DJANGO_THROTTLE = {"AGENT": False, "TENANT": "tenant"}
    made.full_clean()
    made.save()
    assert made.fault is None

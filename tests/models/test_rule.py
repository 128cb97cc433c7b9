"""What an operator can mistype is refused by the form and by the row, and what SQL leaves is not in force."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, OperationalError, transaction

from django_throttle.core import Rule
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidRule
from django_throttle.models import ThrottleOverride, ThrottleRule
from django_throttle.rulebook.sources import from_database
from tests.raw_rows import force, write

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
# What a form asks for, and only it: such a row is in force.
FORM_ALONE = [{"scopes": ("x" * 1001,)}, {"max_delay": None}]


def row(**options: Any) -> ThrottleRule:
    return ThrottleRule.from_state({"name": "rule", **options})


@pytest.mark.row("A49")
@pytest.mark.parametrize(("options", "field"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_it_is_refused_under_the_field_where_it_is_mended_and_never_in_force(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        row(**options).full_clean()
    assert next(iter(caught.value.message_dict)) == field
    assert all(message.strip() for message in caught.value.messages)
    if any(mark.items() <= options.items() for mark in FORM_ALONE):
        return
    with suppress(IntegrityError, DataError, InvalidRule), transaction.atomic():
        ThrottleRule.objects.bulk_create([row(**options)])
        assert from_database().faults
    assert not from_database().rules


@pytest.mark.row("A49")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rate", "5 per minute"), ("rate", "0/min"), ("rate", "5/min,"), ("limit", 0), ("limit", MAX_LIMIT + 1),
        ("name", ""), ("scopes", ""), ("events", ""), ("options", "burst: 5"),
    ],
)  # fmt: skip
def test_sql_that_the_table_refuses(column: str, value: object) -> None:
    row(**RATE).save()
    with pytest.raises((IntegrityError, DataError, OperationalError)), transaction.atomic():
        write(ThrottleRule, **{column: value})


@pytest.mark.row("A49")
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("limit", 7, "give a rate or a limit, not both"), ("rate", "", "it needs a rate"), ("events", "request,", ""),
        ("algorithm", "", "algorithm must be one of"), ("events", "connection", "only a concurrency rule"),
        ("key", "shoe size", "key must be one of"), ("options", "[]", "options must be a dictionary such as"),
        ("options", "3", "options must be a dictionary such as"), ("options", '{"brust": 5}', "did you mean 'burst'?"),
        ("options", '{"cost": "free"}', "cost must be a whole number"), ("options", '{"burst": 3}', "burst belongs to"),
        ("options", '{"warn_at": "80 %"}', "warn_at must be a list"), ("options", '{"methods": ["post "]}', "methods"),
    ],
)  # fmt: skip
def test_what_sql_leaves_is_not_in_force_and_breaks_nothing(column: str, value: object, said: str) -> None:
    row(**RATE).save()
    write(ThrottleRule, **{column: value})
    found = from_database()
    assert said in found.faults.get("rule", "")
    assert bool(found.rules) is not bool(said)
    assert ThrottleRule.objects.get().meaning and ThrottleRule.objects.get().state()["name"] == "rule"


@pytest.mark.row("F58")
@pytest.mark.parametrize("text", ["burst: 5", "[" * 3000 + "]" * 3000], ids=["no JSON", "nested"])
def test_a_row_that_cannot_be_decoded_hides_no_other(text: str) -> None:
    for name in ("rule", "other"):
        row(**RATE, name=name).save()
    force(ThrottleRule, {"name": "rule"}, options=text)
    found = from_database()
    assert list(found.rules) == ["other"] and "options must be a dictionary" in found.faults["rule"]


def test_options_that_the_table_does_not_have_are_not_saved() -> None:
    for options, said in (
        ({"brust": 5}, "there is no option 'brust'; did you mean 'burst'?"),
        ({"cost": "free"}, "cost must be a whole number"),
        ({"limit": 5}, "limit has a column of its own"),
        ([], "options must be a dictionary"),
    ):
        made = ThrottleRule(name="rule", rate="5/min", options=options)
        for save in (made.save, partial(ThrottleRule.objects.update, options=options)):
            with pytest.raises(InvalidRule) as caught:
                save()
            assert said in str(caught.value)
    assert not ThrottleRule.objects.exists()


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
        Rule("exports", limit=2, algorithm="concurrency", action="defer", events=("task",), max_queue=3),
    ],
    ids=lambda rule: rule.name,
)  # fmt: skip
def test_a_rule_survives_the_table_and_fixtures(rule: Rule) -> None:
    row = ThrottleRule.from_rule(rule)
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
        ({"options": {"methods": ["post", "Get", "post"]}}, {"options": {"methods": ["POST", "GET"]}}),
        ({"options": {"count_on": ["5xx", 401]}}, {"options": {"count_on": [401, "5xx"]}}),
        ({"options": {"warn_at": [1, 0.8]}}, {"options": {"warn_at": [0.8, 1.0]}}),
        ({"options": {"cost": 1, "strict": True, "enforce_at": 1, "plans": []}}, {"options": {"strict": True}}),
    ],
    ids=str,
)
def test_what_is_typed_is_stored_in_its_shortest_form(typed: Any, stored: Any) -> None:
    ThrottleRule(name="rule", **{**RATE, **typed}).save()
    saved = ThrottleRule.objects.get(**stored)
    assert {name: getattr(saved, name) for name in stored} == stored
    cleaned = ThrottleRule(name="other", **{**RATE, **typed})
    cleaned.full_clean()
    assert cleaned.as_rule().as_options() == saved.as_rule().as_options()


def test_words_and_choices_need_no_migration() -> None:
    for model in (ThrottleRule, ThrottleOverride):
        for field in model._meta.local_concrete_fields:
            assert field.name == "id" or not {"help_text", "verbose_name", "choices"} & {*field.deconstruct()[3]}


def test_it_says_what_it_means_or_why_it_does_not() -> None:
    assert row(**RATE).meaning == "each user or address: 5 requests per minute"
    assert row(**RATE).fault is None and row(**RATE).as_rule() == Rule("rule", "5/min")
    assert row(**RATE, cost=9).meaning.startswith("Not in force: one call costs 9")
    for limit in (10**15, 10**40):
        with pytest.raises(ValidationError) as caught:
            row(**{**SOCKETS, "limit": limit}).full_clean(validate_unique=False)
        message = f"“Open at once” must be a whole number from 1 to {MAX_LIMIT:,}, not {limit}"
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
    settings.DJANGO_THROTTLE = {}
    made = row(**RATE, **options)
    assert "TENANT" in str(made.fault)
    settings.DJANGO_THROTTLE = {"TENANT": "tenant"}
    made.full_clean()
    made.save()
    assert made.fault is None

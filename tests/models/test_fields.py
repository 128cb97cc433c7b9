"""Fields of a rule: what may be typed in each, how it is stored, and what the database itself refuses."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction

from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.options import Option
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.models import ThrottleOverride, ThrottleRule
from django_throttle.models.fields import stored
from tests.models.test_rule import RATE, WRONG, row
from tests.raw_rows import write


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


# What only the rule as a whole can tell, which no constraint of a column sees.
BEYOND_CONSTRAINTS = (
    {"name": "a\nb"}, {"rate": "5/600w"}, {"rate": "5/month"}, {"rate": "5/min, 6/min"}, {"rate": "20000/day"},
    {"rate": ", ".join(f"5/{n}s" for n in range(1, 12))}, {"timezone": "Mars/Olympus"},
    {"timezone": "UTC", "algorithm": "fixed_window"}, {"cost": 6}, {"burst": MAX_LIMIT}, {"key": "os.abort"},
    {"key": "shoe_size"}, {"cost": 2}, {"count_denied": True}, {"cost": "shop.limits.price"},
    {"audience": ("anonymous",)}, {"warn_at": (0.0,)}, {"warn_at": (1.5,)}, {"rate": f"{MAX_LIMIT}/day"},
    {"rate": "9000/day"}, {"algorithm": "sundial"},
)  # fmt: skip


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
        ("rate", "5 per minute"), ("rate", "0/min"), ("rate", "5/min,"), ("limit", 7), ("cost", 0), ("cost", "free"),
        ("cost", "1.5."), ("burst", 3), ("resolution", 99), ("algorithm", "sun dial"), ("algorithm", ""),
        ("events", "request,"), ("events", "connection"), ("scopes", ""), ("key", "shoe size"), ("refill", "interval"),
        ("timezone", "UTC"), ("max_delay", 1), ("action", "delay"), ("methods", "post"), ("methods", "POST,"),
        ("audience", "nobody"), ("audience", "group: "), ("plans", "group:x 5/min"), ("warn_at", "80 %"),
        ("plans", "group:x = 5/min\n\nstaff = 5/min"), ("count_on", "4xx"), ("count_on", "401, 403"),
        ("warn_at", "1e3"), ("enforce_at", 0), ("enforce_at", 1000),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(("name", "option"), stored(Rule).items())
def test_a_column_is_what_the_table_of_options_says(name: str, option: Option) -> None:
    field = ThrottleRule._meta.get_field(name)
    assert dict(field.choices or ()) == {value: choice.label for value, choice in option.choices.items()}
    assert field.help_text.startswith(option.help) and all(choice.label for choice in option.choices.values())
    assert [one.label for one in option.choices.values() if one.help and one.label not in field.help_text] == []
    assert str(field.verbose_name) == (option.label or name.replace("_", " "))
    if isinstance(field, models.CharField):
        assert field.max_length == option.length
    if option.kind == "whole":
        assert field.null == (option.default is None)
    if name != "name":
        assert ThrottleRule().as_options().get(name) == (option.initial or option.default)


def test_constraints_are_what_the_table_of_options_says() -> None:
    found = {check.name.removeprefix("throttle_"): check for check in ThrottleRule._meta.constraints}
    assert all(check.get_violation_error_message().endswith(".") for check in found.values())
    for name, option in stored(Rule).items():
        if option.choices and not option.shape:
            assert (f"{name}__in", sorted(option.choices)) in found[f"{name}_known"].condition.children
        if option.kind == "whole":
            assert f"('{name}__lte', {option.most})" in str(found[f"{name}_range"].condition)
        if option.shape:
            assert (f"{name}__regex", option.shape) in found[f"{name}_shape"].condition.children
        if option.owners and name not in ("limit", "max_delay"):  # what throttle_rate_or_limit and throttle_delay_… say
            (said,) = [check for key, check in found.items() if key.startswith(f"{name}_of_")]
            lacking = {each for each in ALGORITHMS if f"'{each}'" in str(said.condition)}
            assert lacking == {*ALGORITHMS} - {*option.owners}


def test_words_need_no_migration() -> None:
    """Neither labels, help, choices nor messages are in what Django compares."""
    for model in (ThrottleRule, ThrottleOverride):
        for field in model._meta.local_concrete_fields:
            if field.name != "id":
                assert not {"help_text", "verbose_name", "choices"} & {*field.deconstruct()[3]}
        for check in model._meta.constraints:
            assert {*check.deconstruct()[2]} == {"condition", "name"}

"""What the database refuses by itself, whoever writes the row."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from django_throttle.core.rate import MAX_LIMIT
from django_throttle.models import ThrottleRule
from tests.models.test_rule import RATE, WRONG, row
from tests.raw_rows import write

# What only the rule as a whole can tell, which no constraint of a column sees.
BEYOND_CONSTRAINTS = (
    {"name": "a\nb"}, {"rate": "5/600w"}, {"rate": "5/month"}, {"rate": "5/min, 6/min"}, {"rate": "20000/day"},
    {"rate": ", ".join(f"5/{n}s" for n in range(1, 12))}, {"timezone": "Mars/Olympus"},
    {"timezone": "UTC", "algorithm": "fixed_window"}, {"cost": 6}, {"burst": MAX_LIMIT}, {"key": "os.abort"},
    {"resolution": 6}, {"strict": True}, {"cost": 2}, {"count_denied": True}, {"cost": "shop.limits.price"},
    {"audience": ("anonymous",)}, {"warn_at": (0.0,)}, {"warn_at": (1.5,)}, {"rate": f"{MAX_LIMIT}/day"},
    {"rate": "9000/day"},
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

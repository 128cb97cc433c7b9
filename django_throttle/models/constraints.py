"""What the database itself refuses in the table of rules, whichever way a row gets there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db.models import CheckConstraint, Q

from django_throttle.core.checks import (
    ACTIONS,
    ALGORITHMS,
    BUCKETS,
    EVENTS,
    FAILURE_POLICIES,
    KEYS,
    MAX_RESOLUTION,
    REFILLS,
)
from django_throttle.core.rate import MAX_LIMIT, MAX_WINDOW

EVENTS_SHAPE: Final = "^({0})(,({0}))*$".format("|".join(event for event in EVENTS if event != "connection"))
RATE_SHAPE: Final = "[1-9][0-9]{0,7}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))"


def _check(name: str, condition: Q, message: str) -> CheckConstraint:
    return CheckConstraint(name=f"throttle_{name}", condition=condition, violation_error_message=message)


def _known(field: str, allowed: Iterable[str]) -> CheckConstraint:
    condition = Q(**{f"{field}__in": list(allowed)})
    return _check(f"{field}_known", condition, f"{field} is not one that this version knows.")


def _range(field: str, most: int) -> CheckConstraint:
    return _check(f"{field}_range", _optional(field, 1, most), f"{field} is a whole number from 1 to {most}.")


def _optional(field: str, least: int, most: int) -> Q:
    return Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__gte": least, f"{field}__lte": most})


RULE_CONSTRAINTS: Final = (
    _check("name_not_empty", ~Q(name=""), "A rule needs a name."),
    _check("scopes_not_empty", ~Q(scopes=""), "A rule needs a scope; * is everything."),
    _check(
        "events_known",
        (Q(algorithm="concurrency") & Q(events="connection"))
        | (~Q(algorithm="concurrency") & Q(events__regex=EVENTS_SHAPE)),
        "Choose at least one event; open connections and concurrency belong together, and to nothing else.",
    ),
    _check(
        "rate_shape",
        Q(rate="") | Q(rate__regex=f"^{RATE_SHAPE}(, {RATE_SHAPE})*$"),
        "Write a rate like 100/min, 5/10m, 10/s or 1000/day.",
    ),
    _check(
        "rate_or_limit",
        Q(algorithm="concurrency", rate="", limit__isnull=False)
        | (~Q(algorithm="concurrency") & ~Q(rate="") & Q(limit__isnull=True)),
        "A concurrency rule has a limit, any other a rate; never both.",
    ),
    _check(
        "burst_of_bucket",
        Q(burst__isnull=True) | Q(algorithm__in=list(BUCKETS)),
        "A burst belongs to the buckets.",
    ),
    _check("key_known", Q(key__in=list(KEYS)) | Q(key__contains="."), "Choose who is counted."),
    _check(
        "refill_of_token_bucket",
        Q(refill="continuous") | Q(algorithm="token_bucket"),
        "Refill at intervals belongs to the token bucket.",
    ),
    _check(
        "timezone_of_fixed_window", Q(timezone="") | Q(algorithm="fixed_window"), "A time zone belongs to fixed window."
    ),
    _check(
        "delay_of_leaky_bucket",
        (~Q(action="delay") & Q(max_delay__isnull=True))
        | (
            Q(action="delay", algorithm="leaky_bucket")
            & (Q(max_delay__isnull=True) | Q(max_delay__range=(0, MAX_WINDOW)))
        ),
        f"To delay belongs to the leaky bucket, for 0 to {MAX_WINDOW} seconds.",
    ),
    _known("algorithm", ALGORITHMS),
    _known("action", ACTIONS),
    _known("refill", REFILLS),
    _known("on_store_failure", FAILURE_POLICIES),
    _range("limit", MAX_LIMIT),
    _range("burst", MAX_LIMIT),
    _range("cost", MAX_LIMIT),
    _range("resolution", MAX_RESOLUTION),
)

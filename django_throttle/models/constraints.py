"""Constraints of the tables of rules and overrides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db.models import CheckConstraint, Q

from django_throttle.core.options import (
    ACTIONS,
    ALGORITHMS,
    AT_LIMITS,
    AUDIENCE_KINDS,
    AUDIENCES,
    BUCKETS,
    ESTIMATORS,
    EVENTS,
    FAILURE_POLICIES,
    HELD,
    JOINED,
    KEYS,
    MAX_RESOLUTION,
    MAX_TIMES,
    METHODS,
    REFILLS,
    UNITS,
)
from django_throttle.core.overrides import EFFECTS, KINDS, MAX_FACTOR
from django_throttle.core.rate import MAX_LIMIT, MAX_WINDOW
from django_throttle.models.subjects import TAG_SHAPE

HELD_SHAPE: Final = "^({0})(,({0}))*$".format("|".join(HELD))
EVENTS_SHAPE: Final = "^({0})(,({0}))*$".format("|".join(event for event in EVENTS if event not in HELD))
KEYS_SHAPE: Final = "^({0})([+]({0}))+$".format("|".join(JOINED))
METHODS_SHAPE: Final = "^({0})(,({0}))*$".format("|".join(METHODS))
AUDIENCE_SHAPE: Final = "^({0})(,({0}))*$".format(
    "|".join([*AUDIENCES, *(f"{kind}:[^ ,]([^,]*[^ ,])?" for kind in AUDIENCE_KINDS)])
)
STATUSES_SHAPE: Final = "^[1-5][0-9][0-9](,[1-5][0-9][0-9])*$"
SHARES_SHAPE: Final = "^[0-9]{1,3}([.][0-9]+)?(,[0-9]{1,3}([.][0-9]+)?)*$"
COST_SHAPE: Final = "^([1-9][0-9]{0,14}|[^.,]+([.][^.,]+)+)$"
RATE_SHAPE: Final = "[1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))"


def _check(name: str, condition: Q, message: str) -> CheckConstraint:
    return CheckConstraint(name=f"throttle_{name}", condition=condition, violation_error_message=message)


def _known(field: str, allowed: Iterable[str]) -> CheckConstraint:
    condition = Q(**{f"{field}__in": list(allowed)})
    return _check(f"{field}_known", condition, f"{field} is not one that this version knows.")


def _shape(field: str, shape: str, message: str) -> CheckConstraint:
    return _check(f"{field}_shape", Q(**{field: ""}) | Q(**{f"{field}__regex": shape}), message)


def _range(field: str, most: int) -> CheckConstraint:
    return _check(f"{field}_range", _optional(field, 1, most), f"{field} is a whole number from 1 to {most:,}.")


def _optional(field: str, least: int, most: int) -> Q:
    return Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__gte": least, f"{field}__lte": most})


RULE_CONSTRAINTS: Final = (
    _check("name_not_empty", ~Q(name=""), "A rule needs a name."),
    _check("scopes_not_empty", ~Q(scopes=""), "A rule needs a scope; * is everything."),
    _check(
        "events_known",
        (Q(algorithm="concurrency") & Q(events__regex=HELD_SHAPE))
        | (~Q(algorithm="concurrency") & Q(events__regex=EVENTS_SHAPE)),
        "Choose at least one event; what is open belongs to concurrency, and concurrency to nothing else.",
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
    _check(
        "key_known",
        Q(key__in=list(KEYS)) | Q(key__regex=KEYS_SHAPE) | Q(key__contains="."),
        "Choose who is counted.",
    ),
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
            Q(action__in=["delay", "shadow"], algorithm="leaky_bucket")
            & (Q(max_delay__isnull=True) | Q(max_delay__range=(0, MAX_WINDOW)))
        ),
        f"To delay belongs to the leaky bucket, for 0 to {MAX_WINDOW} seconds.",
    ),
    _shape("methods", METHODS_SHAPE, "Write HTTP methods, such as POST, PUT."),
    _shape(
        "audience", AUDIENCE_SHAPE, "Write whom it is for: anonymous, authenticated, staff, group:NAME, tenant:NAME."
    ),
    _shape("count_on", STATUSES_SHAPE, "Write HTTP statuses, such as 401, 403."),
    _shape("warn_at", SHARES_SHAPE, "Write shares of the limit, such as 80 %, 100 %."),
    _check("cost_shape", Q(cost__regex=COST_SHAPE), "Write a whole number, or the path of a function."),
    _check(
        "http_of_requests",
        Q(methods="", count_on="") | Q(events="request") | Q(events="inflight", count_on=""),
        "Methods and statuses belong to rules of HTTP requests alone.",
    ),
    _check(
        "quota_of_rate",
        Q(warn_at="", enforce_at=1) | ~Q(algorithm="concurrency"),
        "Warnings, and a limit that is enforced later, belong to rates.",
    ),
    _check(
        "enforce_at_range",
        Q(enforce_at=1) | (Q(enforce_at__range=(1, MAX_TIMES)) & ~Q(action="delay")),
        f"Calls are refused at 1 to {MAX_TIMES} times the limit; what is delayed, at the limit itself.",
    ),
    _check(
        "batched_of_fixed_window",
        Q(batched=False) | Q(algorithm="fixed_window", count_denied=False, count_on=""),
        "Only a fixed window can be charged in batches, and only for what has passed.",
    ),
    _check("estimator_of_damper", Q(estimator="fast") | Q(algorithm="damper"), "An estimator belongs to the damper."),
    _check(
        "bytes_of_frames",
        Q(unit="calls") | Q(events__regex="^(request|message|send)(,(request|message|send))*$"),
        "Only requests and messages have bytes that can be counted.",
    ),
    _check(
        "connection_of_frames",
        ~Q(key="connection") | Q(events__regex="^(message|send)(,(message|send))*$"),
        "One WebSocket has a budget of its own for its messages, and for nothing else.",
    ),
    _check(
        "at_limit_of_concurrency",
        Q(at_limit="reject") | Q(algorithm="concurrency", events__contains="connection"),
        "To close one WebSocket for another belongs to concurrency of open WebSockets.",
    ),
    _known("at_limit", AT_LIMITS),
    _known("unit", UNITS),
    _known("estimator", ESTIMATORS),
    _known("algorithm", ALGORITHMS),
    _known("action", ACTIONS),
    _known("refill", REFILLS),
    _known("on_store_failure", FAILURE_POLICIES),
    _range("limit", MAX_LIMIT),
    _range("burst", MAX_LIMIT),
    _range("resolution", MAX_RESOLUTION),
)


ADDRESS_SHAPE: Final = "^[0-9a-f:.]+(/[0-9]{1,3})?$"


def _override_check(name: str, condition: Q, message: str) -> CheckConstraint:
    return CheckConstraint(name=f"throttle_override_{name}", condition=condition, violation_error_message=message)


OVERRIDE_CONSTRAINTS: Final = (
    _override_check("kind_known", Q(kind__in=list(KINDS)), "Choose whom it is for."),
    _override_check("value_not_empty", ~Q(value=""), "Say whom it is for."),
    _override_check(
        "value_address",
        ~Q(kind="ip") | Q(value__regex=ADDRESS_SHAPE),
        "Write an address like 203.0.113.9, or a network like 203.0.113.0/24.",
    ),
    # Never in clear, not even by mistake.
    _override_check(
        "value_hashed", ~Q(kind="api_key") | Q(value__regex=TAG_SHAPE), "An API key is stored as its keyed hash."
    ),
    _override_check("rules_not_empty", ~Q(rules=""), "An override needs a rule; * is every rule."),
    _override_check("effect_known", Q(effect__in=list(EFFECTS)), "Choose what happens."),
    _override_check(
        "factor_of_multiply",
        (~Q(effect="multiply") & Q(factor__isnull=True))
        # Said of NULL, too, or the constraint would not know, and let it through.
        | Q(effect="multiply", factor__isnull=False, factor__gt=0, factor__lte=MAX_FACTOR),
        f"To multiply needs a factor above 0 and of at most {MAX_FACTOR:,}, which nothing else has.",
    ),
    _override_check(
        "limit_of_replace",
        (~Q(effect="replace") & Q(rate="", limit__isnull=True))
        | (Q(effect="replace") & (~Q(rate="") | Q(limit__isnull=False))),
        "To replace needs a rate, a limit or both, which nothing else has.",
    ),
    _override_check(
        "rate_shape",
        Q(rate="") | Q(rate__regex=f"^{RATE_SHAPE}(, {RATE_SHAPE})*$"),
        "Write a rate like 100/min, 5/10m, 10/s or 1000/day.",
    ),
    _override_check(
        "limit_range",
        Q(limit__isnull=True) | Q(limit__gte=1, limit__lte=MAX_LIMIT),
        f"limit is a whole number from 1 to {MAX_LIMIT:,}.",
    ),
    _override_check("reason_given", Q(reason__regex="[^ ]"), "Say why, for whoever reads it next."),
)

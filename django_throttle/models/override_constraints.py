"""What the database itself refuses in the table of overrides, whichever way a row gets there."""

from __future__ import annotations

from typing import Final

from django.db.models import CheckConstraint, Q

from django_throttle.core.override import EFFECTS, KINDS, MAX_FACTOR
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.models.constraints import RATE_SHAPE
from django_throttle.models.subjects import TAG_SHAPE

ADDRESS_SHAPE: Final = "^[0-9a-f:.]+(/[0-9]{1,3})?$"


def _check(name: str, condition: Q, message: str) -> CheckConstraint:
    return CheckConstraint(name=f"throttle_override_{name}", condition=condition, violation_error_message=message)


OVERRIDE_CONSTRAINTS: Final = (
    _check("kind_known", Q(kind__in=list(KINDS)), "Choose whom it is for."),
    _check("value_not_empty", ~Q(value=""), "Say whom it is for."),
    _check(
        "value_address",
        ~Q(kind="ip") | Q(value__regex=ADDRESS_SHAPE),
        "Write an address like 203.0.113.9, or a network like 203.0.113.0/24.",
    ),
    # Never in clear, not even by mistake.
    _check("value_hashed", ~Q(kind="api_key") | Q(value__regex=TAG_SHAPE), "An API key is stored as its keyed hash."),
    _check("rules_not_empty", ~Q(rules=""), "An override needs a rule; * is every rule."),
    _check("effect_known", Q(effect__in=list(EFFECTS)), "Choose what happens."),
    _check(
        "factor_of_multiply",
        (~Q(effect="multiply") & Q(factor__isnull=True))
        # Said of NULL, too, or the constraint would not know, and let it through.
        | Q(effect="multiply", factor__isnull=False, factor__gt=0, factor__lte=MAX_FACTOR),
        f"To multiply needs a factor above 0 and of at most {MAX_FACTOR:,}, which nothing else has.",
    ),
    _check(
        "limit_of_replace",
        (~Q(effect="replace") & Q(rate="", limit__isnull=True))
        | (Q(effect="replace") & (~Q(rate="") | Q(limit__isnull=False))),
        "To replace needs a rate, a limit or both, which nothing else has.",
    ),
    _check(
        "rate_shape",
        Q(rate="") | Q(rate__regex=f"^{RATE_SHAPE}(, {RATE_SHAPE})*$"),
        "Write a rate like 100/min, 5/10m, 10/s or 1000/day.",
    ),
    _check(
        "limit_range",
        Q(limit__isnull=True) | Q(limit__gte=1, limit__lte=MAX_LIMIT),
        f"limit is a whole number from 1 to {MAX_LIMIT:,}.",
    ),
    _check("reason_given", Q(reason__regex="[^ ]"), "Say why, for whoever reads it next."),
)

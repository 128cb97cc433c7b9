"""The columns and constraints of the table of rules, made from the table of options."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, Final

from django.db import models
from django.db.models import BaseConstraint, CheckConstraint, Q

from django_throttle.core.options import (
    BUCKETS,
    EVENTS,
    HELD,
    RATE_SHAPE,
    RATE_WANTED,
    Option,
    Options,
    table,
)
from django_throttle.core.rate import MAX_WINDOW
from django_throttle.models.fields import (
    Column,
    CostField,
    MethodsField,
    NamesField,
    NumberColumn,
    RatesField,
    SharesField,
    SmallWholeColumn,
    StatusesField,
    SwitchColumn,
    TextColumn,
    WholeColumn,
)

# The class of the column that stores an option of each kind; several rates are stored in that of one.
COLUMNS: Final[dict[str, type[Column]]] = {
    "name": TextColumn,
    "switch": SwitchColumn,
    "choice": TextColumn,
    "whole": WholeColumn,
    "number": NumberColumn,
    "rate": RatesField,
    "zone": TextColumn,
    "cost": CostField,
    "key": TextColumn,
    "names": NamesField,
    "events": NamesField,
    "methods": MethodsField,
    "audience": NamesField,
    "shares": SharesField,
    "statuses": StatusesField,
}
SMALL: Final = 32_767


def stored(of: type[Options]) -> dict[str, Option]:
    """The options that have a column of their own."""
    return {name: row for name, row in table(of).items() if row.kind in COLUMNS}


def add_columns(model: type[models.Model], of: type[Options]) -> None:
    """Give the model a column for each option."""
    for name, row in stored(of).items():
        model.add_to_class(name, column(row))


def column(row: Option) -> Column:
    """The column of one option."""
    kind = COLUMNS[row.kind]
    if kind is WholeColumn and row.most <= SMALL:
        kind = SmallWholeColumn
    given: dict[str, Any] = {"verbose_name": row.label or None, "help_text": row.full_help}
    if issubclass(kind, models.CharField):
        given["max_length"] = row.length
    if row.choices:
        given["choices"] = [(value, choice.label) for value, choice in row.choices.items()]
    if row.kind == "name":
        return kind(**given, unique=True)
    default = row.default if row.initial is None else row.initial
    if default is None and not issubclass(kind, models.CharField):
        return kind(**given, null=True, blank=True)
    default = "" if default is None else default
    return kind(**given, default=default, blank=default in ("", ()))


class Check(CheckConstraint):
    """A constraint of which migrations record no message, so that words change without one."""

    def __init__(self, name: str, condition: Q, says: str) -> None:
        super().__init__(name=name, condition=condition)
        self.says = says

    def get_violation_error_message(self) -> str:
        return self.says

    def clone(self) -> Check:
        return copy(self)

    def deconstruct(self) -> Any:
        _, args, kwargs = super().deconstruct()
        return "django.db.models.CheckConstraint", args, kwargs


def shape(prefix: str, field: str, pattern: str, wanted: str) -> Check:
    """The field's text is empty, or matches."""
    return Check(f"{prefix}_{field}_shape", Q(**{field: ""}) | Q(**{f"{field}__regex": pattern}), f"Write {wanted}.")


def whole(prefix: str, field: str, least: float, most: float) -> Check:
    """The field is empty, or in range."""
    condition = Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__gte": least, f"{field}__lte": most})
    return Check(f"{prefix}_{field}_range", condition, f"{field} is a whole number from {least:,} to {most:,}.")


def rate_shape(prefix: str) -> Check:
    """The field ``rate`` is empty, or has rates."""
    return shape(prefix, "rate", RATE_SHAPE, RATE_WANTED)


PREFIX: Final = "throttle"
# Of an option that is not at its default, what else must be so.
ALSO: Final = {
    "batched": Q(count_denied=False, count_on=""),
    "at_limit": Q(events__contains="connection"),
    "enforce_at": ~Q(action="delay"),
}


def rule_constraints(of: type[Options]) -> list[BaseConstraint]:
    """The constraints of each option, and of those that must fit together."""
    return [*TOGETHER, *(check for row in stored(of).values() for check in _of_option(row))]


def _of_option(row: Option) -> Iterator[Check]:
    name = row.name
    default = Q(**{name: "" if row.default in (None, ()) else row.default})
    if row.kind == "choice":
        known = ", ".join(row.choices)
        yield Check(f"{PREFIX}_{name}_known", Q(**{f"{name}__in": sorted(row.choices)}), f"{name} is one of {known}.")
    if row.kind == "whole":
        yield whole(PREFIX, name, row.least, row.most)
        default = default if row.default is not None else Q(**{f"{name}__isnull": True})
    if row.kind == "cost":
        yield Check(f"{PREFIX}_{name}_shape", Q(**{f"{name}__regex": row.shape}), f"Write {row.wanted}.")
    elif row.shape:
        yield shape(PREFIX, name, row.shape, row.wanted)
    if row.kind == "number" and row.default is not None:
        within = Q(**{f"{name}__range": (row.least, row.most)}) & ALSO.get(name, Q())
        yield Check(f"{PREFIX}_{name}_range", default | within, f"{name} is from {row.least} to {row.most}.")
    if row.owners and name not in ("limit", "max_delay"):  # of which more is said below
        family = "bucket" if row.owners == BUCKETS else row.owners[0]
        taken = Q(algorithm__in=list(row.owners)) if len(row.owners) > 1 else Q(algorithm=row.owners[0])
        condition = default | (taken & ALSO.get(name, Q()))
        yield Check(f"{PREFIX}_{name}_of_{family}", condition, f"{row.refuse('')}.")


HELD_SHAPE: Final = "^({0})(,({0}))*$".format("|".join(HELD))
EVENTS_SHAPE: Final = "^({0})(,({0}))*$".format("|".join(event for event in EVENTS if event not in HELD))
# Which keys there are is the rule's to know; a key of another version is stored, and not in force.
KEY_SHAPE: Final = "^[a-z][a-z0-9_]*([+][a-z][a-z0-9_]*)*$"
CONCURRENCY: Final = Q(algorithm="concurrency")
TOGETHER: Final = (
    Check("throttle_name_not_empty", ~Q(name=""), "A rule needs a name."),
    Check("throttle_scopes_not_empty", ~Q(scopes=""), "A rule needs a scope; * is everything."),
    Check(
        "throttle_events_known",
        (CONCURRENCY & Q(events__regex=HELD_SHAPE)) | (~CONCURRENCY & Q(events__regex=EVENTS_SHAPE)),
        "Choose at least one event; what is open belongs to concurrency, and concurrency to nothing else.",
    ),
    Check(
        "throttle_rate_or_limit",
        Q(algorithm="concurrency", rate="", limit__isnull=False) | (~CONCURRENCY & ~Q(rate="") & Q(limit__isnull=True)),
        "A concurrency rule has a limit, any other a rate; never both.",
    ),
    Check("throttle_key_known", Q(key__regex=KEY_SHAPE) | Q(key__contains="."), "Choose who is counted."),
    Check(
        "throttle_delay_of_leaky_bucket",
        (~Q(action="delay") & Q(max_delay__isnull=True))
        | (
            Q(action__in=["delay", "shadow"], algorithm="leaky_bucket")
            & (Q(max_delay__isnull=True) | Q(max_delay__range=(0, MAX_WINDOW)))
        ),
        f"To delay belongs to the leaky bucket, for 0 to {MAX_WINDOW} seconds.",
    ),
    Check(
        "throttle_http_of_requests",
        Q(methods="", count_on="") | Q(events="request") | Q(events="inflight", count_on=""),
        "Methods and statuses belong to rules of HTTP requests alone.",
    ),
    Check(
        "throttle_quota_of_rate",
        Q(warn_at="", enforce_at=1) | ~CONCURRENCY,
        "Warnings, and a limit that is enforced later, belong to rates.",
    ),
    Check(
        "throttle_bytes_of_frames",
        Q(unit="calls") | Q(events__regex="^(request|message|send)(,(request|message|send))*$"),
        "Only requests and messages have bytes that can be counted.",
    ),
    Check(
        "throttle_connection_of_frames",
        ~Q(key="connection") | Q(events__regex="^(message|send)(,(message|send))*$"),
        "One WebSocket has a budget of its own for its messages, and for nothing else.",
    ),
)

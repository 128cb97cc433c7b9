"""Columns of the models: texts, numbers and lists, how they are typed, and those made from the table of options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, ClassVar, Final

from django import forms
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BaseConstraint, CheckConstraint, Q
from django.utils.functional import lazy
from django.utils.text import format_lazy
from django.utils.translation import gettext, gettext_lazy

from django_throttle.core import Rate, texts
from django_throttle.core.options import EVENTS, HELD, RATE_SHAPE, RATE_WANTED, Option, Options, table
from django_throttle.core.plans import read_plan
from django_throttle.core.rate import MAX_WINDOW
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.translated import capitalised, translated


def split(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names in a comma separated text (or any iterable), each once, without the spaces around them."""
    if isinstance(names, str):
        return _split(names)
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


@lru_cache(maxsize=4096)
def _split(names: str) -> tuple[str, ...]:
    return split(names.split(","))


def tidy_rates(text: str) -> str:
    """The rates as this package writes them, whatever spaces and capitals were typed; raises InvalidRate."""
    found = [(typed, text if typed.isdecimal() else typed) for typed in split(text)]  # 0,5/min is one text
    rates = (Rate.parse("".join(typed.split()).lower(), calendar=True, typed=told) for typed, told in found)
    return ", ".join(dict.fromkeys(map(str, rates)))


def is_text(given: str) -> bool:
    """True for text that databases, files and terminals take: without NUL and surrogates."""
    return "\x00" not in given and not any("\ud800" <= letter <= "\udfff" for letter in given)


class Column(models.Field):  # type: ignore[type-arg]
    """A column of which migrations record nothing that is only read: label, help and choices may change without one."""

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """Recorded as the class of Django's that it is made of, unless it has a ``description`` of its own."""
        name, path, args, kwargs = super().deconstruct()
        kept = {key: value for key, value in kwargs.items() if key not in ("verbose_name", "help_text", "choices")}
        if "description" not in vars(type(self)):
            django = next(one for one in type(self).__mro__ if one.__module__.startswith("django.db.models"))
            path = f"django.db.models.{django.__name__}"
        return name, path, args, kept


class TextColumn(Column, models.CharField):  # type: ignore[type-arg]
    """A short text."""


class NoteColumn(Column, models.TextField):  # type: ignore[type-arg]
    """A long text."""


class SwitchColumn(Column, models.BooleanField):  # type: ignore[type-arg]
    """True or False."""


class MomentColumn(Column, models.DateTimeField):  # type: ignore[type-arg]
    """A moment."""


class Unbounded(Column):
    """A whole number whose bounds are the rule's and the constraint's, so that one message says what is wrong."""

    validators = []

    def formfield(self, **options: Any) -> forms.Field | None:
        return super().formfield(**{"min_value": None, "max_value": None, **options})


class WholeColumn(Unbounded, models.PositiveBigIntegerField):  # type: ignore[type-arg]
    """A whole number of any rule."""


class SmallWholeColumn(Unbounded, models.PositiveSmallIntegerField):  # type: ignore[type-arg]
    """A whole number that fits two bytes."""


class RatesField(Column, models.CharField):  # type: ignore[type-arg]
    """One rate or several as text, in its shortest form: "100 / Minute,1000/day" is stored as "100/min, 1000/day"."""

    description = "Rates"

    def to_python(self, value: object) -> str | None:
        text: str | None = super().to_python(value)
        if not text:
            return text
        try:
            return tidy_rates(text)
        except InvalidRate as error:
            raise ValidationError(capitalised(translated(error)), code="invalid") from error

    def get_prep_value(self, value: object) -> str | None:
        text: str | None = super(models.CharField, self).get_prep_value(value)
        try:
            return tidy_rates(str(text)) if text else text
        except InvalidRate:
            return str(text)  # the table's constraint refuses it


class NumberColumn(Column, models.FloatField):  # type: ignore[type-arg]
    """A number; infinity and NaN are refused here, as the driver of MariaDB cannot ask the database's constraint."""

    default_error_messages = {"invalid": gettext_lazy("Write a number, with a point and no comma: 0.5.")}

    def formfield(self, **options: Any) -> forms.Field | None:
        return super().formfield(**{"error_messages": self.default_error_messages, **options})

    def to_python(self, value: object) -> float | None:
        number: float | None = super().to_python(value)
        if number is not None and not isfinite(number):
            raise ValidationError(gettext("“{value}” is not a finite number.").format(value=value), code="invalid")
        return number

    def get_db_prep_save(self, value: object, connection: BaseDatabaseWrapper) -> object:
        number = super().get_db_prep_save(value, connection)
        if isinstance(number, float) and not isfinite(number):
            raise IntegrityError(f"{self.name} must be a finite number, not {number}")
        return number


class ReadField(Column, models.CharField):  # type: ignore[type-arg]
    """A column of text; in Python what ``read`` makes of that. A form has what ``typed`` makes of its text."""

    def read(self, value: Any) -> object:
        """What a row holds, of a text or of what it holds."""
        raise NotImplementedError

    def typed(self, value: object) -> object:
        return self.read(value)

    def shown(self, value: object) -> object:
        """As a form shows it."""
        return value

    def from_db_value(self, value: str, *_: object) -> object:
        return self.read(value)

    def to_python(self, value: object) -> object:
        return self.read(value)

    def get_prep_value(self, value: object) -> str:
        return str(value)

    def run_validators(self, value: object) -> None:
        super().run_validators(self.get_prep_value(value))

    def formfield(self, **options: Any) -> forms.Field | None:
        return super().formfield(**{"form_class": ReadInput, "column": self, **options})


class ReadInput(forms.CharField):
    """The form field of such a column."""

    def __init__(self, *, column: ReadField, **options: Any) -> None:
        super().__init__(**options)
        self.column = column

    def to_python(self, value: object) -> Any:  # not a text, as Django's field has
        return self.column.typed(value if isinstance(value, (list, tuple)) else super().to_python(value))

    def prepare_value(self, value: object) -> object:
        return self.column.shown(value)

    def run_validators(self, value: object) -> None:
        super().run_validators(self.column.get_prep_value(value))


class NamesField(ReadField):
    """A list of names, stored as comma separated text; in Python a tuple."""

    description = "List of names"

    def read(self, value: Any) -> tuple[object, ...]:
        """The names in a text or a list."""
        return split(value or ())

    def shown(self, value: object) -> object:
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value

    def get_prep_value(self, value: object) -> str:
        return ",".join(map(str, self.read(value)))

    def value_to_string(self, obj: models.Model) -> str:
        return str(self.get_prep_value(self.value_from_object(obj)))


class PlansField(NamesField):
    """Plans of a rule, a line each."""

    description = "List of plans"

    def read(self, value: Any) -> tuple[str, ...]:
        lines = value.splitlines() if isinstance(value, str) else value or ()
        return tuple(line.strip() for line in map(str, lines) if line.strip())

    def typed(self, value: object) -> tuple[str, ...]:
        """As a rule has them, whatever spaces were typed."""
        lines = self.read(value)
        try:
            return tuple(str(read_plan(line)) for line in lines)
        except InvalidRule as error:
            raise ValidationError(capitalised(translated(error)), code="invalid") from error

    def shown(self, value: object) -> object:
        return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else value

    def get_prep_value(self, value: object) -> str:
        return "\n".join(self.read(value))

    def formfield(self, **options: Any) -> forms.Field | None:
        return super().formfield(**{**options, "widget": forms.Textarea(attrs={"rows": 3})})


# A larger share was meant as a percentage: 80 is 80 %, not eighty times the limit.
SURELY_PERCENT = 10


class MethodsField(NamesField):
    """HTTP methods, in capitals."""

    description = "List of HTTP methods"

    def read(self, value: Any) -> tuple[str, ...]:
        return split(name.upper() for name in split(value or ()))


class SortedField(NamesField):
    """A list, sorted; a text that is not of the ``kind`` stays one, which a rule refuses."""

    kind: ClassVar[Callable[[str], Any]]
    order: ClassVar[Callable[[Any], Any] | None] = None  # by what it is sorted, where that is not the value

    def read(self, value: Any) -> tuple[object, ...]:
        found = split(map(str, value) if isinstance(value, (list, tuple)) else value or ())
        try:
            return tuple(sorted(set(map(type(self).kind, found)), key=type(self).order))
        except (ValueError, OverflowError):
            return found


class SharesField(SortedField):
    """Shares of a limit: 0.8 is stored, 80 % may be typed."""

    description = "List of shares"
    kind = float

    def typed(self, value: Any) -> tuple[float, ...]:
        return tuple(sorted(set(map(_share, split(value or ())))))

    def shown(self, value: object) -> object:
        if not isinstance(value, (list, tuple)):
            return value
        return ", ".join(f"{_plain(share, 100)} %" if isinstance(share, float) else str(share) for share in value)

    def get_prep_value(self, value: object) -> str:
        return ",".join(map(_plain, self.read(value)))


def _status(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


class StatusesField(SortedField):
    """HTTP statuses, and classes of them."""

    description = "List of HTTP statuses"
    kind = _status
    order = str


class ResultsField(SortedField):
    """How requests ended: HTTP statuses, classes of them, "cancelled"."""

    description = "List of results"
    kind = str


class CostField(ReadField):
    """A whole number, or the path of a function, as text; in Python a number or a text."""

    description = "Cost"

    def read(self, value: object) -> object:
        text = str(value).strip()
        return int(text) if text.isdecimal() and len(text) < 20 else value


def _share(typed: str) -> float:
    number = typed.removesuffix("%").strip()
    try:
        found = Decimal(number) / (100 if typed != number else 1)
        is_percent = typed == number and found > SURELY_PERCENT
        if not found:  # 0,8 is 0 and 8
            raise ArithmeticError
    except ArithmeticError:  # not a number, or none that can be compared
        said = gettext("{typed!r} is not a share of the limit: write 80 %, or 0.8 with a point").format(typed=typed)
        raise ValidationError(said, code="invalid") from None
    if is_percent:
        said = gettext("{typed!r} is {number} times the limit; did you mean {number} %?")
        raise ValidationError(said.format(typed=typed, number=number), code="invalid")
    return float(found)


def _plain(number: object, times: int = 1) -> str:
    """The number multiplied, without an exponent and trailing zeros."""
    if not isinstance(number, float):
        return str(number)
    text = format(Decimal(repr(number)) * times, "f")
    return text.rstrip("0").removesuffix(".") if "." in text else text


# The class of the column that stores an option of each kind; several rates are stored in that of one.
COLUMNS: Final[dict[str, type[Column]]] = {
    "name": TextColumn,
    "switch": SwitchColumn,
    "choice": TextColumn,
    "whole": WholeColumn,
    "number": NumberColumn,
    "rate": RatesField,
    "zone": TextColumn,
    "reserve": CostField,
    "path": TextColumn,
    "cost": CostField,
    "key": TextColumn,
    "names": NamesField,
    "scopes": NamesField,
    "events": NamesField,
    "methods": MethodsField,
    "audience": NamesField,
    "plans": PlansField,
    "shares": SharesField,
    "statuses": StatusesField,
    "results": ResultsField,
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
    given: dict[str, Any] = {
        "verbose_name": gettext_lazy(row.label or row.name.replace("_", " ")),
        "help_text": lazy(translated, str)(row.full_help()),
    }
    if issubclass(kind, models.CharField):
        given["max_length"] = row.length
    if row.choices:
        given["choices"] = lambda: [(value, gettext(choice.label)) for value, choice in row.choices.items()]
    if row.kind == "name":
        return kind(**given, unique=True)
    default = row.default if row.initial is None else row.initial
    if default is None and not issubclass(kind, models.CharField):
        return kind(**given, null=True, blank=True)
    default = "" if default is None else default
    return kind(**given, default=default, blank=default in ("", ()))


class Check(CheckConstraint):
    """A constraint of which migrations record no message, so that words change without one."""

    def __init__(self, name: str, condition: Q, says: object) -> None:
        super().__init__(name=name, condition=condition)
        self.says = says

    def get_violation_error_message(self) -> str:
        return capitalised(translated(self.says))

    def clone(self) -> Check:
        return copy(self)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        _, args, kwargs = super().deconstruct()
        return "django.db.models.CheckConstraint", args, kwargs


def whole(prefix: str, field: str, least: float, most: float, label: str = "") -> Check:
    """The field is empty, or in range."""
    condition = Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__gte": least, f"{field}__lte": most})
    says = format_lazy(
        gettext_lazy("{field} must be a whole number from {least} to {most}."),
        field=gettext_lazy(label or field),
        least=f"{least:,}",
        most=f"{most:,}",
    )
    return Check(f"{prefix}_{field}_range", condition, says)


def rate_shape(prefix: str) -> Check:
    """The field ``rate`` is empty, or has rates."""
    return Check(f"{prefix}_rate_shape", Q(rate="") | Q(rate__regex=RATE_SHAPE), _write(RATE_WANTED))


def _write(wanted: str) -> str:
    return texts.gettext_lazy("Write {wanted}.", wanted=texts.gettext_lazy(wanted))


PREFIX: Final = "throttle"
# Whose options the database knows. What another algorithm takes is the rule's to know, so a new one needs no migration.
FIRST_ALGORITHMS: Final = (
    "concurrency", "damper", "fixed_window", "gcra", "leaky_bucket", "sliding_log", "sliding_window", "token_bucket",
)  # fmt: skip
# Of an option that is not at its default, what else must be so.
ALSO: Final = {"at_limit": Q(events__contains="connection"), "enforce_at": ~Q(action__in=["delay", "defer"])}


def rule_constraints(of: type[Options]) -> list[BaseConstraint]:
    """The constraints of each option, and of those that must fit together."""
    return [*TOGETHER, *(check for row in stored(of).values() for check in _of_option(row))]


def _of_option(row: Option) -> Iterator[Check]:
    name, label = row.name, row.label or row.name.replace("_", " ")
    default = Q(**{name: "" if row.default in (None, (), "") else row.default})
    if row.kind == "choice" and not row.shape:
        told: dict[str, object] = {"name": texts.gettext_lazy(label), "known": ", ".join(row.choices)}
        wanted = texts.gettext_lazy("{name} must be one of {known}.", **told)
        yield Check(f"{PREFIX}_{name}_known", Q(**{f"{name}__in": sorted(row.choices)}), wanted)
    if row.kind == "whole":
        yield whole(PREFIX, name, row.least, row.most, label)
        default = default if row.default is not None else Q(**{f"{name}__isnull": True})
    if row.shape:
        shaped = (default if row.default in (None, (), "") else Q()) | Q(**{f"{name}__regex": row.shape})
        yield Check(f"{PREFIX}_{name}_shape", shaped, _write(row.wanted))
    if row.kind == "number" and row.default is not None:
        within = Q(**{f"{name}__range": (row.least, row.most)}) & ALSO.get(name, Q())
        told = {"name": gettext_lazy(label), "least": row.least, "most": row.most}
        says = format_lazy(gettext_lazy("{name} is from {least} to {most}."), **told)
        yield Check(f"{PREFIX}_{name}_range", default | within, says)
    takers = [algorithm for algorithm in FIRST_ALGORITHMS if row.takes(algorithm)]
    if row.owners and takers and name not in ("limit", "max_delay"):  # of which more is said below
        family = "bucket" if len(takers) > 1 else takers[0]
        condition = default | (_not_lacking(row) & ALSO.get(name, Q()))
        yield Check(
            f"{PREFIX}_{name}_of_{family}", condition, texts.gettext_lazy("{fault}.", fault=row.refuse("").fault)
        )


def _not_lacking(row: Option) -> Q:
    return ~Q(algorithm__in=[name for name in FIRST_ALGORITHMS if not row.takes(name)])


HELD_SHAPE: Final = "^({0})(,({0}))*$".format("|".join((*HELD, "task")))
EVENTS_SHAPE: Final = "^({0})(,({0}))*$".format("|".join(event for event in EVENTS if event not in HELD))
# Which keys there are is the rule's to know; a key of another version is stored, and not in force.
KEY_SHAPE: Final = "^[a-z][a-z0-9_]*([+][a-z][a-z0-9_]*)*$"
CONCURRENCY: Final = Q(algorithm="concurrency")
TOGETHER: Final = (
    Check("throttle_name_not_empty", ~Q(name=""), gettext_lazy("A rule needs a name.")),
    Check("throttle_scopes_not_empty", ~Q(scopes=""), gettext_lazy("A rule needs a scope; * is everything.")),
    Check(
        "throttle_events_known",
        (CONCURRENCY & Q(events__regex=HELD_SHAPE)) | (~CONCURRENCY & Q(events__regex=EVENTS_SHAPE)),
        gettext_lazy(
            "Choose at least one event; what is open belongs to concurrency, and concurrency to nothing else."
        ),
    ),
    Check(
        "throttle_rate_or_limit",
        Q(algorithm="concurrency", rate="", limit__isnull=False) | (~CONCURRENCY & ~Q(rate="") & Q(limit__isnull=True)),
        gettext_lazy("A concurrency rule has a limit, any other a rate; never both."),
    ),
    Check("throttle_key_known", Q(key__regex=KEY_SHAPE) | Q(key__contains="."), gettext_lazy("Choose who is counted.")),
    Check(
        "throttle_delay_of_leaky_bucket",
        (~Q(action__in=["defer", "delay"]) & Q(max_delay__isnull=True))
        | (CONCURRENCY & Q(action="defer", max_delay__isnull=True))
        | (
            Q(action__in=["defer", "delay", "shadow"])
            & _not_lacking(table(Options)["max_delay"])
            & (Q(max_delay__isnull=True) | Q(max_delay__range=(0, MAX_WINDOW)))
        ),
        format_lazy(gettext_lazy("Only a leaky bucket can delay calls, for 0 to {most} seconds."), most=MAX_WINDOW),
    ),
    Check(
        "throttle_http_of_requests",
        Q(methods="", count_on="", refund_on="")
        | Q(events="request")
        | Q(events="inflight", count_on="", refund_on=""),
        gettext_lazy("Methods and statuses belong to rules of HTTP requests alone."),
    ),
    Check(
        "throttle_quota_of_rate",
        Q(warn_at="", enforce_at=1) | ~CONCURRENCY,
        gettext_lazy("Warnings, and a limit that is enforced later, belong to rates."),
    ),
    Check(
        "throttle_bytes_of_frames",
        ~Q(unit="bytes") | Q(events__regex="^(request|message|send)(,(request|message|send))*$"),
        gettext_lazy("Only requests and messages have bytes that can be counted."),
    ),
    Check(
        "throttle_connection_of_frames",
        ~Q(key="connection") | Q(events__regex="^(message|send)(,(message|send))*$"),
        gettext_lazy("One WebSocket has a budget of its own for its messages, and for nothing else."),
    ),
)

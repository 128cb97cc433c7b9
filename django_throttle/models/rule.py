"""Model of rules, and the base class of models whose rows the core validates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar, Final, Self, TypeVar

from django.core.exceptions import ValidationError
from django.db import models, router, transaction
from django.db.models import Q
from django.utils.translation import gettext, gettext_lazy

from django_throttle import rulebook
from django_throttle.core import Rule, texts
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.descriptions import describe
from django_throttle.core.edits import counts_in_words
from django_throttle.core.options import MAX_NAME_LENGTH, as_json, table
from django_throttle.core.texts import relabelled
from django_throttle.exceptions import InvalidOverride, InvalidRate, InvalidRule
from django_throttle.models.fields import (
    MomentColumn,
    NamesField,
    NoteColumn,
    OptionsField,
    RatesField,
    SwitchColumn,
    TextColumn,
    WholeColumn,
    constraints,
    is_text,
    split,
)
from django_throttle.rulebook import current_rules
from django_throttle.rulebook.history import edits
from django_throttle.rulebook.sources import check_allowed, fault_of
from django_throttle.translated import capitalised, translated

M = TypeVar("M", bound="CheckedRow")


class AnnouncedQuerySet(models.QuerySet[M]):
    """Queryset that announces and records bulk edits, which send no signals."""

    def update(self, **values: object) -> int:
        with edits.recording_update(self):
            changed = super().update(**values)
        current_rules.announce(using=self.db)
        return changed

    def bulk_create(self, objs: Iterable[M], *args: Any, **options: Any) -> list[M]:
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **options)
            edits.record_created(created, self.db)
        current_rules.announce(using=self.db)
        return created


class CheckedRow(models.Model):
    """Row with a description, or with the reason why it is not in force."""

    class Meta:
        abstract = True

    history_kind: ClassVar[str]
    before_save: Self | None  #: the row in the table, while this one is saved
    read: Callable[..., object]  #: Returns the core's value. Raises InvalidRule, InvalidOverride or InvalidRate.
    describe: Callable[..., str]  #: returns the description of a valid row

    @property
    def history_name(self) -> str:
        """Name in the history, equal in every language."""
        return str(self)

    @property
    def fault(self) -> str | None:
        """Reason why this row is not in force, or None if it is valid."""
        try:
            self.read()
        except (InvalidRule, InvalidOverride, InvalidRate) as error:
            return fault_of(error)
        return None

    @property
    def meaning(self) -> str:
        """Description of the row, or the reason why it is not in force."""
        fault = self.fault
        return texts.translatable("Not in force: {why}", why=fault) if fault else self.describe()

    def save_base(self, *args: Any, **options: Any) -> None:
        """Save the row and, by a signal, the line of the history in one transaction."""
        with transaction.atomic(using=options.get("using") or router.db_for_write(type(self), instance=self)):
            super().save_base(*args, **options)

    def full_clean(self, *args: Any, **options: Any) -> None:
        """Validate with one message for each field. A second message would repeat or contradict it."""
        try:
            super().full_clean(*args, **options)
        except ValidationError as error:
            raise ValidationError({name: errors[:1] for name, errors in error.error_dict.items()}) from error

    def validate_constraints(self, exclude: Collection[str] | None = None) -> None:
        """Do nothing, because ``clean`` refuses the same rows with better messages and without a query."""

    def clean_row(self) -> None:
        """Validate a row whose values come from the table and not from a form."""
        self.full_clean()

    @classmethod
    def labels(cls) -> dict[str, str]:
        """Return the labels of the fields of a form, by name."""
        return {field.name: str(field.verbose_name) for field in cls._meta.concrete_fields}

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> Self:
        """Return an unsaved row with this state."""
        row = cls()
        row.restore(state)
        return row

    def state(self) -> dict[str, object]:
        """Return the columns that differ from their defaults, as in JSON."""
        state = {}
        for field in self._edited_fields():
            value = field.value_from_object(self)
            with suppress(ValidationError):  # an invalid value stays as it is
                value = field.to_python(value)
            if value != field.get_default():
                state[field.name] = value.isoformat() if isinstance(value, datetime) else as_json(value)
        return state

    def restore(self, state: Mapping[str, object]) -> None:
        """Set the columns to a result of ``state``. Invalid values stay as they are, and ``clean`` refuses them."""
        for field in self._edited_fields():
            value = state[field.name] if field.name in state else field.get_default()
            with suppress(ValidationError):
                value = field.to_python(value)
            setattr(self, field.attname, value)

    @classmethod
    def _edited_fields(cls) -> list[models.Field[Any, Any]]:
        """Return all columns except the primary key and the columns that Django sets."""
        fields = cls._meta.concrete_fields
        return [field for field in fields if not field.primary_key and field.name not in AUTOMATIC_COLUMNS]

    def clean(self) -> None:
        """Refuse invalid options, and texts with NUL characters or surrogates, which databases do not store."""
        texts = {name: value if isinstance(value, list) else [value] for name, value in self.state().items()}
        invalid = [name for name, parts in texts.items() if not all(is_text(str(part)) for part in parts)]
        if invalid:
            fault = gettext("A text must not contain NUL characters or surrogates.")
            raise ValidationError(dict.fromkeys(invalid, fault))
        try:
            self.read()
        except (InvalidRule, InvalidOverride, InvalidRate) as error:
            option = "rate" if isinstance(error, InvalidRate) else error.option or "algorithm"
            label = gettext("“{label}”").format(label=capitalised(self.labels().get(option, option)))
            fault = translated(relabelled(fault_of(error), option, label))
            raise ValidationError({option: capitalised(fault)}) from error


# Columns that Django sets on each save. They differ without an edit.
AUTOMATIC_COLUMNS: Final = frozenset(("updated_at", "created_at"))


class ThrottleRule(CheckedRow):
    """Rule in the database. It replaces the rule of the same name in settings.

    The common options are columns. ``options`` holds the others by name, as in settings:
    ``ThrottleRule(name="api", rate="5/min", options={"burst": 20})``. Options at their default are not stored. Saving
    raises InvalidRule for an option that does not exist or has an invalid value.
    """

    history_kind = "rule"
    core: ClassVar[type[Rule]] = Rule

    name = TextColumn(gettext_lazy("name"), max_length=MAX_NAME_LENGTH, unique=True)
    enabled = SwitchColumn(gettext_lazy("enabled"), default=True)
    rate = RatesField(gettext_lazy("rate"), max_length=300, blank=True, default="")
    limit = WholeColumn(gettext_lazy("limit"), null=True, blank=True)
    algorithm = TextColumn(
        gettext_lazy("algorithm"),
        max_length=100,
        default="sliding_window",
        choices=lambda: [(name, gettext(algorithm.label)) for name, algorithm in ALGORITHMS.items()],
    )
    key = TextColumn(gettext_lazy("Count by"), max_length=200, default="user_or_ip")
    scopes = NamesField(gettext_lazy("scopes"), max_length=1000, default=("*",))
    events = NamesField(gettext_lazy("events"), max_length=300, default=("request",))
    options = OptionsField(gettext_lazy("options"), default=dict, blank=True)
    description = NoteColumn(
        gettext_lazy("description"),
        blank=True,
        help_text=gettext_lazy("Why this rule exists, for whoever reads it next."),
    )
    updated_at = MomentColumn(gettext_lazy("last edited"), auto_now=True)

    objects = AnnouncedQuerySet["ThrottleRule"].as_manager()

    class Meta:
        verbose_name = gettext_lazy("rule")
        verbose_name_plural = gettext_lazy("rules")
        ordering = ("name",)
        constraints = constraints(
            "throttle", name_not_empty=~Q(name=""), scopes_not_empty=~Q(scopes=""), events_not_empty=~Q(events="")
        )

    def __str__(self) -> str:
        return str(self.name)

    @classmethod
    def columns(cls) -> set[str]:
        """Return the names of the columns. All other options are in ``options``."""
        return {field.name for field in cls._meta.concrete_fields}

    @classmethod
    def labels(cls) -> dict[str, str]:
        return {**super().labels(), **{name: gettext(option.title) for name, option in table(cls.core).items()}}

    @classmethod
    def from_rule(cls, rule: Rule) -> Self:
        """Return an unsaved row for this rule."""
        state = {**rule.as_options(), "name": rule.name, "events": rule.events}
        state.pop("rates", None)
        return cls.from_state({**state, "rate": ", ".join(map(str, rule.all_rates))})

    def state(self) -> dict[str, object]:
        """Return the options, and the columns that differ from their defaults, as in JSON."""
        state = super().state()
        state.pop("options", None)
        return {**state, **{name: as_json(value) for name, value in self.own_options.items()}}

    def restore(self, state: Mapping[str, object]) -> None:
        super().restore(state)
        names = table(self.core).keys() - self.columns()  # without options that no longer exist
        self.options = {name: value for name, value in state.items() if name in names}

    @property
    def own_options(self) -> dict[str, object]:
        """Options without a column. Empty if the column holds something else than an object."""
        return self.options if isinstance(self.options, dict) else {}

    def as_rule(self) -> Rule:
        """Return the core rule. Raise InvalidRule or InvalidRate if the row is not valid."""
        options = self.options
        if isinstance(options, dict):
            rates = split(self.rate)
            amount = {"rates": rates} if len(rates) > 1 else {"rate": rates[0] if rates else None}
            columns = {name: getattr(self, name) for name in ("enabled", "limit", "algorithm", "key")}
            lists = {name: split(getattr(self, name) or ()) for name in ("scopes", "events")}
            options = {**options, **columns, **lists, **amount}
        return check_allowed(self.core.from_options(self.name, options))

    read = as_rule

    def describe(self) -> str:
        return describe(self.as_rule())

    def counts_after(self) -> str:
        """Return what happens to the counts of the current rule of this name, in words. Make no query."""
        snapshot = rulebook.loaded()
        before = None if snapshot is None else snapshot.by_name(self.name)
        return "" if before is None else counts_in_words(before, self.as_rule())

    def clean(self) -> None:
        super().clean()
        if self.options.get("action") == "delay" and self.options.get("max_delay") is None:
            fault = gettext("A call that is delayed keeps its worker waiting: say for how long.")
            raise ValidationError({"max_delay": fault})

"""The model of rules, and what its rows have in common with those of overrides.

Each row is read by the core, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from django.core.exceptions import ValidationError
from django.db import models, router, transaction
from django.utils.translation import gettext, gettext_lazy

from django_throttle import rulebook
from django_throttle.core import Rule, texts
from django_throttle.core.descriptions import describe
from django_throttle.core.edits import counts_in_words
from django_throttle.core.plans import read_plan
from django_throttle.core.texts import relabelled
from django_throttle.exceptions import InvalidOverride, InvalidRate, InvalidRule
from django_throttle.models.fields import (
    MomentColumn,
    NamesField,
    NoteColumn,
    add_columns,
    is_text,
    rule_constraints,
    split,
    stored,
)
from django_throttle.models.subjects import missing_group
from django_throttle.rulebook import current_rules
from django_throttle.rulebook.history import edits
from django_throttle.rulebook.sources import check_allowed, sentence
from django_throttle.translated import capitalised, translated

M = TypeVar("M", bound="CheckedRow")


class AnnouncedQuerySet(models.QuerySet[M]):
    """Edits in bulk send no signals, so they are announced, and told to the history, here."""

    def update(self, **values: Any) -> int:
        with edits.updating(self):
            changed = super().update(**values)
        current_rules.announce(using=self.db)
        return changed

    def bulk_create(self, objs: Iterable[M], *args: Any, **options: Any) -> list[M]:
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **options)
            edits.tell_created(created, self.db)
        current_rules.announce(using=self.db)
        return created


class CheckedRow(models.Model):
    """A row that says what it means, or why it is not in force.

    ``read`` returns the core's value; it raises InvalidRule, InvalidOverride or InvalidRate. ``describe`` says in words
    what a row that makes sense means.
    """

    class Meta:
        abstract = True

    history_kind: ClassVar[str]
    before_save: Self | None  #: the row in the table, while this one is saved
    read: Callable[..., object]
    describe: Callable[..., str]

    @property
    def history_name(self) -> str:
        """What the history calls it, in every language alike."""
        return str(self)

    @property
    def fault(self) -> str | None:
        """Why this row is not in force; None when it makes sense."""
        try:
            self.read()
        except (InvalidRule, InvalidOverride, InvalidRate) as error:
            return sentence(error)
        return None

    @property
    def meaning(self) -> str:
        """What it means, in words; why it is not in force when it is invalid."""
        fault = self.fault
        return texts.gettext_lazy("Not in force: {why}", why=fault) if fault else self.describe()

    def save_base(self, *args: Any, **options: Any) -> None:
        """As Django's, in one transaction with the history's line, which is written by a signal."""
        with transaction.atomic(using=options.get("using") or router.db_for_write(type(self), instance=self)):
            super().save_base(*args, **options)

    def full_clean(self, *args: Any, **options: Any) -> None:
        """As Django's, with one message for each field: the second would say the same, or contradict it."""
        try:
            super().full_clean(*args, **options)
        except ValidationError as error:
            raise ValidationError({name: found[:1] for name, found in error.error_dict.items()}) from error

    def clean_row(self) -> None:
        """As ``full_clean``, of what was in the table before: nothing in it was typed."""
        self.full_clean()

    def clean(self) -> None:
        """Refuse texts with NUL characters or surrogates, which databases do not store, and invalid options."""
        texts = (one for one in self._meta.concrete_fields if isinstance(one, (models.CharField, models.TextField)))
        wrong = [one.name for one in texts if not is_text(str(one.get_prep_value(one.value_from_object(self))))]
        if wrong:
            said = gettext("A text must not contain NUL characters or surrogates.")
            raise ValidationError(dict.fromkeys(wrong, said))
        try:
            self.read()
        except (InvalidRule, InvalidOverride, InvalidRate) as error:
            option = "rate" if isinstance(error, InvalidRate) else error.option or "algorithm"
            labels = {one.name: str(one.verbose_name) for one in self._meta.fields}
            label = gettext("“{label}”").format(label=capitalised(labels.get(option, option)))
            fault = translated(relabelled(sentence(error), option, label))
            raise ValidationError({option: capitalised(fault)}) from error


class RuleRow(CheckedRow):
    """A row of a table of rules; its model has a column for each option of ``core``."""

    history_kind = "rule"
    core: ClassVar[type[Rule]] = Rule

    description = NoteColumn(
        gettext_lazy("description"),
        blank=True,
        help_text=gettext_lazy("Why this rule exists, for whoever reads it next."),
    )
    updated_at = MomentColumn(gettext_lazy("last edited"), auto_now=True)

    class Meta:
        abstract = True

    if TYPE_CHECKING:

        def __getattr__(self, option: str) -> Any: ...

    def __str__(self) -> str:
        return str(self.name)

    @classmethod
    def of(cls, rule: Rule) -> Self:
        """The row, not saved, that describes this rule."""
        values = {option: getattr(rule, option) for option in stored(cls.core)}
        values["rate"] = ", ".join(map(str, rule.all_rates))
        values["limit"] = rule.limit if rule.holds_slots else None
        values["timezone"] = rule.timezone or ""
        return cls(**values)

    def as_options(self) -> dict[str, object]:
        """The options as Rule.from_options takes them."""
        found = {option: getattr(self, option) for option in stored(self.core) if option not in ("name", "rate")}
        rates = split(self.rate)
        found |= {"rates": rates} if len(rates) > 1 else {"rate": rates[0] if rates else None}
        fields = (field for field in self._meta.concrete_fields if isinstance(field, NamesField))
        lists = {field.name: field.read(getattr(self, field.name)) for field in fields}
        return {**found, **lists, "timezone": self.timezone or None}

    def counts_after(self) -> str:
        """What becomes of what was used under the rule of this name in force; empty where nothing does. No query."""
        snapshot = rulebook.loaded()
        before = None if snapshot is None else snapshot.by_name(self.name)
        return "" if before is None else counts_in_words(before, self.as_rule())

    def missing_groups(self) -> Iterator[str]:
        """A sentence for each group of its audience or plans that is not there."""
        for entry in (*self.audience, *(read_plan(line).who for line in self.plans)):
            kind, _, name = entry.partition(":")
            if kind == "group" and (warning := missing_group(name)):
                yield warning

    def as_rule(self) -> Rule:
        """The core rule that this row describes; raises InvalidRule or InvalidRate."""
        return check_allowed(self.core.from_options(self.name, self.as_options()))

    read = as_rule

    def describe(self) -> str:
        return describe(self.as_rule())

    def clean(self) -> None:
        super().clean()
        if self.action == "delay" and self.max_delay is None:
            said = gettext("A call that is delayed keeps its worker waiting: say for how long.")
            raise ValidationError({"max_delay": said})


class ThrottleRule(RuleRow):
    """One rule of the rulebook; it replaces the rule of the same name in settings."""

    objects = AnnouncedQuerySet["ThrottleRule"].as_manager()

    class Meta:
        verbose_name = gettext_lazy("rule")
        verbose_name_plural = gettext_lazy("rules")
        ordering = ("name",)
        constraints = rule_constraints(Rule)


add_columns(ThrottleRule, Rule)

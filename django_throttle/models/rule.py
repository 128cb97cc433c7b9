"""The model of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.core.exceptions import ValidationError

from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.models.columns import add_columns, rule_constraints, stored
from django_throttle.models.fields import MomentColumn, NamesField, NoteColumn, split
from django_throttle.models.row import AnnouncedQuerySet, CheckedRow
from django_throttle.rulebook.sources import check_allowed


class RuleRow(CheckedRow):
    """A row of a table of rules; its model has a column for each option of ``core``."""

    core: ClassVar[type[Rule]] = Rule

    description = NoteColumn(blank=True, help_text="Why this rule exists, for whoever reads it next.")
    updated_at = MomentColumn("last edited", auto_now=True)

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
        values["limit"] = rule.limit if rule.is_concurrency else None
        values["timezone"] = rule.timezone or ""
        return cls(**values)

    def as_options(self) -> dict[str, Any]:
        """The options as Rule.from_options takes them."""
        found = {option: getattr(self, option) for option in stored(self.core) if option not in ("name", "rate")}
        rates = split(self.rate)
        found |= {"rates": rates} if len(rates) > 1 else {"rate": rates[0] if rates else None}
        fields = (field for field in self._meta.concrete_fields if isinstance(field, NamesField))
        lists = {field.name: field.read(getattr(self, field.name)) for field in fields}
        return {**found, **lists, "timezone": self.timezone or None}

    def as_rule(self) -> Rule:
        """The core rule that this row describes; raises InvalidRule or InvalidRate."""
        return check_allowed(self.core.from_options(self.name, self.as_options()))

    def read(self) -> Rule:
        return self.as_rule()

    def describe(self) -> str:
        return describe(self.as_rule())

    def clean(self) -> None:
        super().clean()
        if self.action == "delay" and self.max_delay is None:
            raise ValidationError({"max_delay": "A call that is delayed keeps its worker waiting: say for how long."})


class ThrottleRule(RuleRow):
    """One rule of the rulebook; it replaces the rule of the same name in settings."""

    objects = AnnouncedQuerySet["ThrottleRule"].as_manager()

    class Meta:
        verbose_name = "rule"
        ordering = ("name",)
        constraints = rule_constraints(Rule)


add_columns(ThrottleRule, Rule)

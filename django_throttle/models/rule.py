"""Rules that operators edit: each row is a core Rule, checked by it and by the database."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError

from django_throttle.core import Rule
from django_throttle.core.rule import OPTIONS
from django_throttle.core.words import describe
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.models.announced import AnnouncedQuerySet
from django_throttle.models.columns import RuleColumns
from django_throttle.models.constraints import RULE_CONSTRAINTS
from django_throttle.models.fields import NamesField, check_texts, is_tidy, split
from django_throttle.rulebook.allowed import check_allowed
from django_throttle.rulebook.sources import sentence


class ThrottleRule(RuleColumns):
    """One rule of the rulebook; it replaces the rule of the same name in settings."""

    objects = AnnouncedQuerySet["ThrottleRule"].as_manager()

    class Meta:
        verbose_name = "rule"
        ordering = ("name",)
        constraints = RULE_CONSTRAINTS

    def __str__(self) -> str:
        return self.name

    def as_options(self) -> dict[str, Any]:
        """The options as Rule.from_options takes them."""
        found = {option: getattr(self, option) for option in OPTIONS if option not in ("rate", "rates")}
        rates = split(self.rate)
        found |= {"rates": rates} if len(rates) > 1 else {"rate": rates[0] if rates else None}
        fields = (field for field in self._meta.concrete_fields if isinstance(field, NamesField))
        lists = {field.name: field.read(getattr(self, field.name)) for field in fields}
        return {**found, **lists, "timezone": self.timezone or None}

    def as_rule(self) -> Rule:
        """The core rule that this row describes; raises InvalidRule or InvalidRate."""
        return check_allowed(Rule.from_options(self.name, self.as_options()))

    @property
    def fault(self) -> str | None:
        """Why this row is not in force; None when it makes sense."""
        try:
            self.as_rule()
        except (InvalidRule, InvalidRate) as error:
            return sentence(self.name, error)
        return None

    @property
    def meaning(self) -> str:
        """What the rule means, in words; why it is not in force when it makes no sense."""
        fault = self.fault
        return f"Not in force: {fault}" if fault else describe(self.as_rule())

    def clean(self) -> None:
        check_texts(self)
        try:
            self.as_rule()
        except InvalidRate as error:
            if is_tidy(self.rate):  # else the rate's field says so itself
                raise ValidationError({"rate": str(error)}) from error
        except InvalidRule as error:
            raise ValidationError({error.option or "algorithm": sentence(self.name, error)}) from error
        if self.action == "delay" and self.max_delay is None:
            raise ValidationError({"max_delay": "A call that is delayed keeps its worker waiting: say for how long."})

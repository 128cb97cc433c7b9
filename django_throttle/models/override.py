"""Relief by hand: what an operator puts in the place of rules for one caller, and until when."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, Self

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from django_throttle.core import Override, Rate
from django_throttle.core.overrides import EVERY_RULE, MAX_SUBJECT, describe_effect
from django_throttle.exceptions import InvalidOverride, InvalidRate
from django_throttle.models.constraints import OVERRIDE_CONSTRAINTS
from django_throttle.models.fields import FiniteFloatField, NamesField, RatesField, check_texts, is_tidy, split
from django_throttle.models.rule import AnnouncedQuerySet
from django_throttle.models.subjects import HASHED, subject_of, tidy_subject

KIND_LABELS: Final = (
    ("user", "User"),
    ("ip", "Address or network"),
    ("group", "Group"),
    ("api_key", "API key"),
    ("tenant", "Tenant"),
)
EFFECT_LABELS: Final = (
    ("multiply", "Multiply the limit"),
    ("replace", "Replace the limit"),
    ("exempt", "Exempt"),
    ("block", "Block"),
)


LAST_YEAR: Final = 9998  # what comes later has no local time everywhere
SHOWN: Final = 8  # characters of a hash, enough to tell two apart


class OverrideQuerySet(AnnouncedQuerySet["ThrottleOverride"]):
    """Overrides by whether they are in force."""

    def in_force(self, now: datetime | None = None) -> OverrideQuerySet:
        """Those whose moment has not come."""
        return self.filter(models.Q(until__isnull=True) | models.Q(until__gt=now or timezone.now()))

    def expired(self, now: datetime | None = None) -> OverrideQuerySet:
        """Those whose moment has come: kept to be read, or made to last again."""
        return self.filter(until__lte=now or timezone.now())


class ThrottleOverride(models.Model):
    """One override; it ends by itself, and stays to be read."""

    kind = models.CharField(
        "subject",
        max_length=20,
        choices=KIND_LABELS,
        default="user",
        help_text="Whom it is for. Where several overrides speak of one call, the most specific holds: API key before "
        "user, then address, network (the smaller first), tenant, group.",
    )
    value = models.CharField(
        "who",
        max_length=MAX_SUBJECT,
        help_text="User: an id, a name or an e-mail address. Address: 203.0.113.9 or 2001:db8::1, which stands for its "
        "network of 64 bits; or a network, 203.0.113.0/24. Group and tenant: the name. API key: the key itself, of "
        "which only a hash is stored.",
    )
    rules = NamesField(
        max_length=1000,
        default=(EVERY_RULE,),
        help_text="The names of rules, with commas in between. * stands for any text, so * alone is every rule.",
    )
    effect = models.CharField(
        max_length=20,
        choices=EFFECT_LABELS,
        default="multiply",
        help_text="Multiply: the rules hold with another limit, and what was used counts on. Replace: with the rate or "
        "limit below. Exempt: the rules do not hold; what is open counts all the same. Block: every call that the "
        "rules cover is refused. Among overrides for the same subject, block goes before replace, multiply and "
        "exempt, and a later one before an earlier one.",
    )
    factor = FiniteFloatField(
        null=True, blank=True, help_text="To multiply: 2 doubles the limit, 0.5 halves it. At least one call stays."
    )
    rate = RatesField(
        max_length=300,
        blank=True,
        default="",
        help_text="To replace the limit of rules of rates: 500/min, or several with commas in between. A window that "
        "the rule does not have starts to count afresh.",
    )
    limit = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="To replace the limit of concurrency rules: how many may be open at once."
    )
    until = models.DateTimeField(
        null=True, blank=True, help_text="When it ends by itself. Empty: it holds until somebody ends it."
    )
    reason = models.TextField(help_text="Why, for whoever reads it next. Clients never see it.")
    created_by = models.CharField("made by", max_length=150, blank=True, editable=False, help_text="Who made it.")
    created_at = models.DateTimeField("made", auto_now_add=True, help_text="When it was made.")

    objects = OverrideQuerySet.as_manager()
    _stored: tuple[str, str] | None = None

    class Meta:
        verbose_name = "override"
        ordering = ("-created_at", "-pk")
        constraints = OVERRIDE_CONSTRAINTS
        indexes = (models.Index(fields=("until",), name="throttle_override_until"),)

    def __str__(self) -> str:
        if self.kind == "ip":
            return f"{'Network' if '/' in self.value else 'Address'} {self.value}"
        shown = self.value.removeprefix(HASHED)[:SHOWN] + "…" if self.kind == "api_key" else self.value
        return f"{self.get_kind_display()} {shown}"

    def as_override(self) -> Override:
        """The core override that this row describes; raises InvalidOverride or InvalidRate."""
        return Override(
            subject=subject_of(self.kind, self.value),
            effect=self.effect,
            rules=split(self.rules),
            factor=self.factor,
            rates=tuple(Rate.parse(rate, calendar=True) for rate in split(self.rate)),
            limit=self.limit,
            until=self.until.timestamp() if self.until else None,
            number=self.pk or 0,
        )

    @property
    def fault(self) -> str | None:
        """Why this row is not in force although its time has not come; None when it makes sense."""
        try:
            self.as_override()
        except (InvalidOverride, InvalidRate) as error:
            return str(error)
        return None

    @property
    def meaning(self) -> str:
        """What it does, in words; why it is not in force when it makes no sense."""
        fault = self.fault
        return f"Not in force: {fault}" if fault else describe_effect(self.as_override())

    def lasts(self, now: datetime | None = None) -> bool:
        """True until its moment has come."""
        return self.until is None or self.until > (now or timezone.now())

    @classmethod
    def from_db(
        cls, db: str | None, field_names: Collection[str], values: Collection[Any], **options: Any
    ) -> Self:  # Django 6.1 has an option
        row = super().from_db(db, field_names, values, **options)
        if {"kind", "value"} <= set(field_names):
            row._stored = (row.kind, row.value)
        return row

    def clean_fields(self, exclude: Any = None) -> None:
        """Also find whom it is for, and store that in its one notation; what is stored already is not asked again."""
        super().clean_fields(exclude=exclude)
        if {"kind", "value"} & set(exclude or ()) or (self.kind, self.value) == self._stored:
            return
        try:
            self.value = tidy_subject(self.kind, self.value)
        except ValidationError as error:
            raise ValidationError({"value": error}) from error

    def clean(self) -> None:
        check_texts(self)
        if self.until is not None and self.until.year > LAST_YEAR:
            raise ValidationError({"until": f"Until {LAST_YEAR} at the latest; leave it empty for no end."})
        if not self.reason.strip():
            raise ValidationError({"reason": "Say why, for whoever reads it next."})
        try:
            self.as_override()
        except InvalidOverride as error:
            if error.option != "value":  # else the field says so itself
                raise ValidationError({error.option: str(error)}) from error
        except InvalidRate as error:
            if is_tidy(self.rate):  # else the rate's field says so itself
                raise ValidationError({"rate": str(error)}) from error

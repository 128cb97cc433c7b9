"""Model of candidates: edited rules that count beside their live rules until they are promoted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Self

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, router, transaction
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy

from django_throttle import rulebook
from django_throttle.core.descriptions import describe
from django_throttle.core.overrides import Candidate, candidate_name
from django_throttle.local.shared_clock import shared_now
from django_throttle.models.fields import MomentColumn, NumberColumn, TextColumn
from django_throttle.models.rule import AnnouncedQuerySet, CheckedRow, ThrottleRule
from django_throttle.rulebook import history
from django_throttle.rulebook.history.edits import lock_rows
from django_throttle.rulebook.sources import alias, read_rows, split_faults
from django_throttle.stores import get_store

HOUR: Final = timedelta(hours=1)


class ThrottleCandidate(CheckedRow):
    """Candidate for a rule. ``options`` has the values of its rule that differ from their defaults."""

    history_kind = "candidate"

    name = TextColumn(gettext_lazy("rule"), max_length=88, unique=True, editable=False)
    options = models.JSONField(editable=False)
    share = NumberColumn(
        gettext_lazy("enforced for"),
        default=0.0,
        help_text=gettext_lazy(
            "The share of idents for which it refuses already, in place of the live rule: 0.1 is 10 %. At 0 it "
            "only counts. The same idents stay in it as it grows."
        ),
    )
    starts_at = MomentColumn(
        gettext_lazy("replaces the rule at"),
        null=True,
        blank=True,
        help_text=gettext_lazy("It is promoted at this time by itself. Empty: never."),
    )
    created_by = TextColumn(gettext_lazy("made by"), max_length=150, blank=True, editable=False)
    created_at = MomentColumn(gettext_lazy("made"), auto_now_add=True)

    objects = AnnouncedQuerySet["ThrottleCandidate"].as_manager()

    class Meta:
        verbose_name = gettext_lazy("candidate")
        verbose_name_plural = gettext_lazy("candidates")
        ordering = ("name",)

    def __str__(self) -> str:
        return str(self.name)

    @classmethod
    def from_row(cls, row: ThrottleRule, name: str, author: str) -> Self:
        """Return an unsaved candidate for the rule ``name`` with the values of ``row``."""
        return cls(name=name, options={**row.state(), "name": name}, created_by=author[:150])

    def as_row(self) -> ThrottleRule:
        """Return the candidate's rule as an unsaved row."""
        state = self.options if isinstance(self.options, dict) else {}
        return ThrottleRule.from_state({**state, "name": self.name})

    def as_candidate(self) -> Candidate:
        """Return the core candidate. Raise InvalidRule or InvalidRate if the rule is not valid."""
        starts_at = self.starts_at.timestamp() if self.starts_at else None
        return Candidate.of(self.name, self.as_row().as_rule(), self.share, starts_at)

    read = as_candidate

    def as_json(self) -> dict[str, object]:
        """Return the values that the command prints."""
        starts_at = self.starts_at.isoformat() if self.starts_at else None
        return {"name": self.name, "candidate": self.meaning, "share": self.share or 0.0, "starts_at": starts_at}

    def describe(self) -> str:
        return describe(self.as_row().as_rule())

    @property
    def since(self) -> datetime:
        """Start of the comparison with the live rule: an hour ago, or when the candidate was made."""
        created_at: datetime = self.created_at
        return max(timezone.now() - HOUR, created_at)

    def clean(self) -> None:
        if not 0 <= (self.share or 0) <= 1:
            raise ValidationError({"share": gettext("A share is from 0 to 1: 0.1 is 10 %.")})
        live = ThrottleRule.objects.filter(name=self.name).first()
        if self.share and live is not None and live.key != self.as_row().key:
            raise ValidationError({"share": gettext("In steps only where it counts by the same key as the live rule.")})
        super().clean()

    def adds_rule(self) -> bool:
        """Return True if the live rule is not in the database, so that promoting adds a row."""
        return not ThrottleRule.objects.filter(name=self.name).exists()

    def promote(self, *, may_add: bool = True) -> ThrottleRule:
        """Replace the live rule by the candidate as stored, and return the row.

        Raise ValidationError if the candidate is not valid, or with the ``code`` "gone" if it does not exist any more.
        Raise PermissionDenied if the live rule is not in the database, unless ``may_add``.
        """
        using = router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using), history.because("", action="promoted"):
            candidate = lock_rows(type(self)._base_manager.using(using).filter(pk=self.pk)).first()
            if candidate is None:
                raise ValidationError(gettext("The candidate was promoted or discarded meanwhile."), code="gone")
            row = candidate.as_row()
            live = lock_rows(ThrottleRule.objects.using(using).filter(name=self.name)).first()
            if live is None and not may_add:
                raise PermissionDenied
            row.pk, row._state.adding = live.pk if live else None, live is None
            row.full_clean()
            row.save(using=using)
            candidate.delete(using=using)
        return row

    @classmethod
    def promote_due(cls, using: str) -> None:
        """Promote due candidates. Remove the start time of candidates that are not valid."""
        # The clock is the same for all hosts: Redis', else the database's.
        now = shared_now() if get_store().is_remote else Now()
        rows = cls._base_manager.using(using).filter(starts_at__lte=now)
        if not rows.exists():
            return
        with transaction.atomic(using=using), history.editing("its start time", "schedule"):
            for candidate in lock_rows(rows):
                try:
                    candidate.promote()
                except ValidationError:
                    candidate.starts_at = None
                    candidate.save(using=using)


class ThrottleOverview(ThrottleRule):
    """Entry of the page of rules at work in the admin's index."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = verbose_name_plural = gettext_lazy("Rules at work")


class Candidates(rulebook.RuleSource):
    """Source of the candidates in the database."""

    name = "candidates"

    def read(self, before: rulebook.SourceRules) -> rulebook.SourceRules:
        rows = read_rows(ThrottleCandidate.objects.using(alias()).all(), "as_candidate", before.rows[0])
        if rows == before.rows[0]:
            return before
        candidates, faults = split_faults(rows)
        faults_by_name = {candidate_name(name): fault for name, fault in faults.items()}
        return rulebook.SourceRules({}, faults_by_name, rows=(rows, {}), candidates=tuple(candidates.values()))

    def promote_due(self) -> None:
        ThrottleCandidate.promote_due(alias())

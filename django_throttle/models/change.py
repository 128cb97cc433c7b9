"""The model of the history: what was edited, by whom, when and why."""

from __future__ import annotations

from typing import Any, Final

from django.db import models
from django.utils.translation import gettext_lazy

from django_throttle.models.fields import MomentColumn, NoteColumn, TextColumn, WholeColumn

KINDS: Final = (
    ("rule", gettext_lazy("Rule")),
    ("override", gettext_lazy("Override")),
    ("candidate", gettext_lazy("Candidate")),
    ("settings", gettext_lazy("Settings")),
)


class ThrottleChange(models.Model):
    """One edit of a rule or an override, or new rules in settings; it is written once and never edited.

    ``before`` and ``after`` are the columns of the row that differ from their defaults, or None where there was no row.
    """

    at = MomentColumn(gettext_lazy("when"), auto_now_add=True, db_index=True)
    kind = TextColumn(gettext_lazy("kind"), max_length=20, choices=KINDS)
    name = TextColumn(gettext_lazy("name"), max_length=200, blank=True, db_index=True)
    row = WholeColumn(gettext_lazy("number"), null=True, blank=True)
    action = TextColumn(gettext_lazy("what"), max_length=30)
    words = NoteColumn(gettext_lazy("in words"))
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    who = TextColumn(gettext_lazy("who"), max_length=150, blank=True)
    via = TextColumn(gettext_lazy("where"), max_length=30, blank=True)
    reason = NoteColumn(gettext_lazy("why"), blank=True)
    once = TextColumn(max_length=200, null=True, blank=True, unique=True, editable=False)

    class Meta:
        verbose_name = gettext_lazy("change")
        verbose_name_plural = gettext_lazy("history")
        ordering = ("-pk",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.kind.capitalize()} {self.name} {self.action}".replace("  ", " ")

    def as_json(self) -> dict[str, Any]:
        """Every column, by the names that the log command prints."""
        named = ("kind", "name", "row", "action", "words", "before", "after", "who", "via", "reason")
        return {"id": self.pk, "at": self.at.isoformat(), **{name: getattr(self, name) for name in named}}

    @property
    def by(self) -> str:
        """Who edited it and where, as "ada (admin)"; settings are both."""
        who = self.who or "somebody"
        return f"{who} ({self.via})" if self.via not in ("", "settings") else who

    def sentence(self) -> str:
        """The line as a log has it."""
        words, why = " ".join(self.words.split()), " ".join(self.reason.split())
        return f"{self.pk}  {self.at:%Y-%m-%d %H:%M:%S}  {self.by}: {self}: {words}{f' – {why}' if why else ''}"

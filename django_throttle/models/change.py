"""Model of a line of the history."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext, gettext_lazy, gettext_noop

from django_throttle.models.fields import MomentColumn, NoteColumn, TextColumn, WholeColumn
from django_throttle.translated import to_the_second

KINDS: Final = (
    ("rule", gettext_lazy("Rule")),
    ("override", gettext_lazy("Override")),
    ("candidate", gettext_lazy("Candidate")),
    ("settings", gettext_lazy("Settings")),
)
ACTIONS: Final = tuple((name, gettext_lazy(name)) for name in (
    gettext_noop("added"), gettext_noop("changed"), gettext_noop("removed"), gettext_noop("reverted"),
    gettext_noop("promoted"), gettext_noop("discarded"), gettext_noop("ran out"),
))  # fmt: skip
PLACES: Final = (
    ("admin", gettext_lazy("admin")),
    ("command", gettext_lazy("command")),
    ("import", gettext_lazy("import")),
    ("schedule", gettext_lazy("its start time")),
    ("settings", gettext_lazy("settings")),
)


class ThrottleChange(models.Model):
    """Edit of a rule or an override, or new rules in settings. A line is never edited itself.

    ``before`` and ``after`` are the columns of the row that differ from their defaults, or None without a row.
    """

    at = MomentColumn(gettext_lazy("when"), auto_now_add=True, db_index=True)
    kind = TextColumn(gettext_lazy("kind"), max_length=20, choices=KINDS)
    name = TextColumn(gettext_lazy("name"), max_length=200, blank=True, db_index=True)
    row = WholeColumn(gettext_lazy("number"), null=True, blank=True)
    action = TextColumn(gettext_lazy("what"), max_length=30, choices=ACTIONS)
    words = NoteColumn(gettext_lazy("in words"))
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    who = TextColumn(gettext_lazy("who"), max_length=150, blank=True)
    via = TextColumn(gettext_lazy("where"), max_length=30, blank=True, choices=PLACES)
    reason = NoteColumn(gettext_lazy("why"), blank=True)
    once = TextColumn(max_length=200, null=True, blank=True, unique=True, editable=False)

    class Meta:
        verbose_name = gettext_lazy("change")
        verbose_name_plural = gettext_lazy("changes")
        ordering = ("-pk",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.name} {self.get_action_display()}".replace("  ", " ")

    def as_json(self) -> dict[str, object]:
        """Return every column, by the names that the log command prints."""
        names = ("kind", "name", "row", "action", "words", "before", "after", "who", "via", "reason")
        return {"id": self.pk, "at": self.at.isoformat(), **{name: getattr(self, name) for name in names}}

    @property
    def author(self) -> str:
        """Person and place, as "ada (admin)". For settings, a start time and an end time, only the place."""
        if self.action == "ran out":
            return gettext("its end time")
        who, where = self.who or gettext("somebody"), self.get_via_display()
        return str(where) if self.via in ("schedule", "settings") else f"{who} ({where})" if where else who

    def sentence(self) -> str:
        """Return the line as a line of a log."""
        words, why = " ".join(self.words.split()), " ".join(self.reason.split())
        return f"{self.pk}  {to_the_second(self.at)}  {self.author}: {self}: {words}{f' – {why}' if why else ''}"

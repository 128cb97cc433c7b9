"""The admin's pages of candidates: the list, the comparison with the live rule, promote and discard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_POST

from django_throttle.admin.page import RulePermissionsAdmin
from django_throttle.admin.rules import ListAdmin, RowForm, reason_field
from django_throttle.console.models import ThrottleCandidate
from django_throttle.console.recording.read import compare_candidate
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.local.shared_clock import shared_now
from django_throttle.models import ThrottleRule
from django_throttle.rulebook import history
from django_throttle.stores import get_store
from django_throttle.translated import joined, ngettext, translated, written

MAX_AFFECTED = 10
AFFECTED_CALLERS = "<p>{}</p><ul>{}</ul>"
MINUTES, WIDTH, HEIGHT = 60, 480, 64  # of the picture
BAR = '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>'
PICTURE = """<figure><svg class="candidate-picture" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>
<figcaption>{}</figcaption></figure>"""
CAPTION = gettext_lazy(
    'Refusals by minute, {most} at most: <span class="live">the live rule</span>, '
    '<span class="candidate">the candidate</span>, each as it would by itself'
)


class CandidateForm(RowForm):
    """Form of the share for which a candidate refuses, and of the time of its promotion."""

    edit_reason = reason_field()

    class Meta:
        model = ThrottleCandidate
        fields = ("share", "starts_at")

    may_add = True  # whoever edits may add rules

    def clean_starts_at(self) -> datetime | None:
        moment: datetime | None = self.cleaned_data["starts_at"]
        if moment and "starts_at" in self.changed_data and not self.may_add and self.instance.adds_rule():
            raise ValidationError(gettext("It would be added to the rules, and you may not add rules."))
        return moment


def picture(points: Sequence[tuple[datetime, int, int]], now: datetime) -> SafeString:
    """Return a bar chart of the calls that both rules would have refused in each minute of the last hour."""
    most, width = max([max(live, own) for _, live, own in points], default=0), WIDTH / MINUTES
    last = int(now.timestamp()) // 60
    bars = []
    for at, *counts in points:
        left = (MINUTES - 1 - last + int(at.timestamp()) // 60) * width
        for place, (name, count) in enumerate(zip(("live", "candidate"), counts, strict=True)):
            if count and left >= 0:
                height, x = HEIGHT * count / most, left + place * width * 0.45
                bars.append((name, f"{x:.2f}", f"{HEIGHT - height:.2f}", f"{width * 0.4:.2f}", f"{height:.2f}"))
    live, candidate = sum(count for _, count, _ in points), sum(count for _, _, count in points)
    label = ngettext(
        "In the last hour the live rule would have refused {count:,} call, the candidate {candidate:,}",
        "In the last hour the live rule would have refused {count:,} calls, the candidate {candidate:,}",
        live,
        candidate=candidate,
    )
    caption = format_html(str(CAPTION), most=written(most))
    return format_html(PICTURE, WIDTH, HEIGHT, label, format_html_join("", BAR, bars), caption)


def may_add_rules(request: HttpRequest) -> bool:
    """Return True if the user may add rules. A promotion without a row to replace adds a rule."""
    return bool(request.user.has_perm("django_throttle.add_throttlerule"))


@admin.register(ThrottleCandidate)
class ThrottleCandidateAdmin(RulePermissionsAdmin, ListAdmin):
    """Candidates, with the permissions of rules. Users who may change rules may promote and discard candidates.

    Promoting a candidate whose rule is not in the database takes the permission to add rules.
    """

    class Media:
        css = {"all": ("throttle_console/console.css",)}

    form = CandidateForm
    list_display = ("name", "in_words", "difference", "share", "starts_at", "created_by")
    search_fields = ("name",)
    fields = ("name", "in_words", "live", "comparison", "share", "starts_at", "edit_reason", "created_by", "created_at")
    readonly_fields = ("name", "in_words", "live", "comparison", "created_by", "created_at")

    @admin.display(description=gettext_lazy("candidate"))
    def in_words(self, row: ThrottleCandidate) -> SafeString:
        style = "rule-wrong" if row.fault else "rule-means"
        return format_html('<span class="{}">{}</span>', style, translated(row.meaning))

    @admin.display(description=gettext_lazy("live rule"))
    def live(self, row: ThrottleCandidate) -> str:
        rule = ThrottleRule.objects.filter(name=row.name).first()
        return translated(rule.meaning) if rule else gettext("in settings, or gone")

    @admin.display(description=gettext_lazy("would refuse in an hour"))
    def difference(self, row: ThrottleCandidate) -> str:
        """Return the number of calls of the last hour that only the candidate, and only the live rule, would refuse."""
        try:
            comparison = compare_candidate(get_store(), row.name, row.since, shared_now())
        except (StoreError, InvalidSetting):
            return "–"
        return f"+{written(comparison.only_candidate)} −{written(comparison.only_live)}" if comparison.calls else "–"

    @admin.display(description=gettext_lazy("the last hour"))
    def comparison(self, row: ThrottleCandidate) -> SafeString | str:
        now = shared_now()
        try:
            comparison = compare_candidate(get_store(), row.name, row.since, now)
        except (StoreError, InvalidSetting) as error:
            return gettext("Nothing can be shown: {error}").format(error=translated(error))
        rows = format_html_join(
            "",
            '<tr><th scope="row">{}</th><td>{}</td></tr>',
            ((translated(name), translated(figure)) for name, figure in comparison.rows()),
        )
        callers = format_html_join("", "<li><code>{}</code>: {}</li>", comparison.affected[:MAX_AFFECTED])
        table = format_html('<table class="candidate-comparison"><tbody>{}</tbody></table>', rows)
        page_part = table + picture(comparison.points, now)
        if callers:
            page_part += format_html(AFFECTED_CALLERS, gettext("Whom the candidate would refuse most:"), callers)
        return page_part

    def get_urls(self) -> list[URLPattern]:
        views = (("promote", self.promote_view), ("discard", self.discard_view))
        own = [
            path(f"<int:pk>/{name}/", self.admin_site.admin_view(require_POST(view)), name=f"django_throttle_{name}")
            for name, view in views
        ]
        return [*own, *super().get_urls()]

    def promote_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Put the candidate in place of its rule."""
        row = self._candidate(request, pk)
        try:
            with history.editing(request.user.get_username(), "admin"):
                rule = row.promote(may_add=may_add_rules(request))
        except ValidationError as error:
            why = joined(error.messages)
            self.message_user(request, gettext("Not promoted. {why}").format(why=why), messages.ERROR)
            if getattr(error, "code", "") == "gone":
                return redirect(f"{self.admin_site.name}:throttle_console_throttlecandidate_changelist")
            return redirect(f"{self.admin_site.name}:throttle_console_throttlecandidate_change", pk)
        message = gettext("Promoted: {name} is {meaning}.").format(name=rule.name, meaning=translated(rule.meaning))
        self.message_user(request, message, messages.SUCCESS)
        return redirect(f"{self.admin_site.name}:django_throttle_throttlerule_change", rule.pk)

    def discard_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Remove the candidate; its rule stays as it is."""
        row = self._candidate(request, pk)
        with history.editing(request.user.get_username(), "admin", action="discarded"):
            is_gone = not row.delete()[0]
        message = gettext("The candidate of {name} is discarded.").format(name=row.name)
        message = gettext("The candidate was promoted or discarded meanwhile.") if is_gone else message
        self.message_user(request, message, messages.ERROR if is_gone else messages.SUCCESS)
        return redirect(f"{self.admin_site.name}:throttle_console_throttlecandidate_changelist")

    def _candidate(self, request: HttpRequest, pk: int) -> ThrottleCandidate:
        """Return the candidate. Return one without a row if it is gone: promoting and discarding it say so."""
        row: ThrottleCandidate = self.get_queryset(request).filter(pk=pk).first() or ThrottleCandidate(pk=pk)
        if not self.has_change_permission(request, row):
            raise PermissionDenied
        return row

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        urls: dict[str, str] = {}
        if row is not None and self.has_change_permission(request, row):
            is_allowed = {"promote": may_add_rules(request) or not row.adds_rule(), "discard": True}
            for name in filter(is_allowed.get, is_allowed):
                urls[f"{name}_url"] = reverse(f"{self.admin_site.name}:django_throttle_{name}", args=[row.pk])
        hidden = {"show_delete": False}  # as the form has "Discard"
        return super().change_view(request, object_id, form_url, {**hidden, **urls, **(extra_context or {})})

    def get_form(
        self, request: HttpRequest, obj: ThrottleCandidate | None = None, change: bool = False, **options: object
    ) -> Any:
        form: Any = super().get_form(request, obj, change, **options)
        form.may_add = may_add_rules(request)
        return form

    def has_change_permission(self, request: HttpRequest, obj: ThrottleCandidate | None = None) -> bool:
        return bool(request.user.has_perm("django_throttle.change_throttlerule"))

    def has_delete_permission(self, request: HttpRequest, obj: ThrottleCandidate | None = None) -> bool:
        return self.has_change_permission(request, obj)

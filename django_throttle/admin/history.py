"""The admin's pages of changes: the list, an edit with its JSON, and *Revert*."""

from __future__ import annotations

import json

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_POST

from django_throttle.admin.page import ReadOnlyAdmin
from django_throttle.admin.rules import ListAdmin
from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule
from django_throttle.models.ident_rows import may_view
from django_throttle.rulebook import history
from django_throttle.translated import joined

MODELS = {"rule": ThrottleRule, "override": ThrottleOverride, "candidate": ThrottleRule, "settings": ThrottleRule}


def _may(request: HttpRequest, kind: str, *actions: str) -> bool:
    """Return True if the user has all these permissions on rows of this kind."""
    meta = MODELS[kind]._meta
    names = [f"{meta.app_label}.{get_permission_codename(action, meta)}" for action in actions]
    return bool(request.user.has_perms(names))


def may_revert(request: HttpRequest, change: ThrottleChange) -> bool:
    """Return True if the user may revert this edit, which may add or delete a row."""
    if not history.is_revertible(change):
        return False
    more = ("delete",) if change.before is None else ("add",) if change.after is None else ()
    return _may(request, change.kind, "change", *more)


class RevertibleChangeList(ChangeList):
    """Page of the list that sets ``may_revert`` of its rows."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        for row in self.result_list:
            row.may_revert = may_revert(request, row)


@admin.register(ThrottleChange)
class ThrottleChangeAdmin(ReadOnlyAdmin, ListAdmin):
    """Edits, for staff who may view rules or overrides. Lines are not edited, but edits can be reverted."""

    list_display = ("at", "edit", "undo", "words_and_reason", "author")
    list_filter = ("kind", "at")
    search_fields = ("name", "who", "words", "reason")
    search_help_text = gettext_lazy("A rule, whom an override is for, who edited it, or words of what changed and why.")
    fields = ("at", "subject", "action", "words", "author", "reason", "columns")
    readonly_fields = fields
    actions = None
    list_per_page = 50
    show_full_result_count = False

    @admin.display(description=gettext_lazy("of"), ordering="name")
    def subject(self, row: ThrottleChange) -> str:
        return f"{row.get_kind_display()} {row.name}"

    @admin.display(description=gettext_lazy("what"), ordering="name")
    def edit(self, row: ThrottleChange) -> str:
        return str(row)

    @admin.display(description=gettext_lazy("in words"))
    def words_and_reason(self, row: ThrottleChange) -> str | SafeString:
        return format_html("{}<br><small>{}</small>", row.words, row.reason) if row.reason else row.words

    @admin.display(description=gettext_lazy("who"), ordering="who")
    def author(self, row: ThrottleChange) -> str:
        return row.author

    @admin.display(description=gettext_lazy("before and after"))
    def columns(self, row: ThrottleChange) -> SafeString:
        texts = [json.dumps(state, indent=2, ensure_ascii=False) for state in (row.before, row.after)]
        return format_html('<pre class="history-json">{}</pre><pre class="history-json">{}</pre>', *texts)

    @admin.display(description=gettext_lazy("take back"))
    def undo(self, row: ThrottleChange) -> str | SafeString:
        if not getattr(row, "may_revert", False):
            return ""
        button = '<button type="submit" formaction="{}" class="button" aria-label="{}">{}</button>'
        label = gettext("Revert change {number}").format(number=row.pk)
        return format_html(button, self._revert_url(row), label, gettext("Revert"))

    def _revert_url(self, row: ThrottleChange) -> str:
        return reverse(f"{self.admin_site.name}:django_throttle_revert", args=[row.pk])

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.revert_view))
        return [path("<int:pk>/revert/", view, name="django_throttle_revert"), *super().get_urls()]

    def revert_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Revert an edit. If the row has changed since, ask first."""
        change = get_object_or_404(self.get_queryset(request), pk=pk)
        if not may_revert(request, change):
            raise PermissionDenied
        try:
            with history.editing(request.user.get_username(), "admin"):
                may_add = _may(request, change.kind, "add")
                words = history.revert(change, confirmed="confirmed" in request.POST, may_add=may_add)
        except ValidationError as error:
            why = joined(error.messages)
            self.message_user(request, gettext("Not reverted. {why}").format(why=why), messages.ERROR)
            ask = "?confirm=1" if getattr(error, "code", "") == history.CHANGED else ""
            page = reverse(f"{self.admin_site.name}:django_throttle_throttlechange_change", args=[pk])
            return redirect(page + ask)
        self.message_user(request, gettext("Reverted: {words}.").format(words=words), messages.SUCCESS)
        return redirect(f"{self.admin_site.name}:django_throttle_throttlechange_changelist")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        shown = {"revert_url": self._revert_url(row) if row is not None and may_revert(request, row) else ""}
        context = {**shown, "asks": "confirm" in request.GET, **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ThrottleChange]:
        kinds = [kind for kind, model in MODELS.items() if may_view(model, request.user)]
        return super().get_queryset(request).filter(kind__in=kinds)

    def get_changelist(self, request: HttpRequest, **options: object) -> type[ChangeList]:
        return RevertibleChangeList

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: ThrottleChange | None = None) -> bool:
        kinds = MODELS if obj is None else (obj.kind,)
        return any(may_view(MODELS[kind], request.user) for kind in kinds)

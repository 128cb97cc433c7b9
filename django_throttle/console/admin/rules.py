"""The admin's pages of rules with what the console adds: trials, candidates, rules at work, and costs of routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from django_throttle.admin.rules import UNNAMED, PreviewForm, ThrottleRuleAdmin, form_errors
from django_throttle.console.admin import costs, overview
from django_throttle.console.admin.trial import trial_part
from django_throttle.console.models import ThrottleCandidate
from django_throttle.console.recording.overview import last_day
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.models import ThrottleRule
from django_throttle.rulebook import history, sources
from django_throttle.rulebook.history.edits import lock_rows
from django_throttle.stores import get_store
from django_throttle.translated import written

CANDIDATE: Final = "_candidate"  # the name of the button


class RecordedChangeList(ChangeList):
    """A page of the list, with the refusals of the last day and the candidates of its rules."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        names = [row.name for row in self.result_list]
        candidates = set(ThrottleCandidate.objects.filter(name__in=names).values_list("name", flat=True))
        try:
            days = last_day(get_store(), names)
        except (StoreError, InvalidSetting):
            days = {}
        for row in self.result_list:
            row.has_candidate = row.name in candidates
            row.refused_in_a_day = sum(days[row.name].refused.values()) if row.name in days else None


class ConsoleRuleAdmin(ThrottleRuleAdmin):
    """Rules with what the console adds to their list and form.

    A site that registers rules with a class of its own derives that from this one.
    """

    list_display = ("rule", "refused", "enabled", "rate", "limit", "action")
    change_list_template = "admin/throttle_console/rule_list.html"
    change_form_template = "admin/throttle_console/rule_form.html"

    class Media:
        css = {"all": ("throttle_console/console.css",)}
        js = ("throttle_console/trial.js",)

    def get_changelist(self, request: HttpRequest, **options: object) -> type[ChangeList]:
        return RecordedChangeList

    @admin.display(description=gettext_lazy("Refused in a day"))
    def refused(self, row: ThrottleRule) -> str | SafeString:
        """Return the number of refused calls, with a link to the rule at work."""
        refused = getattr(row, "refused_in_a_day", None)
        if refused is None:
            return "–"
        url = f"{reverse(f'{self.admin_site.name}:{overview.OVERVIEW_URL}')}?{urlencode({'q': row.name})}"
        return format_html('<a href="{}">{}</a>', url, written(refused))

    def badge(self, row: ThrottleRule) -> str | SafeString:
        mark = gettext("candidate") if getattr(row, "has_candidate", False) else ""
        badge = format_html(' <span class="rule-badge">{}</span>', mark) if mark else ""
        return format_html("{}{}", super().badge(row), badge)

    def get_urls(self) -> list[URLPattern]:
        views: dict[str, tuple[str, Callable[..., HttpResponse]]] = {
            "overview/": (overview.OVERVIEW_URL, require_safe(partial(overview.overview_page, self))),
            "costs/": (costs.URL_NAME, require_safe(partial(costs.costs_page, self))),
            "trial/": ("django_throttle_trial", require_POST(self.trial_view)),
        }
        own = [path(where, self.admin_site.admin_view(view), name=name) for where, (name, view) in views.items()]
        return [*own, *super().get_urls()]

    def trial_view(self, request: HttpRequest) -> HttpResponse:
        """Try the live rule (``?row``) on recorded calls, and the rule of the posted form if there are fields."""
        return trial_part(self, request, lambda: self._read_form(request))

    def _read_form(self, request: HttpRequest) -> Mapping[str, Any]:
        fields = request.POST.copy()
        row = self.get_object(request, request.GET.get("row", ""))
        if row is None:
            live = sources.from_settings().rules.get(fields.get("name", ""))
        else:
            live = None if row.fault else row.as_rule()
        if "algorithm" not in fields:  # the form of staff who may not edit has no fields
            return {"live": live, "edited": None, "errors": []}
        fields["name"] = fields.get("name") or UNNAMED
        form = PreviewForm(fields, instance=row)
        edited = form.instance.as_rule() if form.is_valid() else None
        return {"live": live, "edited": edited, "errors": form_errors(form)}

    def save_model(self, request: HttpRequest, obj: ThrottleRule, form: ModelForm[ThrottleRule], change: bool) -> None:
        if change and CANDIDATE in request.POST:
            self._save_candidate(request, obj, form.cleaned_data.get("edit_reason", ""))
        else:
            super().save_model(request, obj, form, change)

    def log_change(self, request: HttpRequest, obj: ThrottleRule, message: object) -> Any:  # Django says LogEntry
        """Log the change of a rule. A candidate leaves the rule unchanged."""
        return None if CANDIDATE in request.POST else super().log_change(request, obj, message)

    def response_change(self, request: HttpRequest, obj: ThrottleRule) -> HttpResponse:
        """Redirect to the candidate after "Save as candidate"."""
        if CANDIDATE not in request.POST:
            return super().response_change(request, obj)
        page = f"{self.admin_site.name}:throttle_console_throttlecandidate_change"
        stored = ThrottleRule.objects.filter(pk=obj.pk)  # the typed name may differ
        return redirect(page, ThrottleCandidate.objects.get(name__in=stored.values("name")).pk)

    def _save_candidate(self, request: HttpRequest, obj: ThrottleRule, reason: str) -> None:
        """Keep the edited rule as the candidate of the current one, in place of an earlier candidate."""
        live = lock_rows(ThrottleRule.objects.filter(pk=obj.pk)).get()  # two people may do so at once
        candidate = ThrottleCandidate.from_row(obj, live.name, request.user.get_username())
        before = ThrottleCandidate.objects.filter(name=candidate.name).first()
        if before is not None:
            candidate.pk, candidate.created_at = before.pk, timezone.now()
        with history.because(reason):
            candidate.save()
        message = gettext("The candidate of {name} counts beside it from now on.").format(name=candidate.name)
        self.message_user(request, message, messages.SUCCESS)
        self.warn_of_names(request, obj)


def replace_admin_of_rules() -> None:
    """Register rules with the console's class, unless the site has registered a class of its own."""
    if admin.site.is_registered(ThrottleRule) and type(admin.site.get_model_admin(ThrottleRule)) is ThrottleRuleAdmin:
        admin.site.unregister(ThrottleRule)
        admin.site.register(ThrottleRule, ConsoleRuleAdmin)

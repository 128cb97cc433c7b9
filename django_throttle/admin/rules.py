"""The admin's pages of rules."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms import ModelForm, model_to_dict
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods

from django_throttle.admin.audience import unknown_groups
from django_throttle.admin.forms import EVENT_LABELS, RowForm, RuleForm, event_choices, key_choices
from django_throttle.admin.preview import preview
from django_throttle.conf import conf
from django_throttle.core import words
from django_throttle.core.words import describe
from django_throttle.models import ThrottleRule
from django_throttle.models.fields import is_text
from django_throttle.rulebook import file, sources

SHAPE: Final = ("burst", "refill", "resolution", "strict", "timezone", "batched", "estimator")
HOW_MUCH: Final = ("algorithm", "rate", "limit", *SHAPE)
WHAT_THEN: Final = ("action", "at_limit", "max_delay", "enforce_at", "warn_at", "on_store_failure")
FEW: Final = 12  # rules that need no filters
NOTHING_YET: Final = "Type a rate, and what the rule means is shown here."


class EventFilter(admin.SimpleListFilter):
    """Rules that count a kind of event, among others or alone."""

    title = "event"
    parameter_name = "event"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return event_choices()

    def queryset(self, request: HttpRequest, queryset: QuerySet[ThrottleRule]) -> QuerySet[ThrottleRule]:
        if self.value() not in EVENT_LABELS:
            return queryset
        return queryset.filter(events__regex=rf"(^|,){self.value()}(,|$)")


class KeyFilter(admin.SimpleListFilter):
    """Rules by who has a budget of their own."""

    title = "who"
    parameter_name = "key"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return key_choices()

    def queryset(self, request: HttpRequest, queryset: QuerySet[ThrottleRule]) -> QuerySet[ThrottleRule]:
        return queryset.filter(key=self.value()) if self.value() else queryset


class ListAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A list that is asked for what it may be asked for."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Nothing for a filter with a NUL character, which no row has, and about which PostgreSQL cannot be asked."""
        found: QuerySet[Any] = super().get_queryset(request)
        return found if all(is_text(value) for _, values in request.GET.lists() for value in values) else found.none()

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Filters only where they are worth the width that the columns need: a few rows are seen at a glance."""
        is_filtered = any(name not in ("o", "p", "all", "q") for name in request.GET)
        return self.list_filter if is_filtered or self.model._default_manager.count() > FEW else ()


@admin.register(ThrottleRule)
class ThrottleRuleAdmin(ListAdmin):
    """The list shows what each rule means; what is turned most often is edited right there."""

    form = RuleForm
    list_display = ("rule", "enabled", "rate", "limit", "covers", "who", "counts", "action")
    list_editable = ("rate", "limit", "action", "enabled")
    list_filter = ("enabled", "action", EventFilter, KeyFilter, "algorithm")
    search_fields = ("name", "description", "scopes")
    readonly_fields = ("in_words", "updated_at")
    save_on_top = True
    fieldsets = (
        (None, {"fields": ("name", "enabled", "in_words")}),
        ("How much", {"fields": (*HOW_MUCH, "unit", "cost", "count_denied", "count_on")}),
        ("Who and what", {"fields": ("key", "audience", "scopes", "events", "methods")}),
        ("What happens then", {"fields": WHAT_THEN}),
        ("Notes", {"fields": ("description", "updated_at")}),
    )

    class Media:
        css = {"all": ("django_throttle/rules.css",)}
        js = ("django_throttle/preview.js",)

    @admin.display(description="rule", ordering="name")
    def rule(self, row: ThrottleRule) -> SafeString:
        replaces = " (replaces the rule in settings)" if row.name in conf().RULES else ""
        return format_html('{}<small class="{}">{}{}</small>', row.name, _css(row), row.meaning, replaces)

    @admin.display(description="scopes", ordering="scopes")
    def covers(self, row: ThrottleRule) -> str:
        return words.scopes(row.scopes) if row.scopes else "–"

    @admin.display(description="who", ordering="key")
    def who(self, row: ThrottleRule) -> str:
        return words.who(row.key)

    @admin.display(description="events", ordering="events")
    def counts(self, row: ThrottleRule) -> str:
        return words.events(row.events) or "–"

    @admin.display(description="In words")
    def in_words(self, row: ThrottleRule) -> SafeString:
        return format_html(
            '<output id="rule-preview" class="{}" data-url="{}" data-empty="{}">{}</output>',
            _css(row) if row.pk else "rule-empty",
            reverse(f"{self.admin_site.name}:django_throttle_preview"),
            NOTHING_YET,
            row.meaning if row.pk else NOTHING_YET,
        )

    def get_changelist_form(self, request: HttpRequest, **options: Any) -> type[ModelForm[ThrottleRule]]:
        return super().get_changelist_form(request, **{"form": RowForm, **options})

    def get_urls(self) -> list[URLPattern]:
        view = require_http_methods(["GET", "HEAD", "POST"])(self.preview_view)
        return [path("preview/", self.admin_site.admin_view(view), name="django_throttle_preview"), *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> JsonResponse:
        """For whoever may see or write a rule."""
        if not (self.has_view_or_change_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        return preview(request)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """A rule of settings that is to be replaced fills the form."""
        rule = sources.from_settings().rules.get(request.GET.get("replace", ""))
        if rule is None:
            return dict(super().get_changeform_initial_data(request))
        return model_to_dict(file.row_of(rule))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"settings_rules": self._from_settings(), "only_records": conf().SHADOW}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def save_model(self, request: HttpRequest, obj: ThrottleRule, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        for warning in unknown_groups(obj.audience):
            self.message_user(request, warning, messages.WARNING)

    def _from_settings(self) -> list[dict[str, Any]]:
        """The rules of settings that no row replaces."""
        replaced = set(ThrottleRule.objects.values_list("name", flat=True))
        found = sources.from_settings()
        rows = [{"name": rule.name, "words": describe(rule), "right": True} for rule in found.rules.values()]
        rows += [{"name": name, "words": f"Not in force: {why}", "right": False} for name, why in found.faults.items()]
        return [row for row in rows if row["name"] not in replaced]


def _css(row: ThrottleRule) -> str:
    return "rule-wrong" if row.fault else "rule-words"

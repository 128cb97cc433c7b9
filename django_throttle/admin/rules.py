"""The admin's pages of rules: list, form and preview."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from shlex import quote
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied
from django.db.models import Model, QuerySet, Value
from django.forms import ModelForm, model_to_dict
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from django_throttle import rulebook
from django_throttle.admin import explain
from django_throttle.admin.option_fields import form_options, key_choices, option_field, shown_value
from django_throttle.admin.page import event_labels
from django_throttle.checks.project import MIDDLEWARE
from django_throttle.checks.scopes import unknown_scopes
from django_throttle.checks.settings import place_of
from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.descriptions import describe
from django_throttle.core.options import EVENTS, GROUPS, Options, as_json, countable_events, table
from django_throttle.core.scopes import covers
from django_throttle.models import ThrottleRule
from django_throttle.models.fields import is_text
from django_throttle.models.subjects import missing_groups
from django_throttle.rulebook import history, sources
from django_throttle.translated import capitalised, translated, with_label

LIMITS_THESE_PAGES: Final = gettext_lazy(
    "Rule {row} limits the pages of this admin too, as its scopes cover them. If it refuses you, this command lets you "
    "in for two hours: manage.py throttle_override add user {user} --exempt --rules {name} --reason admin"
)


WIDE_INPUT: Final = forms.TextInput(attrs={"class": "vTextField"})


#: Fields above the headings, in this order.
HEAD_FIELDS: Final = ("in_words", "name", "key", "algorithm", "rate", "limit", "events", "scopes", "action", "enabled")


def fieldsets(options_type: type[Options], used: Container[str] = ()) -> list[tuple[Any, dict[str, Any]]]:
    """Return the fieldsets of the form: the options under the headings of the table.

    A heading is folded unless one of its options is ``used``.
    """
    groups = {
        group: [name for name, option in form_options(options_type).items() if option.group == group]
        for group in ("", *GROUPS)
    }
    head = [*HEAD_FIELDS, *(name for name in groups.pop("") if name not in HEAD_FIELDS)]
    folded = [
        (
            gettext_lazy(group),
            {"fields": names, "classes": () if any(name in used for name in names) else ("collapse",)},
        )
        for group, names in groups.items()
    ]
    notes = (gettext_lazy("Notes"), {"fields": ["description", "edit_reason", "updated_at"]})
    return [(None, {"fields": head}), *folded, notes]


def preview_options(options_type: type[Options]) -> dict[str, object]:
    """Return the data of preview.js: the algorithms and the default of each option, and the events by algorithm."""
    options = {name: row for name, row in form_options(options_type).items() if row.owners or row.never}
    return {
        "algorithms": {
            name: [algorithm for algorithm in ALGORITHMS if row.takes(algorithm)] for name, row in options.items()
        },
        "defaults": {name: "" if row.default in (None, ()) else str(row.default) for name, row in options.items()},
        "events": {name: countable_events(name) for name in ALGORITHMS},
    }


SPLIT_LABELS: Final = (gettext_lazy("{label}: date"), gettext_lazy("{label}: time"))


class RowForm(forms.ModelForm):  # type: ignore[type-arg]
    """Form with one error for each field: that of the form field, or else that of the model."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field in self.fields.values():
            if isinstance(field.widget, AdminSplitDateTime):  # its inputs have no labels
                for part, pattern in zip(field.widget.widgets, SPLIT_LABELS, strict=True):
                    part.attrs["aria-label"] = str(pattern).format(label=capitalised(str(field.label)))

    def add_error(self, field: str | None, error: Any) -> None:
        """Add errors of fields that a row of the list does not have to the whole row."""
        errors_by_field = error.error_dict if hasattr(error, "error_dict") else {field: error}
        for name, errors in errors_by_field.items():
            if name is None or name == NON_FIELD_ERRORS or name not in self.fields:
                super().add_error(None, errors)
            elif name not in self.errors:
                super().add_error(name, errors)


def reason_field() -> forms.CharField:
    text = gettext_lazy("Kept in the history, for whoever asks why it was changed. May be empty.")
    return forms.CharField(
        label=gettext_lazy("Why this edit"), required=False, max_length=1000, help_text=text, widget=WIDE_INPUT
    )


class RuleForm(RowForm):
    """Form of a rule with a field for each option of the table, or for those in ``shown``."""

    shown: ClassVar[tuple[str, ...]] = ()

    class Meta:
        model = ThrottleRule
        fields = ("name", "enabled", "rate", "limit", "algorithm", "key", "scopes", "events", "description")
        widgets = {"description": forms.Textarea(attrs={"rows": 3})}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.table = form_options(ThrottleRule.core)
        stored = self.instance.own_options
        lists = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
        self.initial = {**stored, **lists, **self.initial}
        for name in self.shown or self.table:
            self.fields[name] = option_field(self.table[name], self.initial.get(name))

    def clean(self) -> dict[str, Any]:
        """Set the options of the row from the fields. Keep options without a field."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        options = {name: value for name, value in self.instance.own_options.items() if self.shown or name in self.table}
        for name in self.table.keys() & cleaned.keys() - ThrottleRule.columns():
            options[name] = as_json(cleaned[name])
            if cleaned[name] in ("", None, self.table[name].default):
                del options[name]
        self.instance.options = options
        return cleaned


class EditForm(RuleForm):
    """Form of a rule with a reason for the edit, which is shown in the history."""

    edit_reason = reason_field()


class ListForm(RuleForm):
    """Row of the list, with the field of the rate or of the limit."""

    shown = ("rate", "limit", "action", "enabled")

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        if "rate" in self.fields:
            self.fields["rate"].widget = forms.TextInput(attrs={"size": max(8, len(self.instance.rate)), "dir": "ltr"})
        algorithm = ALGORITHMS.get(self.instance.algorithm)
        spare = "rate" if algorithm is not None and algorithm.holds_slots else "limit"
        if spare in self.fields and not getattr(self.instance, spare):
            self.fields[spare].widget = forms.HiddenInput()
        for field in self.fields.values():  # a column's title is no label of what stands below it
            field.widget.attrs["aria-label"] = gettext("{label} of {row}").format(label=field.label, row=self.instance)


class PreviewForm(RuleForm):
    """Form for the preview, without database queries, because it is sent after each key."""

    def validate_unique(self) -> None:
        pass


UNNAMED = "(no name yet)"


def form_errors(form: PreviewForm) -> list[str]:
    """Return the errors as sentences. Prefix the label of the field unless the sentence has it."""
    labels = {name: field.label for name, field in form.fields.items()}
    return [with_label(labels.get(name) or "", str(text)) for name, errors in form.errors.items() for text in errors]


FILTERLESS_ROWS: Final = 12  # rules that need no filters
EMPTY_PREVIEW: Final = gettext_lazy("Type a rate: what the rule means is shown here.")


class EventFilter(admin.SimpleListFilter):
    """Rules that count an event, alone or among others."""

    title = gettext_lazy("event")
    parameter_name = "event"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[ThrottleRule]) -> list[tuple[str, str]]:
        return event_labels()

    def queryset(self, request: HttpRequest, queryset: QuerySet[ThrottleRule]) -> QuerySet[ThrottleRule]:
        if self.value() not in EVENTS:
            return queryset
        return queryset.filter(events__regex=rf"(^|,){self.value()}(,|$)")


class KeyFilter(admin.SimpleListFilter):
    """Rules by their key."""

    title = gettext_lazy("count by")
    parameter_name = "key"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[ThrottleRule]) -> list[tuple[str, str]]:
        return key_choices()

    def queryset(self, request: HttpRequest, queryset: QuerySet[ThrottleRule]) -> QuerySet[ThrottleRule]:
        return queryset.filter(key=self.value()) if self.value() else queryset


class ActionFilter(admin.SimpleListFilter):
    """Rules by what they do at the limit."""

    title = gettext_lazy("action")
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[ThrottleRule]) -> list[tuple[str, str]]:
        return [(name, gettext(choice.label)) for name, choice in table(Rule)["action"].choices.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[ThrottleRule]) -> QuerySet[ThrottleRule]:
        if self.value() == table(Rule)["action"].default:
            return queryset.exclude(options__has_key="action")
        return queryset.filter(options__action=self.value()) if self.value() else queryset


class ListAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """List that accepts NUL characters in queries, and shows filters only if it is long."""

    class Media:
        css = {"all": ("django_throttle/rules.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return no rows for a query with a NUL character, which PostgreSQL refuses."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows if all(is_text(value) for _, values in request.GET.lists() for value in values) else rows.none()

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Return the filters of a long list, or of a filtered one. Filters narrow the columns."""
        is_filtered = any(name not in ("o", "p", "all", "q") for name in request.GET)
        return self.list_filter if is_filtered or self.model._default_manager.count() > FILTERLESS_ROWS else ()

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fieldsets without ``edit_reason`` for staff who may not edit."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        return [
            (name, {**options, "fields": [field for field in options["fields"] if field != "edit_reason"]})
            for name, options in fieldsets
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        with history.editing(request.user.get_username(), "admin"):
            return super().changelist_view(request, extra_context)

    @method_decorator(sensitive_post_parameters("value"))  # of an override; it may be an API key
    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, object] | None = None,
    ) -> HttpResponse:
        with history.editing(request.user.get_username(), "admin"):
            context = {"show_save_and_add_another": False, **(extra_context or {})}
            return super().changeform_view(request, object_id, form_url, context)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        with history.editing(request.user.get_username(), "admin"):
            return super().delete_view(request, object_id, extra_context)

    def save_model(self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool) -> None:
        with history.because(form.cleaned_data.get("edit_reason", "")):
            super().save_model(request, obj, form, change)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        """Redirect to the changes of this row."""
        row = self.get_object(request, unquote(object_id))
        if not self.has_view_or_change_permission(request, row):
            raise PermissionDenied
        query = {"kind__exact": self.model.history_kind, "row__exact": row.pk if row else -1}
        page = f"{self.admin_site.name}:django_throttle_throttlechange_changelist"
        return redirect(f"{reverse(page)}?{urlencode(query)}")


@admin.register(ThrottleRule)
class ThrottleRuleAdmin(ListAdmin):
    """Rules: the list, the form and the preview."""

    form = EditForm
    list_display: tuple[str, ...] = ("rule", "enabled", "rate", "limit", "action")
    list_editable = ("rate", "limit", "enabled")  # and the action, by ListForm
    list_filter = ("enabled", ActionFilter, EventFilter, KeyFilter, "algorithm")
    search_fields = ("name", "description", "scopes")
    readonly_fields = ("in_words", "updated_at")

    class Media:
        js = ("django_throttle/preview.js",)

    @admin.display(description=gettext_lazy("rule"), ordering="name")
    def rule(self, row: ThrottleRule) -> SafeString:
        replaces = gettext(" (replaces the rule in settings)") if row.name in conf().RULES else ""
        return format_html(
            '{}{}<small class="{}">{}{}</small>',
            *(row.name, self.badge(row), _css_class(row), translated(row.meaning), replaces),
        )

    def badge(self, row: ThrottleRule) -> str | SafeString:
        """Return the mark after the name in the list: the number of overrides in force that name the rule."""
        count = sum(row.name in override.rules for override in rulebook.current().overrides.all)
        if not (count and getattr(row, "shows_overrides", False)):
            return ""
        url = reverse(f"{self.admin_site.name}:django_throttle_throttleoverride_changelist")
        link = ' <a class="rule-badge" href="{}?{}">{}: {}</a>'
        return format_html(link, url, urlencode({"q": row.name}), gettext("overrides"), count)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ThrottleRule]:
        rows: QuerySet[ThrottleRule] = super().get_queryset(request)
        return rows.annotate(shows_overrides=Value(request.user.has_perm("django_throttle.view_throttleoverride")))

    @admin.display(description=gettext_lazy("action"), ordering="options__action")
    def action(self, row: ThrottleRule) -> str:
        option = table(Rule)["action"]
        return shown_value(option, row.own_options.get("action", option.default))

    @admin.display(description=gettext_lazy("options"))
    def other_options(self, row: ThrottleRule) -> SafeString:
        """Return the options without a column, for staff who may only view the rule."""
        table = form_options(ThrottleRule.core)
        options = [(table[name], value) for name, value in row.own_options.items() if name in table]
        lines = [(capitalised(gettext(option.title)), shown_value(option, value)) for option, value in options]
        return format_html_join("", "<div>{}: {}</div>", lines)

    @admin.display(description=gettext_lazy("In words"))
    def in_words(self, row: ThrottleRule) -> SafeString:
        return format_html(
            '<output id="rule-preview" class="{}" data-url="{}" data-empty="{}" data-options="{}">{}</output>',
            _css_class(row) if row.pk else "rule-empty",
            reverse(f"{self.admin_site.name}:django_throttle_preview"),
            EMPTY_PREVIEW,
            json.dumps(preview_options(ThrottleRule.core)),
            translated(row.meaning) if row.pk else EMPTY_PREVIEW,
        )

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the groups of the table, or only columns and set options for staff who may not edit."""
        used = self.get_changeform_initial_data(request) if obj is None else obj.options  # type: ignore[attr-defined]
        groups = fieldsets(ThrottleRule.core, used)
        if obj is None or self.has_change_permission(request, obj):
            return groups
        visible = {*ThrottleRule.columns(), "in_words"}
        shown = [(group, {"fields": [name for name in part["fields"] if name in visible]}) for group, part in groups]
        options = (gettext_lazy("options"), {"fields": ["other_options"]})
        return [*((group, part) for group, part in shown if part["fields"]), options]

    def get_form(
        self, request: HttpRequest, obj: object | None = None, change: bool = False, **options: object
    ) -> type[ModelForm[ThrottleRule]]:
        """Return the form of the columns. It adds the fields of the options."""
        return super().get_form(request, obj, change, **{**options, "fields": RuleForm.Meta.fields})

    def get_changelist_form(self, request: HttpRequest, **options: object) -> type[ModelForm[ThrottleRule]]:
        return super().get_changelist_form(request, **{"form": ListForm, **options})

    def get_urls(self) -> list[URLPattern]:
        views: dict[str, tuple[str, Callable[..., HttpResponse]]] = {
            "preview/": ("django_throttle_preview", require_http_methods(["GET", "HEAD", "POST"])(self.preview_view)),
            "explain/": (explain.URL_NAME, require_safe(partial(explain.explain_page, self))),
            "explain/reset/": (explain.RESET_NAME, require_POST(partial(explain.reset_view, self))),
        }
        own = [path(where, self.admin_site.admin_view(view), name=name) for where, (name, view) in views.items()]
        return [*own, *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> JsonResponse:
        """Return the description and warnings of the rule in the query or the posted form, or its errors."""
        if not (self.has_view_or_change_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        fields = (request.POST if request.method == "POST" else request.GET).copy()
        if not fields.get("name"):
            fields["name"] = UNNAMED  # a name is needed to save only
        form = PreviewForm(fields)
        is_valid = form.is_valid()
        words = translated(form.instance.meaning) if is_valid else ""
        if is_valid and (counts := form.instance.counts_after()):
            words = gettext("{meaning}. {counts}").format(meaning=words, counts=translated(counts))
        faults = unknown_scopes(form.instance.as_rule()) if is_valid else []
        warnings = [fault.removeprefix(f"rule {form.instance.name!r}: ") for fault in faults]
        return JsonResponse({"words": words, "warnings": warnings, "errors": form_errors(form)})

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """With ?replace=NAME return that rule of the settings, or the valid options of an invalid rule."""
        name, rules = request.GET.get("replace", ""), conf().RULES
        if rule := sources.from_settings().rules.get(name):
            row = ThrottleRule.from_rule(rule)
            return {**row.options, **model_to_dict(row)}
        if not isinstance(rules, Mapping) or name not in rules:
            return dict(super().get_changeform_initial_data(request))
        return {"name": name, **dict(_legible(rules[name]))}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        context = {"settings_rules": self._from_settings(), "only_records": conf().SHADOW}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def save_model(self, request: HttpRequest, obj: ThrottleRule, form: ModelForm[ThrottleRule], change: bool) -> None:
        super().save_model(request, obj, form, change)
        self.warn_of_names(request, obj)
        if place_of(MIDDLEWARE) is not None and self._limits_these_pages(obj.as_rule()):
            user, name = quote(request.user.get_username()), quote(obj.name)  # for a shell
            warning = str(LIMITS_THESE_PAGES).format(row=obj, user=user, name=name)
            self.message_user(request, warning, messages.WARNING)

    def warn_of_names(self, request: HttpRequest, row: ThrottleRule) -> None:
        """Warn of groups and scopes of a rule that do not exist."""
        rule = row.as_rule()
        for warning in (*missing_groups(rule), *unknown_scopes(rule)):
            self.message_user(request, warning, messages.WARNING)

    def _limits_these_pages(self, rule: Rule) -> bool:
        page = f"{self.admin_site.name}:django_throttle_throttlerule_changelist"
        is_about_requests = rule.enabled and not {"request", "inflight"}.isdisjoint(rule.events)
        return is_about_requests and covers(rule.scopes, page)

    def _from_settings(self) -> list[tuple[str, str, bool]]:
        """Return name, description and validity of the rules of the settings that no row replaces."""
        replaced = set(ThrottleRule.objects.values_list("name", flat=True))
        rules = sources.from_settings()
        rows = [(name, translated(describe(rule)), True) for name, rule in rules.rules.items()]
        not_in_force = gettext("Not in force: {why}")
        rows += [(name, not_in_force.format(why=translated(why)), False) for name, why in rules.faults.items()]
        return [row for row in rows if row[0] not in replaced]


def _legible(options: object) -> Iterator[tuple[str, object]]:
    """Yield the options of an invalid rule that are valid by themselves, and texts and numbers unchanged."""
    for option, value in options.items() if isinstance(options, Mapping) else ():
        if option == "rates" and isinstance(value, (list, tuple)):
            yield "rate", ", ".join(map(str, value))
        elif option in form_options(Rule):
            try:
                yield option, form_options(Rule)[option].read(value)
            except ValueError:
                if isinstance(value, (str, int, float)):
                    yield option, value


def _css_class(row: ThrottleRule) -> str:
    return "rule-wrong" if row.fault else "rule-words"

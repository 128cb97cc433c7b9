"""The admin's pages of overrides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, Q, QuerySet, Value
from django.db.models.functions import Concat
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils.formats import localize
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.timesince import timesince, timeuntil
from django.utils.translation import gettext, gettext_lazy, ngettext

from django_throttle import rulebook
from django_throttle.admin.rules import ListAdmin, RowForm, reason_field
from django_throttle.core import Rule
from django_throttle.identity import RequestCaller
from django_throttle.local.shared_clock import shared_now
from django_throttle.models import ThrottleOverride
from django_throttle.models.ident_rows import row_texts
from django_throttle.models.override import MAX_YEAR, OverrideQuerySet, misspelt, override_warnings
from django_throttle.models.subjects import networks_around, subject_of, values_of_users
from django_throttle.rulebook import sources
from django_throttle.rulebook.history.edits import lock_rows
from django_throttle.rulebook.snapshot import Overrides
from django_throttle.translated import local, translated

UNTIL_BELOW: Final = ""
ENDLESS: Final = "endless"
END_NOW: Final = "0"
DURATIONS: Final = (
    (UNTIL_BELOW, gettext_lazy("Until the time below")),
    ("1800", gettext_lazy("30 minutes from now")),
    ("7200", gettext_lazy("2 hours from now")),
    ("28800", gettext_lazy("8 hours from now")),
    ("86400", gettext_lazy("1 day from now")),
    ("604800", gettext_lazy("1 week from now")),
    (ENDLESS, gettext_lazy("Until somebody ends it")),
)
DEFAULT_DURATION: Final = "7200"
MAX_NAMES: Final = 30


class OverrideForm(RowForm):
    """Form of an override."""

    lasting = forms.ChoiceField(
        label=gettext_lazy("How long"),
        choices=DURATIONS,
        required=False,
        initial=DEFAULT_DURATION,
        help_text=gettext_lazy("Counted from the moment you save."),
    )

    edit_reason = reason_field()

    class Meta:
        model = ThrottleOverride
        fields = ("kind", "value", "rules", "effect", "factor", "rate", "limit", "until", "reason")
        widgets = {"reason": forms.Textarea(attrs={"rows": 3}), "value": forms.TextInput(attrs={"size": 40})}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.known_rules = sources.rules()
        if "rules" in self.fields:
            self.fields["rules"].help_text = _rules_help(str(self.fields["rules"].help_text), self.known_rules)
        if "until" in self.fields:
            self.fields["until"].help_text = gettext("Or set an exact end. It overrides the choice above.")
            until = self.instance.until
            if until and until.year > MAX_YEAR:  # stored before that was refused
                self.initial["until"] = until.replace(year=MAX_YEAR)
        if self.instance.pk and "lasting" in self.fields:
            self.fields["lasting"].initial = UNTIL_BELOW if self.instance.until else ENDLESS
            self.fields["lasting"].choices = (*DURATIONS, (END_NOW, gettext("End it now")))  # type: ignore[attr-defined]

    def clean_rules(self) -> tuple[str, ...]:
        """Raise ValidationError for unknown rules, except those that the override had before."""
        names: tuple[str, ...] = self.cleaned_data["rules"]
        wrong = misspelt((name for name in names if name not in self.instance.rules), self.known_rules)
        if wrong:
            raise ValidationError(wrong)
        return names

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        rulebook.learn_time()  # this process may have decided nothing yet
        lasting, now = cleaned.get("lasting", UNTIL_BELOW), shared_now()
        if "until" in self.changed_data and cleaned.get("until"):
            if cleaned["until"] <= now:
                self.add_error("until", gettext("This moment has passed."))
        elif lasting == ENDLESS:
            cleaned["until"] = None
        elif lasting != UNTIL_BELOW:
            cleaned["until"] = now + timedelta(seconds=int(lasting))
        elif not cleaned.get("until") and "until" not in self.errors:
            self.add_error("lasting", gettext("Choose how long it lasts, or give an end below."))
        return cleaned


def _rules_help(text: str, rules: Iterable[Rule]) -> SafeString:
    """Return the help text with the names of rules, escaped, because the admin shows help texts as HTML."""
    names = sorted(rule.name for rule in rules)
    shown = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
    known = gettext("Rules: {names}.").format(names=shown) if names else gettext("There are no rules yet.")
    return format_html("{} {}", text, known)


EXTENSION: Final = timedelta(hours=2)
MAX_REASON_CHARS: Final = 60  # characters of a reason in the list
BLOCKS_YOU: Final = gettext_lazy(
    "This override blocks you, too. If this page is refused, run manage.py throttle_override end."
)
#: Fields that are unknown until the override is saved.
UNSAVED_FIELDS: Final = frozenset(("subject", "in_words", "edit_reason", "created_by", "created_at"))


class StateFilter(admin.SimpleListFilter):
    """Overrides that are in force, unless those that have ended, or all, are chosen."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [("force", gettext("In force")), ("expired", gettext("Expired")), ("all", gettext("All"))]

    def value(self) -> str:
        return super().value() or "force"

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        return islice(super().choices(changelist), 1, None)  # the first would be none

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[ThrottleOverride]:
        chosen = {"force": OverrideQuerySet.in_force, "expired": OverrideQuerySet.expired}.get(self.value())
        return chosen(queryset) if chosen else queryset


class RowTextsChangeList(ChangeList):
    """A page of the list, with the texts of the users, API keys and tenants that it names."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        set_row_texts(self.result_list, request)


def set_row_texts(overrides: Collection[ThrottleOverride], request: HttpRequest) -> None:
    """Set ``row_text`` of overrides for rows that this person may view."""
    subjects = {override: subject_of(override.kind, override.value) for override in overrides}
    texts = row_texts(subjects.values(), request.user)
    for override, subject in subjects.items():
        override.row_text = texts.get(subject, "")  # type: ignore[attr-defined]


@admin.register(ThrottleOverride)
class ThrottleOverrideAdmin(ListAdmin):
    """Overrides: the list, the form, and actions that end and extend them."""

    class Media:
        js = ("django_throttle/override.js",)

    form = OverrideForm
    list_display = ("subject", "in_words", "ends", "why", "made")
    list_filter = (StateFilter, "kind", "effect")
    search_fields = ("value", "rules", "reason", "created_by")
    search_help_text = gettext_lazy(
        "A user, an address (also finds networks that contain it), a name, a rule, or words of the reason."
    )
    readonly_fields = ("subject", "in_words", "created_by", "created_at")
    actions = ("end_now", "extend")
    fieldsets = (
        (gettext_lazy("Who"), {"fields": ("subject", "kind", "value")}),
        (gettext_lazy("What"), {"fields": ("in_words", "effect", "rules", "factor", "rate", "limit")}),
        (gettext_lazy("How long"), {"fields": ("lasting", "until")}),
        (gettext_lazy("Why"), {"fields": ("reason", "edit_reason", "created_by", "created_at")}),
    )

    @admin.display(description=gettext_lazy("for"), ordering=Concat("kind", Value(" "), "value"))
    def subject(self, row: ThrottleOverride) -> str:
        return getattr(row, "row_text", "") or row.named()

    @admin.display(description=gettext_lazy("what"))
    def in_words(self, row: ThrottleOverride) -> SafeString:
        css = "rule-wrong" if row.fault else "rule-means" if row.lasts() else "rule-expired"
        return format_html('<span class="{}">{}</span>', css, translated(row.meaning))

    @admin.display(description=gettext_lazy("until"), ordering="until")
    def ends(self, row: ThrottleOverride) -> str:
        if row.until is None:
            return gettext("no end")
        if row.lasts():
            text = gettext("in {time}").format(time=timeuntil(row.until))
        else:
            text = gettext("expired {time} ago").format(time=timesince(row.until))
        return format_html(
            '<time datetime="{}" title="{}">{}</time>', row.until.isoformat(), localize(local(row.until)), text
        )

    @admin.display(description=gettext_lazy("reason"), ordering="reason")
    def why(self, row: ThrottleOverride) -> str:
        return Truncator(row.reason).chars(MAX_REASON_CHARS)

    @admin.display(description=gettext_lazy("made"), ordering="created_at")
    def made(self, row: ThrottleOverride) -> SafeString:
        pattern = gettext("{time} ago by {name}") if row.created_by else gettext("{time} ago")
        text = pattern.format(time=timesince(row.created_at, depth=1), name=row.created_by)
        return format_html('<span title="{}">{}</span>', localize(local(row.created_at)), text)

    @admin.action(description=gettext_lazy("End now"), permissions=["change"])
    def end_now(self, request: HttpRequest, queryset: QuerySet[ThrottleOverride]) -> None:
        """End overrides that are in force. They stay in the list of expired ones."""
        number = self._set_ends(request, queryset, lambda row, now: now if row.lasts(now) else None, "Ended by hand.")
        self._report(request, number, ngettext("{count} override ended.", "{count} overrides ended.", number))

    @admin.action(description=gettext_lazy("Extend by 2 hours"), permissions=["change"])
    def extend(self, request: HttpRequest, queryset: QuerySet[ThrottleOverride]) -> None:
        """Extend overrides from their end, or from now if it has passed. Leave those without an end."""
        number = self._set_ends(
            request, queryset, lambda row, now: row.until and max(row.until, now) + EXTENSION, "Extended by 2 hours."
        )
        self._report(request, number, ngettext("{count} override extended.", "{count} overrides extended.", number))

    def _set_ends(
        self,
        request: HttpRequest,
        chosen: QuerySet[ThrottleOverride],
        end_of: Callable[[ThrottleOverride, datetime], datetime | None],
        log: str,
    ) -> int:
        """Set new ends and return their number. The rows are locked, because two people may do so at once."""
        rulebook.learn_time()
        numbers = list(chosen.values_list("pk", flat=True))
        with transaction.atomic(using=sources.alias()):
            rows = lock_rows(ThrottleOverride.objects.filter(pk__in=numbers))
            ends = {row: until for row in rows if (until := end_of(row, shared_now()))}
            for row, until in ends.items():
                row.until = until
                row.save(update_fields=["until"])
                self.log_change(request, row, log)
        return len(ends)

    def _report(self, request: HttpRequest, number: int, message: str) -> None:
        self.message_user(request, message.format(count=number), messages.SUCCESS if number else messages.INFO)

    def get_changelist(self, request: HttpRequest, **options: object) -> type[ChangeList]:
        return RowTextsChangeList

    def get_list_filter(self, request: HttpRequest) -> Any:
        return super().get_list_filter(request) or (StateFilter,)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> ThrottleOverride | None:
        override = super().get_object(request, object_id, from_field)
        set_row_texts([override] if override else [], request)
        return override

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[ThrottleOverride], search_term: str
    ) -> tuple[QuerySet[ThrottleOverride], bool]:
        """Search also by the name of a user, and by an address in a network."""
        matching, may_repeat = super().get_search_results(request, queryset, search_term)
        typed = search_term.strip()
        if not typed:
            return matching, may_repeat
        users = Q(kind="user", value__in=values_of_users(typed))
        return matching | queryset.filter(users | Q(kind="ip", value__in=networks_around(typed))), may_repeat

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fieldsets without ``lasting`` for staff who may not change it, and without unsaved fields."""
        may_change = obj is None or self.has_change_permission(request, obj)
        hidden = UNSAVED_FIELDS if obj is None else frozenset(() if may_change else ("lasting",))
        fieldsets = super().get_fieldsets(request, obj)
        return [
            (name, {"fields": [field for field in options["fields"] if field not in hidden]})
            for name, options in fieldsets
        ]

    def save_model(
        self, request: HttpRequest, obj: ThrottleOverride, form: ModelForm[ThrottleOverride], change: bool
    ) -> None:
        if not change:
            obj.created_by = request.user.get_username()[:150]
        super().save_model(request, obj, form, change)
        for warning in override_warnings(obj, sources.rules()):
            self.message_user(request, warning, messages.WARNING)
        if obj.effect == "block" and Overrides([obj.as_override()]).for_caller(RequestCaller(request)):
            self.message_user(request, BLOCKS_YOU, messages.WARNING)

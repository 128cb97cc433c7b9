"""The admin's pages of overrides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db import transaction
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Concat
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.timesince import timesince, timeuntil
from django.views.decorators.debug import sensitive_post_parameters

from django_throttle.admin.override_form import OverrideForm
from django_throttle.admin.rules import ListAdmin
from django_throttle.identity import HttpWho
from django_throttle.models import ThrottleOverride
from django_throttle.models.doubts import doubts
from django_throttle.models.override import OverrideQuerySet
from django_throttle.models.subjects import around, names_of_users, values_of_users
from django_throttle.rulebook import sources
from django_throttle.rulebook.relief import Relief

MORE: Final = timedelta(hours=2)
LONGEST: Final = 160  # characters of a reason in the list
BLOCKS_YOU: Final = "It is about you, too. Should this page be refused, end it by manage.py throttle_override end."
NOT_YET: Final = frozenset(("in_words", "created_by", "created_at"))  # of one that is being added


class StateFilter(admin.SimpleListFilter):
    """Overrides that are in force, or that have ended."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("force", "In force"), ("expired", "Expired")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        chosen = {"force": OverrideQuerySet.in_force, "expired": OverrideQuerySet.expired}.get(self.value() or "")
        return chosen(queryset) if chosen else queryset


class NamedUsers(ChangeList):
    """Finds the names of the users on a page with one query."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        names = names_of_users(row.value for row in self.result_list if row.kind == "user")
        for row in self.result_list:
            row.user_name = names.get(row.value) if row.kind == "user" else None


@admin.register(ThrottleOverride)
class ThrottleOverrideAdmin(ListAdmin):
    """The list says for whom, what, how long, why and by whom; the actions end and extend."""

    form = OverrideForm
    list_display = ("subject", "in_words", "ends", "why", "made")
    list_filter = (StateFilter, "kind", "effect")
    search_fields = ("value", "rules", "reason", "created_by")
    search_help_text = "A user, an address (finds the networks it lies in), a name, a rule, or words of the reason."
    readonly_fields = ("in_words", "created_by", "created_at")
    actions = ("end_now", "extend")
    save_on_top = True
    fieldsets = (
        ("Who", {"fields": ("kind", "value")}),
        ("What", {"fields": ("in_words", "effect", "rules", "factor", "rate", "limit")}),
        ("How long", {"fields": ("lasting", "until")}),
        ("Why", {"fields": ("reason", "created_by", "created_at")}),
    )

    class Media:
        css = {"all": ("django_throttle/rules.css",)}

    @admin.display(description="for", ordering=Concat("kind", Value(" "), "value"))
    def subject(self, row: ThrottleOverride) -> str:
        name = getattr(row, "user_name", None)
        return f"User {name} (id {row.value})" if name else str(row)

    @admin.display(description="what")
    def in_words(self, row: ThrottleOverride) -> SafeString:
        css = "rule-wrong" if row.fault else "rule-means" if row.lasts() else "rule-expired"
        return format_html('<span class="{}">{}</span>', css, row.meaning)

    @admin.display(description="until", ordering="until")
    def ends(self, row: ThrottleOverride) -> str:
        if row.until is None:
            return "no end"
        said = f"in {timeuntil(row.until)}" if row.lasts() else f"expired {timesince(row.until)} ago"
        return format_html('<time datetime="{}" title="{}">{}</time>', row.until.isoformat(), row.until, said)

    @admin.display(description="reason", ordering="reason")
    def why(self, row: ThrottleOverride) -> str:
        return Truncator(row.reason).chars(LONGEST)

    @admin.display(description="made", ordering="created_at")
    def made(self, row: ThrottleOverride) -> SafeString:
        by = f" by {row.created_by}" if row.created_by else ""
        return format_html('<span title="{}">{} ago{}</span>', row.created_at, timesince(row.created_at, depth=1), by)

    @admin.action(description="End now", permissions=["change"])
    def end_now(self, request: HttpRequest, queryset: QuerySet[ThrottleOverride]) -> None:
        """For what is in force; it stays in the list, as expired."""
        now = timezone.now()
        rows = [row for row in queryset if row.lasts(now)]
        for row in rows:
            row.until = now
        self._keep(request, rows, "Ended by hand.")
        self.message_user(request, f"{_count(len(rows))} ended.", messages.SUCCESS if rows else messages.INFO)

    @admin.action(description="Extend by 2 hours", permissions=["change"])
    def extend(self, request: HttpRequest, queryset: QuerySet[ThrottleOverride]) -> None:
        """From the end that they have, or from now where that has passed; what has no end keeps none."""
        now = timezone.now()
        rows = [row for row in queryset if row.until is not None]
        for row in rows:
            row.until = max(row.until or now, now) + MORE
        self._keep(request, rows, "Extended by 2 hours.")
        self.message_user(request, f"{_count(len(rows))} extended.", messages.SUCCESS if rows else messages.INFO)

    def _keep(self, request: HttpRequest, rows: list[ThrottleOverride], said: str) -> None:
        with transaction.atomic(using=sources.alias()):
            for row in rows:
                row.save(update_fields=["until"])
                self.log_change(request, row, said)

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return NamedUsers

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        """Also by the name of a user, whose id is stored, and by an address in a network."""
        found, may_repeat = super().get_search_results(request, queryset, search_term)
        typed = search_term.strip()
        if not typed:
            return found, may_repeat
        users = Q(kind="user", value__in=values_of_users(typed))
        return found | queryset.filter(users | Q(kind="ip", value__in=around(typed))), may_repeat

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """How long is a question to whoever may answer it, and who made it is known once it is made."""
        may_change = obj is None or self.has_change_permission(request, obj)
        hidden = NOT_YET if obj is None else frozenset(() if may_change else ("lasting",))
        found = super().get_fieldsets(request, obj)
        return [(name, {"fields": [one for one in given["fields"] if one not in hidden]}) for name, given in found]

    def save_model(self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool) -> None:
        if not change:
            obj.created_by = request.user.get_username()[:150]
        super().save_model(request, obj, form, change)
        for doubt in doubts(obj, sources.rules()):
            self.message_user(request, doubt, messages.WARNING)
        if obj.effect == "block" and Relief([obj.as_override()]).of(HttpWho(request)):
            self.message_user(request, BLOCKS_YOU, messages.WARNING)

    @method_decorator(sensitive_post_parameters("value"))  # it may be an API key
    def changeform_view(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        return super().changeform_view(request, *args, **options)


def _count(number: int) -> str:
    return f"{number} override" if number == 1 else f"{number} overrides"

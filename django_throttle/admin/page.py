"""Pages of the admin that are not forms or lists of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_safe

from django_throttle.core.option_words import NOUNS
from django_throttle.translated import capitalised, gettext


def event_labels() -> list[tuple[str, str]]:
    return [(event, capitalised(gettext(noun))) for event, noun in NOUNS.items()]


def shown_page(
    model_admin: ModelAdmin[Any],
    request: HttpRequest,
    template: str,
    title: str,
    context: Callable[[], Mapping[str, object]],
) -> HttpResponse:
    """Return a page that is not cached, for staff who may view the model. Raise PermissionDenied for others.

    ``context`` returns the page's own part of the template's context.
    """
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    request.current_app = model_admin.admin_site.name
    shared = {**model_admin.admin_site.each_context(request), "title": title, "opts": model_admin.model._meta}
    response = TemplateResponse(request, f"admin/{template}.html", {**shared, **context()})
    response["Cache-Control"] = "no-store"
    return response


class RulePermissionsAdmin(ModelAdmin):  # type: ignore[type-arg]
    """Pages for staff who may view rules, without an "Add" button."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        names = (f"django_throttle.{action}_throttlerule" for action in ("view", "change"))
        return any(map(request.user.has_perm, names))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[type-arg]
    """Pages on which nothing is added, edited or deleted."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


class PageEntry(ReadOnlyAdmin, RulePermissionsAdmin):
    """An entry of the admin's index that leads to a page of the rules."""

    page: ClassVar[str]  #: name of the page's URL

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_safe(self.changelist_view))
        return [path("", view, name=f"{self.opts.app_label}_{self.opts.model_name}_changelist")]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        return redirect(f"{self.admin_site.name}:{self.page}")

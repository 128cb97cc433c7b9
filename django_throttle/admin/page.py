"""A page of the admin that is neither a form nor a list of Django's."""

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
    """The events and how they are called."""
    return [(event, capitalised(gettext(noun))) for event, noun in NOUNS.items()]


def shown_page(
    of: ModelAdmin[Any], request: HttpRequest, template: str, title: str, context: Callable[[], Mapping[str, object]]
) -> HttpResponse:
    """The page, for those who may see the rows of ``of``; nobody keeps it. Raises PermissionDenied for others.

    ``context`` is what the template is told besides, asked for only where the page is shown.
    """
    if not of.has_view_permission(request):
        raise PermissionDenied
    request.current_app = of.admin_site.name
    told = {**of.admin_site.each_context(request), "title": title, "opts": of.model._meta, **context()}
    response = TemplateResponse(request, f"admin/{template}.html", told)
    response["Cache-Control"] = "no-store"
    return response


class OfRules(ModelAdmin):  # type: ignore[type-arg]
    """Pages for those who may see the rules, where nothing is added."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        names = (f"django_throttle.{action}_throttlerule" for action in ("view", "change"))
        return any(map(request.user.has_perm, names))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


class PageEntry(OfRules):
    """An entry of the admin's index that leads to a page of the rules."""

    #: The name of the page's URL.
    page: ClassVar[str]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    has_delete_permission = has_change_permission

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_safe(self.changelist_view))
        return [path("", view, name=f"{self.opts.app_label}_{self.opts.model_name}_changelist")]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return redirect(f"{self.admin_site.name}:{self.page}")

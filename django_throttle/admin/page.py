"""A page of the admin that is neither a form nor a list of Django's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

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

"""Where a request goes: the scope whose rules apply, the same word at every door."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest
from django.urls import Resolver404, ResolverMatch, resolve

# The scope of what leads nowhere.
NO_ROUTE: Final = "404"


def scope_of(request: HttpRequest) -> str:
    """The ``throttle_scope`` of the view that the path resolves to, else the route's; never the raw path."""
    try:
        match = resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return NO_ROUTE
    return scope_of_match(match)


def scope_of_match(match: ResolverMatch) -> str:
    """The scope of what a path has been resolved to."""
    return view_scope(match.func) or route(match)


def route(match: ResolverMatch) -> str:
    """The name of the route, else the route itself."""
    return match.view_name if match.url_name else match.route


def view_scope(view: Any) -> str | None:
    """The ``throttle_scope`` of a view: as_view()'s, its class's (Django's or REST framework's), or the function's."""
    given = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", None) or {}
    whose = getattr(view, "view_class", None) or getattr(view, "cls", None) or view
    scope = given.get("throttle_scope") or getattr(whose, "throttle_scope", None)
    return scope if isinstance(scope, str) and scope else None

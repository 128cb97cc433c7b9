"""What a site says in its own words: functions that name a caller, and where a request keeps its tenant."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.identity.idents import plain


def is_async(found: Any) -> bool:
    """True when calling it gives something to await, which never names a caller."""
    called = getattr(found, "__call__", None)  # noqa: B004 - of an object whose class defines it
    return any(map(inspect.iscoroutinefunction, (found, called))) or inspect.isasyncgenfunction(found)


@lru_cache(maxsize=64)
def is_path(text: str) -> bool:
    """True for the path of attributes, ``user.tenant_id``; False for that of a function, in a package that exists."""
    first = text.partition(".")[0]
    return first in sys.stdlib_module_names or find_spec(first) is None


def tenant_of(subject: Any) -> object:
    """The tenant of a request or a scope, by the setting TENANT; None without one.

    Raises InvalidIdent for what is neither a text, a number nor a saved row of a model.
    """
    setting = conf().TENANT
    if not setting:
        return None
    found = _follow(subject, setting) if is_path(setting) else import_string(setting)(subject)
    return plain("TENANT", getattr(found, "pk", found))


def name_of(user: Any) -> object:
    """What a logged-in user counts under: the primary key, or what the function named by USER_IDENT returns."""
    setting = conf().USER_IDENT
    return plain("USER_IDENT", import_string(setting)(user)) if setting else user.pk


def _follow(subject: Any, path: str) -> Any:
    for name in path.split("."):
        subject = subject.get(name) if isinstance(subject, Mapping) else getattr(subject, name, None)
    return subject

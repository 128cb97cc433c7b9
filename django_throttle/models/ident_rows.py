"""Rows behind idents: users, API keys and tenants, and their own texts, for staff."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from django.contrib.auth import get_permission_codename
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.utils.text import Truncator

from django_throttle.core.key import KEY_KINDS
from django_throttle.models.subjects import names_of_users
from django_throttle.models.typed_keys import idents_of_rows, key_models, tenant_model
from django_throttle.translated import gettext

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractUser, AnonymousUser

MAX_TEXT_CHARS: Final = 100
MIN_KEY_CHARS: Final = 16  # shorter unique values, such as names, are not secret


def row_texts(idents: Iterable[str], user: AbstractUser | AnonymousUser | None = None) -> dict[str, str]:
    """Return the texts of the rows behind idents, such as "API key 5, ACME Ltd".

    Leave out API keys and tenants that ``user`` has no permission to view, if a user is given.
    """
    values: dict[str, set[str]] = {}
    for ident in idents:
        kind, _, value = ident.partition(":")
        values.setdefault(kind, set()).add(value)
    names = names_of_users(values.get("user", ()))
    return {
        **{f"user:{value}": _labelled("user", value, name) for value, name in names.items()},
        **dict(_api_keys(values.get("api_key", set()), user)),
        **dict(_tenants(values.get("tenant", set()), user)),
    }


def _api_keys(values: set[str], user: AbstractUser | AnonymousUser | None) -> Iterator[tuple[str, str]]:
    if not values or not any(may_view(model, user) for model in key_models()):
        return
    for ident, key in idents_of_rows():
        if ident.partition(":")[2] in values and may_view(type(key), user):
            for row in type(key)._base_manager.filter(pk=key.pk):
                number = "" if isinstance(row.pk, str) else str(row.pk)  # a text is the key itself
                yield ident, _labelled("api_key", number, _text_of_api_key(row))


def _tenants(values: set[str], user: AbstractUser | AnonymousUser | None) -> Iterator[tuple[str, str]]:
    model = tenant_model() if values else None
    if model is None or not may_view(model, user):
        return
    primary_keys = []
    for value in values:
        with suppress(ValidationError, ValueError, TypeError, OverflowError):
            primary_keys.append(model._meta.pk.to_python(value))
    for row in model._base_manager.filter(pk__in=primary_keys):
        yield f"tenant:{row.pk}", _labelled("tenant", str(row.pk), str(row))


def may_view(model: type[Model], user: AbstractUser | AnonymousUser | None) -> bool:
    """Return True if a user has the permission to view or to change rows of a model, and for no user."""
    names = (get_permission_codename(action, model._meta) for action in ("view", "change"))
    return user is None or any(user.has_perm(f"{model._meta.app_label}.{name}") for name in names)


def _text_of_api_key(row: Model) -> str:
    """Return the text of a row, or that of its user if the row's text has the key itself."""
    values = [str(getattr(row, field.attname)) for field in row._meta.concrete_fields if field.unique]
    has_key = any(len(value) >= MIN_KEY_CHARS and value in str(row) for value in values)
    return str(getattr(row, "user", None) or "") if has_key else str(row)


def _labelled(kind: str, number: str, text: str) -> str:
    label = " ".join(part for part in (gettext(KEY_KINDS[kind].override), number) if part)
    return f"{label}, {Truncator(text).chars(MAX_TEXT_CHARS)}" if text else label

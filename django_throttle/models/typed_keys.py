"""API keys and tenants as operators type them: the key itself, or the row that authentication sets as ``auth``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured, ValidationError
from django.db.models import CharField, ForeignKey, Model, TextField
from django.utils.module_loading import import_string
from django.utils.translation import gettext

from django_throttle.conf import conf
from django_throttle.identity.keys import api_key, is_path, key_types

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

MAX_ROWS: Final = 50_000  # newest rows that are compared with an ident
_ROW: Final = re.compile(r"([A-Za-z_]\w*\.[A-Za-z_]\w*):(.+)")


def ident_of_typed_key(typed: str, *, checks: bool = True) -> str:
    """Return the ident of a typed API key.

    A row is typed as its model and primary key, ``shop.apikey:5``. On a site whose API keys are rows, the key itself
    stands for its row. Raise ValidationError for a model or a row that does not exist, unless ``checks`` is False.
    """
    row = row_of_typed_key(typed, checks=checks)
    return str(api_key(typed if row is None else row))


def row_of_typed_key(typed: str, *, checks: bool = False) -> Model | None:
    """Return the row of a typed API key, or None if it has none. If ``checks``, raise ValidationError instead."""
    match = _ROW.fullmatch(typed)
    return _row(*match.groups(), checks=checks) if match else next(_rows_with(typed), None)


def row_of_ident(ident: str) -> Model | None:
    """Return the row with this ident among the newest rows of API keys, or None."""
    row = next((row for row_ident, row in idents_of_rows() if row_ident == ident), None)
    return row and type(row)._base_manager.filter(pk=row.pk).first()


def idents_of_rows() -> Iterator[tuple[str, Model]]:
    """Yield the idents of the newest rows of API keys, and the rows, of which only the primary key is loaded."""
    for model in key_models():
        for pk in model._base_manager.order_by("-pk").values_list("pk", flat=True)[:MAX_ROWS].iterator():
            yield str(api_key(model(pk=pk))), model(pk=pk)


def user_of_row(row: object) -> AbstractBaseUser | None:
    """Return the user of a REST framework token. Return None for rows of the site's own authentication."""
    return getattr(row, "user", None) if isinstance(row, tuple(_models_of_settings())) else None


def typed_key_warning(typed: str) -> str:
    """Return a sentence if no call may ever count under a typed API key, else ""."""
    models = key_models()
    if match := _ROW.fullmatch(typed):
        is_used = not models or _model(match[1]) in models
    else:
        has_text_keys = any(not issubclass(key_type, Model) for key_type in key_types)
        is_used = has_text_keys or next(_rows_with(typed), None) is not None
    if is_used:
        return ""
    if models:
        message = gettext(
            "The API keys of this site are rows, written like {rows}: if this is none of them, nothing happens."
        )
    else:
        message = gettext("No API key was seen yet. Where keys are rows of a model, write the row, such as {rows}.")
    return message.format(rows=example_rows())


def example_rows() -> str:
    """Return an example of a typed row of each model of API keys."""
    return ", ".join(f"{model._meta.label_lower}:5" for model in key_models()) or "shop.apikey:5"


def key_models() -> list[type[Model]]:
    """Return the models whose rows are API keys, as counted in this process or named in the settings."""
    seen = {kind for kind in key_types if issubclass(kind, Model)}
    return sorted(seen | set(_models_of_settings()), key=lambda model: str(model._meta.label))


def tenant_model() -> type[Model] | None:
    """Return the model of tenants if the setting TENANT is a path of relations from the user, such as user.tenant."""
    first, *names = conf().TENANT.split(".")
    if first != "user" or not names or not is_path(conf().TENANT):
        return None
    with suppress(FieldDoesNotExist, ImproperlyConfigured):
        model: type[Model] = get_user_model()
        for name in names:
            field = model._meta.get_field(name)
            if not isinstance(field.related_model, type):
                return None
            model = field.related_model
        if isinstance(field, ForeignKey) and field.target_field.primary_key:
            return model
    return None


def check_tenant(value: str) -> str:
    """Return the value. Raise ValidationError if tenants are rows of a model, and none has this primary key."""
    if model := tenant_model():
        _row(model._meta.label, value, checks=True)
    return value


def _models_of_settings() -> Iterator[type[Model]]:
    """Yield the models of REST framework's token authentication, if the settings name it for all views."""
    paths = getattr(settings, "REST_FRAMEWORK", {}).get("DEFAULT_AUTHENTICATION_CLASSES", ())
    if not paths or not find_spec("rest_framework"):
        return
    from rest_framework.authentication import TokenAuthentication

    for path in paths:
        with suppress(Exception):  # the first request raises import errors
            authentication = import_string(path) if isinstance(path, str) else path
            if issubclass(authentication, TokenAuthentication):
                yield authentication().get_model()


def _model(label: str) -> type[Model]:
    """Return the model of a label in any case. Raise LookupError."""
    app_label, _, name = label.rpartition(".")
    configs = {config.label.lower(): config for config in apps.get_app_configs()}
    return configs[app_label.lower()].get_model(name)


def _row(label: str, typed: str, *, checks: bool) -> Model | None:
    """Return the row, or None if it does not exist. If ``checks``, raise ValidationError instead."""
    try:
        model = _model(label)
    except LookupError:
        if not checks:
            return None
        labels = sorted(model._meta.label_lower for model in apps.get_models())
        near = get_close_matches(label.lower(), labels, n=1)
        message = (
            gettext("There is no model {label!r}; did you mean {near}?")
            if near
            else gettext("There is no model {label!r}.")
        )
        raise ValidationError(message.format(label=label, near=near and near[0])) from None
    field = model._meta.pk
    try:
        row = model._base_manager.filter(pk=field.to_python(typed)).first()
    except (ValidationError, ValueError, OverflowError):
        row = None
    if row is None and checks:
        message = gettext("{label} has no row {key!r}.")
        raise ValidationError(message.format(label=model._meta.label_lower, key=typed))
    return row


def _rows_with(typed: str) -> Iterator[Model]:
    """Yield the rows of API keys with this text in a unique column."""
    for model in key_models():
        for field in model._meta.concrete_fields:
            if field.unique and isinstance(field, (CharField, TextField)):
                yield from model._base_manager.filter(**{field.name: typed})[:1]

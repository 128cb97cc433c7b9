"""API keys as operators type them: the key itself, or the row of a model that authentication puts into ``auth``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import CharField, Model, TextField
from django.utils.module_loading import import_string
from django.utils.translation import gettext

from django_throttle.identity.keys import api_key, key_types

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

MOST_ROWS: Final = 50_000  # the newest, among which the row of an ident is looked for
_ROW: Final = re.compile(r"([A-Za-z_]\w*\.[A-Za-z_]\w*):(.+)")


def ident_of_typed_key(typed: str, *, checks: bool = True) -> str:
    """Return the ident of an API key that was typed.

    A row is written as its model and primary key, ``shop.apikey:5``. The key itself is taken for the row that has it,
    where this site is known to put rows into ``auth``. Raises ValidationError for a model or a row that there is not,
    unless ``checks`` is False.
    """
    row = row_of_typed_key(typed, checks=checks)
    return str(api_key(typed if row is None else row))


def row_of_typed_key(typed: str, *, checks: bool = False) -> Model | None:
    """Return the row of an API key that was typed; None if there is none, or raise ValidationError if it ``checks``."""
    match = _ROW.fullmatch(typed)
    return _row(*match.groups(), checks=checks) if match else next(_rows_with(typed), None)


def row_of_ident(ident: str) -> Model | None:
    """Return the row whose ident this is, of the newest rows of API keys."""
    row = next((row for known, row in idents_of_rows() if known == ident), None)
    return row and type(row)._base_manager.filter(pk=row.pk).first()


def idents_of_rows() -> Iterator[tuple[str, Model]]:
    """Yield the idents of the newest rows of API keys, with rows of which only the primary key is loaded."""
    for model in key_models():
        for pk in model._base_manager.order_by("-pk").values_list("pk", flat=True)[:MOST_ROWS].iterator():
            yield str(api_key(model(pk=pk))), model(pk=pk)


def user_of_row(row: object) -> AbstractBaseUser | None:
    """Return the user as whom a row is accepted; None where only an authentication of the site's own can tell."""
    return getattr(row, "user", None) if isinstance(row, tuple(_models_of_settings())) else None


def doubt_of_typed_key(typed: str) -> str:
    """Return a sentence where calls may not count under what was typed; empty where they do, as far as is known."""
    models = key_models()
    if match := _ROW.fullmatch(typed):
        fits = not models or _model(match[1]) in models
    else:
        fits = any(not issubclass(kind, Model) for kind in key_types)
        fits = fits or next(_rows_with(typed), None) is not None
    if fits:
        return ""
    if models:
        said = gettext(
            "The API keys of this site are rows, written like {rows}: if this is none of them, nothing happens."
        )
    else:
        said = gettext("No API key was seen yet. Where keys are rows of a model, write the row, such as {rows}.")
    return said.format(rows=examples())


def examples() -> str:
    """How a row is written, of each model that has API keys here."""
    return ", ".join(f"{model._meta.label_lower}:5" for model in key_models()) or "shop.apikey:5"


def key_models() -> list[type[Model]]:
    """The models whose rows are API keys here: those that this process has seen, and those of the settings."""
    seen = {kind for kind in key_types if issubclass(kind, Model)}
    return sorted(seen | set(_models_of_settings()), key=lambda model: str(model._meta.label))


def _models_of_settings() -> Iterator[type[Model]]:
    """The models of REST framework's token authentication, where the settings name it for all views."""
    paths = getattr(settings, "REST_FRAMEWORK", {}).get("DEFAULT_AUTHENTICATION_CLASSES", ())
    if not paths or not find_spec("rest_framework"):
        return
    from rest_framework.authentication import TokenAuthentication

    for path in paths:
        with suppress(Exception):  # what cannot be imported is an error of the site's first request
            kind = import_string(path) if isinstance(path, str) else path
            if issubclass(kind, TokenAuthentication):
                yield kind().get_model()


def _model(label: str) -> type[Model]:
    """Return the model of a label in any case; raises LookupError."""
    app, _, name = label.rpartition(".")
    apps_by_label = {config.label.lower(): config for config in apps.get_app_configs()}
    return apps_by_label[app.lower()].get_model(name)


def _row(label: str, typed: str, *, checks: bool) -> Model | None:
    """The row that was typed; None where it need not exist, and does not."""
    try:
        model = _model(label)
    except LookupError:
        if not checks:
            return None
        known = {each._meta.label_lower for each in apps.get_models()}
        near = get_close_matches(label.lower(), sorted(known), n=1)
        said = (
            gettext("There is no model {label!r}; did you mean {near}?")
            if near
            else gettext("There is no model {label!r}.")
        )
        raise ValidationError(said.format(label=label, near=near and near[0])) from None
    field = model._meta.pk
    try:
        row = model._base_manager.filter(pk=field.to_python(typed)).first()
    except (ValidationError, ValueError, OverflowError):
        row = None
    if row is None and checks:
        said = gettext("{label} has no row {key!r}.")
        raise ValidationError(said.format(label=model._meta.label_lower, key=typed))
    return row


def _rows_with(typed: str) -> Iterator[Model]:
    """The rows of which this text is the key itself: a unique text, or the primary key of such a model."""
    for model in key_models():
        for field in model._meta.concrete_fields:
            if field.unique and isinstance(field, (CharField, TextField)):
                yield from model._base_manager.filter(**{field.name: typed})[:1]

"""Key for rules against password guessing: the user name of a login request, in any encoding of its body."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.files.uploadhandler import MemoryFileUploadHandler
from django.http import HttpRequest, QueryDict
from django.http.multipartparser import MultiPartParser
from django.http.request import RawPostDataException

from django_throttle.http.input_bytes import WSGI_INPUT
from django_throttle.http.request_state import django_request, size_of
from django_throttle.identity.login_names import fold, normalize_name
from django_throttle.identity.request_body import KeptBody

__all__ = ["UNCLEAR", "fold_name", "login_name"]

#: Shared name of all logins without a single valid name.
UNCLEAR: Final = "(unclear)"
#: Size of the largest body that is read. No login has more.
MAX_BODY_BYTES: Final = 65_536
DEFAULT_FIELD: Final = "username"
MULTIPART: Final = "multipart/form-data"
JSON: Final = "application/json"
UTF_8: Final = "utf-8"
ENCODINGS: Final = ("utf-8", "utf-16", "utf-32", "ascii", "iso8859", "cp125")


def login_name(request: object, *fields: str, as_typed: bool = False) -> str | None:
    """Return the name in a login request, in a form that is equal for all spellings, or None if there is no body.

    ``request`` is Django's or REST framework's. ``fields`` are the names of the field, by default ``username`` and the
    user model's USERNAME_FIELD. They are looked up in forms (also multipart), in JSON regardless of the content type,
    and in the query string. Return UNCLEAR for a body without a name or with several names. Return UNCLEAR, too, for a
    name of more than 512 characters and for a body of more than 64 kB. All such logins are counted together. Raise no
    errors.

    Case, accents and invisible characters make no difference, because some databases ignore them. Collations may treat
    more characters as equal (ß and s, ø and o). Then let a key function look up the account, by the name ``as_typed``,
    which is not folded.
    """
    if not isinstance(django_request(request), HttpRequest):
        return None  # a handshake is no login
    try:
        with KeptBody([request]):
            values = _values_of(request, fields or (DEFAULT_FIELD, get_user_model().USERNAME_FIELD))
            names = {normalize_name(value) if as_typed else fold(value) for value in values}
        if not names and not _has_body(django_request(request)):
            return None
    except Exception:  # noqa: BLE001 - a client may send anything, and the view answers an invalid body
        return UNCLEAR
    return names.pop() if len(names) == 1 else UNCLEAR


def fold_name(typed: object) -> str:
    """Return a name in the form of ``login_name``, which is equal for all spellings.

    ``typed`` is the value that a client has sent. Return UNCLEAR if it is not a name, or has more than 512 characters.
    Raise no errors.
    """
    try:
        return fold(typed)
    except ValueError:
        return UNCLEAR


def _values_of(request: object, fields: Iterable[str]) -> Iterator[object]:
    """Yield the values of the fields, except empty texts. Raise an error if the body cannot be read."""
    inner: HttpRequest = django_request(request)
    parsed = vars(request).get("_full_data")  # set by REST framework, which reads a body once
    body_pairs = _pairs_of(parsed) if isinstance(parsed, Mapping) else _pairs_in_body(inner)
    for name, value in [*_pairs_of(inner.GET), *body_pairs]:
        if name in fields and value != "" and value is not None:
            yield value


def _pairs_of(form: Mapping[Any, Any]) -> list[tuple[object, object]]:
    """Return the pairs of a form, whose names may have several values, or of a mapping."""
    lists = form.lists() if hasattr(form, "lists") else ((name, [value]) for name, value in form.items())
    return [(name, value) for name, values in lists for value in values]


def _pairs_in_body(request: HttpRequest) -> Iterator[tuple[object, object]]:
    """Yield the pairs of the body, in every format in which a view may parse it. Only ``request.body`` is read."""
    if size_of(request) > MAX_BODY_BYTES:
        raise ValueError("too large for a login")
    try:
        body = request.body
    except RawPostDataException:
        if not hasattr(request, "_post"):
            raise
        yield from _pairs_of(request.POST)  # the form was parsed from the stream
        return
    if request.content_type == MULTIPART:
        yield from _pairs_of(_multipart_form(request, body))
        return
    for encoding in {json.detect_encoding(body), _common_encoding(request.encoding)}:
        try:
            text = body.decode(encoding)
        except UnicodeError:
            continue
        yield from _json_pairs(text)
        if request.content_type != JSON:
            yield from _pairs_of(QueryDict(body, encoding=encoding))


def _common_encoding(encoding: str | None) -> str:
    """Return the encoding that a client names. Raise ValueError for an unusual one, which may be slow to decode."""
    name = codecs.lookup(encoding or UTF_8).name
    if not name.startswith(ENCODINGS):
        raise ValueError("no encoding of a login")
    return name


def _multipart_form(request: HttpRequest, body: bytes) -> QueryDict:
    meta = {**request.META, "CONTENT_LENGTH": str(len(body))}
    encoding = _common_encoding(request.encoding)
    form, _ = MultiPartParser(meta, BytesIO(body), [MemoryFileUploadHandler()], encoding).parse()
    return form


def _json_pairs(text: str) -> list[tuple[object, object]]:
    """Return all pairs of a JSON object, also those with equal names. Return [] for other JSON."""
    try:
        value = json.loads(text, object_pairs_hook=_JsonObject)
    except (ValueError, RecursionError):
        return []
    return list(value) if isinstance(value, _JsonObject) else []


class _JsonObject(list[tuple[str, object]]):
    """Pairs of a JSON object."""


def _has_body(request: HttpRequest) -> bool:
    """Return True if there is a body, even if its length is unknown, so that Django does not read it."""
    return size_of(request) > 0 or ("HTTP_TRANSFER_ENCODING" in request.META and WSGI_INPUT in request.META)

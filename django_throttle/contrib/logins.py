"""The user name of a login request, in any encoding of its body: a key for rules against guessed passwords."""

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

# All logins without one clear name count together under this.
UNCLEAR: Final = "(unclear)"
# The largest body that is read: no login has more.
MAX_BODY: Final = 65_536
USUAL_FIELD: Final = "username"
MULTIPART: Final = "multipart/form-data"
JSON: Final = "application/json"
UTF_8: Final = "utf-8"
ENCODINGS: Final = ("utf-8", "utf-16", "utf-32", "ascii", "iso8859", "cp125")


def login_name(request: object, *fields: str, as_typed: bool = False) -> str | None:
    """The name that this request logs in by, so written that two spellings of it are one; None where there is none.

    ``request`` is Django's or REST framework's; ``fields`` are what the name is called there: ``username``, and the
    user model's USERNAME_FIELD, unless given. It is looked for in forms (multipart too), in JSON, whatever type the
    body is said to have, and in the query string. UNCLEAR where there is a body and no name in it, or several, or
    one of more than 512 characters, or more than 64 kB: whatever the view makes of that, it counts together with all of
    that kind. Never raises.

    Case, accents and characters that are not seen make no difference, as some databases look names up that way. What
    else a collation takes for the same (ß and s, ø and o) only the database knows: let a key ask it for the account, by
    the name ``as_typed``, which is not folded.
    """
    if not isinstance(django_request(request), HttpRequest):
        return None  # nobody logs in by a handshake
    try:
        with KeptBody([request]):
            values = _values_of(request, fields or (USUAL_FIELD, get_user_model().USERNAME_FIELD))
            names = {normalize_name(value) if as_typed else fold(value) for value in values}
        if not names and not _has_body(django_request(request)):
            return None
    except Exception:  # noqa: BLE001 - a client may send anything, and a refused body is the view's to answer
        return UNCLEAR
    return names.pop() if len(names) == 1 else UNCLEAR


def fold_name(typed: object) -> str:
    """Return a name as ``login_name`` writes it: two spellings of it give the same text.

    ``typed`` is what a client has sent. UNCLEAR for what is no name, and for more than 512 characters. Never raises.
    """
    try:
        return fold(typed)
    except ValueError:
        return UNCLEAR


def _values_of(request: object, fields: Iterable[str]) -> Iterator[object]:
    """The values of these fields, empty texts left out; raises for a body that cannot be read."""
    visitor: HttpRequest = django_request(request)
    parsed = vars(request).get("_full_data")  # by REST framework, which reads a body once
    in_body = _pairs_of(parsed) if isinstance(parsed, Mapping) else _pairs_in_body(visitor)
    for name, value in [*_pairs_of(visitor.GET), *in_body]:
        if name in fields and value != "" and value is not None:
            yield value


def _pairs_of(form: Mapping[Any, Any]) -> list[tuple[object, object]]:
    """The pairs of a form, in which a name may be there several times, or of a mapping."""
    lists = form.lists() if hasattr(form, "lists") else ((name, [value]) for name, value in form.items())
    return [(name, value) for name, values in lists for value in values]


def _pairs_in_body(request: HttpRequest) -> Iterator[tuple[object, object]]:
    """The pairs in all that a view may take the body for; Django's request stays as it was, but for its body read."""
    if size_of(request) > MAX_BODY:
        raise ValueError("too large for a login")
    try:
        body = request.body
    except RawPostDataException:
        if not hasattr(request, "_post"):
            raise
        yield from _pairs_of(request.POST)  # somebody has parsed the form as it came in
        return
    if request.content_type == MULTIPART:
        yield from _pairs_of(_multipart_form(request, body))
        return
    for encoding in {json.detect_encoding(body), _usual_encoding(request.encoding)}:
        try:
            text = body.decode(encoding)
        except UnicodeError:
            continue
        yield from _json_pairs(text)
        if request.content_type != JSON:
            yield from _pairs_of(QueryDict(body, encoding=encoding))


def _usual_encoding(encoding: str | None) -> str:
    """The encoding that a client names; raises ValueError for an unusual one, as decoding some takes seconds."""
    name = codecs.lookup(encoding or UTF_8).name
    if not name.startswith(ENCODINGS):
        raise ValueError("no encoding of a login")
    return name


def _multipart_form(request: HttpRequest, body: bytes) -> QueryDict:
    meta = {**request.META, "CONTENT_LENGTH": str(len(body))}
    found, _ = MultiPartParser(
        meta, BytesIO(body), [MemoryFileUploadHandler()], _usual_encoding(request.encoding)
    ).parse()
    return found


def _json_pairs(text: str) -> list[tuple[object, object]]:
    """The pairs of an object, each as often as it is there; of anything else none."""
    try:
        found = json.loads(text, object_pairs_hook=_JsonObject)
    except (ValueError, RecursionError):
        return []
    return list(found) if isinstance(found, _JsonObject) else []


class _JsonObject(list[tuple[str, object]]):
    """The pairs of one object of JSON."""


def _has_body(request: HttpRequest) -> bool:
    """Whether there is a body, also one that Django does not read as its length is unknown."""
    return size_of(request) > 0 or ("HTTP_TRANSFER_ENCODING" in request.META and WSGI_INPUT in request.META)

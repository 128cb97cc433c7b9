"""Lookup of the caller that an operator types: an ident, a user's name, or the beginning of an ident hash."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError

from django_throttle.connections.overview import get_overview
from django_throttle.core.key import EVERYONE, KEY_KINDS
from django_throttle.core.options import did_you_mean, is_dotted, key_parts
from django_throttle.core.rule import Rule
from django_throttle.core.texts import gettext_noop, sentences, translatable
from django_throttle.explain.predict import counts_any
from django_throttle.identity.caller import UNTRUSTED_KIND, ident_from_value
from django_throttle.identity.keys import LONG_VALUE_PREFIX, combined, ident_of
from django_throttle.identity.known_caller import GROUP, LOGIN_NAME, KnownCaller
from django_throttle.identity.login_names import fold
from django_throttle.models.subjects import KEY_HASH_PREFIX, check_ident, typed_ident
from django_throttle.models.typed_keys import (
    ident_of_typed_key,
    idents_of_rows,
    row_of_ident,
    row_of_typed_key,
    user_of_row,
)
from django_throttle.observe.reports import ident_for_logs
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.stores import AnyStore
from django_throttle.translated import gettext, translated

HASH_PREFIX: Final = re.compile(r"[0-9a-f]{8}")
IDENT_HASH: Final = re.compile(r"[\w-]{22}", re.ASCII)  # of an API key
HOST: Final = "host"  # kind of ident of the transports for httpx
MAX_SEARCHED_USERS: Final = 50_000  # newest users that are searched for an ident hash
MAX_TYPED_CHARACTERS: Final = 1000
EXAMPLES: Final = gettext_noop(
    "Write one like user:42, ip:203.0.113.9 or everyone, a user's name, or a reference of 8 characters."
)


class UnknownHash(ValidationError):
    """No searched ident has this hash."""


def unknown_reference(reference: str) -> str:
    """Return the sentence that no searched ident has this reference."""
    pattern = gettext_noop("No user, row, open socket or override that is known has the reference {reference}.")
    return translatable(pattern, reference=reference)


def find_caller(typed: str, snapshot: Snapshot, store: AnyStore) -> KnownCaller:
    """Return the typed caller. Raise ValidationError, with examples, if there is none.

    A reference of 8 characters is searched among open sockets, users and subjects of overrides. Raise UnknownHash
    if none of them has this hash, and StoreError if the store fails.
    """
    text = typed.strip()
    matching = (ident for ident in _candidates(snapshot, store) if ident_for_logs(ident) == text.lower())
    if HASH_PREFIX.fullmatch(text.lower()) and (ident_of_hash := next(matching, None)):
        return known_caller(ident_of_hash)
    if not text or len(text) > MAX_TYPED_CHARACTERS or not text.isprintable():
        raise ValidationError(translated(_with_examples(translatable("This text names no caller."))))
    try:
        ident = read_ident(text)
    except ValidationError as error:
        code_caller = KnownCaller(str(ident_from_value("ident", text, None)))
        if code_caller.is_explicit and counts_any(store, snapshot, code_caller.name):
            return code_caller
        if HASH_PREFIX.fullmatch(text.lower()):
            raise UnknownHash(translated(_with_examples(unknown_reference(text)))) from error
        raise ValidationError([*error.messages, gettext(EXAMPLES)]) from error
    caller = known_caller(ident, text)
    if caller.is_explicit:  # an ident from code, as by ident= of @throttle
        caller = KnownCaller(str(ident_from_value("ident", text, None)))
    if fault := _fault(ident, snapshot.rules):
        if counts_any(store, snapshot, caller.name):
            return KnownCaller(caller.name, is_explicit=True)
        raise ValidationError(translated(_with_examples(fault)))
    return caller


def known_caller(ident: str, typed: str = "") -> KnownCaller:
    """Return the caller of an ident, with the user or API key that the ident or ``typed`` names."""
    if ident.startswith("api_key:"):
        value = typed.partition(":")[2]
        key = "" if IDENT_HASH.fullmatch(value.removeprefix(KEY_HASH_PREFIX)) else value
        auth: object = (row_of_typed_key(key) or key) if key else row_of_ident(ident)
        return KnownCaller(ident, user=user_of_row(auth), auth=auth)
    return KnownCaller(ident)


def read_ident(text: str, *, checks: bool = True) -> str:
    """Return the typed ident. The parts of a joined ident are read one by one.

    Raise ValidationError if the text may mean several users. If ``checks``, raise it for unknown users too.
    """
    kind, _, value = text.partition(":")
    if kind == "api_key" and value:
        value = value.removeprefix(KEY_HASH_PREFIX)
        return f"api_key:{value}" if IDENT_HASH.fullmatch(value) else ident_of_typed_key(value, checks=checks)
    if kind == LOGIN_NAME:
        with suppress(ValueError):
            return f"{kind}:{fold(value)}"
    if "+" in kind and value and not value.startswith(LONG_VALUE_PREFIX) and _has_form(kind, value):
        parts = [part.replace("%2B", "+").replace("%25", "%") for part in value.split("+")]
        return str(combined(kind, [read_ident(part, checks=checks) for part in parts]))
    ident = typed_ident(text)
    if checks:
        check_ident(ident)
    return ident


def _has_form(kind: str, value: str) -> bool:
    """Return True if an ident of this kind may have this value. A joined ident may be hashed."""
    if "+" not in kind or value.startswith(LONG_VALUE_PREFIX):
        return kind != "user_or_ip"
    keys, parts = key_parts(kind), value.split("+")
    return len(keys) == len(parts) and all(map(_is_part_of_key, keys, parts))


def _is_part_of_key(key: str, part: str) -> bool:
    kind, _, value = part.partition(":")
    answers = KEY_KINDS[kind].answers if kind in KEY_KINDS else ()
    is_of_key = kind == key != "user_or_ip" or key in answers or (is_dotted(key) and kind == "ip")
    is_of_key = is_of_key or (kind == "group" and key == GROUP)
    return is_of_key and value != ""


def _fault(ident: str, rules: Iterable[Rule]) -> str:
    """Return the fault of an ident's kind. Return an empty text if rules of this site may count it."""
    kind, _, value = ident.partition(":")
    if ident == EVERYONE or kind in (UNTRUSTED_KIND, HOST):
        return ""
    kinds = {*KEY_KINDS, *(part for rule in rules for part in (rule.key, *key_parts(rule.key)))} - {EVERYONE}
    if kind == "group" and GROUP in kinds:
        kind = GROUP
    is_known = kind in kinds or all(part in kinds for part in key_parts(kind))
    if is_known and not value:
        return translatable("{kind!r} is only the kind of an identity.", kind=kind)
    if is_known:
        like = KnownCaller(EVERYONE).example_ident(kind)
        fault = translatable("{kind!r} is written like {like}.", kind=kind, like=like)
        return "" if _has_form(kind, value) else fault
    if hint := did_you_mean(kind[:60], sorted(kinds)):
        return translatable("{kind!r} is no kind of identity{hint}", kind=kind[:60], hint=hint)
    pattern = gettext_noop("{kind!r} is no kind of identity, and nothing is counted under it now.")
    return translatable(pattern, kind=kind[:60])


def _with_examples(fault: str) -> str:
    return sentences([fault, translatable(EXAMPLES)])


def _candidates(snapshot: Snapshot, store: AnyStore) -> Iterator[str]:
    """Yield the idents that are searched for a hash."""
    yield EVERYONE
    yield from (ident.shown for ident in get_overview(store).idents)
    yield from (override.subject for override in snapshot.overrides.all)
    yield from (ident for ident, _ in idents_of_rows())
    try:
        users = get_user_model()._default_manager.order_by("-pk").values_list("pk", flat=True)
    except ImproperlyConfigured:
        return
    yield from (str(ident_of("user", pk)) for pk in users[:MAX_SEARCHED_USERS].iterator())

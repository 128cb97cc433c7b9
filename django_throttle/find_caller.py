"""Whom an operator means: an ident that is typed, or the 8 characters by which log lines and errors name a caller."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError

from django_throttle.conf import conf
from django_throttle.connections.overview import look
from django_throttle.core.key import EVERYONE, KEY_KINDS
from django_throttle.core.options import did_you_mean, key_parts
from django_throttle.core.rule import Rule
from django_throttle.core.texts import gettext_lazy, gettext_noop, sentences
from django_throttle.identity.keys import ident_of
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models.subjects import check_ident, typed_ident
from django_throttle.observe.reports import ident_for_logs
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.stores import AnyStore
from django_throttle.translated import gettext, translated

TAG: Final = re.compile(r"[0-9a-f]{8}")
MOST_USERS: Final = 50_000  # who joined last, of whom one is looked for by a tag
LONGEST: Final = 1000
EXAMPLES: Final = gettext_noop(
    "Write one like user:42, ip:203.0.113.9 or everyone, a user's name, or the 8 characters of a log line."
)


class UnknownTag(ValidationError):
    """Nobody who could be asked has this tag."""


def find_caller(typed: str, snapshot: Snapshot, store: AnyStore) -> KnownCaller:
    """Whoever is meant; raises ValidationError, with an example, where that is nobody.

    A tag is looked up among open sockets, users and the subjects of overrides. Raises StoreError where it cannot be.
    """
    text = typed.strip()
    tagged = (ident for ident in _candidates(snapshot, store) if ident_for_logs(ident) == text.lower())
    if TAG.fullmatch(text.lower()) and (found := next(tagged, None)):
        return KnownCaller(found)
    if not text or len(text) > LONGEST or not text.isprintable():
        raise ValidationError(translated(_with_examples(gettext_lazy("This names nobody."))))
    try:
        ident = typed_ident(text)
        check_ident(ident)
    except ValidationError as error:
        if TAG.fullmatch(text.lower()):
            unknown = gettext_lazy("Neither an open socket nor a user has the tag {tag}.", tag=text)
            raise UnknownTag(translated(_with_examples(unknown))) from error
        raise ValidationError([*error.messages, gettext(EXAMPLES)]) from error
    if fault := _fault(ident, snapshot.rules):
        raise ValidationError(translated(_with_examples(fault)))
    return KnownCaller(ident)


def _fault(ident: str, rules: Iterable[Rule]) -> str:
    """What is wrong with the kind of an ident; empty for one that rules of this site may count."""
    kind, _, value = ident.partition(":")
    if ident == EVERYONE:
        return ""
    known = {*KEY_KINDS, *(part for rule in rules for part in (rule.key, *key_parts(rule.key)))} - {EVERYONE}
    is_known = kind in known or all(part in known for part in key_parts(kind))
    if is_known and value:
        return ""
    if is_known:
        return gettext_lazy("{kind!r} is only the kind of an identity.", kind=kind)
    hint = did_you_mean(kind[:60], sorted(known)) or "."
    return gettext_lazy("{kind!r} is no kind of identity{hint}", kind=kind[:60], hint=hint)


def _with_examples(fault: str) -> str:
    return sentences([fault, gettext_lazy(EXAMPLES)])


def _candidates(snapshot: Snapshot, store: AnyStore) -> Iterator[str]:
    yield EVERYONE
    yield from (ident.shown for ident in look(store).idents)
    yield from (override.subject for override in snapshot.overrides.all)
    if not conf().USER_IDENT:
        try:
            users: Any = get_user_model()._default_manager.order_by("-pk").values_list("pk", flat=True)
        except ImproperlyConfigured:
            return
        yield from (str(ident_of("user", pk)) for pk in users[:MOST_USERS].iterator())

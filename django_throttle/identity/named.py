"""Whoever is known by an ident alone, or counts under one that a site's own function gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django_throttle.core.checks import KEYS
from django_throttle.identity import own
from django_throttle.identity.caller import EVERYONE, SENT, Caller
from django_throttle.identity.idents import bounded, plain, tagged, text_of

# Which keys a text of a known kind answers; one of any other kind answers all.
ANSWERED: Final[Mapping[str, frozenset[str]]] = {
    "user": frozenset(("user", "user_or_ip", "api_key")),
    "ip": frozenset(("ip", "user_or_ip", "api_key")),
    "api_key": frozenset(("api_key",)),
    "session": frozenset(("session",)),
    "tenant": frozenset(("tenant",)),
    "connection": frozenset(("connection",)),
}
MAX_KIND: Final = 64
# The kind of a text that a view's function gave, and that has the shape of somebody else's ident.
CLAIMED: Final = "ident"
# Counts together all calls that give a list or an object in place of a text, where nobody knows the address.
NO_TEXT: Final = "no text"


@dataclass(frozen=True, slots=True)
class Named:
    """A caller that is known by its ident alone, such as "user:42"."""

    name: str

    @property
    def subject(self) -> Any:
        return None

    def ident(self, key: str) -> str | None:
        if key == EVERYONE:
            return EVERYONE
        answered = ANSWERED.get(self.name.partition(":")[0])
        return self.name if answered is None or key in answered else None

    def is_(self, trait: str) -> bool:
        if trait in ("authenticated", "anonymous"):
            return self.name.startswith("user:") == (trait == "authenticated")
        return trait.startswith("tenant:") and trait == self.name

    def lacks_address(self, key: str) -> bool:
        return False


def given_ident(what: str, value: Any, caller: Caller | None) -> str | None:
    """The ident that a call counts under by what a site's function returned; None where it is not limited.

    A text or a number counts as it is, hashed where it is long; a user counts as that user. In a view, a text that has
    the shape of an ident which the caller does not have, such as "user:42", counts apart from it. What a client may
    have sent in place of a text (an empty one, a list or an object of JSON) counts under the caller's address.
    Raises InvalidIdent for anything else.
    """
    if is_user(value):
        found = tagged("user", own.name_of(value)) if value.is_authenticated else None
    elif value is None:
        return None
    else:
        found = None if isinstance(value, SENT) else _text(text_of(plain(what, value)))
    if found is None:
        return (caller and caller.ident("ip")) or NO_TEXT
    return found if caller is None or _is_free(found, caller) else tagged(CLAIMED, found)


def is_user(value: Any) -> bool:
    """True for a user of Django's, one who is not logged in included."""
    return hasattr(value, "is_authenticated")


def _text(text: str) -> str | None:
    kind, colon, value = text.partition(":")
    if not colon or len(kind) > MAX_KIND:
        return bounded(text) or None
    return f"{kind}:{bounded(value)}"


def _is_free(ident: str, caller: Caller) -> bool:
    """Whether no key finds this ident for anybody but the caller."""
    kind, colon, _ = ident.partition(":")
    if kind in KEYS:
        return caller.ident(kind) == ident
    return kind != CLAIMED and not (colon and ("." in kind or "+" in kind))

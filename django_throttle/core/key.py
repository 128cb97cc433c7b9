"""Key kinds: the table of keys that rules may count by. Also audiences, and store keys, which hide idents."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from operator import methodcaller
from typing import Any, Final, Literal
from uuid import UUID

from django_throttle.core.exceptions import InvalidIdent, InvalidRule
from django_throttle.core.texts import gettext_noop, translatable


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyKind:
    """A key that rules may count by. Its idents begin with ``name:``."""

    name: str
    label: str  #: in the admin
    words: str  #: in descriptions of rules
    find: Callable[[Any], str | None]  #: returns the ident of a caller (``identity.caller``); None if there is none
    answers: tuple[str, ...] = ()  #: other keys under which an ident of this kind may be counted
    setting: str = ""  #: setting without which there are no idents of this kind
    override: str = ""  #: label in the admin as a subject of overrides; empty if there are no overrides of this kind
    rank: int = 0  #: precedence of overrides, 1 being the most specific; 0 if there are no overrides of this kind
    in_headers: Literal["always", "known", "never"] = "never"  #: show budgets to all, logged-in or no clients
    joins: bool = True  #: may be joined with other keys by ``+``
    asks_user: bool = True  #: finding the ident may load the user
    needs_login: bool = False  #: callers who are not logged in have no ident
    has_address: bool = False  #: the ident may be an address
    is_audience: bool = False  #: may be the audience of a rule, such as ``tenant:acme``


EVERYONE: Final = "everyone"
_EVERY: Final = (
    KeyKind(
        name="user", label="User", words="each user", find=methodcaller("by_user"), answers=("user_or_ip", "api_key"),
        override="User", rank=2, in_headers="known", needs_login=True,
    ),
    KeyKind(
        name="ip", label="Address", words="each address", find=methodcaller("by_address"), has_address=True,
        answers=("user_or_ip", "api_key"), override="Address or network", rank=3, in_headers="always", asks_user=False,
    ),
    KeyKind(
        name="user_or_ip", label="User or address", words="each user or address", in_headers="always", has_address=True,
        find=lambda caller: caller.by_user() or caller.by_address("user_or_ip"),
    ),
    KeyKind(
        name="api_key", label="API key, else user or address", words="each API key, user or address",
        find=methodcaller("by_api_key"), override="API key", rank=1, in_headers="always", has_address=True,
    ),
    KeyKind(
        name="session", label="Session", words="each session", find=methodcaller("by_session"), in_headers="always",
    ),
    KeyKind(
        name="tenant", label="Tenant", words="each tenant", find=methodcaller("by_tenant"), setting="TENANT",
        override="Tenant", rank=4, in_headers="known", is_audience=True,
    ),
    # These two do not join: "everyone" adds nothing to another key, and nothing adds to "connection".
    KeyKind(
        name="connection", label="One WebSocket", words="each WebSocket", find=methodcaller("by_connection"),
        joins=False, asks_user=False,
    ),
    KeyKind(
        name=EVERYONE, label="Everyone together", words="everyone together", find=lambda caller: EVERYONE,
        in_headers="always", joins=False, asks_user=False,
    ),
)  # fmt: skip
KEY_KINDS: Final = {kind.name: kind for kind in _EVERY}
# Types whose text is the same in every process. The repr of other objects may contain a memory address.
PLAIN_TYPES: Final = (str, int, float, Decimal, UUID)


AUDIENCE_WORDS: Final = {
    "anonymous": gettext_noop("visitors who are not logged in"),
    "authenticated": gettext_noop("logged-in users"),
    "staff": gettext_noop("staff"),
}
AUDIENCES: Final = tuple(AUDIENCE_WORDS)
# Kinds of audience with a name: group:editors, tenant:acme.
AUDIENCE_KINDS: Final = ("group", *(name for name, kind in KEY_KINDS.items() if kind.is_audience))


def check_audience(entry: str, option: str) -> None:
    """Raise InvalidRule unless an entry is an audience. The message suggests the nearest audience."""
    kind, colon, name = entry.partition(":")
    if entry in AUDIENCES or (colon and kind in AUDIENCE_KINDS and name == name.strip() != ""):
        return
    near = get_close_matches(kind.strip().lower(), (*AUDIENCES, *AUDIENCE_KINDS), n=1)
    if near and near[0] in AUDIENCE_KINDS:
        near = [f"{near[0]}:{name.strip() or 'NAME'}"]
    pattern = gettext_noop("; choose {known}, group:NAME or tenant:NAME")
    if option == "plans":
        pattern = gettext_noop("; choose {known}, group:NAME, tenant:NAME or a function such as shop.limits.plan:NAME")
    choices = translatable(pattern, known=", ".join(AUDIENCES))
    hint = translatable("; did you mean {near!r}?", near=near[0]) if near else choices
    raise InvalidRule(translatable("there is no audience {entry!r}{hint}", entry=entry, hint=hint), option)


def joined_keys() -> tuple[str, ...]:
    """Return the keys that may be joined."""
    return tuple(name for name, kind in KEY_KINDS.items() if kind.joins)


def without_setting(keys: Iterable[str], settings: object) -> Iterable[KeyKind]:
    """Yield the kinds among keys or audiences whose setting is empty, so that they apply to no caller."""
    for key in keys:
        kind = KEY_KINDS.get(key.partition(":")[0])
        if kind is not None and kind.setting and not getattr(settings, kind.setting):
            yield kind


MAX_IDENT_LENGTH: Final = 1024  # characters


def check_ident(ident: object) -> str:
    """Return the ident. Raise InvalidIdent unless it is text of 1 to 1024 characters.

    All characters are allowed, including NUL, braces and lone surrogates, because only a hash is stored.
    """
    if not isinstance(ident, str) or not 1 <= len(ident) <= MAX_IDENT_LENGTH:
        shown = f"{len(ident)} characters" if isinstance(ident, str) else type(ident).__name__
        raise InvalidIdent(f"an ident must be text of 1 to {MAX_IDENT_LENGTH} characters, not {shown}")
    return ident


def ident_hash(ident: str, secret: bytes) -> str:
    """Return the ident hash: a keyed hash of 128 bits in 22 URL-safe characters. It is the hash tag of store keys."""
    text = ident.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, key=secret, digest_size=16).digest()
    return urlsafe_b64encode(digest)[:22].decode()


@lru_cache(maxsize=4096)
def key_root(prefix: str, ident: str, secret: bytes) -> str:
    """Return the prefix of all store keys of an ident: ``prefix:{hash}:``. The rule id follows.

    The hash in braces is the hash tag, by which all keys of an ident share a slot of Redis Cluster.
    """
    return f"{prefix}:{{{ident_hash(ident, secret)}}}:"


def secret_bytes(secret: str) -> bytes:
    """Return the 32 bytes that key the ident hash, from a secret of any length."""
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=32).digest() if secret else b""

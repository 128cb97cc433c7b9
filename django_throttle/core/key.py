"""Key kinds, by which rules count, a row each; and store keys, which hide idents: each rule and ident has its own."""

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
from django_throttle.core.texts import gettext_lazy, gettext_noop


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyKind:
    """One key that rules may count by; its idents begin with ``name:``.

    ``find`` gives the ident of a caller (``identity.caller``), None where the key does not apply. ``words`` and
    ``label`` are a description's and the admin's. ``answers`` are the other keys under which an ident of this kind
    counts where only the ident is known. Without ``setting`` it finds nobody. ``override`` is its label in the admin as
    a subject of overrides, and ``rank`` its place among those, the most specific first; 0 where it is none.
    ``in_headers`` says whether header fields show budgets of this kind: always, to logged-in clients, or never.
    """

    name: str
    label: str
    words: str
    find: Callable[[Any], str | None]
    answers: tuple[str, ...] = ()
    setting: str = ""
    override: str = ""
    rank: int = 0
    in_headers: Literal["always", "known", "never"] = "never"
    joins: bool = True  # may stand beside others, with + in between
    asks_user: bool = True  # finding it may look the user up
    needs_login: bool = False  # who is not logged in has no ident
    has_address: bool = False  # the address is the ident where there is nothing better
    is_audience: bool = False  # a rule may be about one of them: tenant:acme


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
    # Everyone together with somebody is that somebody, and a connection with whoever opened it is that connection.
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
# What has one text, today and in every process; the repr of any other object may hold its place in memory.
PLAIN: Final = (str, int, float, Decimal, UUID)


AUDIENCE_WORDS: Final = {
    "anonymous": gettext_noop("visitors who are not logged in"),
    "authenticated": gettext_noop("logged-in users"),
    "staff": gettext_noop("staff"),
}
AUDIENCES: Final = tuple(AUDIENCE_WORDS)
# Kinds of audience that have names: group:editors, tenant:acme.
AUDIENCE_KINDS: Final = ("group", *(name for name, kind in KEY_KINDS.items() if kind.is_audience))


def check_audience(entry: str, option: str) -> None:
    """Raise InvalidRule for what is no audience, naming the nearest one."""
    kind, colon, name = entry.partition(":")
    if entry in AUDIENCES or (colon and kind in AUDIENCE_KINDS and name == name.strip() != ""):
        return
    near = get_close_matches(kind.strip().lower(), (*AUDIENCES, *AUDIENCE_KINDS), n=1)
    if near and near[0] in AUDIENCE_KINDS:
        near = [f"{near[0]}:{name.strip() or 'NAME'}"]
    pattern = gettext_noop("; choose {known}, group:NAME or tenant:NAME")
    if option == "plans":
        pattern = gettext_noop("; choose {known}, group:NAME, tenant:NAME or a function such as shop.limits.plan:NAME")
    choices = gettext_lazy(pattern, known=", ".join(AUDIENCES))
    hint = gettext_lazy("; did you mean {near!r}?", near=near[0]) if near else choices
    raise InvalidRule(gettext_lazy("there is no audience {entry!r}{hint}", entry=entry, hint=hint), option)


def joined_keys() -> tuple[str, ...]:
    """The keys that may be joined."""
    return tuple(name for name, kind in KEY_KINDS.items() if kind.joins)


def without_setting(keys: Iterable[str], settings: object) -> Iterable[KeyKind]:
    """The kinds among these keys, or entries of an audience, whose setting is empty: they find nobody on this site."""
    for key in keys:
        kind = KEY_KINDS.get(key.partition(":")[0])
        if kind is not None and kind.setting and not getattr(settings, kind.setting):
            yield kind


MAX_IDENT: Final = 1024


def check_ident(ident: object) -> str:
    """The ident itself; raises InvalidIdent unless it is text of 1 to 1024 characters.

    Any character is welcome, NUL, braces and lone surrogates included: only a hash of it is stored.
    """
    if not isinstance(ident, str) or not 1 <= len(ident) <= MAX_IDENT:
        shown = f"{len(ident)} characters" if isinstance(ident, str) else type(ident).__name__
        raise InvalidIdent(f"an ident must be text of 1 to {MAX_IDENT} characters, not {shown}")
    return ident


def ident_tag(ident: str, secret: bytes) -> str:
    """A keyed hash of the ident, 128 bits in 22 URL-safe characters: the hash tag of all its keys."""
    text = ident.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, key=secret, digest_size=16).digest()
    return urlsafe_b64encode(digest)[:22].decode()


@lru_cache(maxsize=4096)
def key_root(prefix: str, ident: str, secret: bytes) -> str:
    """What all store keys of an ident begin with, its tag in braces, so that they share a Cluster slot.

    A rule's key is that and the rule's id: ``prefix:{tag}:rule``.
    """
    return f"{prefix}:{{{ident_tag(ident, secret)}}}:"


def secret_bytes(secret: str) -> bytes:
    """A secret of any length as the 32 bytes that key the hash."""
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=32).digest() if secret else b""

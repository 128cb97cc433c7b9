"""Store keys: nothing of an ident is readable in them, and no two (rule, ident) pairs share one."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from django_throttle.core.errors import InvalidIdent

MAX_IDENT: Final = 1024


def check_ident(ident: object) -> str:
    """The ident itself; raises InvalidIdent unless it is text of 1 to 1024 characters.

    Any character is welcome, NUL, braces and lone surrogates included: only a hash of it is stored.
    """
    if not isinstance(ident, str) or not 1 <= len(ident) <= MAX_IDENT:
        shown = f"{len(ident)} characters" if isinstance(ident, str) else type(ident).__name__
        raise InvalidIdent(f"an ident is text of 1 to {MAX_IDENT} characters, not {shown}")
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


def short_hash(parts: Iterable[str]) -> str:
    """Several texts in eight characters, a hash of 48 bits."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return urlsafe_b64encode(hashlib.blake2b(text.encode(), digest_size=6).digest()).decode()

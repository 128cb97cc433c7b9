"""Whom a rule counts: one of the known keys, several of them joined, or a function of the site's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_throttle.core.checks.known import KEYS
from django_throttle.core.checks.numbers import is_dotted, one_of
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule

# Everyone together with somebody is that somebody, and a connection with whoever opened it is that connection.
JOINED: Final = tuple(key for key in KEYS if key not in ("everyone", "connection"))


def parts(key: str) -> tuple[str, ...]:
    """The keys that are joined by ``+``; the key itself where none are."""
    return tuple(key.split("+"))


def functions(key: str) -> tuple[str, ...]:
    """The dotted paths among the keys that are joined."""
    return tuple(part for part in parts(key) if is_dotted(part))


def _key(rule: Rule) -> None:
    # A dotted path names a function; the rulebook imports it.
    if is_dotted(rule.key):
        return
    if not isinstance(rule.key, str) or "+" not in rule.key:
        one_of("key", rule.key, KEYS)
        return
    found = parts(rule.key)
    for part in found:
        if part not in JOINED and not is_dotted(part):
            raise InvalidRule(f"a key joins {', '.join(JOINED)} and paths of functions, not {part!r}", "key")
    if len(set(found)) < len(found):
        raise InvalidRule(f"the key {rule.key!r} has one of its parts twice", "key")


KEY_CHECKS: Final = (_key,)

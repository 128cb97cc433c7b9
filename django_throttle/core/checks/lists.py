"""Lists as they are given, in settings, JSON and forms, made the tuples of a rule: each entry once, in one spelling."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from django_throttle.core.checks.known import AUDIENCE_KINDS, AUDIENCES, MAX_TIMES, MAX_WARNINGS, METHODS
from django_throttle.exceptions import InvalidRule

MADE_UP: Final = tuple(f"{kind}:" for kind in AUDIENCE_KINDS)


def names(option: str, given: object) -> tuple[str, ...]:
    """A tuple of non-empty texts; raises InvalidRule for a bare text, which would be read letter by letter."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidRule(f"{option} is a list of names, not {given!r}", option)
    found = tuple(given)
    if not found or not all(isinstance(name, str) and name.strip() for name in found):
        raise InvalidRule(f"{option} needs at least one name and no empty ones, not {given!r}", option)
    for name in found:
        if "," in name or name != name.strip():
            raise InvalidRule(f"{option}: a name has no comma and no space around it, unlike {name!r}", option)
    return found


def sequence(option: str, given: object) -> tuple[Any, ...]:
    """The given list or tuple as a tuple; raises InvalidRule for anything else."""
    if not isinstance(given, (list, tuple)):
        raise InvalidRule(f"{option} is a list, not {given!r}", option)
    return tuple(given)


def methods(given: object) -> tuple[str, ...]:
    """HTTP methods in capitals; raises InvalidRule for one that is none, naming the nearest that is."""
    found = tuple(dict.fromkeys(name.upper() for name in _names_if_any("methods", given)))
    for name in found:
        if name not in METHODS:
            raise InvalidRule(f"there is no method {name!r}{_meant(name, METHODS)}", "methods")
    return found


def audience(given: object) -> tuple[str, ...]:
    """Whom a rule is about: anonymous, authenticated, staff, group:NAME, tenant:NAME. Raises InvalidRule."""
    found = tuple(dict.fromkeys(_names_if_any("audience", given)))
    for entry in found:
        kind, colon, name = entry.partition(":")
        if entry in AUDIENCES or (colon and kind in AUDIENCE_KINDS and name == name.strip() != ""):
            continue
        near = get_close_matches(kind.strip().lower(), (*AUDIENCES, *AUDIENCE_KINDS), n=1)
        if near and near[0] in AUDIENCE_KINDS:
            near = [f"{near[0]}:{name.strip() or 'NAME'}"]
        hint = f"; did you mean {near[0]!r}?" if near else f"; choose {', '.join(AUDIENCES)}, group:NAME or tenant:NAME"
        raise InvalidRule(f"there is no audience {entry!r}{hint}", "audience")
    return found


def shares(given: object) -> tuple[float, ...]:
    """Shares of a limit, the least first. Raises InvalidRule."""
    found = sequence("warn_at", given)
    for share in found:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= MAX_TIMES:
            is_percent = type(share) in (int, float) and MAX_TIMES < share <= 1000
            hint = f" ({share:g} % is {share / 100:g})" if is_percent else " (0.8 is 80 %)"
            raise InvalidRule(
                f"warn_at has shares of the limit, above 0 and up to {MAX_TIMES}{hint}, not {share!r}", "warn_at"
            )
    if len(found) > MAX_WARNINGS:
        raise InvalidRule(f"warn_at has at most {MAX_WARNINGS} shares", "warn_at")
    return tuple(sorted(set(map(float, found))))


def statuses(given: object) -> tuple[int, ...]:
    """HTTP statuses, the least first. Raises InvalidRule."""
    found = sequence("count_on", given)
    for status in found:
        if type(status) is not int or not 100 <= status <= 599:
            raise InvalidRule(f"count_on has HTTP statuses, from 100 to 599, not {status!r}", "count_on")
    return tuple(sorted(set(found)))


def _names_if_any(option: str, given: object) -> tuple[str, ...]:
    return names(option, given) if given not in ((), []) else ()


def _meant(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, tuple(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

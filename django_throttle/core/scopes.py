"""Scopes of rules: names, patterns and exclusions.

An entry that begins with ``!`` is an exclusion: ``*, !health`` is everywhere except on health.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from django_throttle.core.exceptions import InvalidRule
from django_throttle.core.texts import translatable

EVERYWHERE: Final = "*"
EXCLUSION: Final = "!"
# Exclusions as other software writes them. A route that begins with a hyphen is written [-]/name.
_LOOKALIKES: Final = ("-", "not ", "NOT ")


def split_scopes(entries: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the covered and the excluded patterns. A rule with exclusions alone covers everything else."""
    excluded = tuple([entry.removeprefix(EXCLUSION) for entry in entries if entry.startswith(EXCLUSION)])
    covered = tuple([entry for entry in entries if not entry.startswith(EXCLUSION)])
    return covered or ((EVERYWHERE,) if excluded else ()), excluded


def covers(entries: Sequence[str], scope: str) -> bool:
    """Return True if the scope entries of a rule cover a scope."""
    covered, excluded = split_scopes(entries)
    return matches(covered, scope) and not matches(excluded, scope)


def matches(patterns: Iterable[str], scope: str) -> bool:
    """Return True if a pattern equals or matches the scope."""
    return any(pattern in (EVERYWHERE, scope) or fnmatchcase(scope, pattern) for pattern in patterns)


def checked_scopes(entries: Sequence[str]) -> tuple[str, ...]:
    """Return the entries, with exclusions stripped of spaces. Raise InvalidRule for an exclusion that is not valid."""
    checked = []
    for entry in entries:
        lookalike = next((sign for sign in _LOOKALIKES if entry.startswith(sign)), None)
        if lookalike is not None:
            exclusion = f"{EXCLUSION}{entry.removeprefix(lookalike).strip()}"
            fault = translatable("{entry!r} leaves nothing out: write {meant!r}", entry=entry, meant=exclusion)
            raise InvalidRule(fault, "scopes")
        name = entry.removeprefix(EXCLUSION).strip() if entry.startswith(EXCLUSION) else entry
        if not name or name.startswith(EXCLUSION):
            raise InvalidRule(translatable("{entry!r} names no scope to leave out", entry=entry), "scopes")
        checked.append(f"{EXCLUSION}{name}" if entry.startswith(EXCLUSION) else entry)
    covered, excluded = split_scopes(checked)
    if all(matches(excluded, pattern) for pattern in covered):
        left_out = ", ".join(f"{EXCLUSION}{pattern}" for pattern in excluded)
        raise InvalidRule(
            translatable("scopes cover nothing, as {left_out} leaves all out", left_out=left_out), "scopes"
        )
    return tuple(checked)

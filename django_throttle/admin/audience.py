"""Groups that a rule names and nobody has made: such a rule is right, and limits nobody."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from django.apps import apps


def unknown_groups(audience: Iterable[str]) -> list[str]:
    """A sentence for each group that is not there, with the nearest name that is."""
    named = [entry.removeprefix("group:") for entry in audience if entry.startswith("group:")]
    if not named or not apps.is_installed("django.contrib.auth"):
        return []
    known = list(apps.get_model("auth", "Group").objects.values_list("name", flat=True))
    return [_sentence(name, known) for name in named if name not in known]


def _sentence(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no group {name!r} yet, so nobody is in it.{hint}"

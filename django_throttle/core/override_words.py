"""What an override does, in words: one phrase that an operator can check against what was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from django_throttle.core.override import EVERY_RULE, Override


def describe_effect(override: Override) -> str:
    """Such as "blocked", "exempt from api" or "3 × the limit of api and search"."""
    return _WORDS[override.effect](override)


def rules_in_words(rules: Iterable[str]) -> str:
    """The rules by their names and patterns: "every rule", or "api and search"."""
    names = tuple(dict.fromkeys(rules))
    if EVERY_RULE in names:
        return "every rule"
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _block(override: Override) -> str:
    if override.names_every_rule:
        return "blocked"
    return f"blocked from what {rules_in_words(override.rules)} covers"


def _exempt(override: Override) -> str:
    return f"exempt from {rules_in_words(override.rules)}"


def _multiply(override: Override) -> str:
    return f"{override.factor:,.15g} × the limit of {rules_in_words(override.rules)}"


def _replace(override: Override) -> str:
    said = [", ".join(map(str, override.rates))] if override.rates else []
    said += [f"{override.limit:,} at once"] if override.limit is not None else []
    return f"{' and '.join(said)} instead of the limit of {rules_in_words(override.rules)}"


_WORDS: Final[dict[str, Callable[[Override], str]]] = {
    "block": _block,
    "exempt": _exempt,
    "multiply": _multiply,
    "replace": _replace,
}

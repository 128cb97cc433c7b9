"""What is right in form and may not be what was meant: overrides that do nothing, or less than they say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec

from django.urls import get_resolver

from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.overrides import UNLISTED, changed, rules_in_words
from django_throttle.models.override import ThrottleOverride
from django_throttle.models.subjects import group_exists


def misspelt(names: Iterable[str], rules: Iterable[Rule], *, unlisted: bool = True) -> list[str]:
    """A sentence for each name, patterns aside, that no rule has, nor a limit of REST framework's throttles.

    ``unlisted`` is False where those limits do not count.
    """
    exact = [name for name in names if not _is_pattern(name)]
    known = {rule.name for rule in rules}
    if unlisted and any(name.startswith(UNLISTED) for name in exact):
        known |= _unlisted()
    return [_missing(name, known) for name in exact if name not in known]


def doubts(row: ThrottleOverride, rules: Iterable[Rule]) -> Iterator[str]:
    """Sentences for the operator who has just saved the row."""
    override = row.as_override()
    named = [rule for rule in rules if override.names(rule.name)]
    if row.kind == "group" and not group_exists(row.value):
        yield f"There is no group {row.value!r}: it does nothing until there is one."
    if row.kind == "tenant" and not conf().TENANT:
        yield "The setting TENANT does not say who the tenant is: it does nothing until it does."
    if not named and not override.names_every_rule and not any(name.startswith(UNLISTED) for name in override.rules):
        yield f"No rule is named {rules_in_words(override.rules)}: it does nothing until there is one."
    if override.effect in ("multiply", "replace"):
        unchanged = [rule.name for rule in named if changed(rule, override) is None]
        if unchanged:
            holds = "holds as it is" if len(unchanged) == 1 else "hold as they are"
            yield f"It does not fit {rules_in_words(unchanged)}, which {holds}."


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _unlisted() -> set[str]:
    """The limits of REST framework's throttles; its views are loaded, as they may bring classes of their own."""
    if find_spec("rest_framework") is None:
        return set()
    from django_throttle.drf.rates import names_of_limits

    with suppress(Exception):  # a site whose views cannot be loaded says so by itself
        _ = get_resolver().url_patterns
    return names_of_limits()


def _missing(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, sorted(known), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no rule {name!r}.{hint}"

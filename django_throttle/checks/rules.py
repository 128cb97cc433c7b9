"""The rules in settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from django.core.checks import CheckMessage
from django.utils.module_loading import import_string

from django_throttle.checks.given import Given, value_of, wrong
from django_throttle.core import Rule
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.identity import is_async
from django_throttle.rulebook import sources


def _rules(given: Given) -> Iterator[CheckMessage]:
    rules = value_of(given, "RULES")
    if not isinstance(rules, Mapping):
        yield wrong("E003", f"RULES is a dictionary of rules, not {type(rules).__name__}")
        return
    for name, options in rules.items():
        try:
            yield from _callable(Rule.from_options(name, options))
        except (InvalidRule, InvalidRate) as error:
            yield wrong("E004", f"rule {name!r}: {sources.sentence(str(name), error)}")


def _callable(rule: Rule) -> Iterator[CheckMessage]:
    if "." not in rule.key:
        return
    named = f"rule {rule.name!r}: the key {rule.key!r}"
    try:
        found = import_string(rule.key)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield wrong("E005", f"{named} cannot be imported ({error})")
        return
    if not callable(found):
        yield wrong("E005", f"{named} cannot be called")
    elif is_async(found):
        yield wrong("E006", f"{named} is async; what names the caller must be a plain function")


RULE_CHECKS: Final = (_rules,)

"""The rules in settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from django.core.checks import CheckMessage
from django.utils.module_loading import import_string

from django_throttle.checks.given import Given, value_of, wrong
from django_throttle.core import Rule
from django_throttle.core.checks.key import functions
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
            rule = Rule.from_options(name, options)
            for path in functions(rule.key):
                yield from _callable(rule, "key", path, ("E005", "E006"))
            yield from _callable(rule, "cost", rule.cost, ("E061", "E062"))
        except (InvalidRule, InvalidRate) as error:
            yield wrong("E004", f"rule {name!r}: {sources.sentence(str(name), error)}")


def _callable(rule: Rule, option: str, path: int | str, numbers: tuple[str, str]) -> Iterator[CheckMessage]:
    if not isinstance(path, str) or "." not in path:
        return
    named = f"rule {rule.name!r}: the {option} {path!r}"
    try:
        found = import_string(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield wrong(numbers[0], f"{named} cannot be imported ({error})")
        return
    if not callable(found):
        yield wrong(numbers[0], f"{named} cannot be called")
    elif is_async(found):
        yield wrong(numbers[1], f"{named} is async; it must be a plain function, which is called for every request")


RULE_CHECKS: Final = (_rules,)

"""All rules at one moment: never edited, only replaced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from django_throttle.core import Charge, Rule
from django_throttle.core.command import charges_of
from django_throttle.facts import Facts

MAX_REMEMBERED: Final = 4096


class Snapshot:
    """The rules, in the order of their names; ``version`` is the same wherever the same rules are in force."""

    __slots__ = ("_found", "rules", "version")

    def __init__(self, rules: Iterable[Rule], version: str | None = None) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: rule.name))
        self.version = version or _digest(self.rules)
        self._found: dict[tuple[str, tuple[str, ...]], tuple[Rule, ...]] = {}

    def match(self, facts: Facts) -> tuple[Charge, ...]:
        """What a call is to be charged: one charge for each enabled rule that covers it and knows the caller."""
        rules = self._named(facts.rule) if facts.rule else self._found.get((facts.scope, facts.events))
        if rules is None:
            rules = self._find(facts.scope, facts.events)
        charges: list[Charge] = []
        for rule in rules:
            if rule.name in facts.charged:
                continue
            ident = facts.who.ident(rule.key)
            if ident is not None:
                charges.extend(charges_of(rule, ident, facts.cost))
        return tuple(charges)

    def by_name(self, name: str) -> Rule | None:
        """The rule of this name, enabled or not."""
        return next((rule for rule in self.rules if rule.name == name), None)

    def _named(self, name: str) -> tuple[Rule, ...]:
        rule = self.by_name(name)
        return (rule,) if rule is not None and rule.enabled else ()

    def _find(self, scope: str, events: tuple[str, ...]) -> tuple[Rule, ...]:
        found = tuple(rule for rule in self.rules if rule.enabled and _covers(rule, scope, events))
        if len(self._found) >= MAX_REMEMBERED:
            self._found.clear()
        self._found[scope, events] = found
        return found


def _covers(rule: Rule, scope: str, events: tuple[str, ...]) -> bool:
    if not any(event in rule.events for event in events):
        return False
    return any(pattern == scope or fnmatchcase(scope, pattern) for pattern in rule.scopes)


def _digest(rules: tuple[Rule, ...]) -> str:
    text = json.dumps([(rule.name, rule.as_options()) for rule in rules], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

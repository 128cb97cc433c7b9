"""All rules at one moment: never edited, only replaced."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from django_throttle.core import Charge, Outcome, Override, Rule
from django_throttle.core.checks.key import parts
from django_throttle.core.command import charges_of
from django_throttle.facts import BY_KEY, Facts
from django_throttle.rulebook.nameless import is_refused, refusals
from django_throttle.rulebook.relief import Relief, wall_clock
from django_throttle.rulebook.scopes import Scopes
from django_throttle.rulebook.terms import cost_of, is_about
from django_throttle.stores.complaints import Complaints

logger = logging.getLogger("django_throttle")

MAX_REMEMBERED: Final = 4096
# Keys that are the same whoever is logged in.
NOBODY: Final = frozenset(("ip", "everyone", "connection"))
_missed: Final = Complaints()


class Snapshot:
    """The rules, in the order of their names, and the overrides of them.

    ``version`` is the same wherever the same rules and overrides are in force. ``asks_groups`` is True when a caller
    has to be asked for groups, which a database has to say.
    """

    __slots__ = ("_by_name", "_found", "_is_plain", "_scopes", "asks_groups", "relief", "rules", "version")

    def __init__(
        self,
        rules: Iterable[Rule],
        version: str | None = None,
        overrides: Iterable[Override] = (),
        now: Callable[[], float] = wall_clock,
    ) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: rule.name))
        self.relief = Relief(overrides, now)
        self.version = version or _digest(self.rules, self.relief.overrides)
        self._by_name = {rule.name: rule for rule in self.rules}
        self._scopes = Scopes([rule.scopes if rule.enabled else () for rule in self.rules])
        self._found: dict[tuple[str, tuple[str, ...]], tuple[Rule, ...]] = {}
        self._is_plain = all(rule.is_plain for rule in self.rules)
        self.asks_groups = self.relief.asks_groups or any(map(_asks_groups, self.rules))

    def match(self, facts: Facts) -> tuple[Charge, ...]:
        """What a call is to be charged: one charge for each enabled rule that covers it and knows the caller."""
        relief = self.relief.of(facts.who) if self.relief.overrides and not facts.is_claimed else ()
        charges: list[Charge] = []
        for rule in self._covering(facts):
            ident = facts.who.ident(rule.key) if facts.ident == BY_KEY else facts.ident
            if ident is None or (call := facts.due(rule, ident) if facts.charged else facts) is None:
                continue
            if held := self.relief.rule(rule, relief) if relief else rule:
                charges += charges_of(held, ident, call.cost if held.is_plain else cost_of(held, call))
        return tuple(charges)

    def blocks(self, facts: Facts) -> tuple[Outcome, ...]:
        """The refusals of a call that an override blocks, or that nobody can count; empty for any other."""
        relief = self.relief.of(facts.who) if self.relief.overrides else ()
        if relief and (found := self.relief.blocks(self._covering(facts), relief)):
            return found
        return refusals(self._covering(facts), facts) if is_refused() else ()

    def asks_user(self, facts: Facts) -> bool:
        """Whether it may matter to the rules of this call who is logged in."""
        return bool(self.relief.overrides) or any(map(_asks_user, self._in_scope(facts)))

    def by_name(self, name: str) -> Rule | None:
        """The rule of this name, enabled or not."""
        return self._by_name.get(name)

    def _covering(self, facts: Facts) -> tuple[Rule, ...]:
        rules = self._only(facts.rule) if facts.rule else self._in_scope(facts)
        if facts.only:
            rules = tuple([rule for rule in rules if rule.name in facts.only])
        if self._is_plain:  # nothing else depends on the call
            return rules
        return tuple([rule for rule in rules if rule.is_plain or is_about(rule, facts)])

    def _only(self, given: str | Rule) -> tuple[Rule, ...]:
        rule = given if isinstance(given, Rule) else self.by_name(given)
        if rule is None and _missed.due(str(given)):
            logger.warning("there is no rule %r, so what is under it is not limited", given)
        return (rule,) if rule is not None and rule.enabled else ()

    def _in_scope(self, facts: Facts) -> tuple[Rule, ...]:
        rules = self._found.get((facts.scope, facts.events))
        return self._find(facts.scope, facts.events) if rules is None else rules

    def _find(self, scope: str, events: tuple[str, ...]) -> tuple[Rule, ...]:
        rules = [self.rules[number] for number in self._scopes.find(scope)]
        found = tuple([rule for rule in rules if not set(events).isdisjoint(rule.events)])
        if len(self._found) >= MAX_REMEMBERED:
            self._found.clear()
        self._found[scope, events] = found
        return found


def _asks_groups(rule: Rule) -> bool:
    return rule.enabled and any(entry.startswith("group:") for entry in rule.audience)


def _asks_user(rule: Rule) -> bool:
    return bool(rule.audience) or isinstance(rule.cost, str) or not NOBODY.issuperset(parts(rule.key))


def _digest(rules: tuple[Rule, ...], overrides: tuple[Override, ...]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    # One by one: as one text, ten thousand rules would keep every other thread waiting while it is written.
    for entry in chain(((rule.name, rule.as_options()) for rule in rules), map(repr, overrides)):
        digest.update(json.dumps(entry, sort_keys=True).encode())
    return digest.hexdigest()

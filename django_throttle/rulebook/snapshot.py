"""All rules and overrides at one moment: never edited, only replaced."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from django_throttle.conf import conf
from django_throttle.core import Charge, Outcome, Override, Rule
from django_throttle.core.commands import charges_of
from django_throttle.core.key import KEY_KINDS
from django_throttle.core.options import meant, parts
from django_throttle.facts import BY_KEY, Facts
from django_throttle.log_throttling import LogThrottle
from django_throttle.rulebook.conditions import REFUSE, Scopes, cost_of, is_about, refusals
from django_throttle.rulebook.overrides import MAX_REMEMBERED, Overrides, wall_clock

logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()


class Snapshot:
    """The rules, in the order of their names, and the overrides of them.

    ``version`` is the same wherever the same rules and overrides are in force. ``asks_groups`` is True when matching
    takes the groups of a user, which are a database query.
    """

    __slots__ = ("_by_name", "_by_scope", "_is_plain", "_scopes", "asks_groups", "overrides", "rules", "version")

    def __init__(
        self,
        rules: Iterable[Rule],
        version: str | None = None,
        overrides: Iterable[Override] = (),
        now: Callable[[], float] = wall_clock,
    ) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: rule.name))
        self.overrides = Overrides(overrides, now)
        self.version = version or _digest(self.rules, self.overrides.all)
        self._by_name = {rule.name: rule for rule in self.rules}
        self._scopes = Scopes([rule.scopes if rule.enabled else () for rule in self.rules])
        self._by_scope: dict[tuple[str, tuple[str, ...]], tuple[Rule, ...]] = {}
        self._is_plain = all(rule.is_plain for rule in self.rules)
        self.asks_groups = self.overrides.asks_groups or any(map(_asks_groups, self.rules))

    def match(self, facts: Facts) -> tuple[Charge, ...]:
        """What a call is to be charged: for each enabled rule that covers it and has an ident for the caller."""
        overrides = self.overrides.of(facts.who) if self.overrides.all and not facts.is_claimed else ()
        charges: list[Charge] = []
        for rule in self._matched(facts):
            ident = facts.who.ident(rule.key) if facts.ident == BY_KEY else facts.ident
            if ident is None or (call := facts.due(rule, ident) if facts.charged.costs else facts) is None:
                continue
            if changed := self.overrides.rule(rule, overrides) if overrides else rule:
                cost = call.cost if changed.is_plain else cost_of(changed, call)
                if changed.is_concurrency:
                    charges += charges_of(changed, ident, cost)
                else:  # the same, on the hot path
                    charges += [Charge(part, ident, cost * part.factor) for part in changed.parts]
        return tuple(charges)

    def blocks(self, facts: Facts) -> tuple[Outcome, ...]:
        """The refusals of a call that an override blocks or whose address is unknown; empty for any other."""
        overrides = self.overrides.of(facts.who) if self.overrides.all else ()
        if overrides and (found := self.overrides.blocks(self._matched(facts), overrides)):
            return found
        return refusals(self._matched(facts), facts) if conf().NO_ADDRESS == REFUSE else ()

    def asks_user(self, facts: Facts) -> bool:
        """Whether the rules of this call may depend on who is logged in."""
        return bool(self.overrides.all) or any(map(_asks_user, self._in_scope(facts)))

    def by_name(self, name: str) -> Rule | None:
        """The rule of this name, enabled or not."""
        return self._by_name.get(name)

    def _matched(self, facts: Facts) -> tuple[Rule, ...]:
        rules = self._named(facts.rule) if facts.rule else self._in_scope(facts)
        if facts.only:
            rules = tuple([rule for rule in rules if rule.name in facts.only])
        if self._is_plain:
            return rules
        return tuple([rule for rule in rules if rule.is_plain or is_about(rule, facts)])

    def _named(self, given: str | Rule) -> tuple[Rule, ...]:
        rule = given if isinstance(given, Rule) else self.by_name(given)
        if rule is None and _log_throttle.due(str(given)):
            near = meant(given, self._by_name)
            logger.warning("there is no rule %r, so calls that name it are not limited%s", given, near)
        return (rule,) if rule is not None and rule.enabled else ()

    def _in_scope(self, facts: Facts) -> tuple[Rule, ...]:
        known = self._by_scope.get((facts.scope, facts.events))
        if known is None:
            rules = [self.rules[number] for number in self._scopes.find(facts.scope)]
            known = tuple([rule for rule in rules if not set(facts.events).isdisjoint(rule.events)])
            if len(self._by_scope) >= MAX_REMEMBERED:
                self._by_scope.clear()
            self._by_scope[facts.scope, facts.events] = known
        return known


def _asks_groups(rule: Rule) -> bool:
    return rule.enabled and any(entry.startswith("group:") for entry in rule.audience)


def _asks_user(rule: Rule) -> bool:
    found = [KEY_KINDS.get(part) for part in parts(rule.key)]
    return bool(rule.audience) or isinstance(rule.cost, str) or any(kind is None or kind.asks_user for kind in found)


def _digest(rules: tuple[Rule, ...], overrides: tuple[Override, ...]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    # One by one: as one text, ten thousand rules would hold up every other thread while it is encoded.
    for entry in chain(((rule.name, rule.as_options()) for rule in rules), map(repr, overrides)):
        digest.update(json.dumps(entry, sort_keys=True).encode())
    return digest.hexdigest()

"""Calls that nobody can count, because the server reports no address: a mistake of the site, never of the client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django_throttle.conf import conf
from django_throttle.core import Outcome, Reason, Rule
from django_throttle.facts import BY_KEY, Facts

REFUSE: Final = "refuse"
# Nothing will change until the site is mended.
ASK_AGAIN: Final = 60.0


def is_refused() -> bool:
    """Whether the site would rather refuse such calls than let rules by address apply to nobody."""
    return conf().NO_ADDRESS == REFUSE


def refusals(rules: Iterable[Rule], facts: Facts) -> tuple[Outcome, ...]:
    """One refusal for each of these rules that would have to count by the address, where nobody knows it."""
    return tuple(_refusal(rule) for rule in rules if not facts.charged.covers(rule.name) and _is_nameless(rule, facts))


def _is_nameless(rule: Rule, facts: Facts) -> bool:
    return facts.ident == BY_KEY and facts.who.ident(rule.key) is None and facts.who.lacks_address(rule.key)


def _refusal(rule: Rule) -> Outcome:
    reason, limit = Reason.NO_ADDRESS, rule.plan.limit - rule.tolerance
    return Outcome(rule.name, "", False, limit, 0, ASK_AGAIN, ASK_AGAIN, reason, rule.is_shadow, rule.window)

"""When a rule applies to a call: its scopes, methods and audience, what the call costs, and unknown addresses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from django.core.exceptions import SynchronousOnlyOperation
from django.utils.module_loading import import_string

from django_throttle import costs
from django_throttle.conf import conf
from django_throttle.core import Outcome, Reason, Rule
from django_throttle.facts import BY_KEY, Facts

SPECIAL: Final = re.compile(r"[*?\[\]]")


class Pattern(NamedTuple):
    """A scope with wildcards, and the index of its rule.

    A scope that it covers contains ``piece`` and has at least ``least`` characters. ``is_simple`` is True where these,
    and the beginning and end by which the pattern is filed, are all that it asks for.
    """

    text: str
    number: int
    piece: str
    least: int
    is_simple: bool

    def covers(self, scope: str) -> bool:
        if self.piece not in scope or len(scope) < self.least:
            return False
        return self.is_simple or fnmatchcase(scope, self.text)


class Scopes:
    """An index of the scopes of rules: there may be ten thousand rules, with as many wildcards.

    Texts without wildcards are looked up whole, patterns by their beginning and end.
    """

    def __init__(self, scopes: Iterable[Iterable[str]]) -> None:
        self._whole: dict[str, list[int]] = defaultdict(list)
        self._patterns: dict[tuple[str, str], list[Pattern]] = defaultdict(list)
        for number, texts in enumerate(scopes):
            for text in texts:
                self._whole[text].append(number)
                if SPECIAL.search(text):
                    self._file(text, number)
        self._lengths = tuple({(len(begin), len(end)) for begin, end in self._patterns})

    def find(self, scope: str) -> list[int]:
        """The indexes of the rules that cover a scope, in ascending order."""
        found = set(self._whole.get(scope, ()))
        for begin, end in self._lengths:
            filed = self._patterns.get((scope[:begin], scope[len(scope) - end :]), ())
            found.update([pattern.number for pattern in filed if pattern.covers(scope)])
        return sorted(found)

    def _file(self, text: str, number: int) -> None:
        pieces = SPECIAL.split(text)
        has_classes = "[" in text
        piece = "" if has_classes else max(pieces, key=len)
        is_simple = len(pieces) == 2 and "*" in text
        least = 0 if has_classes else len(text) - text.count("*")
        self._patterns[pieces[0], pieces[-1]].append(Pattern(text, number, piece, least, is_simple))


def is_about(rule: Rule, facts: Facts) -> bool:
    """Whether the rule applies to this method and this caller, where it names any."""
    # Django answers HEAD by what answers GET, so HEAD must not be the way around a limit.
    if rule.methods and facts.method not in rule.methods and (facts.method, "GET" in rule.methods) != ("HEAD", True):
        return False
    return not rule.audience or any(map(facts.who.is_, rule.audience))


def cost_of(rule: Rule, facts: Facts) -> int:
    """What the call costs before the rule's own factor: calls or bytes, times what the rule's cost function returns.

    A call of cost 0 costs nothing. A cost function is called only where there is a request or a scope to pass to it.
    """
    base = facts.cost if rule.unit == "calls" else facts.size * (facts.cost > 0)
    if not isinstance(rule.cost, str) or not base or facts.who.subject is None:
        return base
    # On an event loop a function that queries the database is called again in a thread, with all other matching.
    return base * costs.cost_of(
        import_string(rule.cost),
        facts.who.subject,
        what=f"call under rule {rule.name!r}",
        lets=(SynchronousOnlyOperation,),
    )


REFUSE: Final = "refuse"
ASK_AGAIN: Final = 60.0  # seconds; nothing changes until the site's configuration does


def is_refused() -> bool:
    """True where the setting NO_ADDRESS refuses calls that a rule cannot count as their address is unknown."""
    return conf().NO_ADDRESS == REFUSE


def refusals(rules: Iterable[Rule], facts: Facts) -> tuple[Outcome, ...]:
    """A refusal by each of these rules that would count by the address, where the address is unknown."""
    return tuple(
        _refusal(rule) for rule in rules if not facts.charged.covers(rule.name) and _lacks_address(rule, facts)
    )


def _refusal(rule: Rule) -> Outcome:
    reason, limit = Reason.NO_ADDRESS, rule.plan.limit - rule.tolerance
    return Outcome(rule.name, "", False, limit, 0, ASK_AGAIN, ASK_AGAIN, reason, rule.is_shadow, rule.window)


def _lacks_address(rule: Rule, facts: Facts) -> bool:
    return facts.ident == BY_KEY and facts.who.ident(rule.key) is None and facts.who.lacks_address(rule.key)

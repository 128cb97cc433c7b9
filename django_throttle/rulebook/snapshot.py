"""All rules and overrides at one moment: never edited, only replaced."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_network
from itertools import chain
from operator import attrgetter
from typing import Final

from django.core.exceptions import SynchronousOnlyOperation
from django.utils import timezone
from django.utils.module_loading import import_string

from django_throttle import costs
from django_throttle.conf import conf
from django_throttle.core import Charge, Outcome, Override, Reason, Rule
from django_throttle.core.commands import charges_of
from django_throttle.core.options import meant, parts
from django_throttle.core.overrides import Network, blocking, changed, relieved
from django_throttle.facts import BY_KEY, Facts, Who
from django_throttle.log_throttling import Complaints
from django_throttle.rulebook.scopes import Scopes


def is_about(rule: Rule, facts: Facts) -> bool:
    """Whether the rule names this method and this caller, where it names any."""
    # Django answers HEAD by what answers GET, so it must not be the way around a limit.
    if rule.methods and facts.method not in rule.methods and (facts.method, "GET" in rule.methods) != ("HEAD", True):
        return False
    return not rule.audience or any(map(facts.who.is_, rule.audience))


def cost_of(rule: Rule, facts: Facts) -> int:
    """What the call costs before the rule's own factor, or times what the rule's function makes of it.

    By a rule that counts bytes it costs its size, unless it costs nothing at all. A callable that gets no request
    has none to be priced by.
    """
    base = facts.cost if rule.unit == "calls" else facts.size * (facts.cost > 0)
    if not isinstance(rule.cost, str) or not base or facts.who.subject is None:
        return base
    what = f"call under rule {rule.name!r}"
    # On an event loop the rules are matched once more, in a thread, where a function asks the database.
    return base * costs.cost_of(
        import_string(rule.cost), facts.who.subject, what=what, lets=(SynchronousOnlyOperation,)
    )


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


MAX_REMEMBERED: Final = 4096
by_rank: Final = attrgetter("rank")


def wall_clock() -> float:
    """The present moment in epoch seconds: what the end of an override is compared with."""
    return timezone.now().timestamp()


class Relief:
    """Overrides by subject, never edited; False when there are none.

    A caller is asked only for the kinds of subjects that have an override. ``asks_groups`` is True when that
    takes the groups of a user, which a database has to say.
    """

    __slots__ = ("_changed", "_groups", "_networks", "_now", "_subjects", "asks_groups", "overrides")

    def __init__(self, overrides: Iterable[Override] = (), now: Callable[[], float] = wall_clock) -> None:
        self.overrides = tuple(sorted(overrides, key=_in_order))
        self._now = now
        self._subjects: dict[str, dict[str, list[Override]]] = defaultdict(lambda: defaultdict(list))
        self._groups: dict[str, list[Override]] = defaultdict(list)
        self._networks: dict[tuple[int, int], dict[int, list[Override]]] = defaultdict(lambda: defaultdict(list))
        self._changed: dict[tuple[str, int], Rule | None] = {}
        for override in self.overrides:
            self._arrange(override)
        self.asks_groups = bool(self._groups)

    def __bool__(self) -> bool:
        return bool(self.overrides)

    def of(self, who: Who) -> list[Override]:
        """What holds for this caller now, the first in rank first."""
        now = self._now()
        found = [override for override in self._about(who) if override.lasts(now)]
        if len(found) > 1:
            found.sort(key=by_rank)
        return found

    def rule(self, rule: Rule, ranked: list[Override]) -> Rule | None:
        """The rule as it holds for a caller with these overrides; None when it does not hold."""
        return relieved(rule, ranked, self._change)

    def blocks(self, rules: Iterable[Rule], ranked: list[Override]) -> tuple[Outcome, ...]:
        """The refusals of a call that these rules cover; empty when no override blocks it."""
        found = blocking(rules, ranked, self._change, self._now())
        return tuple([outcome._replace(shadow=True) for outcome in found]) if found and conf().SHADOW else found

    def _arrange(self, override: Override) -> None:
        network = override.network
        if override.kind == "group":
            self._groups[override.subject].append(override)
        elif network is None:
            self._subjects[override.kind][override.subject].append(override)
        else:
            self._networks[network.version, network.prefixlen][_prefix(network, network.prefixlen)].append(override)

    def _about(self, who: Who) -> Iterator[Override]:
        for kind, subjects in self._subjects.items():
            ident = who.ident(kind)
            if ident is not None:
                yield from subjects.get(ident, ())
        if self._networks:
            yield from self._around(who.ident("ip") or "")
        for group, overrides in self._groups.items():
            if who.is_(group):
                yield from overrides

    def _around(self, ident: str) -> Iterator[Override]:
        """The overrides of the networks that an address lies in."""
        network = _network(ident.removeprefix("ip:")) if ident.startswith("ip:") else None
        if network is None:
            return
        for (version, length), found in self._networks.items():
            if version == network.version and length <= network.prefixlen:
                yield from found.get(_prefix(network, length), ())

    def _change(self, rule: Rule, override: Override) -> Rule | None:
        # By their identity: each of them lives for as long as this does.
        known = rule.name, id(override)
        if known not in self._changed:
            if len(self._changed) >= MAX_REMEMBERED:
                self._changed.clear()
            self._changed[known] = changed(rule, override)
        return self._changed[known]


@lru_cache(maxsize=MAX_REMEMBERED)
def _network(address: str) -> Network | None:
    try:
        return ip_network(address)
    except ValueError:  # a text of the site's own making
        return None


def _prefix(network: Network, length: int) -> int:
    return int(network.network_address) >> (network.max_prefixlen - length)


def _in_order(override: Override) -> tuple[object, ...]:
    return override.rank, override.subject, override.rules


logger = logging.getLogger("django_throttle")
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
            near = meant(given, self._by_name)
            logger.warning("there is no rule %r, so what is under it is not limited%s", given, near)
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

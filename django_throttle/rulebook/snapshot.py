"""All rules and overrides at one moment: when each applies to a call, and what the call costs.

A snapshot is never edited, only replaced.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from ipaddress import ip_network
from itertools import chain
from math import inf
from operator import attrgetter, is_not
from typing import Any, Final, NamedTuple

from django.core.exceptions import SynchronousOnlyOperation
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core import Outcome, Override, Reason, Rule
from django_throttle.core.commands import Charges, RuleSet, charges_of, charges_under, rule_set, unit_charges
from django_throttle.core.key import KEY_KINDS, secret_bytes
from django_throttle.core.options import did_you_mean, key_parts
from django_throttle.core.overrides import (
    CANDIDATE_SUFFIX,
    Candidate,
    Network,
    apply_override,
    block_outcomes,
    candidate_name,
    deciding,
    is_in_share,
    overridden,
)  # fmt: skip
from django_throttle.core.scopes import matches, split_scopes
from django_throttle.costs.measured import reserve_of
from django_throttle.identity.call import BY_KEY, Call, Caller, cost_of, with_plan
from django_throttle.identity.caller import NO_TEXT, IdentCaller
from django_throttle.local.shared_clock import shared_clock
from django_throttle.runtime import LogThrottle

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
        self._excluded: dict[int, tuple[str, ...]] = {}
        for number, entries in enumerate(scopes):
            covered, excluded = split_scopes(tuple(entries))
            if excluded:
                self._excluded[number] = excluded
            for text in covered:
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
        if self._excluded:
            found = {number for number in found if not matches(self._excluded.get(number, ()), scope)}
        return sorted(found)

    def _file(self, text: str, number: int) -> None:
        pieces = SPECIAL.split(text)
        has_classes = "[" in text
        piece = "" if has_classes else max(pieces, key=len)
        is_simple = len(pieces) == 2 and "*" in text
        least = 0 if has_classes else len(text) - text.count("*")
        self._patterns[pieces[0], pieces[-1]].append(Pattern(text, number, piece, least, is_simple))


# Whoever has proved nothing.
NOBODY: Final = IdentCaller(NO_TEXT)


def applies_to(rule: Rule, call: Call) -> bool:
    """Whether the rule applies to this method and this caller, where it names any.

    An ident that a client may have made up proves nothing about the caller, and so is no way out of an audience.
    """
    if rule.methods and not takes_method(rule, call.method):
        if call.rule and not call.method and _log_throttle.due("methods", rule.name):
            line = "rule %r is for requests of some methods: calls that name it and have no request are not limited"
            logger.warning(line, rule.name)
        return False
    return not rule.audience or call.is_untrusted or any(map(call.caller.is_, rule.audience))


def takes_method(rule: Rule, method: str) -> bool:
    """Whether a rule that names methods applies to this one."""
    # Django answers HEAD by what answers GET, so HEAD must not be the way around a limit.
    return method in rule.methods or (method == "HEAD" and "GET" in rule.methods)


def rule_cost(rule: Rule, call: Call) -> int:
    """What the call costs before the rule's own factor: calls or bytes, times what the rule's cost function returns.

    Under a rule of a measured unit that is its reserve. A call of cost 0 costs nothing. A cost function is called only
    where there is a request or a scope to pass to it.
    """
    if rule.is_measured:
        return reserve_of(rule, call)
    base = call.cost if rule.unit == "calls" else call.size * (call.cost > 0)
    if not isinstance(rule.cost, str) or not base or call.caller.subject is None:
        return base
    # On an event loop a function that queries the database is called again in a thread, with all other matching.
    return base * cost_of(
        import_string(rule.cost),
        call.caller.subject,
        call_kind=f"call under rule {rule.name!r}",
        reraise=(SynchronousOnlyOperation,),
    )


NO_ADDRESS_WAIT: Final = 60.0  # seconds; nothing changes until the site's configuration does


def address_refusals(rules: Iterable[Rule], call: Call) -> tuple[Outcome, ...]:
    """A refusal by each of these rules that would count by the address, where the address is unknown."""
    found, wait = [], NO_ADDRESS_WAIT
    for rule in rules:
        if call.ident != BY_KEY or (call.charged and call.charged.has_rule(rule.name)):
            continue
        if call.caller.lacks_address(rule.key):
            limit, why = rule.params.limit - rule.tolerance, Reason.NO_ADDRESS
            found.append(Outcome(rule.name, "", False, limit, 0, wait, wait, why, rule.is_shadow, rule.window))
    return tuple(found)


MAX_REMEMBERED: Final = 4096


def wall_clock() -> float:
    """Return the moment in epoch seconds with which the end of an override is compared: it holds for everybody."""
    return shared_clock.now()


class Overrides:
    """All overrides, indexed by subject and never edited; False when there are none.

    A caller is asked only for the kinds of subjects that have an override. ``asks_groups`` is True when one is for a
    group, as the groups of a user take a database query, and ``has_blocks`` when one blocks. ``until`` is when the
    first of them runs out, in epoch seconds, and ``now`` the clock that this is compared with.
    """

    __slots__ = (
        "_around", "_changed", "_groups", "_networks", "_subjects", "all", "asks_groups", "has_blocks", "now", "until",
    )  # fmt: skip

    def __init__(self, overrides: Iterable[Override] = (), now: Callable[[], float] = wall_clock) -> None:
        self.all = tuple(sorted(overrides, key=attrgetter("rank", "subject", "rules")))
        self.now = now
        self.until = min([override.until for override in self.all if override.until is not None], default=inf)
        self._subjects: dict[str, dict[str, list[Override]]] = defaultdict(lambda: defaultdict(list))
        self._groups: dict[str, list[Override]] = defaultdict(list)
        self._networks: dict[tuple[int, int], dict[int, list[Override]]] = defaultdict(lambda: defaultdict(list))
        self._changed: dict[tuple[str, str, int], Rule | None] = {}
        self._around: dict[str, tuple[Override, ...]] = {}  # by ident; cleared once it has MAX_REMEMBERED
        for override in self.all:
            self._file(override)
        self.asks_groups = bool(self._groups)
        self.has_blocks = any(override.effect == "block" for override in self.all)

    def __bool__(self) -> bool:
        return bool(self.all)

    def of(self, caller: Caller) -> list[Override]:
        """The overrides of this caller that have not ended, the highest rank first."""
        overrides = self._subject_to(caller)
        if not overrides:  # nearly every caller
            return overrides
        now = self.now()
        overrides = [override for override in overrides if override.lasts(now)]
        if len(overrides) > 1:
            overrides.sort(key=attrgetter("rank"))
        return overrides

    def as_of(self, moment: float) -> Overrides:
        """The same, but in force are those that lasted at ``moment``, in epoch seconds, however late it is."""
        fixed = copy(self)
        fixed.now = lambda: moment
        return fixed

    def rule(self, rule: Rule, ranked: list[Override]) -> Rule | None:
        """The rule as it holds for a caller with these overrides; None when the caller is exempt from it."""
        return overridden(rule, ranked, self._change)

    def deciding(self, rule: Rule, ranked: list[Override]) -> tuple[Override | None, Rule | None]:
        """The override that decides about the rule, None for none, and the rule as it holds then."""
        return deciding(rule, ranked, self._change)

    def blocks(self, rules: Iterable[Rule], ranked: list[Override]) -> tuple[Outcome, ...]:
        """The refusals of a call that these rules cover; empty when no override blocks it."""
        found = block_outcomes(rules, ranked, self._change, self.now())
        return tuple([outcome._replace(shadow=True) for outcome in found]) if found and conf().SHADOW else found

    def _file(self, override: Override) -> None:
        network = override.network
        if override.kind == "group":
            self._groups[override.subject].append(override)
        elif network is None:
            self._subjects[override.kind][override.subject].append(override)
        else:
            self._networks[network.version, network.prefixlen][_prefix(network, network.prefixlen)].append(override)

    def _subject_to(self, caller: Caller) -> list[Override]:
        found: list[Override] = []
        for kind, subjects in self._subjects.items():
            if (ident := caller.ident(kind)) in subjects:
                found += subjects[ident]
        if self._networks and (ident := caller.ident("ip")) is not None:
            around = self._around.get(ident)
            found += self._find_around(ident) if around is None else around
        for group, overrides in self._groups.items():
            if caller.is_(group):
                found += overrides
        return found

    def _find_around(self, ident: str) -> tuple[Override, ...]:
        """The overrides of the networks that an address lies in."""
        around: list[Override] = []
        if ident.startswith("ip:") and (network := _network(ident.removeprefix("ip:"))) is not None:
            for (version, length), found in self._networks.items():
                if version == network.version and length <= network.prefixlen:
                    around += found.get(_prefix(network, length), ())
        if len(self._around) >= MAX_REMEMBERED:
            self._around.clear()
        return self._around.setdefault(ident, tuple(around))

    def _change(self, rule: Rule, override: Override) -> Rule | None:
        key = rule.name, rule.plan_of, id(override)  # each override lives for as long as this does
        with suppress(KeyError):  # one look: another thread may clear it after the first
            return self._changed[key]
        changed = apply_override(rule, override)
        if len(self._changed) >= MAX_REMEMBERED:
            self._changed.clear()
        self._changed[key] = changed
        return changed


@lru_cache(maxsize=MAX_REMEMBERED)
def _network(address: str) -> Network | None:
    try:
        return ip_network(address)
    except ValueError:  # an ident of the site's own
        return None


def _prefix(network: Network, length: int) -> int:
    return int(network.network_address) >> (network.max_prefixlen - length)


logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()


_is_some: Final = partial(is_not, None)
NO_CHARGES: Final = Charges.of(())


class ScopeRules:
    """The rules that cover the calls of a scope, or that calls name, prepared for each kind of caller.

    ``is_plain``: nothing else of a call matters. ``needs_no_settlement``: the store's counters decide, and nothing is
    left to do after a call. ``whole`` is the set of all their rates. ``find_ident`` finds the ident of a
    ``KeyedCaller`` if all rules have the same key, unless that names a function of the site or is joined; else None.
    """

    __slots__ = ("_keys", "_sets", "asks_user", "find_ident", "is_plain", "needs_no_settlement", "rules", "whole")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.is_plain = all(rule.is_plain for rule in rules)
        self.asks_user = any(map(_asks_user, rules))
        self._keys = tuple(dict.fromkeys(rule.key for rule in rules))
        # By the keys that have an ident: the rates, and the place of each one's ident among those of the keys.
        self._sets: dict[tuple[bool, ...], tuple[RuleSet, tuple[int, ...]]] = {}
        self.whole = rule_set(tuple([part for rule in rules for part in rule.parts]))
        self.needs_no_settlement = self.whole.is_store_only and self.whole.needs_no_settlement
        kind = KEY_KINDS.get(self._keys[0]) if len(self._keys) == 1 else None
        self.find_ident = None if kind is None else kind.find

    def charges(self, caller: Caller, cost: int) -> Charges:
        """What a call is charged under these rules, if they are plain."""
        idents: Sequence[str | None]
        if len(self._keys) == 1:  # as of most
            ident = caller.ident(self._keys[0])
            if ident is not None:
                return charges_under(self.whole, ident, cost)
            idents = (None,)
        else:
            idents = [caller.ident(key) for key in self._keys]
        kind = tuple(map(_is_some, idents))
        rules, places = self._sets.get(kind) or self._prepare(kind)
        whose: Any = tuple(map(idents.__getitem__, places))  # all idents that are there
        return rules.charges(whose, cost)

    def _prepare(self, kind: tuple[bool, ...]) -> tuple[RuleSet, tuple[int, ...]]:
        of_key = {key: place for place, key in enumerate(self._keys) if kind[place]}
        parts = [(part, of_key[rule.key]) for rule in self.rules if rule.key in of_key for part in rule.parts]
        made = rule_set(tuple([part for part, _ in parts])), tuple([place for _, place in parts])
        self._sets[kind] = made
        return made


class Snapshot:
    """The rules, in the order of their names, and the overrides of them.

    ``version`` is the same wherever the same rules and overrides are in force. ``asks_groups`` is True when matching
    takes the groups of a user, which are a database query.
    """

    __slots__ = (
        "_asks_groups", "_by_name", "_digest", "_prepared", "_scopes", "_shares", "asks_groups", "candidates",
        "overrides", "rules", "version",
    )  # fmt: skip

    def __init__(
        self,
        rules: Iterable[Rule],
        overrides: Iterable[Override] = (),
        now: Callable[[], float] = wall_clock,
        candidates: Iterable[Candidate] = (),
    ) -> None:
        self.candidates = tuple(candidates)
        rules = (*rules, *(one.shadow for one in self.candidates))
        self.rules = tuple(sorted(rules, key=lambda rule: rule.name))
        self._by_name = {rule.name: rule for rule in self.rules}
        self._scopes = Scopes([rule.scopes if rule.enabled else () for rule in self.rules])
        self._prepared: dict[str | Rule | tuple[str, tuple[str, ...]], ScopeRules] = {}
        enabled = [rule for rule in self.rules if rule.enabled]
        audiences = chain.from_iterable([*rule.audience, *rule.plans] for rule in enabled)
        self._asks_groups = any(entry.startswith("group:") for entry in audiences)
        self._digest = hashlib.blake2b(digest_size=8)
        _add(self._digest, ((rule.name, rule.as_options()) for rule in self.rules))
        _add(self._digest, map(repr, self.candidates))
        self._shares = self._in_steps()
        self._put(Overrides(overrides, now))

    def _in_steps(self) -> dict[str, tuple[Candidate, Rule, Rule]]:
        """By the names of live rules and candidates: the candidate, the rule within its share, and that outside."""
        found = {}
        for one in self.candidates:
            live = self._by_name.get(one.live)
            if one.share and live is not None:
                found[one.live] = one, live.as_shadow(), live
                found[one.rule.name] = one, one.rule, one.shadow
        return found

    def _put(self, overrides: Overrides) -> None:
        digest = self._digest.copy()
        _add(digest, map(repr, overrides.all))
        self.overrides, self.version = overrides, digest.hexdigest()
        self.asks_groups = self._asks_groups or overrides.asks_groups

    def as_of(self, moment: float) -> Snapshot:
        """The same rules with the overrides that lasted at ``moment``, in epoch seconds: it shows what was in force."""
        if self.overrides.until == inf:
            return self
        past = copy(self)
        past.overrides = self.overrides.as_of(moment)
        return past

    def without_ended(self) -> tuple[Snapshot, tuple[Override, ...]]:
        """The same rules without the overrides that have run out by now, and those; itself where none has."""
        now, overrides = self.overrides.now(), self.overrides
        if now < overrides.until:
            return self, ()
        left = copy(self)
        left._put(Overrides([one for one in overrides.all if one.lasts(now)], overrides.now))
        return left, tuple([one for one in overrides.all if not one.lasts(now)])

    def match(self, call: Call) -> Charges:
        """Return the charges of a call: one for each enabled rule that covers it and has an ident for the caller."""
        caller = call.caller
        overrides = self.overrides.of(caller) if self.overrides.all and not call.is_untrusted else []
        if not (overrides or call.charged or call.only) and call.ident == BY_KEY:  # as of most calls
            covering = self._covering(call)
            if covering.is_plain:
                return covering.charges(caller, call.cost)
        charges: list[Charges] = []
        for matched in self._matched(call):
            ident = call.caller.ident(matched.key) if call.ident == BY_KEY else call.ident
            rule = self._candidate_or_live(matched, ident) if self._shares and ident is not None else matched
            if ident is None or (call.charged and call.due(rule, ident) is None):
                continue
            planned = with_plan(rule, NOBODY if call.is_untrusted else call.caller) if rule.plans else rule
            changed = self.overrides.rule(planned, overrides) if overrides else planned
            if changed is not None and (due := call.due(changed, ident)) is not None:
                cost = due.cost if changed.is_plain else rule_cost(changed, due)
                charges.append(charges_of(changed, ident, cost))
        return charges[0] if len(charges) == 1 else Charges.of(chain.from_iterable(charges))

    def _candidate_or_live(self, rule: Rule, ident: str) -> Rule:
        """The rule as it holds for an ident: of a live rule and its candidate one refuses, the other records."""
        if rule.name not in self._shares:
            return rule
        candidate, within, outside = self._shares[rule.name]
        return within if is_in_share(ident, candidate.share, secret_bytes(conf().KEY_SECRET)) else outside

    def blocks(self, call: Call) -> tuple[Outcome, ...]:
        """The refusals of a call that an override blocks or whose address is unknown; empty for any other."""
        overrides = self.overrides.of(call.caller) if self.overrides.has_blocks else ()
        if overrides and (found := self.overrides.blocks(self._matched(call), overrides)):
            return found
        return address_refusals(self._matched(call), call) if conf().NO_ADDRESS == "refuse" else ()

    def plain_charges(self, scope: str, events: tuple[str, ...], caller: Caller) -> Charges | None:
        """Return what a call of cost 1 is charged that no other entry point has charged.

        None where its rules ask for more than its scope and its caller's idents, where they are more than rates of
        which nothing is corrected later, or where an override is for the caller.
        """
        rules = self._prepared.get((scope, events)) or self._covering_at((scope, events))
        if not (rules.is_plain and rules.needs_no_settlement) or (self.overrides.all and self.overrides.of(caller)):
            return None
        if rules.find_ident is None:
            return rules.charges(caller, 1)
        ident = rules.find_ident(caller)
        return NO_CHARGES if ident is None else unit_charges(rules.whole, ident)

    def asks_user(self, scope: str, events: tuple[str, ...]) -> bool:
        """Whether the rules of a scope and its events may depend on who is logged in."""
        rules = self._prepared.get((scope, events)) or self._covering_at((scope, events))
        return rules.asks_user or bool(self.overrides.all)

    def by_name(self, name: str) -> Rule | None:
        """The rule of this name, enabled or not."""
        return self._by_name.get(name)

    def covering(self, scope: str) -> list[Rule]:
        """The enabled rules that cover a scope, whatever their events, in the order of their names."""
        return [self.rules[number] for number in self._scopes.find(scope)]

    def _matched(self, call: Call) -> tuple[Rule, ...]:
        rules = self._covering(call).rules
        if call.only:
            rules = tuple([rule for rule in rules if rule.name.removesuffix(CANDIDATE_SUFFIX) in call.only])
        return tuple([rule for rule in rules if rule.is_plain or applies_to(rule, call)])

    def _named(self, given: str | Rule) -> tuple[Rule, ...]:
        rule = given if isinstance(given, Rule) else self.by_name(given)
        if rule is None and _log_throttle.due(str(given)):
            near = did_you_mean(given, self._by_name)
            logger.warning("there is no rule %r, so calls that name it are not limited%s", given, near)
        beside = None if rule is None else self.by_name(candidate_name(rule.name))
        return tuple([one for one in (rule, beside) if one is not None and one.enabled])

    def _covering(self, call: Call) -> ScopeRules:
        """The rule that the call names, else those of its scope and events."""
        return self._covering_at(call.rule or (call.scope, call.events))

    def _covering_at(self, where: str | Rule | tuple[str, tuple[str, ...]]) -> ScopeRules:
        """The rules of a scope and its events, or the one of a name."""
        known = self._prepared.get(where)
        if known is None:
            if isinstance(where, tuple):
                scope, events = where
                rules = tuple([rule for rule in self.covering(scope) if not set(events).isdisjoint(rule.events)])
            else:
                rules = self._named(where)
            known = ScopeRules(rules)
            if any(rule.name in self._shares for rule in rules):
                known.is_plain = False
            if rules or isinstance(where, tuple):  # of a rule that is not there the log tells again
                if len(self._prepared) >= MAX_REMEMBERED:
                    self._prepared.clear()
                self._prepared[where] = known
        return known


def _asks_user(rule: Rule) -> bool:
    found = [KEY_KINDS.get(part) for part in key_parts(rule.key)]
    return bool(rule.audience or rule.plans or rule.functions) or any(kind is None or kind.asks_user for kind in found)


def _add(digest: hashlib.blake2b, entries: Iterable[object]) -> None:
    # One by one: as one text, ten thousand rules would hold up every other thread while it is encoded.
    for entry in entries:
        digest.update(json.dumps(entry, sort_keys=True).encode())

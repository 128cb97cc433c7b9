"""Immutable snapshot of rules and overrides, which matches a call to its charges."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from ipaddress import ip_network
from itertools import chain
from math import inf
from operator import attrgetter, is_not
from types import MappingProxyType
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
from django_throttle.identity.call import BY_KEY, Call, Caller, with_plan
from django_throttle.identity.caller import NO_TEXT, IdentCaller
from django_throttle.identity.site_functions import cost_of
from django_throttle.local.shared_clock import shared_clock
from django_throttle.runtime import LogThrottle

logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()

WILDCARD: Final = re.compile(r"[*?\[\]]")


class Pattern(NamedTuple):
    """Scope with wildcards, of a rule."""

    text: str
    rule_index: int
    piece: str  #: part of every covered scope
    min_chars: int  #: of a covered scope
    is_simple: bool  #: True if a scope that begins, ends and fits like this is covered

    def covers(self, scope: str) -> bool:
        if self.piece not in scope or len(scope) < self.min_chars:
            return False
        return self.is_simple or fnmatchcase(scope, self.text)


class ScopeIndex:
    """Index of the scopes of rules, for ten thousand rules with as many wildcards.

    Scopes without wildcards are looked up as they are, patterns by their beginning and end.
    """

    def __init__(self, scopes: Iterable[Iterable[str]]) -> None:
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._patterns: dict[tuple[str, str], list[Pattern]] = defaultdict(list)
        self._excluded: dict[int, tuple[str, ...]] = {}
        for index, entries in enumerate(scopes):
            covered, excluded = split_scopes(tuple(entries))
            if excluded:
                self._excluded[index] = excluded
            for text in covered:
                self._exact[text].append(index)
                if WILDCARD.search(text):
                    self._add_pattern(text, index)
        self._lengths = tuple({(len(begin), len(end)) for begin, end in self._patterns})

    def find(self, scope: str) -> list[int]:
        """Return the indexes of the rules that cover a scope, in ascending order."""
        indexes = set(self._exact.get(scope, ()))
        for begin, end in self._lengths:
            patterns = self._patterns.get((scope[:begin], scope[len(scope) - end :]), ())
            indexes.update([pattern.rule_index for pattern in patterns if pattern.covers(scope)])
        if self._excluded:
            indexes = {index for index in indexes if not matches(self._excluded.get(index, ()), scope)}
        return sorted(indexes)

    def _add_pattern(self, text: str, index: int) -> None:
        pieces = WILDCARD.split(text)
        has_classes = "[" in text
        piece = "" if has_classes else max(pieces, key=len)
        is_simple = len(pieces) == 2 and "*" in text
        min_chars = 0 if has_classes else len(text) - text.count("*")
        self._patterns[pieces[0], pieces[-1]].append(Pattern(text, index, piece, min_chars, is_simple))


#: Caller with the plans of an untrusted ident.
UNTRUSTED_CALLER: Final = IdentCaller(NO_TEXT)


def applies_to(rule: Rule, call: Call) -> bool:
    """Return True if the rule covers the method and the caller of this call.

    Every audience covers an untrusted ident: a client could otherwise leave an audience by another ident. An audience
    covers a caller whom the code names, unless it is known that the caller is outside.
    """
    if rule.methods and not takes_method(rule, call.method):
        if call.rule and not call.method and _log_throttle.try_acquire("methods", rule.name):
            line = (
                "rule %r has methods: calls that name it and have no request are not limited; remove its methods, or "
                "pass the request as an argument"
            )
            logger.warning(line, rule.name)
        return False
    if not rule.audience or call.is_untrusted:
        return True
    caller = call.caller
    return any(map(caller.may_be if call.rule and isinstance(caller, IdentCaller) else caller.is_, rule.audience))


def takes_method(rule: Rule, method: str) -> bool:
    """Return True if a rule with methods covers this method."""
    # Views answer HEAD as they answer GET. HEAD must not evade the limit.
    return method in rule.methods or (method == "HEAD" and "GET" in rule.methods)


def rule_cost(rule: Rule, call: Call) -> int:
    """Return the cost of a call before the rule's factor: its calls or bytes, times the result of the cost function.

    Return the reserve if the rule's unit is measured. The cost function is called only for a call with a request or an
    ASGI scope, and not for a call of cost 0.
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


#: Retry-After of calls without an address, in seconds. They are refused until the site's configuration changes.
NO_ADDRESS_WAIT: Final = 60.0


def address_refusals(rules: Iterable[Rule], call: Call) -> tuple[Outcome, ...]:
    """Return a refusal by each of these rules that counts by the address, if the address is unknown."""
    refusals, wait = [], NO_ADDRESS_WAIT
    for rule in rules:
        if call.ident != BY_KEY or (call.charged and call.charged.has_rule(rule.name)):
            continue
        if call.caller.lacks_address(rule.key):
            limit, reason = rule.params.limit - rule.tolerance, Reason.NO_ADDRESS
            refusals.append(Outcome(rule.name, "", False, limit, 0, wait, wait, reason, rule.is_shadow, rule.window))
    return tuple(refusals)


MAX_CACHE_ENTRIES: Final = 4096


class Overrides:
    """Immutable index of overrides by subject. It is False if there are none.

    A caller's idents are looked up only for the kinds of subjects that have an override.
    """

    __slots__ = (
        "_around", "_changed", "_groups", "_networks", "_subjects", "all", "has_blocks", "now", "until",
    )  # fmt: skip

    def __init__(self, overrides: Iterable[Override] = (), now: Callable[[], float] = shared_clock.now) -> None:
        self.all = tuple(sorted(overrides, key=attrgetter("rank", "subject", "rules")))
        self.now = now  #: clock that ends of overrides are compared with
        #: When the first override ends, in seconds since 1970.
        self.until = min([override.until for override in self.all if override.until is not None], default=inf)
        self._subjects: dict[str, dict[str, list[Override]]] = defaultdict(lambda: defaultdict(list))
        self._groups: dict[str, list[Override]] = defaultdict(list)
        self._networks: dict[tuple[int, int], dict[int, list[Override]]] = defaultdict(lambda: defaultdict(list))
        self._changed: dict[tuple[str, str, int], Rule | None] = {}
        self._around: dict[str, tuple[Override, ...]] = {}  # by ident
        for override in self.all:
            self._add(override)
        self.has_blocks = any(override.effect == "block" for override in self.all)

    def __bool__(self) -> bool:
        return bool(self.all)

    def for_caller(self, caller: Caller) -> list[Override]:
        """Return the overrides of this caller that have not ended, the highest rank first."""
        overrides = self._lookup(caller)
        if not overrides:  # nearly every caller
            return overrides
        now = self.now()
        overrides = [override for override in overrides if override.lasts(now)]
        if len(overrides) > 1:
            overrides.sort(key=attrgetter("rank"))
        return overrides

    def as_of(self, moment: float) -> Overrides:
        """Return the overrides as they were in force at ``moment``, in seconds since 1970."""
        past = copy(self)
        past.now = lambda: moment
        return past

    def rule(self, rule: Rule, ranked: list[Override]) -> Rule | None:
        """Return the rule as these overrides of a caller change it, or None if the caller is exempt from it."""
        return overridden(rule, ranked, self._change)

    def deciding(self, rule: Rule, ranked: list[Override]) -> tuple[Override | None, Rule | None]:
        """Return the override that decides about the rule, or None, and the rule as that override changes it."""
        return deciding(rule, ranked, self._change)

    def blocks(self, rules: Iterable[Rule], ranked: list[Override]) -> tuple[Outcome, ...]:
        """Return the refusals of a call that these rules cover. Return () if no override blocks the call."""
        refusals = block_outcomes(rules, ranked, self._change, self.now())
        if refusals and conf().SHADOW:
            return tuple([refusal._replace(shadow=True) for refusal in refusals])
        return refusals

    def _add(self, override: Override) -> None:
        network = override.network
        if override.kind == "group":
            self._groups[override.subject].append(override)
        elif network is None:
            self._subjects[override.kind][override.subject].append(override)
        else:
            self._networks[network.version, network.prefixlen][_prefix(network, network.prefixlen)].append(override)

    def _lookup(self, caller: Caller) -> list[Override]:
        overrides: list[Override] = []
        for kind, subjects in self._subjects.items():
            if (ident := caller.ident(kind)) in subjects:
                overrides += subjects[ident]
        if self._networks and (ident := caller.ident("ip")) is not None:
            around = self._around.get(ident)
            overrides += self._find_around(ident) if around is None else around
        for group, of_group in self._groups.items():
            if caller.is_(group):
                overrides += of_group
        return overrides

    def _find_around(self, ident: str) -> tuple[Override, ...]:
        """Return the overrides of the networks that contain an address."""
        around: list[Override] = []
        if ident.startswith("ip:") and (network := _network(ident.removeprefix("ip:"))) is not None:
            for (version, length), overrides in self._networks.items():
                if version == network.version and length <= network.prefixlen:
                    around += overrides.get(_prefix(network, length), ())
        if len(self._around) >= MAX_CACHE_ENTRIES:
            self._around.clear()
        return self._around.setdefault(ident, tuple(around))

    def _change(self, rule: Rule, override: Override) -> Rule | None:
        key = rule.name, rule.plan_of, id(override)  # each override lives for as long as this does
        with suppress(KeyError):  # another thread may clear the cache between a check and a look-up
            return self._changed[key]
        changed = apply_override(rule, override)
        if len(self._changed) >= MAX_CACHE_ENTRIES:
            self._changed.clear()
        self._changed[key] = changed
        return changed


@lru_cache(maxsize=MAX_CACHE_ENTRIES)
def _network(address: str) -> Network | None:
    try:
        return ip_network(address)
    except ValueError:  # an ident from a function of the site
        return None


def _prefix(network: Network, length: int) -> int:
    return int(network.network_address) >> (network.max_prefixlen - length)


_is_some: Final = partial(is_not, None)
NO_CHARGES: Final = Charges.of(())


class ScopeRules:
    """Rules that cover the calls of a scope, or that calls name, prepared for each set of keys that has idents."""

    __slots__ = ("_keys", "_sets", "all_rates", "asks_user", "find_ident", "is_plain", "needs_no_settlement", "rules")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        #: True if charges depend only on the idents and the cost of a call.
        self.is_plain = all(rule.is_plain for rule in rules)
        self.asks_user = any(map(_asks_user, rules))
        self._keys = tuple(dict.fromkeys(rule.key for rule in rules))
        # By the keys that have an ident: the rates, and for each rate the index of its key.
        self._sets: dict[tuple[bool, ...], tuple[RuleSet, tuple[int, ...]]] = {}
        self.all_rates = rule_set(tuple([part for rule in rules for part in rule.parts]))
        #: True if the store's counters decide, and no charge is corrected after a call.
        self.needs_no_settlement = self.all_rates.is_store_only and self.all_rates.needs_no_settlement
        kind = KEY_KINDS.get(self._keys[0]) if len(self._keys) == 1 else None
        #: Function that finds the ident of a ``KeyedCaller``, if all rules have the same built-in key.
        self.find_ident = None if kind is None else kind.find

    def charges(self, caller: Caller, cost: int) -> Charges:
        """Return the charges of a call under these rules, which must be plain."""
        idents: Sequence[str | None]
        if len(self._keys) == 1:  # most rules
            ident = caller.ident(self._keys[0])
            if ident is not None:
                return charges_under(self.all_rates, ident, cost)
            idents = (None,)
        else:
            idents = [caller.ident(key) for key in self._keys]
        has_ident = tuple(map(_is_some, idents))
        rates, key_indexes = self._sets.get(has_ident) or self._prepare(has_ident)
        rate_idents: Any = tuple(map(idents.__getitem__, key_indexes))  # none of them is None
        return rates.charges(rate_idents, cost)

    def _prepare(self, has_ident: tuple[bool, ...]) -> tuple[RuleSet, tuple[int, ...]]:
        indexes = {key: index for index, key in enumerate(self._keys) if has_ident[index]}
        parts = [(part, indexes[rule.key]) for rule in self.rules if rule.key in indexes for part in rule.parts]
        rates = rule_set(tuple([part for part, _ in parts]))
        self._sets[has_ident] = rates, tuple([index for _, index in parts])
        return self._sets[has_ident]


class Snapshot:
    """Rules in the order of their names, and overrides, at one moment. It is never edited, only replaced."""

    __slots__ = (
        "_by_name", "_digest", "_prepared", "_scopes", "_shares", "candidates", "faults", "overrides", "rules",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        rules: Iterable[Rule],
        overrides: Iterable[Override] = (),
        now: Callable[[], float] = shared_clock.now,
        candidates: Iterable[Candidate] = (),
        faults: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.faults = faults  #: of invalid rules, by name
        self.candidates = tuple(candidates)
        rules = (*rules, *(candidate.shadow for candidate in self.candidates))
        self.rules = tuple(sorted(rules, key=lambda rule: rule.name))
        self._by_name = {rule.name: rule for rule in self.rules}
        self._scopes = ScopeIndex([rule.scopes if rule.enabled else () for rule in self.rules])
        self._prepared: dict[str | Rule | tuple[str, tuple[str, ...]], ScopeRules] = {}
        self._digest = hashlib.blake2b(digest_size=8)
        _add(self._digest, ((rule.name, rule.as_options()) for rule in self.rules))
        _add(self._digest, map(repr, self.candidates))
        self._shares = self._shared_rules()
        self._set_overrides(Overrides(overrides, now))

    def _shared_rules(self) -> dict[str, tuple[Candidate, Rule, Rule]]:
        """Return for each live rule and its candidate: the candidate, and the rule within and outside of its share."""
        shared = {}
        for candidate in self.candidates:
            live = self._by_name.get(candidate.live)
            if candidate.share and live is not None:
                shared[candidate.live] = candidate, live.as_shadow(), live
                shared[candidate.rule.name] = candidate, candidate.rule, candidate.shadow
        return shared

    def _set_overrides(self, overrides: Overrides) -> None:
        digest = self._digest.copy()
        _add(digest, map(repr, overrides.all))
        self.overrides = overrides
        self.version = digest.hexdigest()  #: digest, equal in all processes with the same rules and overrides

    def as_of(self, moment: float) -> Snapshot:
        """Return the rules with the overrides that were in force at ``moment``, in seconds since 1970."""
        if self.overrides.until == inf:
            return self
        past = copy(self)
        past.overrides = self.overrides.as_of(moment)
        return past

    def without_ended(self) -> tuple[Snapshot, tuple[Override, ...]]:
        """Return the rules without the overrides that have ended, and these. Return the snapshot itself if none has."""
        now, overrides = self.overrides.now(), self.overrides
        if now < overrides.until:
            return self, ()
        remaining = copy(self)
        remaining._set_overrides(Overrides([each for each in overrides.all if each.lasts(now)], overrides.now))
        return remaining, tuple([override for override in overrides.all if not override.lasts(now)])

    def match(self, call: Call) -> Charges:
        """Return the charges of a call: one for each enabled rule that covers it and has an ident for the caller."""
        caller = call.caller
        overrides = self.overrides.for_caller(caller) if self.overrides.all and not call.is_untrusted else []
        if not (overrides or call.charged or call.only) and call.ident == BY_KEY:  # most calls
            covering = self._covering(call)
            if covering.is_plain:
                return covering.charges(caller, call.cost)
        charges: list[Charges] = []
        for matched in self._matched(call):
            ident = call.caller.ident(matched.key) if call.ident == BY_KEY else call.ident
            rule = self._candidate_or_live(matched, ident) if self._shares and ident is not None else matched
            if ident is None or (call.charged and call.due(rule, ident) is None):
                continue
            planned = with_plan(rule, UNTRUSTED_CALLER if call.is_untrusted else call.caller) if rule.plans else rule
            changed = self.overrides.rule(planned, overrides) if overrides else planned
            if changed is not None and (due := call.due(changed, ident)) is not None:
                if changed.count_denied and (call.retries_when_refused or not call.honours_delay):
                    changed = _without_count_denied(changed)  # the call is not refused, but tried again
                cost = due.cost if changed.is_plain else rule_cost(changed, due)
                charges.append(charges_of(changed, ident, cost))
        return charges[0] if len(charges) == 1 else Charges.of(chain.from_iterable(charges))

    def _candidate_or_live(self, rule: Rule, ident: str) -> Rule:
        """Return the rule for an ident: of a live rule and its candidate, one refuses and the other only records."""
        if rule.name not in self._shares:
            return rule
        candidate, within, outside = self._shares[rule.name]
        return within if is_in_share(ident, candidate.share, secret_bytes(conf().KEY_SECRET)) else outside

    def blocks(self, call: Call) -> tuple[Outcome, ...]:
        """Return the refusals of a call that an override blocks or whose address is unknown. Return () for others."""
        overrides = self.overrides.for_caller(call.caller) if self.overrides.has_blocks else ()
        if overrides and (refusals := self.overrides.blocks(self._matched(call), overrides)):
            return refusals
        return address_refusals(self._matched(call), call) if conf().NO_ADDRESS == "refuse" else ()

    def plain_charges(self, scope: str, events: tuple[str, ...], caller: Caller) -> Charges | None:
        """Return the charges of a call of cost 1 that no other entry point has charged.

        Return None if charges depend on more than the scope and the idents, if they are corrected later, or if the
        caller has an override.
        """
        rules = self._prepared.get((scope, events)) or self._covering_at((scope, events))
        if not (rules.is_plain and rules.needs_no_settlement) or (
            self.overrides.all and self.overrides.for_caller(caller)
        ):
            return None
        if rules.find_ident is None:
            return rules.charges(caller, 1)
        ident = rules.find_ident(caller)
        return NO_CHARGES if ident is None else unit_charges(rules.all_rates, ident)

    def asks_user(self, scope: str, events: tuple[str, ...]) -> bool:
        """Return True if the rules of a scope and its events may depend on the user."""
        rules = self._prepared.get((scope, events)) or self._covering_at((scope, events))
        return rules.asks_user or bool(self.overrides.all)

    def by_name(self, name: str) -> Rule | None:
        """Return the rule of this name, enabled or not, or None."""
        return self._by_name.get(name)

    def lacks(self, name: str) -> str:
        """Return the reason why there is no rule of this name: it is invalid, or nothing has the name."""
        if name in self.faults:
            return f"rule {name!r} is invalid: {self.faults[name]}"
        return f"there is no rule {name!r}{did_you_mean(name, self._by_name)}"

    def covering(self, scope: str) -> list[Rule]:
        """Return the enabled rules of any event that cover a scope, in the order of their names."""
        return [self.rules[index] for index in self._scopes.find(scope)]

    def _matched(self, call: Call) -> tuple[Rule, ...]:
        rules = self._covering(call).rules
        if call.only:
            rules = tuple([rule for rule in rules if rule.name.removesuffix(CANDIDATE_SUFFIX) in call.only])
        return tuple([rule for rule in rules if rule.is_plain or applies_to(rule, call)])

    def _named(self, rule_or_name: str | Rule) -> tuple[Rule, ...]:
        rule = rule_or_name if isinstance(rule_or_name, Rule) else self.by_name(rule_or_name)
        if rule is None and _log_throttle.try_acquire(str(rule_or_name)):
            logger.warning("calls that name a rule are not limited: %s", self.lacks(str(rule_or_name)))
        candidate = None if rule is None else self.by_name(candidate_name(rule.name))
        return tuple([each for each in (rule, candidate) if each is not None and each.enabled])

    def _covering(self, call: Call) -> ScopeRules:
        """Return the rule that the call names, else the rules of its scope and events."""
        return self._covering_at(call.rule or (call.scope, call.events))

    def _covering_at(self, target: str | Rule | tuple[str, tuple[str, ...]]) -> ScopeRules:
        """Return the rules of a scope and its events, or a rule by its name."""
        prepared = self._prepared.get(target)
        if prepared is None:
            if isinstance(target, tuple):
                scope, events = target
                rules = tuple([rule for rule in self.covering(scope) if not set(events).isdisjoint(rule.events)])
            else:
                rules = self._named(target)
            prepared = ScopeRules(rules)
            if any(rule.name in self._shares for rule in rules):
                prepared.is_plain = False
            if rules or isinstance(target, tuple):  # a rule that does not exist is logged again
                if len(self._prepared) >= MAX_CACHE_ENTRIES:
                    self._prepared.clear()
                self._prepared[target] = prepared
        return prepared


@lru_cache(maxsize=256)
def _without_count_denied(rule: Rule) -> Rule:
    return replace(rule, count_denied=False)


def _asks_user(rule: Rule) -> bool:
    kinds = [KEY_KINDS.get(part) for part in key_parts(rule.key)]
    return bool(rule.audience or rule.plans or rule.functions) or any(kind is None or kind.asks_user for kind in kinds)


def _add(digest: hashlib.blake2b, entries: Iterable[object]) -> None:
    # Entries are encoded separately: one text of ten thousand rules would block all other threads.
    for entry in entries:
        digest.update(json.dumps(entry, sort_keys=True).encode())

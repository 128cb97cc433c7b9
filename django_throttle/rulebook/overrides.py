"""The overrides in force, by subject."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_network
from operator import attrgetter
from typing import Final

from django.utils import timezone

from django_throttle.conf import conf
from django_throttle.core import Outcome, Override, Rule
from django_throttle.core.overrides import Network, apply_override, block_outcomes, overridden
from django_throttle.facts import Who

MAX_REMEMBERED: Final = 4096
by_rank: Final = attrgetter("rank")


def wall_clock() -> float:
    """The present moment in epoch seconds, with which the end of an override is compared."""
    return timezone.now().timestamp()


class Overrides:
    """All overrides, indexed by subject and never edited; False when there are none.

    A caller is asked only for the kinds of subjects that have an override. ``asks_groups`` is True when one is for a
    group, as the groups of a user take a database query.
    """

    __slots__ = ("_changed", "_groups", "_networks", "_now", "_subjects", "all", "asks_groups")

    def __init__(self, overrides: Iterable[Override] = (), now: Callable[[], float] = wall_clock) -> None:
        self.all = tuple(sorted(overrides, key=attrgetter("rank", "subject", "rules")))
        self._now = now
        self._subjects: dict[str, dict[str, list[Override]]] = defaultdict(lambda: defaultdict(list))
        self._groups: dict[str, list[Override]] = defaultdict(list)
        self._networks: dict[tuple[int, int], dict[int, list[Override]]] = defaultdict(lambda: defaultdict(list))
        self._changed: dict[tuple[str, int], Rule | None] = {}
        for override in self.all:
            self._file(override)
        self.asks_groups = bool(self._groups)

    def __bool__(self) -> bool:
        return bool(self.all)

    def of(self, who: Who) -> list[Override]:
        """The overrides of this caller that have not ended, the highest rank first."""
        now = self._now()
        found = [override for override in self._about(who) if override.lasts(now)]
        if len(found) > 1:
            found.sort(key=by_rank)
        return found

    def rule(self, rule: Rule, ranked: list[Override]) -> Rule | None:
        """The rule as it holds for a caller with these overrides; None when the caller is exempt from it."""
        return overridden(rule, ranked, self._change)

    def blocks(self, rules: Iterable[Rule], ranked: list[Override]) -> tuple[Outcome, ...]:
        """The refusals of a call that these rules cover; empty when no override blocks it."""
        found = block_outcomes(rules, ranked, self._change, self._now())
        return tuple([outcome._replace(shadow=True) for outcome in found]) if found and conf().SHADOW else found

    def _file(self, override: Override) -> None:
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
        known = rule.name, id(override)  # each override lives for as long as this does
        if known not in self._changed:
            if len(self._changed) >= MAX_REMEMBERED:
                self._changed.clear()
            self._changed[known] = apply_override(rule, override)
        return self._changed[known]


@lru_cache(maxsize=MAX_REMEMBERED)
def _network(address: str) -> Network | None:
    try:
        return ip_network(address)
    except ValueError:  # an ident of the site's own
        return None


def _prefix(network: Network, length: int) -> int:
    return int(network.network_address) >> (network.max_prefixlen - length)

"""Cache of recent refusals: a call that was refused a moment ago is refused again without asking Redis.

An attack costs Redis one call a second for each ident and process. A budget that another process resets has an effect
here within a second. A client that is refused because no slot is free costs Redis ten calls a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, Generic, NamedTuple, TypeVar

from django_throttle.core.commands import Charge, Charges
from django_throttle.core.decision import Decision, Outcome
from django_throttle.core.rule import Rule
from django_throttle.runtime import in_child

K = TypeVar("K")
T = TypeVar("T")

MAX_CACHED_SECONDS: Final = 1.0
MAX_REFUSALS: Final = 10_000
MIN_SLOT_REFUSALS: Final = 10  # in a row before a refusal by slots is cached, as a slot may be released at any time
MAX_CACHED_SLOT_SECONDS: Final = 0.1
PUBLISH: Final = "publish"


D = TypeVar("D", Decision, Outcome)


@dataclass(slots=True)
class CachedRefusal(Generic[D]):
    """A refusal in the cache of a process, or of a socket for its own rules.

    ``at`` is the time of the decision, ``until`` its expiry. ``costs`` are the refused costs.
    """

    decision: D
    at: float
    until: float
    costs: tuple[int, ...] = ()

    def decision_for(self, costs: tuple[int, ...], now: float) -> D | None:
        """Return the decision with the current waits. Return None if it has expired, or if a cost is smaller."""
        if now >= self.until or any(map(int.__lt__, costs, self.costs)):
            return None
        return self.decision.later(now - self.at)


class _Streak(NamedTuple):
    """Refusals by slots, each less than a second after its predecessor."""

    refusals: int
    last: float


class RefusalCache:
    """The last ``MAX_REFUSALS`` refusals of a process, by their charges; times are seconds on the monotonic clock.

    The rules are part of the key, so an edited rule finds no refusal of its former edition.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.refusals: dict[tuple[object, ...], CachedRefusal[Decision]] = {}  # by the key of the charges
        self._full: dict[tuple[object, ...], _Streak] = {}
        #: Refusals of publications, whose costs differ.
        self._publish_refusals: dict[tuple[Rule, str], CachedRefusal[Outcome]] = {}
        self.epoch = 0  #: number of resets so far
        self._lock = Lock()
        in_child(self, type(self)._renew)

    def find(self, charges: Charges) -> Decision | None:
        """Return the cached decision with the current waits, or None."""
        refusal = self.refusals.get(charges.key)
        if refusal is None:
            return None
        now = self._clock()
        if now >= refusal.until:
            with self._lock:
                self.refusals.pop(charges.key, None)
            return None
        return refusal.decision.later(now - refusal.at)

    def note(self, charges: Charges, decision: Decision, epoch: int) -> None:
        """Cache a refusal by rates that charge nothing for it; other decisions are not cached.

        A refusal by slots alone is cached for ``MAX_CACHED_SLOT_SECONDS``, from the tenth in a row on. ``epoch`` is the
        epoch before the decision: if a budget was reset since, the refusal is not cached.
        """
        all_charges = tuple(charges)
        if decision.allowed or decision.degraded or any(map(_counts_every_call, all_charges)):
            return
        now, wait, by_slots = self._clock(), _cached_seconds(decision.retry_after), False
        if charges.rules.has_leases:
            refusals = [
                outcome for outcome in decision.outcomes if outcome.window and not (outcome.allowed or outcome.shadow)
            ]
            wait = max([_cached_seconds(outcome.retry_after) for outcome in refusals], default=0.0)
            by_slots = not refusals
        with self._lock:
            if epoch != self.epoch:
                return
            if by_slots:
                wait = self._cached_seconds_of_slots(charges, now)
            if wait:
                _keep(self.refusals, charges.key, CachedRefusal(decision, now, now + wait))
            for (rule, ident, cost), outcome in zip(all_charges, decision.outcomes, strict=False):
                if PUBLISH in rule.events and not (outcome.allowed or outcome.shadow):
                    until = now + _cached_seconds(outcome.retry_after)
                    _keep(self._publish_refusals, (rule, ident), CachedRefusal(outcome, now, until, (cost,)))

    @property
    def has_publications(self) -> bool:
        """True if the cache has refusals of publications."""
        return bool(self._publish_refusals)

    def refused(self, charges: Sequence[Charge]) -> tuple[Outcome, ...]:
        """Return the outcomes of rules that recently refused a publication of this cost or less."""
        if any(map(_counts_every_call, charges)):
            return ()
        now, outcomes = self._clock(), []
        for rule, ident, cost in charges:
            refusal = self._publish_refusals.get((rule, ident))
            max_cost = min(rule.params.limit, rule.burst or rule.params.limit)  # a larger cost is refused as too large
            if refusal and cost <= max_cost and (outcome := refusal.decision_for((cost,), now)):
                outcomes.append(outcome)
        return tuple(outcomes)

    def _cached_seconds_of_slots(self, charges: Charges, now: float) -> float:
        """Return the seconds for which a refusal by slots is cached; 0.0 if one of the rules makes room."""
        if any(charge.rule.at_limit != "reject" for charge in charges):
            return 0.0
        before = self._full.pop(charges.key, None)
        count = before.refusals + 1 if before is not None and now - before.last < MAX_CACHED_SECONDS else 1
        _keep(self._full, charges.key, _Streak(count, now))
        return MAX_CACHED_SLOT_SECONDS if count >= MIN_SLOT_REFUSALS else 0.0

    def _renew(self) -> None:
        self._lock = Lock()

    def clear(self) -> None:
        """Empty the cache, because a budget was reset."""
        with self._lock:
            self.epoch += 1
            self.refusals.clear()
            self._full.clear()
            self._publish_refusals.clear()


class NoRefusalCache(RefusalCache):
    """Cache without entries, for a store in memory."""

    def find(self, charges: Charges) -> Decision | None:
        return None

    def note(self, charges: Charges, decision: Decision, epoch: int) -> None:
        return None


def _keep(cache: dict[K, T], key: K, value: T) -> None:
    cache.pop(key, None)  # keeps the cache in the order of the last refusals
    while len(cache) >= MAX_REFUSALS:
        cache.pop(next(iter(cache)), None)
    cache[key] = value


def _cached_seconds(retry_after: float | None) -> float:
    """Return the seconds for which a refusal by a rate is cached."""
    return MAX_CACHED_SECONDS if retry_after is None else min(retry_after, MAX_CACHED_SECONDS)


def _counts_every_call(charge: Charge) -> bool:
    rule = charge.rule
    return rule.count_denied or rule.action == "shadow"

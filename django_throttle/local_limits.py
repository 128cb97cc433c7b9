"""What a process decides by itself: dampers, by their meters, whose counts it reports; and what it has bought ahead."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from heapq import nlargest
from itertools import chain, islice
from math import inf
from operator import itemgetter
from threading import Lock
from typing import Final, NamedTuple, Protocol

from django_throttle.core.commands import Answer, Charge, Decide, PastCharge, Refund
from django_throttle.core.decision import Decision, Outcome
from django_throttle.core.prepaid import Buying, Claim, PrepaidBudget, Purchase
from django_throttle.core.rule import Rule
from django_throttle.damper.aggregate import Reply, Report
from django_throttle.damper.meter import NEXT, Key, MeterCache, MeterReport
from django_throttle.exceptions import StoreError
from django_throttle.lifecycle import in_child

MOST: Final = 10_000  # meters, and prepaid budgets
BATCH: Final = 500  # reports, or refunds, in one round trip
IDLE: Final = 30.0  # seconds after which a quota with nothing to charge is forgotten


class LocalLimits:
    """Decides local charges; safe to use from any thread, and empty, under a new name, after a fork.

    ``clock`` (seconds, monotonic) and ``chance`` (0 ≤ x < 1) may be replaced. Reports are sent every ``interval``
    seconds, next at ``due``, by the agent; or by ``on_due``, which the next decision calls, where sending takes no
    time. ``processes`` is the number of live ones.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        *,
        interval: float = 2.0,
        most: int = MOST,
        on_due: Callable[[], object] | None = None,
    ) -> None:
        self.clock, self.chance, self.interval, self.most = clock, chance, interval, most
        self.processes = 1
        self.prepaid = PrepaidBudgets()
        self._on_due = on_due
        self._renew()
        in_child(self, type(self)._renew)

    def decide_damper(self, charge: Charge, *, commit: bool = True) -> Decision:
        """Count an attempt under a damper and say whether it passes."""
        now = self.clock()
        if self._on_due is not None:
            self._flush_when_due(now)
        with self._lock:
            meter = self.cache.find(charge, now)
            wait = meter.attempt(now, charge.cost if commit else 0, self.chance() if meter.factor else 1.0)
            return meter.refuses(self._until_then(wait, now)) if wait else meter.passing_decision

    def decide_all(self, charges: Sequence[Charge], *, commit: bool = True) -> tuple[Outcome, ...]:
        """Count these attempts and decide each; they share one random number, so that the strictest rule holds."""
        now, chance = self.clock(), self.chance()
        if self._on_due is not None:
            self._flush_when_due(now)
        with self._lock:
            outcomes: list[Outcome] = []
            for charge in charges:
                meter = self.cache.find(charge, now)
                wait = meter.attempt(now, charge.cost if commit else 0, chance)
                outcomes += meter.refuses(self._until_then(wait, now)).outcomes if wait else (meter.passing_outcome,)
            return tuple(outcomes)

    def suppressed(self, most: int) -> list[tuple[str, str, float]]:
        """Whom dampers refuse a share now: rule, ident and suppression factor, the highest first, so many at most."""
        with self._lock:
            meters = list(self.cache.meters.values())
        found = [(meter.rule.name, meter.ident, meter.factor) for meter in meters if meter.factor]
        return nlargest(most, found, key=itemgetter(2))

    def forget(self, rule_id: str, ident: str) -> None:
        """Start again from nothing: the budget was reset."""
        with self._lock:
            self.cache.meters.pop((rule_id, ident), None)
        self.prepaid.forget(lambda budget: (budget.rule.id, budget.ident) == (rule_id, ident))

    def collect(self) -> Iterator[list[MeterReport]]:
        """The reports to send, in batches, each made as it is asked for: all of them together take too much memory."""
        reports = self._reports()
        while batch := list(islice(reports, BATCH)):
            yield batch

    def _reports(self) -> Iterator[MeterReport]:
        with self._lock:
            removed, keys = self.cache.reports_of_removed(self.clock()), list(self.cache.meters)
        yield from removed
        for key in keys:
            with self._lock:  # for each by itself, so that no decision waits for all of them
                sent = self.cache.report(key, self.clock())
            if sent is not None:
                yield sent

    def take(self, sent: Sequence[MeterReport], replies: Sequence[Reply | BaseException], sent_at: float) -> None:
        """Adopt the replies to reports sent at ``sent_at`` on our clock; an error stands for a failed report."""
        now = self.clock()
        for (meter, report), reply in zip(sent, replies, strict=True):
            with self._lock:
                meter.processes = self.processes
                if isinstance(reply, BaseException):
                    meter.fail(now, self.interval)
                    continue
                meter.take(report, reply, sent_at, now)
                self.cache.time = meter.time

    def fail(self, sent: Sequence[MeterReport]) -> None:
        self.take(sent, [TimeoutError()] * len(sent), 0.0)

    def _renew(self) -> None:
        self._lock = Lock()
        self.cache = MeterCache(self.most)
        self.due = self.clock() + self.interval

    def _flush_when_due(self, now: float) -> None:
        """Send reports when they are due, or when the clock was set back."""
        if self._on_due is not None and not self.due - 2 * self.interval <= now < self.due:
            self.due = now + self.interval
            self._on_due()

    def _until_then(self, wait: float, now: float) -> float:
        """Seconds until the attempt may be tried again: until the bucket has room, else until the next factor."""
        if wait != NEXT:
            return wait
        return self.due - now if self.due > now else self.interval


SWEEP_SECONDS: Final = 0.5  # between two looks for what goes back
TOGETHER: Final = 100  # budgets that are looked at


class Pending(NamedTuple):
    """A purchase under way; ``done`` has as its result why the store failed, None where it has answered."""

    buying: Buying
    done: Future[StoreError | None]


class PrepaidBudgets:
    """The prepaid budgets of one process, at most MOST; safe to use from any thread, and empty after a fork.

    ``clock`` is monotonic, in seconds. A call waits for no longer than ``patience`` seconds for what another one buys.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.patience = clock, 0.1
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._known: dict[Key, PrepaidBudget] = {}
        self._pending: dict[Key, Pending] = {}
        self._back: list[PastCharge] = []  # to be refunded

    def __len__(self) -> int:
        return len(self._known)

    def spend(self, rule: Rule, ident: str, cost: int) -> Decision | None:
        """The decision of a call by this charge alone, where enough is held; it asks nobody."""
        with self._lock:
            budget = self._known.get((rule.id, ident))
            return budget.spend(cost, self.clock()) if budget is not None and budget.rule is rule else None

    def spend_all(self, charges: Sequence[Charge]) -> bool:
        """Take what a call is charged; False, and nothing is taken, where it takes another look."""
        taking = []
        with self._lock:
            now = self.clock()
            for rule, ident, cost in charges:
                budget = self._known.get((rule.id, ident))
                if budget is None or budget.rule is not rule or (paying := budget.paying(cost, now)) is None:
                    return False
                taking.append((budget, paying, cost))
            for budget, paying, cost in taking:
                paying.left -= cost
                budget.demand += cost
            return True

    def held(self, charge: Charge) -> int:
        with self._lock:
            budget = self._known.get((charge.rule.id, charge.ident))
            return 0 if budget is None else budget.held(self.clock())

    def look(self, claim: Claim) -> Pending | None:
        """Take what is held. None when the claim is complete or refused; else the purchase to make or to wait for."""
        with self._lock:
            now = self.clock()
            lacking = claim.take([self._find(charge, now) for charge in claim.charges], now)
            for one in lacking:
                if (pending := self._pending.get(_key(one.budget))) is not None:
                    return pending
            if not lacking:
                return None
            pending = Pending(Buying(claim, lacking, now), Future())
            self._pending.update(dict.fromkeys([_key(one.budget) for one in lacking], pending))
            return pending

    def bought(self, buying: Buying, command: Decide, answers: Sequence[Answer], sent_at: float) -> None:
        """The store has answered this command. What was bought of a budget that is forgotten meanwhile goes back."""
        with self._lock:
            for purchase in buying.settle(command, answers, sent_at):
                rule, ident, _ = purchase.paid.charge
                budget = self._known.get((rule.id, ident))
                if budget is None or not any(one.budget is budget for one in buying.wanted):
                    self._give_back([purchase])

    def end(self, pending: Pending, error: StoreError | None) -> None:
        """The purchase is over: whoever waits for it looks again."""
        with self._lock:
            for one in pending.buying.wanted:
                if self._pending.get(_key(one.budget)) is pending:
                    del self._pending[_key(one.budget)]
                if error is not None:
                    one.budget.note_failure(self.clock())
        if not pending.done.done():
            pending.done.set_result(error)

    def release(self, claim: Claim) -> None:
        """The call was refused, or has ended: what it took is for others, or goes back."""
        with self._lock:
            claim.has_ended = True
            for one in [one for taken in claim.taken.values() for one in taken]:
                one.purchase.left += one.cost
                if one.purchase.is_over:
                    self._give_back([one.purchase])
            for place in claim.taken:
                rule, ident, _ = claim.charges[place]
                if (budget := self._known.get((rule.id, ident))) is not None:
                    budget.look_again()
            claim.taken.clear()

    def forget(self, is_meant: Callable[[PrepaidBudget], bool]) -> None:
        """These budgets were reset: nobody is charged for what was bought of them before."""
        with self._lock:
            for key in [key for key, budget in self._known.items() if is_meant(budget)]:
                del self._known[key]

    def sweep(self, *, everything: bool = False) -> list[Refund]:
        """What goes back: what may be spent no longer, or all that is held."""
        with self._lock:
            budgets = list(self._known.items())
        for at in range(0, len(budgets), TOGETHER):
            with self._lock:  # for a few by themselves, so that no decision waits for all of them
                now = self.clock()
                for key, budget in budgets[at : at + TOGETHER]:
                    if self._known.get(key) is not budget:  # it was reset meanwhile: nothing of it goes back
                        continue
                    if gone := budget.leftover(inf if everything else now):
                        budget.note_command(now)
                        self._give_back(gone)
                    if budget.is_idle(now) and key not in self._pending:
                        del self._known[key]
        with self._lock:
            back, self._back = self._back, []
        return [Refund(tuple(back[at : at + BATCH])) for at in range(0, len(back), BATCH)]

    def _give_back(self, purchases: Sequence[Purchase]) -> None:
        for one in purchases:
            one.is_over = True
            self._back.append(one.part(one.left))
            one.left = 0

    def _find(self, charge: Charge, now: float) -> PrepaidBudget:
        key = charge.rule.id, charge.ident
        budget = self._known.get(key)
        if budget is None or (budget.rule is not charge.rule and budget.rule != charge.rule):
            if budget is not None:  # what was bought under another edition of the rule
                self._give_back(budget.leftover())
            elif len(self._known) >= MOST:
                self._give_back(self._known.pop(next(iter(self._known))).leftover())
            budget = self._known[key] = PrepaidBudget(charge.rule, charge.ident, now)
        budget.rule = charge.rule
        return budget


def _key(budget: PrepaidBudget) -> Key:
    return budget.rule.id, budget.ident


JITTER: Final = 0.1  # most that an interval is prolonged by, as a share of it


class Aggregator(Protocol):
    """Takes reports in one round trip; an error may stand in place of a reply. Raises StoreError."""

    def damp(self, reports: Sequence[Report]) -> Sequence[Reply | BaseException]: ...


def flush(limits: LocalLimits, aggregator: Aggregator) -> int:
    """Send what changed; returns the number of reports. Raises StoreError, and the counts are sent later."""
    number, was_known = _report(limits, aggregator)
    if not was_known:
        number += _report(limits, aggregator)[0]
    return number


def _report(limits: LocalLimits, aggregator: Aggregator) -> tuple[int, bool]:
    """Returns how many reports were sent, and whether all their meters knew the store's time before."""
    number, was_known = 0, True
    batches = limits.collect()
    for batch in batches:
        sent_at = limits.clock()
        try:
            replies = aggregator.damp([report for _, report in batch])
        except StoreError:
            for failed in chain([batch], batches):
                limits.fail(failed)
            raise
        limits.take(batch, replies, sent_at)
        number += len(batch)
        was_known = was_known and all(report.sent_at is not None for _, report in batch)
    return number, was_known


class Flusher:
    """The periodic flush of one store's limits, with jitter, so that processes do not flush at the same time."""

    def __init__(self, limits: LocalLimits, aggregator: Aggregator, processes: Callable[[], int]) -> None:
        self.limits, self.aggregator, self._processes = limits, aggregator, processes

    @property
    def first(self) -> float:
        return self.limits.interval * random.random()  # noqa: S311 - nobody gains by guessing it

    def __call__(self) -> float:
        """Flush; returns the seconds until the next time. Raises StoreError."""
        limits = self.limits
        wait = limits.interval * (1 + JITTER * random.random())  # noqa: S311
        limits.processes = self._processes()
        limits.due = limits.clock() + wait
        flush(limits, self.aggregator)
        return wait

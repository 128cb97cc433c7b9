"""A store in this process: one process, development and tests; also the local fallback; tests compare Redis with it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, Final, Literal

from django_throttle.connections.leases import Leases
from django_throttle.core.algorithms import State, StepResult
from django_throttle.core.commands import (
    MAX_WAITING,
    Answer,
    Charge,
    Command,
    ControlMessage,
    Decide,
    DecideLocally,
    Evict,
    Mark,
    PastCharge,
    Received,
    Refund,
    Release,
    Reset,
    SendControl,
    SetMarks,
    closing,
    with_tags,
)
from django_throttle.core.key import ident_tag
from django_throttle.damper.aggregate import Aggregates, Reply, Report
from django_throttle.lifecycle import in_child
from django_throttle.local_limits import LocalLimits, flush
from django_throttle.store_time import Calendar
from django_throttle.stores.denials import Denials, NoDenials

FIRST_SWEEP: Final = 1024


class MemoryStore:
    """Counts in a dictionary, exactly as the Redis store does, for this process only.

    ``clock`` returns seconds since the epoch; pass your own to test without waiting. At most
    ``max_entries`` counters are kept; past that the ones written longest ago are forgotten. ``leases`` are
    those of another store, which has yet to hear of what is held here.
    """

    is_remote: Literal[False] = False
    is_costly = False
    open_breakers = 0

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        *,
        leases: Leases | None = None,
        max_entries: int = 100_000,
    ) -> None:
        self.clock = clock or time.time
        self.denials: Denials = NoDenials()
        self.aggregates = Aggregates(self.clock)
        self.local_limits = LocalLimits(self.clock, on_due=self._report)
        self.leases = Leases() if leases is None else leases
        self.control = LocalControl()
        self._sent = leases is None
        self.max_entries = max_entries
        self._counters: dict[tuple[str, str], tuple[State, int]] = {}
        self._sweep_at = FIRST_SWEEP
        self.calendar = Calendar()
        self._lock = Lock()
        in_child(self, type(self)._renew)

    def execute(self, command: Command) -> Any:
        with self._lock:
            match command:
                case Decide() as decide:
                    return self._decide(decide)
                case DecideLocally(decide=decide):
                    return self._decide(decide)
                case Reset(charges=charges):
                    return sum(map(self._forget, charges))
                case Refund(paid=paid):
                    return sum(map(self._refund, paid))
                case SetMarks(marks=marks):
                    return tuple([self._is_first(mark) for mark in marks])
                case Release(lease=lease, holds=holds):
                    for rule_id, ident in holds:
                        self.leases.drop(rule_id, ident, lease)
                case Evict():
                    taken, messages = evict_here(self.leases, command)
                    self.control.give(messages)
                    return taken
                case SendControl(messages=messages):
                    self.control.give(messages)

    async def aexecute(self, command: Command) -> Any:
        return self.execute(command)  # nothing here waits

    def _renew(self) -> None:
        self._lock = Lock()

    def _report(self) -> None:
        flush(self.local_limits, self)

    def damp(self, reports: Sequence[Report]) -> list[Reply]:
        """What dampers report: the store is their aggregator too."""
        return self.aggregates.damp(reports)

    def charge(self, charges: Sequence[Charge]) -> list[Answer]:
        """What quotas owe that are charged in batches."""
        return [self.execute(Decide((charge,)))[0] for charge in charges]

    def _forget(self, charge: Charge) -> int:
        if charge.rule.is_local:
            self.local_limits.forget(*_key(charge))
        if charge.rule.is_damper:
            return self.aggregates.reset(*_key(charge))
        return self._counters.pop(_key(charge), None) is not None

    def _decide(self, command: Decide) -> tuple[Answer, ...]:
        now = round(self.clock() * 1_000_000)
        steps = [self._step(charge, now, command) for charge in command.charges]
        granted = all(
            step.retry == 0 or charge.rule.action == "shadow"
            for charge, step in zip(command.charges, steps, strict=True)
        )
        return tuple(
            self._settle(charge, step, now, command, granted)
            for charge, step in zip(command.charges, steps, strict=True)
        )

    def _step(self, charge: Charge, now: int, command: Decide) -> StepResult:
        rule = charge.rule
        if rule.is_concurrency:
            self._release_abandoned()
            held = self.leases.count(rule.id, charge.ident)
            mine = command.lease is not None and self.leases.is_held(rule.id, charge.ident, command.lease)
            return rule.plan.step((held, mine), now, charge.cost, False)
        entry = self._counters.get(_key(charge))
        state = None if entry is None or entry[1] <= now else entry[0]
        plan = self.calendar.plan_at(rule, now) if rule.plan.needs_calendar else rule.plan
        counts_denied = rule.count_denied and command.commit and charge.cost > 0
        return plan.step(state, now, charge.cost, counts_denied)

    def _settle(self, charge: Charge, step: StepResult, now: int, command: Decide, granted: bool) -> Answer:
        """Store what this charge leaves behind, and say how things stand afterwards."""
        rule = charge.rule
        if not command.commit or charge.cost == 0:
            return Answer(step.retry, step.remaining, step.reset, now)
        if rule.is_concurrency and granted:
            if command.lease is not None:
                self.leases.hold(rule.id, charge.ident, command.lease, sent=self._sent)
            left = max(0, rule.plan.limit - self.leases.count(rule.id, charge.ident))
            return Answer(step.retry, left, step.charged_reset, now)
        if step.charged_state is not None and (granted or rule.count_denied):
            self._write(_key(charge), step.charged_state, now + step.charged_reset)
            return Answer(step.retry, step.charged_remaining, step.charged_reset, now)
        if step.refused_state is not None:
            self._write(_key(charge), step.refused_state, now + max(1, step.reset))
        return Answer(step.retry, step.remaining, step.reset, now)

    def _is_first(self, mark: Mark) -> bool:
        """True when nobody has said so, or it has lasted; when the clock goes back it lasts no longer than ever."""
        now = round(self.clock() * 1_000_000)
        key = f"{mark.rule_id}:{mark.name}", mark.ident
        (until, *_), _ = self._counters.get(key, ((0,), 0))
        if until <= now or until > now + mark.lasts:
            self._write(key, (now + mark.lasts,), now + mark.lasts)
        return until <= now

    def _release_abandoned(self) -> None:
        for lease in self.leases.take_abandoned() if self._sent else ():  # else whoever tells Redis does
            for pair in lease.holds:
                self.leases.drop(*pair, lease.id)

    def _refund(self, paid: PastCharge) -> bool:
        (rule, _, cost), at, reset = paid
        key = _key(paid.charge)
        state, expires = self._counters.get(key, (None, 0))
        if state is None:
            return False
        now = round(self.clock() * 1_000_000)
        left = rule.plan.refund(state, now, cost, at, reset)
        if left:
            self._counters[key] = left, expires
        elif left is not None:
            del self._counters[key]
        return left is not None

    def _write(self, key: tuple[str, str], state: State, expires: int) -> None:
        self._counters.pop(key, None)  # so that the order is that of the last write
        self._counters[key] = (state, expires)
        if len(self._counters) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        now = round(self.clock() * 1_000_000)
        self._counters = {key: entry for key, entry in self._counters.items() if entry[1] > now}
        for key in list(self._counters)[: max(0, len(self._counters) - self.max_entries)]:
            del self._counters[key]
        self._sweep_at = max(FIRST_SWEEP, min(2 * len(self._counters), self.max_entries + FIRST_SWEEP))


def _key(charge: Charge) -> tuple[str, str]:
    return charge.rule.id, charge.ident


def evict_here(leases: Leases, command: Evict) -> tuple[bool, tuple[ControlMessage, ...]]:
    """Evict where this process has all leases; returns whether the new socket has a slot, and the messages to send."""
    rule, ident, _ = command.charge
    pair, limit = (rule.id, ident), rule.plan.limit
    victims: list[tuple[str, str]] = []
    while leases.count(*pair) >= limit and (lease := leases.first_socket(*pair)):
        leases.evict(*pair, lease)
        victims.append((leases.uid, lease))
    taken = leases.count(*pair) < limit
    if taken:
        leases.hold(*pair, command.lease)
    return taken, closing(command.charge.rule, victims)


class LocalControl:
    """The control messages of a store in memory: all are for this process."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ControlMessage, float]] = deque(maxlen=MAX_WAITING)
        in_child(self, lambda control: control._waiting.clear())

    def give(self, messages: Iterable[ControlMessage]) -> None:
        """They are for this process."""
        now = time.monotonic()
        self._waiting.extend((message, now) for message in with_tags(messages, self.tag))

    def resend(self) -> None:
        """There is nowhere to send them to."""

    def fetch(self) -> Received:
        """What has been given since the last time."""
        return dict([self._waiting.popleft() for _ in range(len(self._waiting))])

    @staticmethod
    def tag(ident: str) -> str:
        return ident_tag(ident, b"")

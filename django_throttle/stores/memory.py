"""A store in this process: one process, development and tests; also the oracle and the local fallback."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from django_throttle.connections.registry import Registry
from django_throttle.core.algorithms import RATE_ALGORITHMS, State, Step, concurrency
from django_throttle.core.command import Answer, Charge, Command, Decide, DecideLocally, Forget, Release
from django_throttle.forks import in_child
from django_throttle.stores.calendar import Calendar

FIRST_SWEEP: Final = 1024


class MemoryStore:
    """Counts in a dictionary, exactly as the Redis store does, for this process only.

    ``clock`` returns seconds since the epoch; pass your own to test without waiting. At most
    ``max_entries`` counters are kept; past that the ones written longest ago are forgotten. ``leases`` is the
    registry of another store, which has yet to hear of what is held here.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        *,
        leases: Registry | None = None,
        max_entries: int = 100_000,
    ) -> None:
        self.clock = clock or time.time
        self.denials: None = None  # asking is as cheap
        self.leases = Registry() if leases is None else leases
        self._sent = leases is None
        self.max_entries = max_entries
        self._counters: dict[tuple[str, str], tuple[State, int]] = {}
        self._sweep_at = FIRST_SWEEP
        self._calendar = Calendar()
        self._lock = Lock()
        in_child(self, type(self)._renew)

    def execute(self, command: Command) -> Any:
        with self._lock:
            match command:
                case Decide() as decide:
                    return self._decide(decide)
                case DecideLocally(decide=decide):
                    return self._decide(decide)
                case Forget(charges=charges):
                    return sum(self._counters.pop(_key(charge), None) is not None for charge in charges)
                case Release(lease=lease, holds=holds):
                    for rule_id, ident in holds:
                        self.leases.drop(rule_id, ident, lease)

    async def aexecute(self, command: Command) -> Any:
        return self.execute(command)  # nothing here waits

    def _renew(self) -> None:
        self._lock = Lock()

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

    def _step(self, charge: Charge, now: int, command: Decide) -> Step:
        rule = charge.rule
        if rule.is_concurrency:
            held = self.leases.count(rule.id, charge.ident)
            mine = command.lease is not None and self.leases.has(rule.id, charge.ident, command.lease)
            return concurrency(held, mine, charge.cost, rule.plan)
        entry = self._counters.get(_key(charge))
        state = None if entry is None or entry[1] <= now else entry[0]
        plan = self._calendar.plan_at(rule, now) if rule.plan.algorithm == "calendar_window" else rule.plan
        counts_denied = rule.count_denied and command.commit
        return RATE_ALGORITHMS[plan.algorithm](state, now, charge.cost, plan, counts_denied)

    def _settle(self, charge: Charge, step: Step, now: int, command: Decide, granted: bool) -> Answer:
        """Store what this charge leaves behind, and say how things stand afterwards."""
        rule = charge.rule
        if not command.commit or charge.cost == 0:
            return Answer(step.retry, step.remaining, step.reset)
        if rule.is_concurrency and granted:
            if command.lease is not None:
                self.leases.hold(rule.id, charge.ident, command.lease, sent=self._sent)
            left = max(0, rule.plan.limit - self.leases.count(rule.id, charge.ident))
            return Answer(step.retry, left, step.charged_reset)
        if step.charged is not None and (granted or rule.count_denied):
            self._write(charge, step.charged, now + step.charged_reset)
            return Answer(step.retry, step.remaining - charge.cost, step.charged_reset)
        if step.kept is not None:
            self._write(charge, step.kept, now + max(1, step.reset))
        return Answer(step.retry, step.remaining, step.reset)

    def _write(self, charge: Charge, state: State, expires: int) -> None:
        self._counters.pop(_key(charge), None)  # so that the order is that of the last write
        self._counters[_key(charge)] = (state, expires)
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

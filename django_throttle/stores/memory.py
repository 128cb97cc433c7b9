"""Memory store: for a single process, development and tests, for the fallback, and as reference of the Redis store."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, Final, Literal

from django_throttle.core.algorithms import Backfill, CounterParams, State, StepResult
from django_throttle.core.commands import (
    Answer,
    CallNext,
    Charge,
    ClaimRun,
    Correct,
    Decide,
    DecideLocally,
    DedupKey,
    Enlist,
    Evict,
    LedgerEntry,
    MeasuredCost,
    Pause,
    Release,
    Reset,
    SendControl,
    SetDedupKeys,
    StoreCommand,
    passes,
    pause_id,
    wait_once_charged,
)
from django_throttle.core.control_messages import MAX_WAITING_MESSAGES, ControlMessage, Received, closing, with_hashes
from django_throttle.core.key import ident_hash
from django_throttle.core.rule import Rule
from django_throttle.local.damper_aggregate import Aggregates, DamperReport, Reply
from django_throttle.local.freed_slots import freed_slots
from django_throttle.local.leases import LeaseKey, Leases
from django_throttle.local.limits import LocalLimits, flush
from django_throttle.local.store_time import Calendar
from django_throttle.runtime import in_child
from django_throttle.stores.counters import Counters
from django_throttle.stores.refusal_cache import NoRefusalCache, RefusalCache

FIRST_SWEEP: Final = 1024
SWEEPS: Final = 64  # per ``max_entries`` new counters
SETTLEMENT_LIFETIME_US: Final = 3_600_000_000  # of the marker of a settlement that was made
MEAN_LIFETIME_US: Final = 7 * 24 * 3_600_000_000


class MemoryStore:
    """Store that counts in this process only, exactly as the Redis store does.

    ``clock`` returns seconds since the epoch; pass one to test without waiting. Beyond ``max_entries`` counters, those
    written longest ago are forgotten, counters with units left first. Another store hands in its ``leases``, to
    report the leases taken here to Redis.
    """

    is_remote: Literal[False] = False
    is_costly = False
    open_breakers = 0

    def __init__(
        self, clock: Callable[[], float] | None = None, *, leases: Leases | None = None, max_entries: int = 100_000
    ) -> None:
        self.clock = clock or time.time
        self.refusal_cache: RefusalCache = NoRefusalCache()
        self.aggregator = self.aggregates = Aggregates(self.clock)
        self.local_limits = LocalLimits(self.clock, on_due=lambda: flush(self.local_limits, self))
        self.leases = Leases() if leases is None else leases
        self.control = LocalControl()
        self._waiting: dict[LeaseKey, dict[str, bytes]] = {}  # runs that wait for a slot
        self._claims: dict[str, tuple[int, str]] = {}  # until when, and by which message
        self._sent = leases is None
        self.max_entries = max_entries
        self._counters = Counters()
        self._sweep_at = FIRST_SWEEP
        self.calendar = Calendar()
        self._lock = Lock()
        in_child(self, type(self)._renew)

    def execute(self, command: StoreCommand[object]) -> Any:
        with self._lock:
            match command:
                case Decide() as decide:
                    return self._decide(decide)
                case DecideLocally(decide=decide):
                    return self._decide(decide)
                case Reset(charges=charges):
                    return sum(map(self._forget, charges))
                case Correct():
                    return self._correct(command)
                case _:
                    return self._execute_other(command)

    def _execute_other(self, command: StoreCommand[object]) -> Any:
        """Execute a command that is not about counters."""
        match command:
            case SetDedupKeys(keys=keys):
                return tuple([self._set_dedup_key(key) for key in keys])
            case Pause():
                return self._pause(command)
            case Evict():
                has_slot, messages = evict_here(self.leases, command)
                self.control.dispatch(messages)
                return has_slot
            case Release(lease=lease, lease_keys=lease_keys):
                for hold in lease_keys:
                    self.leases.drop(*hold, lease)
                    if self._waiting.get(hold):
                        freed_slots.add(hold)
            case Enlist():
                return self._enlist(command)
            case CallNext(rule_id=rule_id, ident=ident):
                waiting = self._waiting.get((rule_id, ident), {})
                return waiting.pop(next(iter(waiting))) if waiting else None
            case ClaimRun():
                return self._claim(command)
            case SendControl(messages=messages):
                self.control.dispatch(messages)

    async def aexecute(self, command: StoreCommand[object]) -> Any:
        return self.execute(command)  # nothing here waits

    def release_soon(self, command: Release) -> None:
        self.execute(command)

    def _renew(self) -> None:
        self._lock = Lock()

    def damp(self, reports: Sequence[DamperReport]) -> list[Reply]:
        """Add reports of dampers, as their aggregator. Return the replies."""
        return self.aggregates.damp(reports)

    def _forget(self, charge: Charge) -> int:
        if charge.rule.decided_locally:
            self.local_limits.forget(*_key(charge))
        paused = self._counters.pop((pause_id(charge.rule.name), charge.ident), None) is not None
        if charge.rule.decided_locally:
            return self.aggregates.reset(*_key(charge)) + paused
        _, expires = self._counters.pop(_key(charge), (None, 0))
        return (expires > round(self.clock() * 1_000_000)) + paused

    def _decide(self, command: Decide) -> tuple[Answer, ...]:
        now = round(self.clock() * 1_000_000)
        steps = [self._step(charge, now, command) for charge in command.charges]
        is_granted = all(map(passes, command.charges, steps))
        return tuple(
            self._settle(charge, step, now, command, is_granted)
            for charge, step in zip(command.charges, steps, strict=True)
        )

    def _step(self, charge: Charge, now: int, command: Decide) -> StepResult:
        rule = charge.rule
        if rule.holds_slots:
            for lease in self.leases.take_to_release() if self._sent else ():  # otherwise the agent releases them
                for pair in lease.lease_keys:
                    self.leases.drop(*pair, lease.id)
            held = self.leases.count(rule.id, charge.ident)
            is_own = command.lease is not None and self.leases.is_held(rule.id, charge.ident, command.lease)
            return rule.params.step((held, is_own), now, charge.cost, False)
        entry = self._counters.get(_key(charge))
        state = None if entry is None or entry[1] <= now else entry[0]
        counts_denied = rule.count_denied and command.commit and charge.cost > 0
        return self._params(rule, now).step(state, now, charge.cost, counts_denied)

    def _params(self, rule: Rule, now: int) -> CounterParams:
        return self.calendar.params_at(rule, now) if rule.params.needs_calendar else rule.params

    def _settle(self, charge: Charge, step: StepResult, now: int, command: Decide, is_granted: bool) -> Answer:
        """Store the state after a charge, and return its answer."""
        rule = charge.rule
        if not command.commit or charge.cost == 0:
            return Answer(step.retry, step.remaining, step.reset, now)
        if rule.holds_slots and is_granted:
            if command.lease is not None:
                self.leases.hold(rule.id, charge.ident, command.lease, sent=self._sent)
            remaining = max(0, rule.params.limit - self.leases.count(rule.id, charge.ident))
            return Answer(step.retry, remaining, step.charged_reset, now)
        if step.charged_state is not None and (is_granted or rule.count_denied):
            is_spent = step.charged_remaining <= 0
            self._write(_key(charge), step.charged_state, now + step.charged_reset, is_spent=is_spent)
            retry = 0 if is_granted else wait_once_charged(rule, self._params(rule, now), step, now, charge.cost)
            return Answer(retry, step.charged_remaining, step.charged_reset, now)
        if step.refused_state is not None and step.reset:
            self._write(_key(charge), step.refused_state, now + step.reset, is_spent=step.remaining <= 0)
        elif step.refused_state is not None:  # an expired entry would come back if the clock moved backwards
            self._counters.pop(_key(charge), None)
        return Answer(step.retry, step.remaining, step.reset, now)

    def _enlist(self, command: Enlist) -> int:
        waiting = self._waiting.setdefault((command.rule_id, command.ident), {})
        if command.name not in waiting and len(waiting) >= command.max_waiting:
            return 0
        is_first = command.is_first and command.name not in waiting
        waiting[command.name] = command.entry
        if is_first:
            other_runs = {name: entry for name, entry in waiting.items() if name != command.name}
            waiting.clear()
            waiting.update({command.name: command.entry, **other_runs})
        return list(waiting).index(command.name) + 1

    def _claim(self, command: ClaimRun) -> str:
        now = round(self.clock() * 1_000_000)
        expires, message = self._claims.get(command.name, (0, ""))
        if expires > now or not command.lifetime_ms:
            return message if expires > now else ""
        self._claims[command.name] = now + command.lifetime_ms * 1000, command.message
        if len(self._claims) > self.max_entries:
            del self._claims[next(iter(self._claims))]
        return command.message

    def _set_dedup_key(self, dedup_key: DedupKey) -> bool:
        """Set a dedup key. Return True if it was not set, or has expired. A step of the clock does not prolong it."""
        now = round(self.clock() * 1_000_000)
        key = f"{dedup_key.rule_id}:{dedup_key.name}", dedup_key.ident
        (until, *_), _ = self._counters.get(key, ((0,), 0))
        if until <= now or until > now + dedup_key.lifetime_us:
            self._write(key, (now + dedup_key.lifetime_us,), now + dedup_key.lifetime_us, is_spent=True)
        return until <= now

    def _pause(self, command: Pause) -> int:
        now = round(self.clock() * 1_000_000)
        key = pause_id(command.rule), command.ident
        (until, *_), _ = self._counters.get(key, ((0,), 0))
        if now + command.duration_us > max(until, now):
            until = now + command.duration_us
            self._write(key, (until,), until, is_spent=True)
        return max(0, until - now)

    def _refund(self, entry: LedgerEntry) -> None:
        (rule, _, cost), at, reset, _ = entry
        key = _key(entry.charge)
        state, expires = self._counters.get(key, (None, 0))
        if state is None:
            return
        now = round(self.clock() * 1_000_000)
        refunded_state = rule.params.refund(state, now, cost, at, reset)
        if refunded_state:
            self._counters[key] = refunded_state, expires
        elif refunded_state is not None:
            del self._counters[key]

    def _correct(self, command: Correct) -> tuple[int, ...]:
        ident = command.charges[0].charge.ident if command.charges else ""
        if not command.name or self._set_dedup_key(DedupKey("settled", ident, command.name, SETTLEMENT_LIFETIME_US)):
            for entry in command.refunds:
                self._refund(entry)
            for entry in command.charges:
                self._charge_late(entry.charge, command.age)
        return tuple([self._mean(entry) for entry in command.measured])

    def _charge_late(self, charge: Charge, age: int) -> None:
        rule, _, cost = charge
        now = round(self.clock() * 1_000_000)
        state, expires = self._counters.get(_key(charge), (None, 0))
        params = self.calendar.params_at(rule, now)
        if stored := params.charge_late(state if expires > now else None, now, Backfill(cost, now - age)):
            self._write(_key(charge), stored.state, now + stored.lifetime_us)

    def _mean(self, entry: MeasuredCost) -> int:
        """Update an exponentially weighted mean, kept in thousandths. A new value has a weight of one eighth."""
        now = round(self.clock() * 1_000_000)
        key, value = (f"{entry.rule_id}:mean", entry.scope), entry.cost * 1000
        (before, *_), _ = self._counters.get(key, ((value,), 0))
        mean = before + (value - before) // 8
        self._write(key, (mean,), now + MEAN_LIFETIME_US)
        return -(-mean // 1000)

    def _write(self, key: tuple[str, str], state: State, expires: int, *, is_spent: bool = False) -> None:
        self._counters.write(key, state, expires, is_spent=is_spent)
        if len(self._counters) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        counters = self._counters
        counters.drop_expired(round(self.clock() * 1_000_000))
        if (excess := len(counters) - self.max_entries) >= 0:
            counters.make_room(excess + self.max_entries // SWEEPS)
        self._sweep_at = max(FIRST_SWEEP, min(2 * len(counters), self.max_entries))


def _key(charge: Charge) -> tuple[str, str]:
    return charge.rule.id, charge.ident


def evict_here(leases: Leases, command: Evict) -> tuple[bool, tuple[ControlMessage, ...]]:
    """Evict sockets of this process, which has all leases. Return True if the new socket has a slot, and messages."""
    rule, ident, _ = command.charge
    pair, limit = (rule.id, ident), rule.params.limit
    victims: list[tuple[str, str]] = []
    while leases.count(*pair) >= limit and (lease := leases.first_socket(*pair)):
        leases.evict(*pair, lease)
        victims.append((leases.uid, lease))
    has_slot = leases.count(*pair) < limit
    if has_slot:
        leases.hold(*pair, command.lease)
    return has_slot, closing(command.charge.rule, victims)


class LocalControl:
    """Control messages of a memory store, which are all for this process."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ControlMessage, float]] = deque(maxlen=MAX_WAITING_MESSAGES)
        in_child(self, lambda control: control._waiting.clear())

    def dispatch(self, messages: Iterable[ControlMessage]) -> None:
        """Queue messages for this process."""
        now = time.monotonic()
        self._waiting.extend((message, now) for message in with_hashes(messages, self.ident_hash))

    def resend(self) -> None:
        """Do nothing, as there is no other process."""

    def fetch(self) -> Received:
        """Return the messages since the last call."""
        return dict([self._waiting.popleft() for _ in range(len(self._waiting))])

    @staticmethod
    def ident_hash(ident: str) -> str:
        return ident_hash(ident, b"")

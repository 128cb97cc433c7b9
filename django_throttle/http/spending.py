"""Spending of a running call under rules of unit ``units``: its reserve first, then batches charged in advance."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from math import inf
from threading import Lock
from typing import Final, Protocol

from django_throttle.core import Decision
from django_throttle.core.commands import Charge, LedgerEntry, check_cost
from django_throttle.core.decide import correct
from django_throttle.core.io import run
from django_throttle.core.ledger import Ledger
from django_throttle.costs.meter import Meter
from django_throttle.identity.call import Call
from django_throttle.limiter import decide_fully, decide_reported
from django_throttle.runtime import is_on_event_loop, spawn
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, StoreIo

#: A batch is the hundredth part of the rule's limit, or the amount spent at once if that is larger.
BATCHES_PER_LIMIT: Final = 100


class ChargedCall(Protocol):
    """State of a decided call. Its ledger is settled at the end of the call."""

    call: Call | None

    @property
    def meter(self) -> Meter: ...

    @property
    def spending(self) -> Spending: ...

    @property
    def ledger(self) -> Ledger: ...


class Spending:
    """Units that one call has spent and paid for. Its threads and tasks may share it, and may each pay for a batch.

    When the call is settled, units spent but not paid for are charged, and units paid for but not spent are refunded.
    """

    __slots__ = ("_covered", "_decision", "_has_ended", "_lock", "_paid", "_seen", "spent")

    def __init__(self) -> None:
        self.spent = 0
        #: Units paid for under each rule, by a charge of cost 0.
        self._paid: dict[Charge, int] = {}
        #: Units that may be spent before the next payment.
        self._covered: float = inf
        self._decision = Decision()
        #: Entries of the ledger when it was read last.
        self._seen: tuple[LedgerEntry, ...] = ()
        self._has_ended = False
        self._lock = Lock()

    def end(self, ledger: Ledger) -> int:
        """Return the units spent, because the call is now settled. Units that are spent later are charged exactly."""
        with self._lock:
            self._has_ended = True
            self._read(ledger.unsettled)
            self._paid = dict.fromkeys(self._paid, self.spent)
            self._update_covered()
            return self.spent

    def add(self, units: int, call: ChargedCall) -> Decision | None:
        """Count units as spent. Return the decision if they are paid for, else None. Raise InvalidCost."""
        check_cost(units)
        with self._lock:
            self.spent += units
            entries = call.ledger.reserved
            if not self._has_ended and entries is not self._seen:
                self._read(entries)
            return self._decision if self.spent <= self._covered else None

    def _read(self, entries: tuple[LedgerEntry, ...]) -> None:
        self._seen, self._paid = entries, {}
        for entry in entries:
            rule, ident, cost = entry.charge
            if rule.unit == "units" and not rule.measure:
                key = Charge(rule, ident, 0)
                self._paid[key] = self._paid.get(key, 0) + cost
        self._update_covered()

    def _update_covered(self) -> None:
        self._covered = min(self._paid.values(), default=inf)

    async def pay(self, io: StoreIo, units: int, call: ChargedCall) -> Decision:
        """Pay for the units spent, of which ``units`` are the last, and report the decision."""
        pay = partial(self._pay_batch, io, units, call)
        decision = await (decide_reported(io, pay, call.call.with_changes(cost=units)) if call.call else pay())
        self._decision = decision if decision.allowed else self._decision
        return decision

    async def _pay_batch(self, io: StoreIo, units: int, call: ChargedCall) -> Decision:
        """Pay for a batch. If that is refused, pay for the units spent only."""
        had_ended = self._has_ended
        exact = self._due()
        batch = exact if had_ended else self._due(units)
        decision = await decide_fully(io, batch)
        if not decision.allowed and batch != exact:
            batch, decision = exact, await decide_fully(io, exact)
        if decision.allowed and not self._keep(batch, decision, call, had_ended):
            await correct(io, decision.ledger.refund())
        return decision

    def _due(self, units: int | None = None) -> tuple[Charge, ...]:
        """Return the charges for units that are not paid for, under each rule. With ``units``, charge a batch."""
        due = []
        with self._lock:
            for charge, paid in self._paid.items():
                lacking = self.spent - paid
                if lacking > 0:
                    part = charge.rule.params.limit // BATCHES_PER_LIMIT
                    cost = lacking if units is None else max(lacking, units, part)
                    due.append(charge._replace(cost=cost))
        return tuple(due)

    def _keep(self, batch: tuple[Charge, ...], decision: Decision, call: ChargedCall, had_ended: bool) -> bool:
        """Note a batch as paid for. Return False if the call was settled meanwhile, with all units spent."""
        with self._lock:
            if self._has_ended and not had_ended:
                return False
            for charge in batch:
                key = charge._replace(cost=0)
                if key in self._paid:
                    self._paid[key] += charge.cost
            self._update_covered()
            if not had_ended:
                call.ledger.add(decision.ledger.entries)
                self._seen = call.ledger.reserved
            return True


class CallThrottle(ABC):
    """Throttling of a call, for the code that serves it."""

    __slots__ = ()

    @property
    @abstractmethod
    def _call(self) -> ChargedCall: ...

    @property
    def meter(self) -> Meter:
        """Meter of the call's resource use since its first entry point."""
        return self._call.meter

    def spend(self, units: int) -> Decision:
        """Charge units to the call's rules of unit ``units``. If the decision is a refusal, end the work.

        Most calls take no round trip, because the reserve, and then batches, are paid for in advance. Units of a
        refused call count, too, as debt. Without such a rule nothing is charged. Raise InvalidCost for invalid units,
        and RuntimeError on an event loop.
        """
        if is_on_event_loop():
            raise RuntimeError("spend() would block the event loop, and nothing was charged: await aspend() instead")
        call = self._call
        return call.spending.add(units, call) or run(call.spending.pay(BlockingIo(get_store()), units, call))

    async def aspend(self, units: int) -> Decision:
        """Charge units without blocking the event loop. A payment in flight continues if this is cancelled."""
        call = self._call
        if decision := call.spending.add(units, call):
            return decision
        return await asyncio.shield(spawn(call.spending.pay(LoopIo(get_store()), units, call)))

"""What a call spends on the way under rules of unit ``units``: its reserve first, then batches paid for in advance."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from math import inf
from threading import Lock
from typing import Final, Protocol

from django_throttle.core import Decision
from django_throttle.core.commands import Charge, Entry, check_cost
from django_throttle.core.decide import correct
from django_throttle.core.io import run
from django_throttle.core.ledger import Ledger
from django_throttle.costs.meter import Meter
from django_throttle.identity.call import Call
from django_throttle.limiter import decide_fully, decide_reported
from django_throttle.runtime import is_on_event_loop, spawn
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, StoreIo

# A batch is this part of the rule's limit, if what is spent at once is not more.
PART: Final = 100


class Charged(Protocol):
    """A call as it was decided: ``call``, and the ``ledger``, which is settled when it is over."""

    call: Call | None

    @property
    def meter(self) -> Meter: ...

    @property
    def spending(self) -> Spending: ...

    @property
    def ledger(self) -> Ledger: ...


class Spending:
    """What one call has spent and paid for. Its threads and tasks may share it; two of them may pay for a batch each.

    What is spent and not paid for is owed once the call is settled, and what is paid for and not spent goes back.
    """

    __slots__ = ("_covered", "_decision", "_has_ended", "_lock", "_paid", "_seen", "spent")

    def __init__(self) -> None:
        self.spent = 0
        self._paid: dict[Charge, int] = {}  # under each rule, by a charge of cost 0
        self._covered: float = inf  # what may be spent before a rule has to be asked
        self._decision = Decision()
        self._seen: tuple[Entry, ...] = ()  # the entries of the ledger when it was read last
        self._has_ended = False
        self._lock = Lock()

    def end(self, ledger: Ledger) -> int:
        """What was spent, as this is now settled; units that are spent later are charged one by one."""
        with self._lock:
            self._has_ended = True
            self._read(ledger.unsettled)
            self._paid = dict.fromkeys(self._paid, self.spent)
            self._look()
            return self.spent

    def add(self, units: int, call: Charged) -> Decision | None:
        """Count units as spent; the decision where they are paid for. Raises InvalidCost."""
        check_cost(units)
        with self._lock:
            self.spent += units
            entries = call.ledger.reserved
            if not self._has_ended and entries is not self._seen:
                self._read(entries)
            return self._decision if self.spent <= self._covered else None

    def _read(self, entries: tuple[Entry, ...]) -> None:
        self._seen, self._paid = entries, {}
        for entry in entries:
            rule, ident, cost = entry.charge
            if rule.unit == "units" and not rule.measure:
                key = Charge(rule, ident, 0)
                self._paid[key] = self._paid.get(key, 0) + cost
        self._look()

    def _look(self) -> None:
        self._covered = min(self._paid.values(), default=inf)

    async def pay(self, io: StoreIo, units: int, call: Charged) -> Decision:
        """Pay for what is spent, these units the last of it, and report the decision."""
        pay = partial(self._pay_batch, io, units, call)
        decision = await (decide_reported(io, pay, call.call.with_changes(cost=units)) if call.call else pay())
        self._decision = decision if decision.allowed else self._decision
        return decision

    async def _pay_batch(self, io: StoreIo, units: int, call: Charged) -> Decision:
        """Pay for a batch; where that is refused, for what is spent and no more."""
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
        """What is to be charged under each rule that has too little; with ``units``, a batch."""
        due = []
        with self._lock:
            for charge, paid in self._paid.items():
                lacking = self.spent - paid
                if lacking > 0:
                    cost = lacking if units is None else max(lacking, units, charge.rule.params.limit // PART)
                    due.append(charge._replace(cost=cost))
        return tuple(due)

    def _keep(self, batch: tuple[Charge, ...], decision: Decision, call: Charged, had_ended: bool) -> bool:
        """Note a batch as paid for; False where the call was settled meanwhile, with all that it had spent."""
        with self._lock:
            if self._has_ended and not had_ended:
                return False
            for charge in batch:
                key = charge._replace(cost=0)
                if key in self._paid:
                    self._paid[key] += charge.cost
            self._look()
            if not had_ended:
                call.ledger.add(decision.ledger.entries)
                self._seen = call.ledger.reserved
            return True


class CallThrottle(ABC):
    """What the code that serves a call can ask of its throttling."""

    __slots__ = ()

    @property
    @abstractmethod
    def _call(self) -> Charged: ...

    @property
    def meter(self) -> Meter:
        """What the call has used since its first entry point; in use unless the setting METER is off."""
        return self._call.meter

    def spend(self, units: int) -> Decision:
        """Charge units to the rules of unit ``units`` that the call came under; when refused, end what is under way.

        Most calls take no round trip: the reserve, then batches, are paid for in advance. Units of a refused call count
        too, as debt. Without such a rule nothing is charged. Raises InvalidCost, and RuntimeError on an event loop.
        """
        if is_on_event_loop():
            raise RuntimeError("spend() would block the event loop, and nothing was charged: await aspend() instead")
        call = self._call
        return call.spending.add(units, call) or run(call.spending.pay(BlockingIo(get_store()), units, call))

    async def aspend(self, units: int) -> Decision:
        """The same without blocking the event loop; what is on its way to the store when it is cancelled is settled."""
        call = self._call
        if decision := call.spending.add(units, call):
            return decision
        return await asyncio.shield(spawn(call.spending.pay(LoopIo(get_store()), units, call)))

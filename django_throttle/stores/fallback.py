"""Decisions while Redis is away: each process's share of a limit, charged to Redis afterwards."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, islice
from struct import Struct
from threading import Lock
from typing import Any, Final, NamedTuple

from django_throttle.core.algorithms import LateCost, Plan, State
from django_throttle.core.commands import Answer, Charge, Decide, Refund, passes
from django_throttle.core.rule import Rule
from django_throttle.lifecycle import in_child
from django_throttle.stores.commands import LongCommand, RedisCommand, RoundTrip
from django_throttle.stores.context import RedisContext
from django_throttle.stores.fallback_shares import LastRemaining, share_of, with_limit
from django_throttle.stores.memory import MemoryStore
from django_throttle.stores.transport import Call, script

CHARGE: Final = Struct(">Bdddddd").pack
MAX_OWED: Final = 100_000  # idents; past that the ones decided longest ago are not charged
BATCH: Final = 200  # idents in one pipeline
LEAST_SECONDS: Final = 0.02  # for a decision after its ident's late charges


class Admitted(NamedTuple):
    """What was admitted under a rule and is not charged yet: a state of the share's algorithm, until it expires."""

    rule: Rule
    plan: Plan
    state: State
    expires: int


class LateCharge(NamedTuple):
    """Calls admitted here: the rule, the cost, and the time by the local store's clock, in microseconds."""

    rule: Rule
    cost: int
    at: int


class LateCharges(NamedTuple):
    """What Redis is yet to be charged for one ident; by ``name`` it recognizes a repetition."""

    ident: str
    name: str
    charges: tuple[LateCharge, ...]


class Fallback:
    """The policy ``local``: this process's share of each limit, or what the store said is left where that is less.

    What it admits is owed to Redis: charged, once, before Redis decides anything for the same ident again.
    """

    def __init__(self, context: RedisContext) -> None:
        self.context = context
        self.local = MemoryStore(leases=context.leases)
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        """A forked child owes nothing: its parent charges what was admitted before the fork."""
        self._lock = Lock()
        self.admitted: dict[str, dict[str, Admitted]] = {}  # by ident and rule id
        self.unconfirmed: dict[str, LateCharges] = {}

    def decide(self, command: Decide) -> tuple[Answer, ...]:
        """Decide by this process's shares alone."""
        left = list(map(self.context.remaining.of, command.charges))
        charges = tuple(map(self._shared, command.charges, left))
        spent = any(
            one is not None and one.units < charge.cost and not charge.rule.is_shadow
            for charge, one in zip(charges, left, strict=True)
        )
        local = Decide(charges, command.commit and not spent, command.lease)
        answers: tuple[Answer, ...] = self.local.execute(local)
        if local.commit and all(map(passes, charges, answers)):
            self._owe(command.charges, charges)
        return tuple(map(_bounded, charges, left, answers))

    def refund(self, command: Refund) -> Any:
        """Give back what was decided here, unless Redis has been charged for it by now."""
        sharing = self.context.processes.sharing
        shares = [one.charge._replace(rule=share_of(one.charge.rule, sharing)) for one in command.paid]
        paid = [one._replace(charge=share) for share, one in zip(shares, command.paid, strict=True)]
        return self.local.execute(Refund(tuple(paid)))

    def late(self, idents: Iterable[str]) -> list[LateCharges]:
        """What Redis is to be charged for these idents; after that, perhaps more of it."""
        return [found for ident in idents if (found := self._late_charges(ident))]

    def call(self, late: LateCharges) -> Call:
        """The script call that charges this, once however often it is sent."""
        context, now = self.context, self._now()
        keys, packed, lasts = [], [], 0
        for rule, cost, at in late.charges:
            plan = self.local.calendar.plan_at(rule, now)
            keys.append(context.key(rule.id, late.ident))
            packed.append(CHARGE(plan.code, cost, *plan.numbers, now - at))
            lasts = max(lasts, round((rule.window or 0) * 2000))
        mark = context.key(f"late.{late.name}", late.ident)
        plans = frozenset([type(one.rule.plan) for one in late.charges])
        return Call(script("late", plans), (*keys, mark), (context.now_arg(), lasts + 60_000, b"".join(packed)))

    def confirm(self, late: Sequence[LateCharges], replies: Sequence[Any]) -> None:
        """Redis has charged these; raises the first error among the replies."""
        for one, reply in zip(late, replies, strict=True):
            if not isinstance(reply, Exception) and self.unconfirmed.get(one.ident) is one:
                del self.unconfirmed[one.ident]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    def flush(self) -> None:
        """Charge all that is owed, in batches. Raises StoreError."""
        while self.unconfirmed or self.admitted:
            owing = dict.fromkeys(islice(chain(list(self.unconfirmed), list(self.admitted)), BATCH))
            late = self.late(owing)
            self.confirm(late, self.context.send(list(map(self.call, late))))

    def owes(self, charges: Sequence[Charge]) -> bool:
        """Whether something is owed for any of the idents of these charges."""
        admitted, unconfirmed = self.admitted, self.unconfirmed
        return any(charge.ident in admitted or charge.ident in unconfirmed for charge in charges)

    def _shared(self, charge: Charge, left: LastRemaining | None) -> Charge:
        share = share_of(charge.rule, self.context.processes.sharing)
        if left is not None and share.factor <= left.units < share.plan.limit:
            share = with_limit(share, left.units)
        return charge._replace(rule=share)

    def _owe(self, charges: Sequence[Charge], shares: Sequence[Charge]) -> None:
        with self._lock:
            for charge, share in zip(charges, shares, strict=True):
                if charge.cost and not charge.rule.is_concurrency:
                    self._admit(charge, share.rule)
            while len(self.admitted) > MAX_OWED:
                del self.admitted[next(iter(self.admitted))]

    def _admit(self, charge: Charge, share: Rule) -> None:
        rule, ident, cost = charge
        now, known = self._now(), self.admitted.setdefault(ident, {})
        plan = self.local.calendar.plan_at(share, now)
        before = known.get(rule.id)
        state = before.state if before and before.expires > now else None
        if stored := plan.charge_late(state, now, LateCost(cost, now)):
            known[rule.id] = Admitted(rule, plan, stored.state, now + stored.lasts)

    def _late_charges(self, ident: str) -> LateCharges | None:
        """What is owed: while a part of it is not confirmed that part, under the same name."""
        with self._lock:
            if ident not in self.unconfirmed:
                charges = tuple(self._charges(ident))
                if charges:  # seen by others here before it is not seen there
                    self.unconfirmed[ident] = LateCharges(ident, secrets.token_urlsafe(9), charges)
                self.admitted.pop(ident, None)
            return self.unconfirmed.get(ident)

    def _charges(self, ident: str) -> Iterator[LateCharge]:
        now = self._now()
        for rule, plan, state, expires in self.admitted.get(ident, {}).values():
            for cost, at in plan.late_charges(state, now) if expires > now else ():
                if cost:
                    yield LateCharge(rule, cost, at)

    def _now(self) -> int:
        return round(self.local.clock() * 1_000_000)


class LateCommand(LongCommand):
    """A decision for idents of whom something is owed: that is charged first, within the same deadline."""

    __slots__ = ("_until", "command", "fallback", "idents")

    def __init__(self, fallback: Fallback, idents: Iterable[str], command: RedisCommand) -> None:
        super().__init__(fallback.context)
        self.fallback, self.idents, self.command = fallback, tuple(idents), command
        self.calls = command.calls
        self._until = time.monotonic() + self.context.transport.seconds

    def steps(self) -> Generator[RoundTrip, Sequence[Any], Any]:
        while late := self.fallback.late(self.idents):
            self.fallback.confirm(late, (yield RoundTrip(list(map(self.fallback.call, late)), self._rest())))
        self.command.seconds = self._rest()
        if isinstance(self.command, LongCommand):
            return (yield from self.command.steps())
        return self.command.finish((yield RoundTrip(self.calls, self.command.seconds)))

    @property
    def is_idempotent(self) -> bool:
        return self.command.is_idempotent

    def give_up(self) -> None:
        self.command.give_up()

    def _rest(self) -> float:
        return max(self._until - time.monotonic(), LEAST_SECONDS)


def _bounded(charge: Charge, left: LastRemaining | None, answer: Answer) -> Answer:
    """The local answer, by what the store said was left."""
    if left is None or left.units >= charge.cost:
        return answer
    wait = max(1, round((left.until - time.monotonic()) * 1_000_000))
    return answer._replace(retry=max(answer.retry, wait), remaining=min(answer.remaining, left.units), reset=wait)

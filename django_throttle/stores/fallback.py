"""Decisions while Redis is away: each process's share of a limit, charged to Redis afterwards."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_throttle.core.algorithms.late import CHARGES, LATE, Late
from django_throttle.core.commands import Answer, Charge, Decide, Refund, passes
from django_throttle.core.plan import Plan, State
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule
from django_throttle.lifecycle import in_child
from django_throttle.stores.commands import CALENDAR, Errand, LongErrand
from django_throttle.stores.memory import MemoryStore
from django_throttle.stores.transport import CODES, Call, script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore


# Beats until every process has registered again after Redis lost what it knew.
SETTLING: Final = 2


class ProcessCount:
    """How many processes share a limit: as many as beats saw, and at least as many as the site expects.

    The count does not fall while the store fails (``is_failing`` says so), nor within two beats after it lost what
    it knew: until then whoever has not registered again is missing.
    """

    def __init__(self, expected: int, is_failing: Callable[[], bool]) -> None:
        self._expected = max(1, expected)
        self._is_failing = is_failing
        self._settling = 0
        self.seen = 1

    @property
    def sharing(self) -> int:
        """Among how many a limit is divided."""
        return max(self.seen, self._expected)

    def note(self, alive: int, *, lost: bool) -> None:
        """A beat saw so many; ``lost`` when the store has lost what it knew."""
        if lost or self._is_failing():
            self._settling = SETTLING
        if alive >= self.seen or not self._settling:
            self.seen = alive
        else:
            self._settling -= 1


def shared_refund(command: Refund, processes: int) -> Refund:
    """What goes back of what was decided so, while the parts of the limits are still the same."""
    shares = [one.charge._replace(rule=share_of(one.charge.rule, processes)) for one in command.paid]
    return Refund(tuple([one._replace(charge=share) for share, one in zip(shares, command.paid, strict=True)]))


@lru_cache(maxsize=1024)
def share_of(rule: Rule, processes: int) -> Rule:
    """The rule that one of so many processes goes by alone."""
    try:
        return rule.share(processes)
    except InvalidRule:  # its parts would be too small to make sense, so this process goes by the whole
        return rule


CHARGE: Final = Struct(">Bdddddd").pack
MAX_OWED: Final = 100_000  # idents; past that the ones decided longest ago are not charged
MAX_KNOWN: Final = 10_000  # budgets of which the store last said that little was left
BATCH: Final = 200  # idents in one pipeline
LEAST_SECONDS: Final = 0.02  # for a decision after its ident's late charges


class Left(NamedTuple):
    """What the store last said of a budget: units, and until when that is all (on the monotonic clock)."""

    units: int
    until: float


class Admitted(NamedTuple):
    """What was admitted under a rule and has not been charged: a state of the share's algorithm, until it expires."""

    rule: Rule
    plan: Plan
    state: State
    expires: int


class LateCharge(NamedTuple):
    """Calls that were admitted here: the rule, the cost, and when by the local store's clock, in microseconds."""

    rule: Rule
    cost: int
    at: int


class LateCharges(NamedTuple):
    """What Redis is yet to be told of one ident; ``name`` is what it knows a second time by."""

    ident: str
    name: str
    charges: tuple[LateCharge, ...]


class Fallback:
    """The policy ``local``: this process's share of each limit, or what the store said is left where that is less.

    What it admits is owed to Redis: charged, once, before Redis decides anything for the same ident again.
    """

    def __init__(self, store: RedisStore, expected: int) -> None:
        self.store = store
        self.local = MemoryStore(leases=store.leases)
        self.processes = ProcessCount(expected, lambda: any(one.is_open for one in store.link.breakers))
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        """A forked child owes nothing: its parent charges what was admitted before."""
        self._lock = Lock()
        self._left: dict[tuple[str, str], Left] = {}
        self._admitted: dict[str, dict[str, Admitted]] = {}  # by ident and rule id
        self._unconfirmed: dict[str, LateCharges] = {}

    def note(self, charges: Sequence[Charge], answers: Iterable[Answer]) -> None:
        """Remember of which budgets less is left than this process would admit by itself."""
        sharing = self.processes.sharing
        for (rule, ident, _), answer in zip(charges, answers, strict=True):
            if answer.remaining * sharing < rule.plan.limit and rule.rate and rule.on_store_failure == "local":
                known = self._left
                known[rule.id, ident] = Left(answer.remaining, time.monotonic() + answer.reset / 1_000_000)
                if len(known) > MAX_KNOWN:
                    known.pop(next(iter(known)), None)

    def decide(self, command: Decide) -> tuple[Answer, ...]:
        """Decide by this process's shares alone."""
        left = list(map(self._left_of, command.charges))
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
        return self.local.execute(shared_refund(command, self.processes.sharing))

    def late(self, idents: Iterable[str]) -> list[LateCharges]:
        """What Redis is to be charged for these idents; after that, perhaps more of it."""
        return [found for ident in idents if (found := self._late_charges(ident))]

    def call(self, late: LateCharges) -> Call:
        """The script call that charges this, once however often it is sent."""
        store, now = self.store, self._now()
        keys, packed, lasts = [], [], 0
        for rule, cost, at in late.charges:
            plan = self.local.calendar.plan_at(rule, now) if rule.plan.algorithm == CALENDAR else rule.plan
            keys.append(store.key(rule.id, late.ident))
            packed.append(CHARGE(CODES[plan.algorithm], cost, *plan[1:], now - at))
            lasts = max(lasts, round((rule.window or 0) * 2000))
        mark = store.key(f"late.{late.name}", late.ident)
        return Call(script("late"), (*keys, mark), (store.now_arg(), lasts + 60_000, b"".join(packed)))

    def confirm(self, late: Sequence[LateCharges], replies: Sequence[Any]) -> None:
        """Redis has charged these; raises the first error among the replies."""
        for one, reply in zip(late, replies, strict=True):
            if not isinstance(reply, Exception) and self._unconfirmed.get(one.ident) is one:
                del self._unconfirmed[one.ident]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    def flush(self) -> None:
        """Charge all that is owed, in batches. Raises StoreError."""
        while self._unconfirmed or self._admitted:
            owing = dict.fromkeys(islice(chain(list(self._unconfirmed), list(self._admitted)), BATCH))
            late = self.late(owing)
            self.confirm(late, self.store.send(list(map(self.call, late))))

    def owes(self, charges: Sequence[Charge]) -> bool:
        """Whether something is owed for any of the idents of these charges."""
        admitted, unconfirmed = self._admitted, self._unconfirmed
        if not (admitted or unconfirmed):
            return False
        return any(charge.ident in admitted or charge.ident in unconfirmed for charge in charges)

    def _left_of(self, charge: Charge) -> Left | None:
        left = self._left.get((charge.rule.id, charge.ident))
        return left if left is not None and left.until > time.monotonic() else None

    def _shared(self, charge: Charge, left: Left | None) -> Charge:
        share = share_of(charge.rule, self.processes.sharing)
        if left is not None and share.factor <= left.units < share.plan.limit:
            share = _of_limit(share, left.units)
        return charge._replace(rule=share)

    def _owe(self, charges: Sequence[Charge], shares: Sequence[Charge]) -> None:
        with self._lock:
            for charge, share in zip(charges, shares, strict=True):
                if charge.cost and not charge.rule.is_concurrency:
                    self._admit(charge, share.rule)
            while len(self._admitted) > MAX_OWED:
                del self._admitted[next(iter(self._admitted))]

    def _admit(self, charge: Charge, share: Rule) -> None:
        rule, ident, cost = charge
        now, known = self._now(), self._admitted.setdefault(ident, {})
        plan = self.local.calendar.plan_at(share, now) if share.plan.algorithm == CALENDAR else share.plan
        before = known.get(rule.id)
        state = before.state if before and before.expires > now else None
        if kept := LATE[plan.algorithm](state, now, Late(cost, now), plan):
            known[rule.id] = Admitted(rule, plan, kept.state, now + kept.lasts)

    def _late_charges(self, ident: str) -> LateCharges | None:
        """What is owed: while a part of it is not confirmed that part, under the same name."""
        with self._lock:
            if ident not in self._unconfirmed:
                charges = tuple(self._charges(ident))
                if charges:  # seen by others here before it is not seen there
                    self._unconfirmed[ident] = LateCharges(ident, secrets.token_urlsafe(9), charges)
                self._admitted.pop(ident, None)
            return self._unconfirmed.get(ident)

    def _charges(self, ident: str) -> Iterator[LateCharge]:
        now = self._now()
        for rule, plan, state, expires in self._admitted.get(ident, {}).values():
            for cost, at in CHARGES[plan.algorithm](state, now, plan) if expires > now else ():
                if cost:
                    yield LateCharge(rule, cost, at)

    def _now(self) -> int:
        return round(self.local.clock() * 1_000_000)


class LateErrand(LongErrand):
    """A decision for idents of whom something is owed: that is charged first, within the same deadline."""

    __slots__ = ("_until", "errand", "idents")

    def __init__(self, store: RedisStore, idents: Iterable[str], errand: Errand) -> None:
        super().__init__(store)
        self.idents, self.errand = tuple(idents), errand
        self.calls = errand.calls
        self._until = time.monotonic() + store.link.seconds

    def run(self) -> Any:
        link, fallback = self.store.link, self.store.fallback
        while late := fallback.late(self.idents):
            fallback.confirm(late, link.send_all(list(map(fallback.call, late)), self._rest()))
        self.errand.seconds = self._rest()
        if isinstance(self.errand, LongErrand):
            return self.errand.run()
        return self.errand.finish(link.send_all(self.errand.calls, self.errand.seconds))

    async def arun(self) -> Any:
        link, fallback = self.store.link, self.store.fallback
        while late := fallback.late(self.idents):
            fallback.confirm(late, await link.asend_all(list(map(fallback.call, late)), self._rest()))
        self.errand.seconds = self._rest()
        if isinstance(self.errand, LongErrand):
            return await self.errand.arun()
        return self.errand.finish(await link.asend_all(self.errand.calls, self.errand.seconds))

    @property
    def is_idempotent(self) -> bool:
        return self.errand.is_idempotent

    def give_up(self) -> None:
        self.errand.give_up()

    def _rest(self) -> float:
        return max(self._until - time.monotonic(), LEAST_SECONDS)


def _bounded(charge: Charge, left: Left | None, answer: Answer) -> Answer:
    """The local answer, by what the store said was left."""
    if left is None or left.units >= charge.cost:
        return answer
    wait = max(1, round((left.until - time.monotonic()) * 1_000_000))
    return answer._replace(retry=max(answer.retry, wait), remaining=min(answer.remaining, left.units), reset=wait)


@lru_cache(maxsize=1024)
def _of_limit(rule: Rule, limit: int) -> Rule:
    return replace(rule, rate=replace(rule.rate, limit=limit), limit=None, burst=None) if rule.rate else rule

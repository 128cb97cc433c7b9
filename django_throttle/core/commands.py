"""The commands that a store executes, and its answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from django_throttle.core.algorithms import CounterParams, StepResult
from django_throttle.core.control_messages import ControlMessage
from django_throttle.core.exceptions import InvalidCost
from django_throttle.core.rule import Rule

T = TypeVar("T")
Reply_co = TypeVar("Reply_co", covariant=True)


def check_cost(cost: object) -> int:
    """Return the cost. Raise InvalidCost unless it is a whole number from 0 on.

    Any size is accepted, because the cost may come from a client. A cost that no rule allows is refused later.
    """
    if type(cost) is not int or cost < 0:
        raise InvalidCost(f"a cost must be a whole number from 0 on, not {cost!r:.80}")
    return cost


class Charge(NamedTuple):
    """A rule of one rate to be charged ``cost`` units under ``ident``."""

    rule: Rule
    ident: str
    cost: int


def charge(rule: Rule, ident: str, cost: int) -> Charge:
    """Return the charge of a call under a rule of one rate: the call's cost times the rule's; at most one slot."""
    return Charge(rule, ident, min(cost, 1) if rule.holds_slots else cost * rule.factor)


class RuleSet:
    """Rules of one rate each that are decided together, with their common properties.

    ``rule_set`` returns the same object for equal rules, so rule sets are compared by identity.
    """

    __slots__ = (
        "counts_bytes", "counts_some", "deferring", "evicts", "has_fast_path", "has_leases", "has_local",
        "has_prepaid", "is_plain", "is_prepaid", "is_settled", "is_store_only", "lease_places", "needs_no_report",
        "needs_no_settlement", "rules", "unit_costs", "warns",
    )  # fmt: skip

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        #: Indexes of the rules that hold slots.
        self.lease_places = tuple([place for place, rule in enumerate(rules) if rule.holds_slots])
        self.has_leases = bool(self.lease_places)
        #: True if a rule makes room for new sockets by closing others.
        self.evicts = any(rule.at_limit != "reject" for rule in rules)
        self.has_local = any(rule.decided_locally for rule in rules)
        self.has_prepaid = any(rule.prepaid for rule in rules)
        self.is_prepaid = bool(rules) and all(rule.prepaid for rule in rules)
        #: True if the store's counters alone decide: there is no lease to name, and nothing prepaid.
        self.is_store_only = not (self.has_leases or self.has_local or self.has_prepaid)
        self.is_settled = any(rule.is_settled for rule in rules)
        self.counts_bytes = any(rule.unit == "bytes" for rule in rules)
        self.warns = any(rule.thresholds for rule in rules)
        has_delay = any(rule.action == "delay" for rule in rules)
        #: Names of the rules that may defer a call.
        self.deferring = tuple({rule.name: None for rule in rules if rule.action == "defer"})
        self.counts_some = any(rule.count_on or rule.refund_on for rule in rules)
        is_corrected = self.counts_some or self.counts_bytes
        #: True if an allowed call causes no wait, no warning and no later correction.
        self.needs_no_report = not (self.has_local or self.warns or has_delay or is_corrected)
        #: True if an allowed call needs no report and holds no lease.
        self.is_plain = self.needs_no_report and not self.has_leases
        #: True if nothing of an allowed request is settled or deferred.
        self.needs_no_settlement = self.is_plain and not (self.is_settled or self.deferring)
        #: True if a single command decides a call.
        self.has_fast_path = bool(rules) and self.is_plain and self.is_store_only
        #: Costs of a call of cost 1.
        self.unit_costs = _unit_costs_times(rules, 1)

    def charges(self, idents: tuple[str, ...], cost: int) -> Charges:
        """Return the charges of a call of this cost, each rule under its ident. Charges of cost 1 are cached."""
        if cost == 1:
            return cached_charges(self, idents, self.unit_costs)
        return Charges(self, idents, _unit_costs_times(self.rules, cost))


def _unit_costs_times(rules: tuple[Rule, ...], cost: int) -> tuple[int, ...]:
    return tuple([charge(rule, "", cost).cost for rule in rules])


rule_set: Final = lru_cache(maxsize=4096)(RuleSet)
MAX_CACHED_CHARGES: Final = 1024


def charges_of(rule: Rule, ident: str, cost: int) -> Charges:
    """Return the charges of a call under a rule, one for each of the rule's rates."""
    return charges_under(rule_set(rule.parts), ident, cost)


class _LazySequence(Sequence[T]):
    """A sequence that makes its entries when they are read. It equals any sequence of equal entries."""

    __slots__ = ()

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...

    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        return tuple(self)[place]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Charges(_LazySequence[Charge]):
    """The charges of a call under a set of rules. Each ``Charge`` is made when it is read.

    ``key`` is equal for equal charges, and quick to look up.
    """

    __slots__ = ("costs", "header_cache", "idents", "key", "rules", "sample_rank")

    def __init__(self, rules: RuleSet, idents: tuple[str, ...], costs: tuple[int, ...]) -> None:
        self.rules, self.idents, self.costs = self.key = rules, idents, costs
        # Cached charges also keep results that depend on them alone.
        self.header_cache: Any = None  #: prepared header fields
        self.sample_rank: int | None = None  #: rank of the idents in samples of records

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> Charges:
        """Return an iterable of charges as ``Charges``, from the cache if possible."""
        if isinstance(charges, cls):
            return charges
        rules, idents, costs = zip(*charges, strict=True) if (charges := tuple(charges)) else ((), (), ())
        return cached_charges(rule_set(rules), idents, costs)

    def __len__(self) -> int:
        return len(self.idents)

    def __iter__(self) -> Iterator[Charge]:
        return map(Charge, self.rules.rules, self.idents, self.costs)

    @property
    def lease_keys(self) -> tuple[tuple[str, str], ...]:
        """The keys of the lease that these charges take: pairs of a rule id and an ident."""
        rules, idents = self.rules.rules, self.idents
        return tuple([(rules[place].id, idents[place]) for place in self.rules.lease_places])


@lru_cache(maxsize=MAX_CACHED_CHARGES)
def cached_charges(rules: RuleSet, idents: tuple[str, ...], costs: tuple[int, ...]) -> Charges:
    """Return the charges from a cache. Call it for each use, because other charges may replace them in the cache."""
    return Charges(rules, idents, costs)


def charges_under(rules: RuleSet, ident: str, cost: int) -> Charges:
    """Return the charges of a call of this cost under rules that all count by the same ident."""
    return unit_charges(rules, ident) if cost == 1 else rules.charges((ident,) * len(rules.rules), cost)


@lru_cache(maxsize=MAX_CACHED_CHARGES)
def unit_charges(rules: RuleSet, ident: str) -> Charges:
    """Return the charges of a call of cost 1 under rules that all count by the same ident, from a cache."""
    return rules.charges((ident,) * len(rules.rules), 1)


def forget_charges() -> None:
    """Clear the caches of charges, with the results kept in the charges."""
    cached_charges.cache_clear()
    unit_charges.cache_clear()


class Answer(NamedTuple):
    """The store's answer to a charge; times in microseconds.

    The numbers describe the budget after the command, so after the charge if it was made. That includes ``retry`` of a
    charge that was made although another rule refused the call.
    """

    retry: int  #: time until the charge fits; 0 if it fits, -1 if it never will
    remaining: int
    reset: int  #: time until the budget is full
    at: int = 0  #: the store's time


class Answers(_LazySequence[Answer]):
    """The store's answers to the charges of a call. Each ``Answer`` is made when it is read.

    ``numbers`` are ``retry``, ``remaining`` and ``reset`` of each answer in turn. ``fits`` is True if every charge
    fits.
    """

    __slots__ = ("at", "fits", "numbers")

    def __init__(self, numbers: tuple[float, ...], at: float, fits: bool | None = None) -> None:
        self.numbers, self.at = numbers, at
        self.fits = not any(numbers[::3]) if fits is None else fits

    def __len__(self) -> int:
        return len(self.numbers) // 3

    def __iter__(self) -> Iterator[Answer]:
        numbers, at = map(int, self.numbers), int(self.at)
        return (Answer(retry, remaining, reset, at) for retry, remaining, reset in zip(*[numbers] * 3, strict=True))


def passes(charge: Charge, answer: Answer | StepResult) -> bool:
    """Return True if a charge does not refuse the call: it fits, or its rule is a shadow rule."""
    return answer.retry == 0 or charge.rule.is_shadow


def wait_once_charged(rule: Rule, params: CounterParams, step: StepResult, now: int, cost: int) -> int:
    """Return the wait, in microseconds, after a charge that fits was made although another rule refused the call.

    Return 0 for a shadow rule.
    """
    state = step.charged_state
    return 0 if state is None or rule.is_shadow else params.step(state, now, cost, counts_denied=False).retry


class StoreCommand(Generic[Reply_co]):
    """A command to a store, which replies with a value of this type."""

    __slots__ = ()


class _Decide(NamedTuple):
    charges: Charges
    commit: bool = True
    lease: str | None = None


class Decide(_Decide, StoreCommand[Any]):  # Any, because the limiter may put an error in place of the reply
    """Decide all charges together: all are made, or none. Reply: a sequence with an Answer for each.

    Without ``commit`` nothing is charged. ``lease`` is the id of the slot under concurrency rules. The caller chooses
    it beforehand, so that a repeated command takes no second slot.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DecideLocally(StoreCommand[Sequence[Answer]]):
    """Decide in this process alone: each rule's limit is divided by the number of live processes."""

    decide: Decide


@dataclass(frozen=True, slots=True)
class Reset(StoreCommand[int]):
    """Make the budgets of these charges full again; leases stay. Reply: the number of removed keys."""

    charges: Sequence[Charge]


@dataclass(frozen=True, slots=True)
class Release(StoreCommand[None]):
    """Release a lease; ``lease_keys`` are (rule id, ident) pairs. Repeating it has no effect. Reply: None."""

    lease: str
    lease_keys: tuple[tuple[str, str], ...]


class DedupKey(NamedTuple):
    """A key that is set when a report on a rule and an ident is sent, to prevent a second one."""

    rule_id: str
    ident: str
    name: str
    lifetime_us: int  #: microseconds


@dataclass(frozen=True, slots=True)
class SetDedupKeys(StoreCommand[tuple[bool, ...]]):
    """Set keys that no process has set yet. Reply: a tuple with True for each key that was new."""

    keys: tuple[DedupKey, ...]


@dataclass(frozen=True, slots=True)
class Pause(StoreCommand[int]):
    """Pause the calls under an ident for at least ``duration_us`` microseconds. The longest of several pauses counts.

    A duration of 0 starts no pause. A reset ends the pause. Reply: the remaining microseconds.
    """

    rule: str  #: name of the rule, which stays the same when the rule is edited
    ident: str
    duration_us: int = 0


def pause_id(rule: str) -> str:
    """Return the id for pauses of the rule of this name, which keys have in place of a rule id."""
    return f"pause:{blake2b(rule.encode(), digest_size=6).hexdigest()}"


class LedgerEntry(NamedTuple):
    """A charge in a ledger, which has been made."""

    charge: Charge
    at: int  #: the store's time of the charge, in microseconds
    reset: int  #: microseconds from the charge until the budget was full again
    locally: bool = False  #: True if this process alone decided the charge

    @property
    def pair(self) -> tuple[str, str]:
        """The name of the rule, and the ident."""
        return self.charge.rule.name, self.charge.ident

    def costing(self, cost: int) -> LedgerEntry:
        """Return the entry with another cost."""
        return self._replace(charge=self.charge._replace(cost=cost))


class MeasuredCost(NamedTuple):
    """The measured cost of a call of a scope, under a rule that reserves the mean."""

    rule_id: str
    scope: str
    cost: int


@dataclass(frozen=True, slots=True)
class Correct(StoreCommand[tuple[int, ...]]):
    """Correct counts: refund the entries in ``refunds``, and charge the entries in ``charges``.

    Entries are charged even if they exceed the limit, as of ``age`` microseconds ago. An algorithm that cannot owe
    drops the excess. A command with a ``name``, which identifies the call, takes effect only once. Reply: a tuple with
    the mean of each entry in ``measured``, this call included.
    """

    refunds: tuple[LedgerEntry, ...] = ()
    charges: tuple[LedgerEntry, ...] = ()
    name: str = ""
    measured: tuple[MeasuredCost, ...] = ()
    age: int = 0

    @property
    def locally(self) -> bool:
        """True if it corrects charges that this process alone decided."""
        return any(entry.locally for entry in (*self.refunds, *self.charges))


@dataclass(frozen=True, slots=True)
class Enlist(StoreCommand[int]):
    """Add a run of a task to the queue for a slot. A run that is queued already keeps its place.

    Reply: the place of the run, from 1 on; 0 if the queue is full.
    """

    rule_id: str
    ident: str
    name: str
    entry: bytes  #: serialized call of the task
    lifetime_ms: int
    is_first: bool  #: True to put the run at the head of the queue
    max_waiting: int


@dataclass(frozen=True, slots=True)
class CallNext(StoreCommand[bytes | None]):
    """Take the first run from the queue for a slot. Reply: its entry; None if the queue is empty."""

    rule_id: str
    ident: str


@dataclass(frozen=True, slots=True)
class ClaimRun(StoreCommand[str]):
    """Return the message of a task that owns a run. With ``lifetime_ms`` this message becomes the owner if none does.

    Reply: the owner; empty if there is none.
    """

    name: str
    message: str
    lifetime_ms: int = 0


# Prefix of the lease ids of sockets. Only leases of sockets are evicted.
SOCKET_LEASE: Final = "~"


@dataclass(frozen=True, slots=True)
class SendControl(StoreCommand[None]):
    """Send control messages. Reply: None. Raise StoreError if it fails; the messages are sent again later."""

    messages: tuple[ControlMessage, ...]


@dataclass(frozen=True, slots=True)
class Evict(StoreCommand[bool]):
    """Move the slot of another socket to ``lease`` under a full concurrency rule, and close that socket.

    The evicted socket is the oldest one, or the one silent for longest. Reply: True if ``lease`` has the slot.
    """

    charge: Charge
    lease: str


@dataclass(frozen=True, slots=True)
class CountMembers(StoreCommand[int | None]):
    """Count the members of a group that are connected to other processes than this one.

    Reply: the number; None if there are no other processes.
    """

    group: str
    process: str  #: this process
    silence: float  #: seconds after which a silent process is not counted

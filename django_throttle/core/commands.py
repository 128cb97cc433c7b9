"""Commands to a store, and the store's answers."""

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
    """The cost itself; raises InvalidCost unless it is a whole number from 0 on.

    However large it is, as a client may be who names it: what no rule ever allows at once is refused, not an error.
    """
    if type(cost) is not int or cost < 0:
        raise InvalidCost(f"a cost must be a whole number from 0 on, not {cost!r:.80}")
    return cost


class Charge(NamedTuple):
    """One rule to be charged ``cost`` under ``ident``."""

    rule: Rule
    ident: str
    cost: int


def charge(rule: Rule, ident: str, cost: int) -> Charge:
    """One call's charge under a rule of one rate: its cost times the rule's; a lease takes one slot."""
    return Charge(rule, ident, min(cost, 1) if rule.holds_slots else cost * rule.factor)


class RuleSet:
    """Rules of one rate each that are decided together, and what is the same for every call under them.

    ``needs_no_report``: an allowed call causes no wait, no warning and no later correction. ``is_plain``: it holds no
    lease either. ``is_store_only``: the store's counters decide, and nothing is named or bought beforehand.
    ``has_fast_path``: both hold, so that one command decides a call. ``needs_no_settlement``: nothing of an allowed
    request is settled or deferred. ``deferring`` are the names of rules that may defer it, ``leases`` the places of
    rules that hold slots. ``evicts``: a rule makes room by closing sockets.
    ``rule_set`` returns the same object for equal rules, so rule sets are compared by identity.
    """

    __slots__ = (
        "counts_bytes", "counts_some", "deferring", "evicts", "has_fast_path", "has_leases", "has_local",
        "has_prepaid", "is_plain", "is_prepaid", "is_settled", "is_store_only", "leases", "needs_no_report",
        "needs_no_settlement", "rules", "unit_costs", "warns",
    )  # fmt: skip

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.leases = tuple([place for place, rule in enumerate(rules) if rule.holds_slots])
        self.has_leases = bool(self.leases)
        self.evicts = any(rule.at_limit != "reject" for rule in rules)
        self.has_local = any(rule.decided_locally for rule in rules)
        self.has_prepaid = any(rule.prepaid for rule in rules)
        self.is_prepaid = bool(rules) and all(rule.prepaid for rule in rules)
        self.is_store_only = not (self.has_leases or self.has_local or self.has_prepaid)
        self.is_settled = any(rule.is_settled for rule in rules)
        self.counts_bytes = any(rule.unit == "bytes" for rule in rules)
        self.warns = any(rule.thresholds for rule in rules)
        waits = any(rule.action == "delay" for rule in rules)
        self.deferring = tuple({rule.name: None for rule in rules if rule.action == "defer"})
        self.counts_some = any(rule.count_on or rule.refund_on for rule in rules)
        corrected = self.counts_some or self.counts_bytes
        self.needs_no_report = not (self.has_local or self.warns or waits or corrected)
        self.is_plain = self.needs_no_report and not self.has_leases
        self.needs_no_settlement = self.is_plain and not (self.is_settled or self.deferring)
        self.has_fast_path = bool(rules) and self.is_plain and self.is_store_only
        self.unit_costs = _costs(rules, 1)

    def charges(self, idents: tuple[str, ...], cost: int) -> Charges:
        """What a call of this cost is charged, each rule under its ident; cached where it costs 1, as most do."""
        if cost == 1:
            return cached_charges(self, idents, self.unit_costs)
        return Charges(self, idents, _costs(self.rules, cost))


def _costs(rules: tuple[Rule, ...], cost: int) -> tuple[int, ...]:
    return tuple([charge(rule, "", cost).cost for rule in rules])


rule_set: Final = lru_cache(maxsize=4096)(RuleSet)
MAX_CACHED_CHARGES: Final = 1024  # charges, each with what is made of it


def charges_of(rule: Rule, ident: str, cost: int) -> Charges:
    """One call's charges under a rule, one for each of its rates."""
    return charges_under(rule_set(rule.parts), ident, cost)


class _Row(Sequence[T]):
    """A sequence that makes each entry when somebody reads it, and equals others of the same entries."""

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


class Charges(_Row[Charge]):
    """What a call is charged under a set of rules; each ``Charge`` is made when somebody reads it.

    ``key`` is equal for equal charges, and quick to look up. Charges that are kept have a ``header_cache``, for the
    entry point that adds header fields, and the ``sample_rank`` of their idents, for records.
    """

    __slots__ = ("costs", "header_cache", "idents", "key", "rules", "sample_rank")

    def __init__(self, rules: RuleSet, idents: tuple[str, ...], costs: tuple[int, ...]) -> None:
        self.rules, self.idents, self.costs = self.key = rules, idents, costs
        self.header_cache: Any = None
        self.sample_rank: int | None = None

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> Charges:
        """The same charges, with what is known of their rules; kept, as a socket makes the same ones for both ways."""
        if isinstance(charges, cls):
            return charges
        rules, idents, costs = zip(*charges, strict=True) if (charges := tuple(charges)) else ((), (), ())
        return cached_charges(rule_set(rules), idents, costs)

    def __len__(self) -> int:
        return len(self.idents)

    def __iter__(self) -> Iterator[Charge]:
        return map(Charge, self.rules.rules, self.idents, self.costs)

    @property
    def holds(self) -> tuple[tuple[str, str], ...]:
        """What a lease holds: rule ids and idents."""
        rules, idents = self.rules.rules, self.idents
        return tuple([(rules[place].id, idents[place]) for place in self.rules.leases])


@lru_cache(maxsize=MAX_CACHED_CHARGES)
def cached_charges(rules: RuleSet, idents: tuple[str, ...], costs: tuple[int, ...]) -> Charges:
    """The same object for the same charges, until others take its place: callers call again."""
    return Charges(rules, idents, costs)


def charges_under(rules: RuleSet, ident: str, cost: int) -> Charges:
    """What a call of this cost is charged if all the rules count under one ident."""
    return unit_charges(rules, ident) if cost == 1 else rules.charges((ident,) * len(rules.rules), cost)


@lru_cache(maxsize=MAX_CACHED_CHARGES)
def unit_charges(rules: RuleSet, ident: str) -> Charges:
    """The same for a call of cost 1."""
    return rules.charges((ident,) * len(rules.rules), 1)


def forget_charges() -> None:
    """Forget the cached charges, and what was made of them."""
    cached_charges.cache_clear()
    unit_charges.cache_clear()


class Answer(NamedTuple):
    """What the store says of one charge; times in microseconds.

    ``retry`` is 0 when it fits, -1 when it never will. ``remaining`` and ``reset`` are as they stand
    afterwards: after the charge when it was made. So is ``retry`` of a charge that was made although another rule
    refused the call. ``at`` is the store's time.
    """

    retry: int
    remaining: int
    reset: int
    at: int = 0


class Answers(_Row[Answer]):
    """What the store says of all charges of a call; each ``Answer`` is made when somebody reads it.

    ``numbers`` are the first three of each answer, in one row; ``fits`` is True where every charge does.
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
    """Whether a charge stands in nobody's way: it fits, or its rule only watches."""
    return answer.retry == 0 or charge.rule.is_shadow


def wait_once_charged(rule: Rule, params: CounterParams, step: StepResult, now: int, cost: int) -> int:
    """Return how long a call waits after an equal one that fits, but was refused by another rule and is charged.

    0 of a rule that only watches.
    """
    state = step.charged_state
    return 0 if state is None or rule.is_shadow else params.step(state, now, cost, counts_denied=False).retry


class Command(Generic[Reply_co]):
    """A command to a store, which replies with a value of this type."""

    __slots__ = ()


class _Decide(NamedTuple):
    charges: Charges
    commit: bool = True
    lease: str | None = None


class Decide(_Decide, Command[Any]):  # the limiter has an error in place of the reply
    """Decide every charge as one, all or nothing. Reply: a sequence with an Answer for each.

    ``commit`` False only asks. ``lease`` names the slot that concurrency rules hold, chosen by the
    caller beforehand so that asking twice holds one.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DecideLocally(Command[Sequence[Answer]]):
    """The same, by this process alone: each rule's limit is divided by the live processes."""

    decide: Decide


@dataclass(frozen=True, slots=True)
class Reset(Command[int]):
    """Make the rates of these charges full again; held leases stay. Reply: the number of keys removed."""

    charges: Sequence[Charge]


@dataclass(frozen=True, slots=True)
class Release(Command[None]):
    """Give a lease back; ``holds`` are (rule id, ident) pairs. Doing it twice changes nothing. Reply: None."""

    lease: str
    holds: tuple[tuple[str, str], ...]


class DedupKey(NamedTuple):
    """A key that is set once per report for a rule and an ident; ``lasts`` is its lifetime in microseconds."""

    rule_id: str
    ident: str
    name: str
    lasts: int


@dataclass(frozen=True, slots=True)
class SetDedupKeys(Command[tuple[bool, ...]]):
    """Ask which of these nobody has said yet, over all processes. Reply: a tuple with True for each that is new."""

    keys: tuple[DedupKey, ...]


@dataclass(frozen=True, slots=True)
class Pause(Command[int]):
    """Hold back the calls under an ident for ``lasts`` microseconds at least; of several pauses the longest holds.

    ``rule`` is the name of a rule, which may be edited meanwhile. ``lasts`` of 0 only asks. A reset ends the pause.
    Reply: how many microseconds are left.
    """

    rule: str
    ident: str
    lasts: int = 0


def pause_id(rule: str) -> str:
    """What stands for the pauses of the rule of that name, in the place of a rule's id."""
    return f"pause:{blake2b(rule.encode(), digest_size=6).hexdigest()}"


class Entry(NamedTuple):
    """A charge that was made, in a ledger.

    ``at`` is the store's time of the charge, and ``reset`` the time until the budget was full again; both in
    microseconds. ``locally`` is True if this process alone had decided it.
    """

    charge: Charge
    at: int
    reset: int
    locally: bool = False

    @property
    def pair(self) -> tuple[str, str]:
        """The name of the rule, and the ident."""
        return self.charge.rule.name, self.charge.ident

    def costing(self, cost: int) -> Entry:
        """The same entry of another cost."""
        return self._replace(charge=self.charge._replace(cost=cost))


class Measured(NamedTuple):
    """What a call of a scope came to under a rule that reserves the mean."""

    rule_id: str
    scope: str
    cost: int


@dataclass(frozen=True, slots=True)
class Correct(Command[tuple[int, ...]]):
    """Correct counts: refund the entries in ``back``, and charge those that are ``due``.

    A due entry is charged even if it exceeds the limit, as of ``age`` microseconds ago; an algorithm that cannot owe
    drops the excess. A command with a ``name``, which identifies the call, takes effect only once. Reply: a tuple with
    the mean of each entry in ``measured``, this call included.
    """

    back: tuple[Entry, ...] = ()
    due: tuple[Entry, ...] = ()
    name: str = ""
    measured: tuple[Measured, ...] = ()
    age: int = 0

    @property
    def locally(self) -> bool:
        """True if it corrects charges that this process alone had decided."""
        return any(entry.locally for entry in (*self.back, *self.due))


@dataclass(frozen=True, slots=True)
class Enlist(Command[int]):
    """Note a run of a task that waits for a slot; ``entry`` says how to call it. Without effect on a noted one's place.

    ``most`` may wait. Reply: its place, from 1 on; 0 for one too many.
    """

    rule_id: str
    ident: str
    name: str
    entry: bytes
    lasts_ms: int
    is_first: bool
    most: int


@dataclass(frozen=True, slots=True)
class CallNext(Command[bytes | None]):
    """Take the first run that waits for a slot. Reply: its entry; None where none waits."""

    rule_id: str
    ident: str


@dataclass(frozen=True, slots=True)
class Claim(Command[str]):
    """Ask which of several messages for a run has it, or with ``lasts_ms`` have this one take it, if none has.

    Reply: that message; empty for none.
    """

    name: str
    message: str
    lasts_ms: int = 0


# Begins the id of each lease that a socket holds. Only those are taken away for another.
SOCKET_LEASE: Final = "~"


@dataclass(frozen=True, slots=True)
class SendControl(Command[None]):
    """Send these control messages. Reply: None. What fails is sent again later, and meanwhile raised."""

    messages: tuple[ControlMessage, ...]


@dataclass(frozen=True, slots=True)
class Evict(Command[bool]):
    """Have ``lease`` take the slot of a socket where a rule of concurrency is full, and have that socket closed.

    The first to go is the one whose lease was taken, or last heard of, longest ago. Reply: True when the newcomer has
    its slot.
    """

    charge: Charge
    lease: str


@dataclass(frozen=True, slots=True)
class CountMembers(Command[int | None]):
    """Ask how many members other processes than this one have in a group, those silent for so many seconds left out.

    Reply: the number; None where there are no other processes.
    """

    group: str
    process: str
    silence: float

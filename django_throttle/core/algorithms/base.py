"""Base classes of algorithms: the entry in the table of options, and the counter parameters of a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import ClassVar, Final, NamedTuple, Protocol

from django_throttle.core.rate import MAX_LIMIT, Rate

State = tuple[int, ...]
Faults = Iterator[tuple[str, str]]  # pairs of an option and its fault
NEVER: Final = -1
EMPTY_STATE: Final[State] = ()
# Bounds of a small record of a store: counts have four bytes, and times six, which are relative to now.
MAX_SMALL_COUNT: Final = 2**32 - 1
MAX_NEAR_US: Final = 4 * 366 * 86_400 * 1_000_000


class StepResult(NamedTuple):
    """The result of a call; times in microseconds from now."""

    retry: int  #: 0 if the cost fits, NEVER if it never will
    remaining: int  #: before the charge
    reset: int  #: before the charge
    charged_remaining: int  #: after the charge
    charged_reset: int  #: after the charge
    charged_state: State | None  #: state to store if the call is charged; None if it does not fit
    #: State to store if the call is not charged: a counted refusal, or a state corrected after the clock moved
    #: backwards. None to leave the stored state.
    refused_state: State | None


class Backfill(NamedTuple):
    """Units of calls that were allowed at a time, in microseconds, and are charged afterwards."""

    cost: int
    at: int


class Stored(NamedTuple):
    """A state to store, and its lifetime in microseconds."""

    state: State
    lifetime_us: int


@dataclass(frozen=True, slots=True)
class CounterParams(ABC):
    """The numbers by which a rule counts, and the reference implementation of its algorithm; times in microseconds.

    A subclass adds at most three fields, so that a script receives four numbers. The Lua script does the same as the
    methods: a table of cases and property tests run on both. Lua computes in doubles, so no product may exceed 2^53.
    """

    limit: int  #: units that can be spent at once: ``enforce_at`` times the rule's limit
    name: ClassVar[str] = ""  #: for people and tests
    wire_id: ClassVar[int] = 0  #: number that scripts use; below 10 if the state is a record of ``record_numbers``
    #: Path of the script file from this folder; by default it has the algorithm's name. See ``stores/lua/decide.lua``
    #: for the sections of a script.
    lua: ClassVar[str] = ""
    by_wire_id: ClassVar[dict[int, type[CounterParams]]] = {}
    needs_calendar: ClassVar[bool] = False  #: True if the store fills in the bounds of a calendar period
    resets_at_once: ClassVar[bool] = False  #: True if the whole limit is available again at a single time

    #: Microseconds for which a process may keep prepaid units; 0 if none can be prepaid.
    hold_us: int = field(default=0, kw_only=True, repr=False, compare=False)
    #: Arguments of the script: the limit and the other fields in order, then zeros, four in all.
    numbers: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __init_subclass__(cls) -> None:
        if cls.wire_id:
            CounterParams.by_wire_id[cls.wire_id] = cls

    def __post_init__(self) -> None:
        numbers = (*[getattr(self, name) for name in self.__match_args__], 0, 0, 0)[:4]
        object.__setattr__(self, "numbers", numbers)

    @property
    def max_count(self) -> int:
        """The highest count, which refused calls may reach."""
        return MAX_LIMIT

    @property
    def is_large(self) -> bool:
        """True if a number of the state, or the time until it expires, may be too large for a small record."""
        return self.max_count > MAX_SMALL_COUNT

    @property
    def record_numbers(self) -> int:
        """The number of numbers in a record."""
        return 0

    @abstractmethod
    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        """Return the result of a call of this cost. With ``counts_denied`` a refused call is charged, too."""

    @abstractmethod
    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        """Return the state as if a charge had not been made. Return None if nothing is refunded.

        ``since`` is the time of the charge, and ``reset`` its answer then. The refund is never more than the charge,
        and never includes units that would have come back by now anyway. An empty state needs no storage.
        """

    @abstractmethod
    def late_charges(self, state: State, now: int) -> Iterator[Backfill]:
        """Yield the charges that a state stands for, each at the latest time at which it can have been made."""

    @abstractmethod
    def charge_late(self, state: State | None, now: int, backfill: Backfill) -> Stored | None:
        """Charge units that another process has allowed, whatever the limit. Return None if they count no more."""

    def quota_seconds(self, limit: int, window: float) -> float:
        """Return the seconds in which a quota of ``limit`` comes back; ``window`` is the rate's, in seconds."""
        return window

    def until_more(self, limit: int, remaining: int, reset: int) -> int:
        """Return the microseconds until more than ``remaining`` is available, at the latest."""
        return reset

    def window_left(self, reset: int) -> int | None:
        """Return the microseconds until the window ends for all idents. Return None if windows have no common end."""
        return reset if self.resets_at_once else None

    def drain_us(self, cost: int) -> float:
        """Return the microseconds in which a cost comes back unit by unit; 0.0 if units do not come back so."""
        return 0.0

    def until_queue_slot(self, reset: int, cost: int) -> int:
        """Return the microseconds until the slot of a queued call, if its queue is empty after ``reset``."""
        return 0


def max_count_of(limit: int, counts: int = 1) -> int:
    """Return the highest value of each of several counts: what a small record can hold, unless the limit is higher."""
    small = MAX_SMALL_COUNT // counts
    return small if limit <= small else MAX_LIMIT


class RuleLike(Protocol):
    """The attributes that an algorithm reads of a rule."""

    @property
    def rate(self) -> Rate | None: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def burst(self) -> int | None: ...
    @property
    def refill(self) -> str: ...
    @property
    def max_delay(self) -> float | None: ...
    @property
    def max_queue(self) -> int | None: ...
    @property
    def is_measured(self) -> bool: ...
    @property
    def is_queue(self) -> bool: ...
    @property
    def timezone(self) -> str | None: ...
    @property
    def resolution(self) -> int: ...
    @property
    def strict(self) -> bool: ...
    @property
    def enforce_at(self) -> float: ...
    @property
    def estimator(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def factor(self) -> int: ...
    @property
    def prepaid(self) -> bool: ...
    @property
    def parts(self) -> Sequence[RuleLike]: ...
    @property
    def on_store_failure(self) -> str: ...
    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm: a choice of the option ``algorithm``.

    The fields from ``holds_slots`` on are traits. Code outside asks for traits, never for an algorithm by its name.
    """

    name: str
    label: str  #: in the admin
    help: str  #: behind the label in the admin's form
    params: Callable[[RuleLike], CounterParams]  #: returns the counter parameters of a checked rule of one rate
    #: Returns the parts of a rule's description that explain its amount, from the rule and its windows in words.
    shape: Callable[[RuleLike, str], tuple[str, ...]] = lambda rule, windows: ()
    words: ClassVar[str] = ""  # as a choice of an option
    takes: tuple[str, ...] = ()  #: options that are special to some algorithms
    max_limit: int = MAX_LIMIT  #: highest limit of a rate
    takes_more: str = ""  #: algorithms for higher limits, in words
    max_multiplied: int = MAX_LIMIT  #: highest limit that an override may set
    layout: str = "1"  #: version of the stored value, a part of a rule's short id
    faults: Callable[[RuleLike], Faults] = lambda rule: iter(())  #: yields the faults of a rule
    holds_slots: bool = False  #: a call holds a slot until it ends
    decided_locally: bool = False  #: decided by the process alone, without the store
    has_calendar: bool = False  #: rates may be per month
    is_bucket: bool = False  #: stores a time rather than a count
    weighs_windows: bool = False  #: counts a part of the window before


def multiplied(number: int, factor: float) -> int:
    """Return the product rounded down. It is exact: 2.3 times 100 is 230, but 229 in doubles."""
    return floor(number * Fraction(repr(factor)))


def rate_of(rule: RuleLike) -> Rate:
    """Return the rate of a rule that has been checked to have one."""
    assert rule.rate is not None
    return rule.rate


def max_units_of(rule: RuleLike) -> int:
    """Return the units at which calls of a rule without a burst are refused."""
    return multiplied(rate_of(rule).limit, rule.enforce_at)


MIN_HOLD_US: Final = 125_000
MAX_HOLD_US: Final = 400_000
HOLD_DIVISOR: Final = 100  # the window's time divided by this, within the bounds


def hold_us_of(rule: RuleLike) -> int:
    """Return the microseconds for which a process may keep prepaid units, so that use follows charges closely."""
    return min(MAX_HOLD_US, max(MIN_HOLD_US, rate_of(rule).window_us // HOLD_DIVISOR))


def counting_window_us(rule: RuleLike) -> int:
    """Return the microseconds for which a unit counts.

    For a prepaid rule this is the window and the time for which units may be kept. So no real window exceeds the limit.
    """
    return rate_of(rule).window_us + (hold_us_of(rule) if rule.prepaid else 0)

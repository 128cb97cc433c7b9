"""What every algorithm has: its row in the options, its plan for a rule, its step, its refund, its words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import ClassVar, Final, NamedTuple, Protocol

from django_throttle.core.rate import MAX_LIMIT, Rate

State = tuple[int, ...]
Faults = Iterator[tuple[str, str]]  # an option, and what is wrong with it
NEVER: Final = -1
NOTHING: Final[State] = ()
# What a small record of a store holds: counts of four bytes, and times of six, told from others near to now.
SMALL_COUNT: Final = 2**32 - 1
NEAR_US: Final = 4 * 366 * 86_400 * 1_000_000


class StepResult(NamedTuple):
    """What one call comes to; times in microseconds from now.

    ``retry`` is 0 when the cost fits, NEVER when it never will. ``remaining`` and ``reset`` hold before the charge,
    ``charged_remaining`` and ``charged_reset`` after it. ``charged_state`` is the state to store when the call is
    charged, None when it does not fit. ``refused_state`` is the one to store when it is not charged, if any: a counted
    denial, or a state that the clock, set back, has made wrong.
    """

    retry: int
    remaining: int
    reset: int
    charged_remaining: int
    charged_reset: int
    charged_state: State | None
    refused_state: State | None


class Backfill(NamedTuple):
    """One or more calls that were admitted at a moment, in microseconds, and are charged afterwards."""

    cost: int
    at: int


class Stored(NamedTuple):
    """A state to store, and for how many microseconds."""

    state: State
    lasts: int


@dataclass(frozen=True, slots=True)
class CounterParams(ABC):
    """A rule's numbers, and the reference algorithm that computes with them; times in microseconds.

    ``limit`` is the most that can be spent at once, ``enforce_at`` times the rule's. Each algorithm adds at most three
    numbers, so that a script receives four doubles. ``name`` is for people and tests, ``wire_id`` the number by which
    scripts know it: below 10 when its state is a record of ``kept`` numbers. ``lua`` is its script file, by its path
    from this folder; see ``stores/lua/decide.lua`` for its sections. The Lua says the same as the methods: one table of
    cases and the property tests run on both. Lua computes in doubles, so no product of a method may pass 2^53.
    """

    limit: int
    name: ClassVar[str] = ""
    wire_id: ClassVar[int] = 0
    lua: ClassVar[str] = ""  # empty: the file of its name
    by_wire_id: ClassVar[dict[int, type[CounterParams]]] = {}
    needs_calendar: ClassVar[bool] = False  # the store fills in the bounds of a calendar's period
    begins_afresh: ClassVar[bool] = False  # all of the limit is there again at one moment

    # For how long a process may keep what it has bought ahead, at most; 0 when it buys nothing ahead.
    hold: int = field(default=0, kw_only=True, repr=False, compare=False)
    # What a script receives: the limit and the numbers in the order of the fields, then zeros, four in all.
    numbers: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __init_subclass__(cls) -> None:
        if cls.wire_id:
            CounterParams.by_wire_id[cls.wire_id] = cls

    def __post_init__(self) -> None:
        numbers = (*[getattr(self, name) for name in self.__match_args__], 0, 0, 0)[:4]
        object.__setattr__(self, "numbers", numbers)

    @property
    def most(self) -> int:
        """The most that is counted, of refused calls too."""
        return MAX_LIMIT

    @property
    def is_large(self) -> bool:
        """Whether a number of its state, or the time until it runs out, may be too large for a small record."""
        return self.most > SMALL_COUNT

    @property
    def kept(self) -> int:
        """Number of a record's numbers."""
        return 0

    @abstractmethod
    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        """What a call of this cost comes to; ``counts_denied`` when a refused one is charged too."""

    @abstractmethod
    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        """The state as if a charge had not been made: empty when nothing is left to store, None when nothing goes back.

        The charge was made at ``since``, and answered ``reset`` then. Never more than was charged goes back, and never
        what would have come back by now without it.
        """

    @abstractmethod
    def late_charges(self, state: State, now: int) -> Iterator[Backfill]:
        """The charges that a state stands for, each at the last moment at which it can have been made."""

    @abstractmethod
    def charge_late(self, state: State | None, now: int, late: Backfill) -> Stored | None:
        """Charge what was admitted elsewhere, whatever the limit; None when a charge of that time counts no more."""

    def quota_seconds(self, limit: int, window: float) -> float:
        """In how many seconds a quota of ``limit`` comes back; ``window`` is the rate's."""
        return window

    def until_more(self, limit: int, remaining: int, reset: int) -> int:
        """Microseconds until more than ``remaining`` can be had, at the latest; all can be after ``reset``."""
        return reset

    def window_left(self, reset: int) -> int | None:
        """Microseconds until a window ends at one moment for everybody; None when each moment ends one."""
        return reset if self.begins_afresh else None

    def drain_us(self, cost: int) -> float:
        """The microseconds in which a cost comes back by itself, unit by unit; 0.0 when units do not."""
        return 0.0

    def until_queue_slot(self, reset: int, cost: int) -> int:
        """Microseconds until a queued call has its turn, when its queue is empty after ``reset``."""
        return 0


def most_counted(limit: int, counts: int = 1) -> int:
    """The most in each of so many counts whose sum is kept: what a small record holds, unless the limit is more."""
    small = SMALL_COUNT // counts
    return small if limit <= small else MAX_LIMIT


class RuleLike(Protocol):
    """What an algorithm reads of a rule."""

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
    """One choice of the option ``algorithm``.

    ``params`` makes the numbers of a checked rule of one rate, or of one that ``holds_slots`` and has a limit instead.
    ``shape`` says in a rule's description what its amount does not, given the windows' words. ``takes`` are the special
    options that it has, and ``faults`` what is wrong with a rule of it. ``label`` and ``help`` are the admin's.

    The rest are traits: the engine asks these, and never for an algorithm by its name.
    """

    name: str
    label: str
    help: str
    params: Callable[[RuleLike], CounterParams]
    shape: Callable[[RuleLike, str], tuple[str, ...]] = lambda rule, every: ()
    words: ClassVar[str] = ""  # as a choice of its option it has none
    takes: tuple[str, ...] = ()
    max_limit: int = MAX_LIMIT  # of its rate; ``takes_more`` names what has a larger one
    takes_more: str = ""
    max_multiplied: int = MAX_LIMIT  # what an override makes of a limit at most, where that is less
    layout: str = "1"  # a part of the rule's short id: raise it when a stored value changes shape
    faults: Callable[[RuleLike], Faults] = lambda rule: iter(())
    holds_slots: bool = False  # a call holds a slot until it ends
    decided_locally: bool = False  # by the process that is called, without the store
    has_calendar: bool = False  # rates may be by the month
    is_bucket: bool = False  # remembers a time rather than a count
    weighs_windows: bool = False  # counts a part of the window before


def multiplied(number: int, factor: float) -> int:
    """So many times the number, rounded down: 2.3 times 100 is 230, which in doubles it is not."""
    return floor(number * Fraction(repr(factor)))


def rate_of(rule: RuleLike) -> Rate:
    """The rate of a rule that has been checked to have one."""
    assert rule.rate is not None
    return rule.rate


def most_of(rule: RuleLike) -> int:
    """The units at which calls of a rule without a burst are refused."""
    return multiplied(rate_of(rule).limit, rule.enforce_at)


SHORTEST_HOLD: Final = 125_000
LONGEST_HOLD: Final = 400_000
HOLD_SHARE: Final = 100  # of a window's time, where that lies between


def hold_of(rule: RuleLike) -> int:
    """For how long a process may keep what it has bought ahead: what is spent is spent nearly when it was charged."""
    return min(LONGEST_HOLD, max(SHORTEST_HOLD, rate_of(rule).window_us // HOLD_SHARE))


def counted_us(rule: RuleLike) -> int:
    """The window of a rule whose units count from a moment on.

    That of a prepaid rule is longer by the time for which units are kept, so that no true window has more in it.
    """
    return rate_of(rule).window_us + (hold_of(rule) if rule.prepaid else 0)

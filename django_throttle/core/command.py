"""What a flow asks of a store, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from django_throttle.core.rate import MAX_LIMIT
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidCost


def check_cost(cost: object) -> int:
    """The cost itself; raises InvalidCost unless it is a whole number from 0 to 94,906,265."""
    if type(cost) is not int or not 0 <= cost <= MAX_LIMIT:
        raise InvalidCost(f"a cost is a whole number from 0 to {MAX_LIMIT}, not {cost!r}")
    return cost


class Charge(NamedTuple):
    """One rule to be charged ``cost`` under ``ident``."""

    rule: Rule
    ident: str
    cost: int


def charge(rule: Rule, ident: str, cost: int) -> Charge:
    """One call's charge under a rule of one rate: its cost times the rule's; a connection holds one slot."""
    return Charge(rule, ident, min(cost, 1) if rule.is_concurrency else cost * rule.cost)


def charges_of(rule: Rule, ident: str, cost: int) -> tuple[Charge, ...]:
    """One call's charges under a rule, one for each of its rates."""
    return tuple([charge(part, ident, cost) for part in rule.parts])


class Answer(NamedTuple):
    """What the store says of one charge; times in microseconds.

    ``retry`` is 0 when it fits, -1 when it never will. ``remaining`` and ``reset`` are as they stand
    afterwards: after the charge when it was made.
    """

    retry: int
    remaining: int
    reset: int


def passes(charge: Charge, answer: Answer) -> bool:
    """Whether a charge stands in nobody's way: it fits, or its rule only watches."""
    return answer.retry == 0 or charge.rule.is_shadow


@dataclass(frozen=True, slots=True)
class Decide:
    """Decide every charge as one, all or nothing. Reply: a tuple with an Answer for each.

    ``commit`` False only asks. ``lease`` names the slot that concurrency rules hold, chosen by the
    caller beforehand so that asking twice holds one.
    """

    charges: tuple[Charge, ...]
    commit: bool = True
    lease: str | None = None


@dataclass(frozen=True, slots=True)
class DecideLocally:
    """The same, by this process alone: each rule's limit is divided by the live processes."""

    decide: Decide


@dataclass(frozen=True, slots=True)
class Forget:
    """Make the rates of these charges full again; held leases stay. Reply: the number of keys removed."""

    charges: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back; ``holds`` are (rule id, ident) pairs. Doing it twice changes nothing. Reply: None."""

    lease: str
    holds: tuple[tuple[str, str], ...]


Command = Decide | DecideLocally | Forget | Release

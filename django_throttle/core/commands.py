"""Commands that a flow asks of a store, the store's answers, and what processes ask of one another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from django_throttle.core.exceptions import InvalidCost
from django_throttle.core.rule import Rule


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
    return Charge(rule, ident, min(cost, 1) if rule.is_concurrency else cost * rule.factor)


def charges_of(rule: Rule, ident: str, cost: int) -> tuple[Charge, ...]:
    """One call's charges under a rule, one for each of its rates."""
    return tuple([charge(part, ident, cost) for part in rule.parts])


class Answer(NamedTuple):
    """What the store says of one charge; times in microseconds.

    ``retry`` is 0 when it fits, -1 when it never will. ``remaining`` and ``reset`` are as they stand
    afterwards: after the charge when it was made. ``at`` is the store's time.
    """

    retry: int
    remaining: int
    reset: int
    at: int = 0


def passes(charge: Charge, answer: Answer) -> bool:
    """Whether a charge stands in nobody's way: it fits, or its rule only watches."""
    return answer.retry == 0 or charge.rule.is_shadow


@dataclass(frozen=True, slots=True)
class Decide:
    """Decide every charge as one, all or nothing. Reply: a tuple with an Answer for each.

    ``commit`` False only asks. ``lease`` names the slot that concurrency rules hold, chosen by the
    caller beforehand so that asking twice holds one. ``whole`` asks for a receipt of all that is charged.
    """

    charges: tuple[Charge, ...]
    commit: bool = True
    lease: str | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class DecideLocally:
    """The same, by this process alone: each rule's limit is divided by the live processes."""

    decide: Decide


@dataclass(frozen=True, slots=True)
class Reset:
    """Make the rates of these charges full again; held leases stay. Reply: the number of keys removed."""

    charges: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back; ``holds`` are (rule id, ident) pairs. Doing it twice changes nothing. Reply: None."""

    lease: str
    holds: tuple[tuple[str, str], ...]


class Mark(NamedTuple):
    """A key that marks something as said for a rule and an ident: its name, and its lifetime in microseconds."""

    rule_id: str
    ident: str
    name: str
    lasts: int


@dataclass(frozen=True, slots=True)
class SetMarks:
    """Ask which of these nobody has said yet, over all processes. Reply: a tuple with True for each that is new."""

    marks: tuple[Mark, ...]


class PastCharge(NamedTuple):
    """A charge that was made: when, by the store's clock, and how long it then took to be full; microseconds."""

    charge: Charge
    at: int
    reset: int


@dataclass(frozen=True, slots=True)
class Refund:
    """Give back what was charged, as if it had not been. Reply: the number of charges given back.

    ``locally`` when this process alone had decided them.
    """

    paid: tuple[PastCharge, ...]
    locally: bool = False


# Begins the id of each lease that a socket holds. Only those are taken away for another.
SOCKET_LEASE: Final = "~"
CLOSE, RESET, REPORT = "close", "reset", "report"
EVICTED, CLOSED = "evicted", "closed"  # why, in the word that clients are told: for another one, or by an operator


class ControlMessage(NamedTuple):
    """Something to be done by the process ``uid``, or by every one that lives where that is empty.

    CLOSE is about the sockets with this ``lease``, this ``socket`` id or this ident; ``why`` is the word that their
    clients are told, ``rule`` and ``limit`` those that they made room under. RESET is about those of an ident: its
    budgets were given back. REPORT asks for a list of at most ``most`` sockets that the text ``search`` is about, in
    which the idents of ``tag`` are counted, any number with a space between. Else an ident is given as it is, as
    ``ident``, and travels as its ``tag``.
    """

    kind: str
    uid: str = ""
    lease: str = ""
    socket: str = ""
    ident: str = ""
    tag: str = ""
    why: str = ""
    rule: str = ""
    limit: int = 0
    search: str = ""
    most: int = 0


def closing(rule: Rule, victims: Iterable[tuple[str, str]]) -> tuple[ControlMessage, ...]:
    """The control messages that close evicted sockets of a rule; victims are a process and a lease each."""
    name, limit = rule.name, rule.plan.limit
    return tuple([ControlMessage(CLOSE, uid, lease, why=EVICTED, rule=name, limit=limit) for uid, lease in victims])


def evicted(leases: Iterable[str], rule: str = "", limit: int = 0) -> tuple[ControlMessage, ...]:
    """The same to every process, where nobody knows any more which one has these."""
    return tuple(
        [ControlMessage(CLOSE, lease=lease, why=EVICTED, rule=rule, limit=limit) for lease in dict.fromkeys(leases)]
    )


MAX_WAITING: Final = 10_000  # for one process

Received = dict[ControlMessage, float]  # when each was sent, on the monotonic clock: then, or a round trip later


def with_tags(messages: Iterable[ControlMessage], tag: Callable[[str], str]) -> tuple[ControlMessage, ...]:
    """The same, as they travel: idents are named by their tags."""
    return tuple([one._replace(ident="", tag=tag(one.ident)) if one.ident else one for one in messages])


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send these control messages. Reply: None. What fails is sent again later, and meanwhile raised."""

    messages: tuple[ControlMessage, ...]


@dataclass(frozen=True, slots=True)
class Evict:
    """Have ``lease`` take the slot of a socket where a rule of concurrency is full, and have that socket closed.

    The first to go is the one whose lease was taken, or last heard of, longest ago. Reply: True when the newcomer has
    its slot.
    """

    charge: Charge
    lease: str


@dataclass(frozen=True, slots=True)
class CountMembers:
    """Ask how many members other processes than this one have in a group, those silent for so many seconds left out.

    Reply: the number; None where there are no other processes.
    """

    group: str
    process: str
    silence: float


def receipt(decide: Decide, answers: tuple[Answer, ...], *, locally: bool = False) -> Refund | None:
    """What can be given back of an allowed call: the charges of rules that count only some answers, or the whole."""
    paid = [
        PastCharge(charge, answer.at, answer.reset)
        for charge, answer in zip(decide.charges, answers, strict=True)
        if (decide.whole or charge.rule.count_on) and charge.cost and answer.retry == 0
        if not charge.rule.is_concurrency
    ]
    return Refund(tuple(paid), locally) if paid else None


def refund_for_status(paid: Refund, status: int) -> Refund | None:
    """What goes back of this when the answer had that HTTP status."""
    found = tuple(one for one in paid.paid if one.charge.rule.count_on and status not in one.charge.rule.count_on)
    return Refund(found, paid.locally) if found else None


def refund_for_idents(paid: Refund, pairs: Collection[tuple[str, str]], *, others: bool = False) -> Refund | None:
    """The part of this that was charged under these pairs of a rule's name and an ident; or all ``others``."""
    found = tuple(one for one in paid.paid if ((one.charge.rule.name, one.charge.ident) in pairs) != others)
    return Refund(found, paid.locally) if found else None


Command = Decide | DecideLocally | Reset | Release | SetMarks | Refund | Evict | SendControl | CountMembers

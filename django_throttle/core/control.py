"""Control messages: what processes ask of one another about the sockets that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from django_throttle.core.commands import Charge


# Begins the id of each lease that a socket holds. Only those are taken away for another.
SOCKET: Final = "~"
CLOSE, RESET, REPORT = "close", "reset", "report"
EVICTED, CLOSED = "evicted", "closed"  # why, in the word that clients are told: for another one, or by an operator


class Order(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Tell:
    """Give these orders. Reply: None. What fails is sent again later, and meanwhile raised."""

    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class Evict:
    """Have ``lease`` take the slot of a socket where a rule of concurrency is full, and have that socket closed.

    The first to go is the one whose lease was taken, or last heard of, longest ago. Reply: True when the newcomer has
    its slot.
    """

    charge: Charge
    lease: str


def closing(charge: Charge, victims: Iterable[tuple[str, str]]) -> tuple[Order, ...]:
    """The orders to close what was taken away under a rule; victims are a process and a lease each."""
    name, limit = charge.rule.name, charge.rule.plan.limit
    return tuple([Order(CLOSE, uid, lease, why=EVICTED, rule=name, limit=limit) for uid, lease in victims])


def evicted(leases: Iterable[str], rule: str = "", limit: int = 0) -> tuple[Order, ...]:
    """The same to every process, where nobody knows any more which one has these."""
    return tuple([Order(CLOSE, lease=lease, why=EVICTED, rule=rule, limit=limit) for lease in dict.fromkeys(leases)])


MAX_WAITING: Final = 10_000  # for one process

Given = dict[Order, float]  # when each was given, on the monotonic clock: then, or a round trip later


def tagged(orders: Iterable[Order], tag: Callable[[str], str]) -> tuple[Order, ...]:
    """The same, as they travel: idents are named by their tags."""
    return tuple([one._replace(ident="", tag=tag(one.ident)) if one.ident else one for one in orders])

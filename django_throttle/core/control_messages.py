"""Control messages: what processes ask of one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from django_throttle.core.rule import Rule

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
    name, limit = rule.name, rule.params.limit
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

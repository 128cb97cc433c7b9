"""Control messages, by which processes request actions of one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from django_throttle.core.rule import Rule

CLOSE, RESET, REPORT = "close", "reset", "report"
EVICTED, CLOSED = "evicted", "closed"  # reasons shown to clients: for another socket, or by an operator


class ControlMessage(NamedTuple):
    """A request to a process, or to all processes.

    CLOSE closes the sockets with the ``lease``, the ``socket`` id or the ident. RESET clears cached refusals and
    prepaid units of an ident whose budgets were reset. REPORT requests a list of sockets.
    """

    kind: str  #: CLOSE, RESET or REPORT
    uid: str = ""  #: the process; empty for all
    lease: str = ""
    socket: str = ""
    ident: str = ""  #: replaced by its hash before the message is sent
    ident_hash: str = ""  #: of a REPORT the hashes of idents to count, separated by spaces
    reason: str = ""  #: shown to clients of closed sockets
    rule: str = ""  #: rule under which a socket is evicted
    limit: int = 0  #: limit of that rule
    search: str = ""  #: text that listed sockets contain
    max_sockets: int = 0  #: length of the list


def closing(rule: Rule, victims: Iterable[tuple[str, str]]) -> tuple[ControlMessage, ...]:
    """Return the messages that close evicted sockets of a rule. ``victims`` are pairs of a process uid and a lease."""
    name, limit = rule.name, rule.params.limit
    return tuple([ControlMessage(CLOSE, uid, lease, reason=EVICTED, rule=name, limit=limit) for uid, lease in victims])


def evicted(leases: Iterable[str], rule: str = "", limit: int = 0) -> tuple[ControlMessage, ...]:
    """Return the messages to all processes that close evicted sockets whose process is unknown."""
    return tuple(
        [ControlMessage(CLOSE, lease=lease, reason=EVICTED, rule=rule, limit=limit) for lease in dict.fromkeys(leases)]
    )


MAX_WAITING_MESSAGES: Final = 10_000  # for a process

Received = dict[ControlMessage, float]  # with the monotonic time at which it was sent, up to a round trip later


def with_hashes(messages: Iterable[ControlMessage], hash_ident: Callable[[str], str]) -> tuple[ControlMessage, ...]:
    """Return the messages as they are sent, with ident hashes in place of idents."""

    def hashed(message: ControlMessage) -> ControlMessage:
        return message._replace(ident="", ident_hash=hash_ident(message.ident)) if message.ident else message

    return tuple(map(hashed, messages))

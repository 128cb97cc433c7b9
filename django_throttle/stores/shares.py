"""What a process decides by itself while the store is away: each limit divided by the processes that live."""

from __future__ import annotations

from functools import lru_cache

from django_throttle.core.command import Charge, Decide, Refund
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule


def shared(command: Decide, processes: int) -> Decide:
    """The same, by this process's part of each limit."""
    charges = tuple(Charge(_share(rule, processes), ident, cost) for rule, ident, cost in command.charges)
    return Decide(charges, command.commit, command.lease)


def shared_refund(command: Refund, processes: int) -> Refund:
    """What goes back of what was decided so, while the parts of the limits are still the same."""
    shares = [one.charge._replace(rule=_share(one.charge.rule, processes)) for one in command.paid]
    return Refund(tuple([one._replace(charge=share) for share, one in zip(shares, command.paid, strict=True)]))


@lru_cache(maxsize=1024)
def _share(rule: Rule, processes: int) -> Rule:
    try:
        return rule.share(processes)
    except InvalidRule:  # its parts would be too small to make sense, so this process goes by the whole
        return rule

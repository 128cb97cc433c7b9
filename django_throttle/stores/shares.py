"""What a process decides by itself while the store is away: each limit divided by the processes that live."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from django_throttle.core.command import Refund
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule

# Beats until every process has registered again after Redis lost what it knew.
SETTLING: Final = 2


class ProcessCount:
    """How many processes share a limit: as many as beats saw, and at least as many as the site expects.

    The count does not fall while the store fails (``is_failing`` says so), nor within two beats after it lost what
    it knew: until then whoever has not registered again is missing.
    """

    def __init__(self, expected: int, is_failing: Callable[[], bool]) -> None:
        self._expected = max(1, expected)
        self._is_failing = is_failing
        self._settling = 0
        self.seen = 1

    @property
    def sharing(self) -> int:
        """Among how many a limit is divided."""
        return max(self.seen, self._expected)

    def note(self, alive: int, *, lost: bool) -> None:
        """A beat saw so many; ``lost`` when the store has lost what it knew."""
        if lost or self._is_failing():
            self._settling = SETTLING
        if alive >= self.seen or not self._settling:
            self.seen = alive
        else:
            self._settling -= 1


def shared_refund(command: Refund, processes: int) -> Refund:
    """What goes back of what was decided so, while the parts of the limits are still the same."""
    shares = [one.charge._replace(rule=share_of(one.charge.rule, processes)) for one in command.paid]
    return Refund(tuple([one._replace(charge=share) for share, one in zip(shares, command.paid, strict=True)]))


@lru_cache(maxsize=1024)
def share_of(rule: Rule, processes: int) -> Rule:
    """The rule that one of so many processes goes by alone."""
    try:
        return rule.share(processes)
    except InvalidRule:  # its parts would be too small to make sense, so this process goes by the whole
        return rule

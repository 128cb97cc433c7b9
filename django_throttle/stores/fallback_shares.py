"""Each process's share of a limit while Redis is away, and what Redis last said was left of a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from django_throttle.core.commands import Answer, Charge
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule
from django_throttle.lifecycle import in_child

# Beats until every process has registered again after Redis lost what it knew.
SETTLING: Final = 2
MAX_KNOWN: Final = 10_000  # budgets of which little was left


class ProcessCount:
    """How many processes share a limit: as many as beats saw, and at least as many as the site expects.

    The count does not fall while the store fails (``is_failing``), nor within two beats after it lost data: until
    then processes that have not registered again are missing.
    """

    def __init__(self, expected: int, is_failing: Callable[[], bool]) -> None:
        self._expected = max(1, expected)
        self._is_failing = is_failing
        self._settling = 0
        self.seen = 1

    @property
    def sharing(self) -> int:
        """The number by which a limit is divided."""
        return max(self.seen, self._expected)

    def note(self, alive: int, *, lost: bool) -> None:
        """A beat saw ``alive`` processes; ``lost`` when the store has lost data."""
        if lost or self._is_failing():
            self._settling = SETTLING
        if alive >= self.seen or not self._settling:
            self.seen = alive
        else:
            self._settling -= 1


class LastRemaining(NamedTuple):
    """What Redis last said of a budget: ``units``, and until when no more comes back (monotonic seconds)."""

    units: int
    until: float


class Remaining:
    """The budgets of which Redis last said that less is left than a process admits by itself; empty after a fork."""

    def __init__(self, processes: ProcessCount) -> None:
        self._processes = processes
        self._left: dict[tuple[str, str], LastRemaining] = {}
        in_child(self, lambda remaining: remaining._left.clear())

    def note(self, charges: Sequence[Charge], answers: Iterable[Answer]) -> None:
        """Remember what Redis has answered."""
        sharing = self._processes.sharing
        for (rule, ident, _), answer in zip(charges, answers, strict=True):
            if answer.remaining * sharing < rule.plan.limit and rule.rate and rule.on_store_failure == "local":
                known = self._left
                known[rule.id, ident] = LastRemaining(answer.remaining, time.monotonic() + answer.reset / 1_000_000)
                if len(known) > MAX_KNOWN:
                    known.pop(next(iter(known)), None)

    def of(self, charge: Charge) -> LastRemaining | None:
        """What is left of the budget of a charge; None when nothing is known, or more has come back since."""
        left = self._left.get((charge.rule.id, charge.ident))
        return left if left is not None and left.until > time.monotonic() else None


@lru_cache(maxsize=1024)
def share_of(rule: Rule, processes: int) -> Rule:
    """The rule that one of ``processes`` applies alone; the rule itself where its parts would be too small."""
    try:
        return rule.share(processes)
    except InvalidRule:
        return rule


@lru_cache(maxsize=1024)
def with_limit(rule: Rule, limit: int) -> Rule:
    """The same rule with another limit, and that as its burst."""
    return replace(rule, rate=replace(rule.rate, limit=limit), limit=None, burst=None) if rule.rate else rule

"""What was decided: small frozen values that every door translates and every hook receives.

Named tuples where one is made on every call: they cost a fifth of a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple


class Reason(StrEnum):
    """Why an outcome is what it is: the label of metrics."""

    WITHIN = "within"  # inside the limit
    EXCEEDED = "exceeded"  # over the limit; passes after retry_after
    TOO_COSTLY = "too_costly"  # costs more than the rule ever allows at once
    STORE_FAILED = "store_failed"  # decided by the rule's failure policy, without the store


class Outcome(NamedTuple):
    """What one rule says of one call; times are seconds from now.

    ``remaining`` is what can be spent at once, after this call when it was allowed as a whole.
    ``retry_after`` is 0.0 when this rule allows, None when it never will. ``delay`` is how long an allowed
    call waits for its turn in a queue.
    """

    rule: str
    ident: str
    allowed: bool
    limit: int
    remaining: int
    retry_after: float | None
    reset_after: float
    reason: Reason = Reason.WITHIN
    shadow: bool = False
    window: float | None = None
    delay: float = 0.0

    def later(self, seconds: float) -> Outcome:
        """The same outcome as it reads ``seconds`` from when it was said."""
        reset_after = max(0.0, self.reset_after - seconds)
        return self._replace(retry_after=_less(self.retry_after, seconds), reset_after=reset_after)


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot held under concurrency rules: give it back with ``Limiter.release``.

    ``holds`` are (rule id, ident) pairs.
    """

    id: str
    holds: tuple[tuple[str, str], ...]


class Decision(NamedTuple):
    """Whether the call may pass, and what the rule nearest its limit says of it; times are seconds.

    ``rule`` is the name of the rule that refuses for longest, else of the one with least remaining;
    None, as ``limit`` and ``remaining``, when no rule applies. ``outcomes`` has one entry a rule.
    ``delay`` is how long an allowed call is to wait for its turn: the longest that any rule says.
    ``lease`` is what was taken of concurrency rules. ``degraded`` is True when the store failed and the
    rules' failure policies decided.
    """

    allowed: bool = True
    limit: int | None = None
    remaining: int | None = None
    retry_after: float | None = 0.0
    reset_after: float = 0.0
    rule: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    delay: float = 0.0
    lease: Lease | None = None
    degraded: bool = False

    def later(self, seconds: float) -> Decision:
        """The same decision as it reads ``seconds`` from when it was made, as long as nothing else happens."""
        return self._replace(
            retry_after=_less(self.retry_after, seconds),
            reset_after=max(0.0, self.reset_after - seconds),
            outcomes=tuple(outcome.later(seconds) for outcome in self.outcomes),
        )

    @property
    def unavailable(self) -> bool:
        """True when the store's failure refused it: a 503, never a 429."""
        return not self.allowed and any(
            outcome.reason is Reason.STORE_FAILED and not outcome.allowed and not outcome.shadow
            for outcome in self.outcomes
        )


def conclude(outcomes: tuple[Outcome, ...], lease: Lease | None = None, *, degraded: bool = False) -> Decision:
    """One decision from the outcomes of all rules: allowed when no rule that is not a shadow refuses."""
    real = [outcome for outcome in outcomes if not outcome.shadow]
    refusing = [outcome for outcome in real if not outcome.allowed]
    if refusing:
        said = max(refusing, key=_wait)
    elif real:
        said = min(real, key=_remaining) if len(real) > 1 else real[0]
    else:
        return Decision(outcomes=outcomes, lease=lease, degraded=degraded)
    return Decision(
        not refusing,
        said.limit,
        said.remaining,
        said.retry_after,
        said.reset_after,
        said.rule,
        outcomes,
        0.0 if refusing else max([outcome.delay for outcome in real]),
        None if refusing else lease,
        degraded,
    )


_remaining = attrgetter("remaining")


def _wait(outcome: Outcome) -> float:
    return float("inf") if outcome.retry_after is None else outcome.retry_after


def _less(wait: float | None, seconds: float) -> float | None:
    return None if wait is None else max(0.0, wait - seconds)

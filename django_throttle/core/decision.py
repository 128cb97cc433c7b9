"""What was decided: small frozen values that every door translates and every hook receives.

Named tuples where one is made on every call: they cost a fifth of a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple

from django_throttle.core.algorithms import Plan
from django_throttle.core.commands import Mark, Refund
from django_throttle.core.exceptions import Cause


class Reason(StrEnum):
    """Why an outcome is what it is: the label of metrics."""

    WITHIN = "within"  # inside the limit
    EXCEEDED = "exceeded"  # over the limit; passes after retry_after
    TOO_COSTLY = "too_costly"  # costs more than the rule ever allows at once
    BLOCKED = "blocked"  # an operator's override refuses it, whatever is left
    SUPPRESSED = "suppressed"  # a damper refuses this share of what is attempted; passes with the next factor, or not
    NO_ADDRESS = "no_address"  # it counts by the address, and the server reports none
    STORE_FAILED = "store_failed"  # decided by the rule's failure policy, without the store


# Whatever the client did, it is not at fault.
OURS: Final = frozenset((Reason.STORE_FAILED, Reason.NO_ADDRESS))


class Outcome(NamedTuple):
    """What one rule says of one call; times are seconds from now.

    ``remaining`` is what can be spent at once, after this call when it was allowed as a whole.
    ``retry_after`` is 0.0 when this rule allows, None when it never will. ``delay`` is how long an allowed
    call waits for its turn in a queue. ``factor`` is the share of attempts that a damper refuses.
    ``plan`` is how the rule counts, where a store has counted, and ``unit`` what it does. ``largest`` is what a call
    may cost at most, where this one costs more.
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
    factor: float = 0.0
    plan: Plan | None = None
    unit: str = "calls"
    largest: int | None = None

    @property
    def verdict(self) -> str:
        """In a word: "allowed", "refused", or "shadowed" by a rule that only records."""
        return "allowed" if self.allowed else "shadowed" if self.shadow else "refused"

    def later(self, seconds: float) -> Outcome:
        """The same outcome as it reads ``seconds`` from when it was said."""
        reset_after = max(0.0, self.reset_after - seconds)
        return self._replace(retry_after=_less(self.retry_after, seconds), reset_after=reset_after)


class Crossing(NamedTuple):
    """A call brought the use of a rule to a share of its limit; ``mark`` is what keeps it from being told twice."""

    outcome: Outcome
    share: float
    mark: Mark


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
    rules' failure policies decided. ``crossed`` are the shares of limits that this call has reached, of those that
    rules warn at: from a door only those of which nobody has been told in this window. ``receipt`` is what goes back
    when the answer turns out to be none that counts. ``cause`` is why the store failed, where it did.
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
    crossed: tuple[Crossing, ...] = ()
    receipt: Refund | None = None
    cause: Cause | None = None

    def later(self, seconds: float) -> Decision:
        """The same decision as it reads ``seconds`` from when it was made, as long as nothing else happens."""
        return self._replace(
            retry_after=_less(self.retry_after, seconds),
            reset_after=max(0.0, self.reset_after - seconds),
            outcomes=tuple(outcome.later(seconds) for outcome in self.outcomes),
        )

    @property
    def is_ordinary(self) -> bool:
        """True where every rule allows it, at once, and there is nothing to report but to hooks."""
        plain = self.allowed and not self.degraded and not self.crossed and not self.delay
        return plain and all(map(_allowed, self.outcomes))

    @property
    def unavailable(self) -> bool:
        """True when a failure of ours refused it: a 503, never a 429."""
        if not self.allowed:
            for outcome in self.outcomes:
                if outcome.reason in OURS and not outcome.allowed and not outcome.shadow:
                    return True
        return False


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


_allowed = attrgetter("allowed")
_remaining = attrgetter("remaining")


def _wait(outcome: Outcome) -> float:
    return float("inf") if outcome.retry_after is None else outcome.retry_after


def _less(wait: float | None, seconds: float) -> float | None:
    return None if wait is None else max(0.0, wait - seconds)

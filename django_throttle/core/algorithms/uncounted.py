"""What no store counts by a state: leases, which it keeps one by one, and dampers, which each process decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import Plan, RuleLike, State, StepResult
from django_throttle.core.texts import gettext_lazy, gettext_noop


class Uncounted(Plan):
    """The plan of a rule that no store counts: it charges nothing, and everything fits."""

    __slots__ = ()

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        return StepResult(0, self.limit, 0, self.limit, 0, None, None)

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        return None

    def late_charges(self, state: State, now: int) -> Iterator[base.LateCost]:
        yield from ()

    def charge_late(self, state: State | None, now: int, late: base.LateCost) -> base.Stored | None:
        return None


# When a full slot might be free again is anybody's guess; this is ours, in microseconds.
RETRY_AFTER_US: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class Concurrency(Uncounted):
    """At most ``limit`` leases at once; who finds none free is to ask again after a while.

    A store keeps the leases, and gives as state how many are held, and 1 when the caller's is among them: that one is
    granted again.
    """

    retry_after_us: int = RETRY_AFTER_US
    name, code, lua = "concurrency", 11, ("own_key.lua", "concurrency.lua")

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        held, mine = state or (0, 0)
        wanted = 0 if mine else cost
        left = max(0, self.limit - held)
        return StepResult(
            retry=0 if held + wanted <= self.limit else self.retry_after_us,
            remaining=left,
            reset=self.retry_after_us if held else 0,
            charged_remaining=max(0, left - wanted),
            charged_reset=self.retry_after_us,
            charged_state=None,
            refused_state=None,
        )


CONCURRENCY: Final = base.Algorithm(
    name="concurrency",
    label="Concurrency",
    help="not a rate, but how many WebSockets or requests are open at once",
    plan=lambda rule: Concurrency(rule.limit or 0),
    takes=("limit", "at_limit", "max_queue"),
    holds=True,
)


MAX_DAMPED: Final = 1_000_000_000_000  # sums of what is attempted stay whole numbers
JUDGED: Final = {
    "fast": gettext_noop("judged by the last seconds"),
    "average": gettext_noop("judged by the last 24 seconds"),
}


@dataclass(frozen=True, slots=True)
class Damper(Uncounted):
    """The share of attempts is refused that keeps the rest to ``limit`` in a ``window``. No store counts it."""

    window: int
    name = "damper"


def _shape_of_damper(rule: RuleLike, every: str) -> tuple[str, ...]:
    return gettext_lazy("held to that by refusing a share of what is attempted"), gettext_lazy(JUDGED[rule.estimator])


DAMPER: Final = base.Algorithm(
    name="damper",
    label="Damper",
    help="refuses a share of what is attempted, so that the rest keeps the rate",
    plan=lambda rule: Damper(base.most_of(rule), base.rate_of(rule).window_us),
    shape=_shape_of_damper,
    takes=("estimator",),
    max_limit=MAX_DAMPED,
    takes_more=gettext_noop("a fixed or sliding window takes more"),
    is_damper=True,
)

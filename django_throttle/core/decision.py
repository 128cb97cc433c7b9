"""Decisions and outcomes: frozen values that entry points turn into answers and hooks receive.

A value made on every call is a named tuple, which takes a fifth of the time of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

from django_throttle.core.algorithms import CounterParams
from django_throttle.core.algorithms.base import NEVER
from django_throttle.core.commands import Answer, Answers, Charge, Decide, DedupKey
from django_throttle.core.exceptions import Cause
from django_throttle.core.ledger import Ledger
from django_throttle.core.rule import Rule


class Reason(StrEnum):
    """The reason of an outcome, used as a label of metrics."""

    WITHIN = "within"  #: within the limit
    EXCEEDED = "exceeded"  #: over the limit; allowed after ``retry_after``
    TOO_COSTLY = "too_costly"  #: costs more than the rule ever allows at once
    BLOCKED = "blocked"  #: refused by an operator's override, whatever remains
    SUPPRESSED = "suppressed"  #: in the share of attempts that a damper refuses
    NO_ADDRESS = "no_address"  #: counted by the address, but the server reports none
    STORE_FAILED = "store_failed"  #: decided without the store, by the rule's failure policy


# Reasons for which the client is not at fault.
OWN_FAULT_REASONS: Final = frozenset((Reason.STORE_FAILED, Reason.NO_ADDRESS))


class Outcome(NamedTuple):
    """The outcome of a call under one rule and rate; times are seconds from now."""

    rule: str
    ident: str
    allowed: bool
    limit: int
    remaining: int  #: units that can be spent at once; after this call if the call was allowed by all rules
    retry_after: float | None  #: 0.0 if the rule allows the call, None if it never will
    reset_after: float
    reason: Reason = Reason.WITHIN
    shadow: bool = False
    window: float | None = None
    delay: float = 0.0  #: wait of an allowed call for its queue slot
    factor: float = 0.0  #: share of attempts that a damper refuses
    params: CounterParams | None = None  #: counter parameters; None if no store counted the call
    unit: str = "calls"
    largest: int | None = None  #: highest cost that the rule allows, if this call costs more
    deferred_for: float = 0.0  #: time until the work of an allowed call runs, if its rule defers it
    plan_of: str = ""  #: holder of the plan that the rule belongs to, such as "group:premium"

    @property
    def verdict(self) -> str:
        """The verdict in a word: "allowed", "refused", or "shadowed" by a rule that only records."""
        return "allowed" if self.allowed else "shadowed" if self.shadow else "refused"

    def later(self, seconds: float) -> Outcome:
        """Return the outcome as it reads after so many seconds."""
        reset_after = max(0.0, self.reset_after - seconds)
        return self._replace(retry_after=_reduced(self.retry_after, seconds), reset_after=reset_after)


class ThresholdReached(NamedTuple):
    """A share of a rule's limit that a call has reached; ``dedup_key`` prevents a second report."""

    outcome: Outcome
    share: float
    dedup_key: DedupKey


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot held under concurrency rules. ``Limiter.release`` releases it.

    ``lease_keys`` are (rule id, ident) pairs.
    """

    id: str
    lease_keys: tuple[tuple[str, str], ...]


class Decision:
    """The decision on a call, with the numbers of the rule that is nearest its limit; times are seconds. Frozen.

    Attributes are computed when they are read, because most calls read only ``allowed``.
    """

    #: The command and the store's answers, if the decision follows from them alone.
    answered: ClassVar[tuple[Decide, Answers] | None] = None
    is_ordinary: bool  #: True if every rule allows the call at once, and only hooks are to be told

    allowed: bool = True
    limit: int | None  #: None if no rule applies
    remaining: int | None  #: None if no rule applies
    retry_after: float | None
    reset_after: float
    rule: str | None  #: the rule that refuses for longest, else the one with least remaining; None if no rule applies
    outcomes: tuple[Outcome, ...]  #: one for each rule and rate
    delay: float = 0.0  #: longest wait of an allowed call for a queue slot
    lease: Lease | None = None  #: slot under concurrency rules
    degraded: bool = False  #: True if the store failed and the rules' failure policies decided
    crossed: tuple[ThresholdReached, ...] = ()  #: entry points leave out those reported before in the same window
    cause: Cause | None = None  #: why the store failed
    ledger: Ledger  #: charges of an allowed call; not compared

    def __init__(
        self,
        allowed: bool = True,
        limit: int | None = None,
        remaining: int | None = None,
        retry_after: float | None = 0.0,
        reset_after: float = 0.0,
        rule: str | None = None,
        outcomes: tuple[Outcome, ...] = (),
        delay: float = 0.0,
        lease: Lease | None = None,
        degraded: bool = False,
        crossed: tuple[ThresholdReached, ...] = (),
        cause: Cause | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        values = allowed, limit, remaining, retry_after, reset_after, rule, outcomes
        self.__dict__.update(zip(COMPARED_FIELDS, (*values, delay, lease, degraded, crossed, cause), strict=True))
        if ledger is not None:
            self.__dict__["ledger"] = ledger

    def __getattr__(self, name: str) -> Any:
        """Compute an attribute that is not set yet."""
        values = self.__dict__
        if name == "is_ordinary":
            return values.setdefault(name, self._is_ordinary())
        if name in DECISION_FIELDS and ("_make" in values or "answered" in values):
            make, arguments = values.get("_make") or (_full_decision, (*values["answered"], values.get("lease")))
            for field, value in make(*arguments).__dict__.items():
                values.setdefault(field, value)  # another thread may have set it meanwhile
        if name == "ledger":
            values.setdefault(name, Ledger())
        if name not in values:
            raise AttributeError(f"a decision has no {name!r}")
        return values[name]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a decision is frozen: {name!r} cannot be set")

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Decision) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values)

    def __reduce__(self) -> tuple[object, ...]:
        return Decision, self._values

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in zip(COMPARED_FIELDS, self._values, strict=True)]
        return f"Decision({', '.join(values)})"

    @property
    def _values(self) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in COMPARED_FIELDS])

    def _replace(self, **changes: Any) -> Decision:
        """Return the decision with other values, as the method of named tuples does."""
        return Decision(**{**{name: getattr(self, name) for name in DECISION_FIELDS}, **changes})

    def later(self, seconds: float) -> Decision:
        """Return the decision as it reads after so many seconds, if nothing else is charged meanwhile."""
        decision: Decision = _new(type(self))
        values = decision.__dict__
        values.update(self.__dict__.get("_timeless") or self._keep_timeless())
        values["_make"] = self._later, (seconds,)
        return decision

    def _keep_timeless(self) -> dict[str, object]:
        """Cache and return the fields that do not depend on the time."""
        # By name, because other threads may add to ``__dict__`` meanwhile. Not by ``cached_property``, whose lock in
        # Python 3.11 a forked child could inherit.
        timeless = self.__dict__["_timeless"] = {name: getattr(self, name) for name in TIMELESS_FIELDS}
        return timeless

    def _later(self, seconds: float) -> Decision:
        return self._replace(
            retry_after=_reduced(self.retry_after, seconds),
            reset_after=max(0.0, self.reset_after - seconds),
            outcomes=tuple([outcome.later(seconds) for outcome in self.outcomes]),
        )

    def _is_ordinary(self) -> bool:
        is_plain = self.allowed and not self.degraded and not self.crossed and not self.delay
        return is_plain and all(map(_allowed, self.outcomes))

    @property
    def unavailable(self) -> bool:
        """True if a failure of the limiter refused the call, which is answered by 503 instead of 429."""
        if not self.allowed:
            for outcome in self.outcomes:
                if outcome.reason in OWN_FAULT_REASONS and not outcome.allowed and not outcome.shadow:
                    return True
        return False


DECISION_FIELDS: Final = tuple(name for name in Decision.__annotations__ if name not in ("answered", "is_ordinary"))
COMPARED_FIELDS: Final = DECISION_FIELDS[:-1]  # all but the ledger
NO_RULE_DECISION: Final = Decision()
_new: Final[Callable[..., Any]] = object.__new__
_set: Final[Callable[[Decision, str, object], None]] = object.__setattr__  # faster than ``__dict__``
TIMELESS_FIELDS: Final = tuple(
    name for name in DECISION_FIELDS if name not in ("retry_after", "reset_after", "outcomes")
)


def make_decision(command: Decide, answers: Sequence[Answer], lease: Lease | None = None) -> Decision:
    """Turn a store's answers into a decision, whose attributes are computed later if that is possible."""
    if not isinstance(answers, Answers):
        return _full_decision(command, answers, lease)
    if answers.fits and command.charges.rules.needs_no_report:
        return plain_decision(command, answers, lease)
    decision = _full_decision(command, answers, lease)
    decision.__dict__["answered"] = command, answers
    return decision


def plain_decision(command: Decide, answers: Answers, lease: Lease | None = None) -> Decision:
    """Return the decision on a call that fits, under rules that need no report."""
    decision: Decision = _new(Decision)
    _set(decision, "answered", (command, answers))
    _set(decision, "is_ordinary", True)
    if command.charges.rules.is_settled and command.commit:
        _set(decision, "ledger", Ledger(command.charges, answers))
    if lease is not None:
        _set(decision, "lease", lease)
    return decision


def prepaid_decision(rule: Rule, ident: str, cost: int, remaining: int, reset_after: float) -> Decision:
    """Return the decision on a call that prepaid units of its only rule pay for; ``reset_after`` is in seconds."""
    decision: Decision = _new(Decision)
    decision.__dict__.update(
        _make=(_full_prepaid_decision, (rule, ident, cost, remaining, reset_after)), is_ordinary=True
    )
    return decision


def _full_prepaid_decision(rule: Rule, ident: str, cost: int, remaining: int, reset_after: float) -> Decision:
    answer = Answer(0, remaining, max(0, int(reset_after * 1_000_000)))
    return combine_outcomes(outcomes_of((Charge(rule, ident, cost),), (answer,)))


def _full_decision(command: Decide, answers: Sequence[Answer], lease: Lease | None = None) -> Decision:
    ledger = Ledger(command.charges, answers) if command.commit else None
    return combine_outcomes(outcomes_of(command.charges, answers, commit=command.commit), lease, ledger=ledger)


def outcomes_of(charges: Sequence[Charge], answers: Sequence[Answer], *, commit: bool = True) -> tuple[Outcome, ...]:
    """Return the outcome of each charge. Without ``commit`` the call was not charged."""
    pairs = list(zip(charges, answers, strict=True))
    is_charged = commit and not [1 for charge, answer in pairs if answer.retry and not charge.rule.is_shadow]
    return tuple([_outcome(charge, answer, is_charged) for charge, answer in pairs])


def _outcome(charge: Charge, answer: Answer, is_charged: bool) -> Outcome:
    rule, (retry, remaining, reset, _) = charge.rule, answer
    delay = _until_queue_slot(rule, charge.cost if is_charged else 0, reset) if retry == 0 else 0.0
    deferred_for, delay = (delay, 0.0) if rule.action == "defer" else (0.0, delay)
    return Outcome(
        rule.name, charge.ident, retry == 0, rule.params.limit - rule.tolerance,
        max(0, remaining - rule.tolerance) if rule.tolerance else remaining,
        None if retry == NEVER else retry / 1_000_000, reset / 1_000_000,
        Reason.WITHIN if retry == 0 else Reason.TOO_COSTLY if retry == NEVER else Reason.EXCEEDED, rule.is_shadow,
        rule.window, delay, 0.0, rule.params, rule.unit,
        (rule.params.limit - rule.tolerance) // rule.factor if retry == NEVER else None, deferred_for, rule.plan_of,
    )  # fmt: skip


def _until_queue_slot(rule: Rule, cost: int, reset: float) -> float:
    """Return the seconds until the queue slot of a call; 0.0 under a rule that is no queue."""
    return rule.params.until_queue_slot(int(reset), cost) / 1_000_000 if rule.is_queue else 0.0


def deferred_for(command: Decide, answers: Answers, name: str) -> tuple[float, str]:
    """Return the seconds until the latest queue slot of an allowed call under the rule of this name, and its ident."""
    charges = command.charges
    rows = zip(charges.rules.rules, charges.idents, charges.costs, answers.numbers[2::3], strict=True)
    slots = [(_until_queue_slot(rule, cost, reset), ident) for rule, ident, cost, reset in rows if rule.name == name]
    return max(slots, default=(0.0, ""))


def combine_outcomes(
    outcomes: tuple[Outcome, ...],
    lease: Lease | None = None,
    *,
    degraded: bool = False,
    ledger: Ledger | None = None,
) -> Decision:
    """Combine the outcomes of all rules into a decision. The call is allowed unless a rule other than a shadow refuses.

    ``lease`` and ``ledger`` are dropped if the call is refused.
    """
    enforced = [outcome for outcome in outcomes if not outcome.shadow]
    refusals = [outcome for outcome in enforced if not outcome.allowed]
    if refusals:
        nearest = max(refusals, key=_wait)
    elif enforced:
        nearest = min(enforced, key=_remaining) if len(enforced) > 1 else enforced[0]
    else:
        return Decision(outcomes=outcomes, lease=lease, degraded=degraded, ledger=ledger)
    return Decision(
        not refusals, nearest.limit, nearest.remaining, nearest.retry_after, nearest.reset_after, nearest.rule,
        outcomes, 0.0 if refusals else max([outcome.delay for outcome in enforced]), None if refusals else lease,
        degraded, ledger=None if refusals else ledger,
    )  # fmt: skip


_allowed = attrgetter("allowed")
_remaining = attrgetter("remaining")


def _wait(outcome: Outcome) -> float:
    return float("inf") if outcome.retry_after is None else outcome.retry_after


def _reduced(wait: float | None, seconds: float) -> float | None:
    return None if wait is None else max(0.0, wait - seconds)


def deciding_outcome(decision: Decision) -> Outcome | None:
    """Return the outcome whose rule and limit the decision names; None if no rule applied."""
    named = (decision.rule, decision.limit, decision.retry_after)
    for outcome in decision.outcomes:
        if (outcome.rule, outcome.limit, outcome.retry_after) == named:
            return outcome
    return None


def error_code(decision: Decision) -> str:
    """Return the code of a refusal: ``limiter_unavailable``, ``blocked``, ``connection_limit`` or ``rate_limited``.

    ``connection_limit`` is the code of concurrency rules.
    """
    if decision.unavailable:
        return "limiter_unavailable"
    outcome = deciding_outcome(decision)
    if outcome and outcome.reason is Reason.BLOCKED:
        return "blocked"
    return "connection_limit" if outcome and outcome.window is None else "rate_limited"

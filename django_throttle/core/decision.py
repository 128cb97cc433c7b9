"""What was decided: small frozen values that every entry point translates and every hook receives.

Named tuples where one is made on every call: they cost a fifth of a frozen dataclass.
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
    ``params`` is how the rule counts, where a store has counted, and ``unit`` what it does. ``largest`` is what a call
    may cost at most, where this one costs more. ``deferred_for`` is how long until an allowed call runs whose rule
    defers it; nothing waits for it here. ``plan_of`` is who has the plan of the rule that decided, such
    as "group:premium"; empty where none of them does.
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
    params: CounterParams | None = None
    unit: str = "calls"
    largest: int | None = None
    deferred_for: float = 0.0
    plan_of: str = ""

    @property
    def verdict(self) -> str:
        """In a word: "allowed", "refused", or "shadowed" by a rule that only records."""
        return "allowed" if self.allowed else "shadowed" if self.shadow else "refused"

    def later(self, seconds: float) -> Outcome:
        """The same outcome as it reads ``seconds`` from when it was said."""
        reset_after = max(0.0, self.reset_after - seconds)
        return self._replace(retry_after=_less(self.retry_after, seconds), reset_after=reset_after)


class ThresholdReached(NamedTuple):
    """A share of a rule's limit that a call has reached; ``dedup_key`` keeps it from being reported twice."""

    outcome: Outcome
    share: float
    dedup_key: DedupKey


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot held under concurrency rules: give it back with ``Limiter.release``.

    ``holds`` are (rule id, ident) pairs.
    """

    id: str
    holds: tuple[tuple[str, str], ...]


class Decision:
    """Whether the call may pass, and what the rule nearest its limit says of it; times are seconds. Frozen.

    ``rule`` is the name of the rule that refuses for longest, else of the one with least remaining;
    None, as ``limit`` and ``remaining``, when no rule applies. ``outcomes`` has one entry a rule.
    ``delay`` is how long an allowed call is to wait for its turn: the longest that any rule says.
    ``lease`` is what was taken of concurrency rules. ``degraded`` is True when the store failed and the
    rules' failure policies decided. ``crossed`` are the shares of limits that this call has reached, of those that
    rules warn at: from an entry point only those of which nobody has been told in this window. ``cause`` is why the
    store failed, where it did. ``ledger`` is what an allowed call was charged; decisions are equal whatever it has.

    What a plain answer of the store implies is made when somebody reads it; most calls read only ``allowed``.
    """

    # What a store was asked, and its answers in numbers, as long as they are all there is to tell.
    answered: ClassVar[tuple[Decide, Answers] | None] = None
    is_ordinary: bool  # every rule allows it, at once, and there is nothing to report but to hooks

    allowed: bool = True
    limit: int | None
    remaining: int | None
    retry_after: float | None
    reset_after: float
    rule: str | None
    outcomes: tuple[Outcome, ...]
    delay: float = 0.0
    lease: Lease | None = None
    degraded: bool = False
    crossed: tuple[ThresholdReached, ...] = ()
    cause: Cause | None = None
    ledger: Ledger

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
        self.__dict__.update(zip(COMPARED, (*values, delay, lease, degraded, crossed, cause), strict=True))
        if ledger is not None:
            self.__dict__["ledger"] = ledger

    def __getattr__(self, name: str) -> Any:
        """What was not known when it was made, but how to make it: a function and its arguments."""
        values = self.__dict__
        if name == "is_ordinary":
            return values.setdefault(name, self._is_ordinary())
        if name in FIELDS and ("_make" in values or "answered" in values):
            make, of = values.get("_make") or (_decided, (*values["answered"], values.get("lease")))
            for made, value in make(*of).__dict__.items():
                values.setdefault(made, value)  # another thread may have made it meanwhile
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Decision, self._values

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in zip(COMPARED, self._values, strict=True)]
        return f"Decision({', '.join(values)})"

    @property
    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in COMPARED])

    def _replace(self, **changes: Any) -> Decision:
        """The same decision with other values, as named tuples have it."""
        return Decision(**{**{name: getattr(self, name) for name in FIELDS}, **changes})

    def later(self, seconds: float) -> Decision:
        """The same decision as it reads ``seconds`` from when it was made, as long as nothing else happens."""
        decision: Decision = _unmade(type(self))
        values = decision.__dict__
        values.update(self.__dict__.get("_lasting") or self._keep_lasting())
        values["_make"] = self._later, (seconds,)
        return decision

    def _keep_lasting(self) -> dict[str, Any]:
        """Keep and return the fields that stay the same however late it is.

        By their names, as other threads that read this decision add to its ``__dict__`` meanwhile. Without the lock of
        ``cached_property`` in Python 3.11, which a forked child could inherit.
        """
        lasting = self.__dict__["_lasting"] = {name: getattr(self, name) for name in LASTING}
        return lasting

    def _later(self, seconds: float) -> Decision:
        return self._replace(
            retry_after=_less(self.retry_after, seconds),
            reset_after=max(0.0, self.reset_after - seconds),
            outcomes=tuple([outcome.later(seconds) for outcome in self.outcomes]),
        )

    def _is_ordinary(self) -> bool:
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


FIELDS: Final = tuple(name for name in Decision.__annotations__ if name not in ("answered", "is_ordinary"))
COMPARED: Final = FIELDS[:-1]  # all but the ledger
PASSED: Final = Decision()  # where no rule applies
_unmade: Final[Callable[..., Any]] = object.__new__
_set: Final[Callable[[Decision, str, object], None]] = object.__setattr__  # without a dictionary, which takes longer
LASTING: Final = tuple(name for name in FIELDS if name not in ("retry_after", "reset_after", "outcomes"))


def decided(command: Decide, answers: Sequence[Answer], lease: Lease | None = None) -> Decision:
    """What a store's answers come to. Of the usual call, which passes and has nothing to tell, made when it is read."""
    if not isinstance(answers, Answers):
        return _decided(command, answers, lease)
    if answers.fits and command.charges.rules.needs_no_report:
        return plain_decision(command, answers, lease)
    decision = _decided(command, answers, lease)
    decision.__dict__["answered"] = command, answers
    return decision


def plain_decision(command: Decide, answers: Answers, lease: Lease | None = None) -> Decision:
    """The decision of a call that passes under rules that are quiet."""
    decision: Decision = _unmade(Decision)
    _set(decision, "answered", (command, answers))
    _set(decision, "is_ordinary", True)
    if command.charges.rules.is_settled and command.commit:
        _set(decision, "ledger", Ledger(command.charges, answers))
    if lease is not None:
        _set(decision, "lease", lease)
    return decision


def prepaid_decision(rule: Rule, ident: str, cost: int, remaining: int, reset_after: float) -> Decision:
    """The decision of a call that passes under one rule that refuses, by units that were bought before."""
    decision: Decision = _unmade(Decision)
    decision.__dict__.update(_make=(_passing, (rule, ident, cost, remaining, reset_after)), is_ordinary=True)
    return decision


def _passing(rule: Rule, ident: str, cost: int, remaining: int, reset_after: float) -> Decision:
    answer = Answer(0, remaining, max(0, int(reset_after * 1_000_000)))
    return combine_outcomes(outcomes_of((Charge(rule, ident, cost),), (answer,)))


def _decided(command: Decide, answers: Sequence[Answer], lease: Lease | None = None) -> Decision:
    ledger = Ledger(command.charges, answers) if command.commit else None
    return combine_outcomes(outcomes_of(command.charges, answers, commit=command.commit), lease, ledger=ledger)


def outcomes_of(charges: Sequence[Charge], answers: Sequence[Answer], *, commit: bool = True) -> tuple[Outcome, ...]:
    """Return the outcome of each charge; without ``commit`` the call was not charged."""
    pairs = list(zip(charges, answers, strict=True))
    granted = commit and not [1 for charge, answer in pairs if answer.retry and not charge.rule.is_shadow]
    return tuple([_outcome(charge, answer, granted) for charge, answer in pairs])


def _outcome(charge: Charge, answer: Answer, charged: bool) -> Outcome:
    rule, (retry, remaining, reset, _) = charge.rule, answer
    delay = _turn_after(rule, charge.cost if charged else 0, reset) if retry == 0 else 0.0
    deferred_for, delay = (delay, 0.0) if rule.action == "defer" else (0.0, delay)
    return Outcome(
        rule.name, charge.ident, retry == 0, rule.params.limit - rule.tolerance,
        max(0, remaining - rule.tolerance) if rule.tolerance else remaining,
        None if retry == NEVER else retry / 1_000_000, reset / 1_000_000,
        Reason.WITHIN if retry == 0 else Reason.TOO_COSTLY if retry == NEVER else Reason.EXCEEDED, rule.is_shadow,
        rule.window, delay, 0.0, rule.params, rule.unit,
        (rule.params.limit - rule.tolerance) // rule.factor if retry == NEVER else None, deferred_for, rule.plan_of,
    )  # fmt: skip


def _turn_after(rule: Rule, cost: int, reset: float) -> float:
    """Seconds until a queued call's turn, after all that was queued before it; 0.0 under a rule that is no queue."""
    return rule.params.turn_after(int(reset), cost) / 1_000_000 if rule.is_queue else 0.0


def deferred_for(command: Decide, answers: Answers, name: str) -> tuple[float, str]:
    """Seconds until the turn of an allowed call under the rule of this name, the latest of its rates; and its ident."""
    charges = command.charges
    each = zip(charges.rules.rules, charges.idents, charges.costs, answers.numbers[2::3], strict=True)
    turns = [(_turn_after(rule, cost, reset), ident) for rule, ident, cost, reset in each if rule.name == name]
    return max(turns, default=(0.0, ""))


def combine_outcomes(
    outcomes: tuple[Outcome, ...],
    lease: Lease | None = None,
    *,
    degraded: bool = False,
    ledger: Ledger | None = None,
) -> Decision:
    """One decision from the outcomes of all rules: allowed when no rule that is not a shadow refuses."""
    real = [outcome for outcome in outcomes if not outcome.shadow]
    refusing = [outcome for outcome in real if not outcome.allowed]
    if refusing:
        said = max(refusing, key=_wait)
    elif real:
        said = min(real, key=_remaining) if len(real) > 1 else real[0]
    else:
        return Decision(outcomes=outcomes, lease=lease, degraded=degraded, ledger=ledger)
    return Decision(
        not refusing, said.limit, said.remaining, said.retry_after, said.reset_after, said.rule, outcomes,
        0.0 if refusing else max([outcome.delay for outcome in real]), None if refusing else lease, degraded, (),
        ledger=None if refusing else ledger,
    )  # fmt: skip


_allowed = attrgetter("allowed")
_remaining = attrgetter("remaining")


def _wait(outcome: Outcome) -> float:
    return float("inf") if outcome.retry_after is None else outcome.retry_after


def _less(wait: float | None, seconds: float) -> float | None:
    return None if wait is None else max(0.0, wait - seconds)


def refusing(decision: Decision) -> Outcome | None:
    """The outcome of the rule and rate that the decision names; None when no rule applied."""
    named = (decision.rule, decision.limit, decision.retry_after)
    for one in decision.outcomes:
        if (one.rule, one.limit, one.retry_after) == named:
            return one
    return None


def error_code(decision: Decision) -> str:
    """``limiter_unavailable`` (the store failed), ``blocked``, ``connection_limit`` (too many) or ``rate_limited``."""
    if decision.unavailable:
        return "limiter_unavailable"
    outcome = refusing(decision)
    if outcome and outcome.reason is Reason.BLOCKED:
        return "blocked"
    return "connection_limit" if outcome and outcome.window is None else "rate_limited"

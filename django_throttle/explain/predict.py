"""Prediction of the decision on a call, with reasons. It peeks at the rules and charges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, NamedTuple

from django_throttle.core import Decision, Outcome, Override, Reason, Rule
from django_throttle.core.commands import Charge, charges_of
from django_throttle.core.decide import decide_charges
from django_throttle.core.decision import combine_outcomes
from django_throttle.core.io import run
from django_throttle.core.options import is_dotted
from django_throttle.core.overrides import describe_effect
from django_throttle.core.texts import Text, gettext_noop, listed, sentences, translatable
from django_throttle.exceptions import StoreError
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.local.damper_aggregate import Allowance, DamperReport, attempted, factor
from django_throttle.rulebook.coverage import Counting, HypotheticalCall, NotCounting, coverage
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.stores import AnyStore
from django_throttle.stores.base import BlockingIo

BATCH_RULES: Final = 100  # in one round trip
REFUSING_CHANCE: Final = 0.5  # share of refused calls from which a damper is shown as refusing
CALLS: Final = {
    "": translatable("A call"),
    "request": translatable("A request"),
    "inflight": translatable("A request in flight"),
    "connect": translatable("A new WebSocket"),
    "connection": translatable("A new WebSocket"),
    "message": translatable("A message"),
    "send": translatable("An outgoing message"),
    "publish": translatable("A publication"),
    "task": translatable("A task"),
}
# Verdicts of a rule on a call.
VERDICTS: Final = {
    "allowed": translatable("allowed"),
    "blocked": translatable("blocked"),
    "exempt": translatable("exempt"),
    "refused": translatable("refused"),
    "shadowed": translatable("shadowed"),
}
# Texts of the recorded reasons of refusals.
REASONS: Final[dict[str, Text]] = {
    Reason.EXCEEDED: translatable("over the limit"),
    Reason.TOO_COSTLY: translatable("costs more than is ever allowed at once"),
    Reason.BLOCKED: translatable("blocked by an override"),
    Reason.SUPPRESSED: translatable("in the share that a damper refuses"),
    Reason.NO_ADDRESS: translatable("the server reports no address"),
    Reason.STORE_FAILED: translatable("the store failed"),
}


class RuleState(NamedTuple):
    """A rule that counts the call, or one of its rates, and its outcome now."""

    counting: Counting
    outcome: Outcome  #: outcome without the effect of an override that exempts or blocks
    chance: float = 0.0  #: share of calls that a damper refuses
    is_sure: bool = True  #: False if the request may decide otherwise

    @property
    def used(self) -> int:
        return max(0, self.outcome.limit - self.outcome.remaining)

    @property
    def verdict(self) -> str:
        """The verdict of this rule: "blocked", "exempt", "refused", "shadowed" or "allowed"."""
        override = self.counting.override
        if override is not None and override.effect in ("block", "exempt"):
            return "blocked" if override.effect == "block" else "exempt"
        return self.outcome.verdict

    @property
    def limit(self) -> int | None:
        """The limit. None for the slots of an exempt caller, which are counted for the end of the exemption."""
        return None if self.verdict == "exempt" and self.counting.rule.holds_slots else self.outcome.limit

    @property
    def why(self) -> str:
        """The usage, and the time when a refused call could pass."""
        outcome = self.outcome
        if outcome.reason is Reason.SUPPRESSED:
            return translatable("{share:.0%} of the calls are refused now", share=self.chance)
        if outcome.allowed:
            return self._usage()
        if outcome.window is None:
            return translatable("{use}, free when one ends", use=self._usage())
        return translatable("{use}, free in {time}", use=self._usage(), time=in_short(outcome.retry_after or 0.0))

    @property
    def why_with_assumption(self) -> str:
        """``why``, with the assumption about the caller."""
        return with_assumption(self.why, self.counting.assumed)

    def _usage(self) -> Text:
        outcome, (rule, held, override, *_) = self.outcome, self.counting
        plan = rule.plan_of
        if plan and override is not None and held is not None and not held.plan_of:
            pattern = gettext_noop("{plan} (changed by override {number})")
            plan = translatable(pattern, plan=plan, number=override.number)
        used = gettext_noop("{used:,} of {limit:,} used"), gettext_noop("{used:,} of {limit:,} by plan {plan} used")
        open_ = gettext_noop("{used:,} of {limit:,} open"), gettext_noop("{used:,} of {limit:,} by plan {plan} open")
        if self.limit is None:
            return translatable("{used:,} open, without a limit", used=self.used)
        pattern = (open_ if outcome.window is None else used)[bool(plan)]
        return translatable(pattern, used=self.used, limit=outcome.limit, plan=plan)

    def as_json(self) -> dict[str, object]:
        outcome, override = self.outcome, self.counting.override
        return {
            "name": outcome.rule,
            "limit": self.limit,
            "used": self.used,
            "remaining": self.limit and outcome.remaining,
            "reset_after": outcome.reset_after,
            "override": None if override is None else override_as_json(override),
            "retry_after": outcome.retry_after,
            "window": outcome.window,
            "unit": outcome.unit,
            "ident": outcome.ident,
            "verdict": self.verdict,
            "chance": self.chance,
            "assumed": self.counting.assumed,
            "plan": self.counting.rule.plan_of,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The predicted decision on a call of ``caller``."""

    call: HypotheticalCall
    caller: KnownCaller
    rules: Sequence[RuleState] = ()  #: rules that count the call, dampers first
    others: Sequence[NotCounting] = ()  #: other rules of the scope
    overrides: Sequence[Override] = ()  #: overrides of the caller in order of precedence
    decision: Decision = field(default_factory=Decision)
    block: Override | None = None  #: override that refuses the call, regardless of the rules

    @property
    def would(self) -> str | None:
        """The prediction: "allowed" or "refused", or None if it depends on the request."""
        if self.block is not None or any(state.verdict == "refused" and state.is_sure for state in self.rules):
            return "refused"
        return None if self._doubts() else "allowed"

    @property
    def refusing(self) -> tuple[str, ...]:
        """The names of the refusing rules. It is empty if an override refuses."""
        return tuple(dict.fromkeys(state.outcome.rule for state in self.rules if state.verdict == "refused"))

    @property
    def sentence(self) -> str:
        """The prediction and its reason in one sentence."""
        names = {"call": self._call_in_words(), "scope": self.call.scope, "caller": self.caller.name}
        if self.would is None:
            scoped, plain = (
                gettext_noop("{call} to {scope} by {caller}: nobody can tell, because of rule {rule!r}: {why}."),
                gettext_noop("{call} by {caller}: nobody can tell, because of rule {rule!r}: {why}."),
            )
            rule, why, functions = self._doubts()[0]
            sentence = translatable(scoped if self.call.scope else plain, rule=rule.name, why=why, **names)
            pattern = gettext_noop("Only {functions} can tell, from a request.")
            who_can = translatable(pattern, functions=listed(functions)) if functions else ""
            return sentences([part for part in (sentence, who_can) if part])
        scoped, plain = (
            gettext_noop("{call} to {scope} by {caller} would be {verdict}."),
            gettext_noop("{call} by {caller} would be {verdict}."),
        )
        return translatable(scoped if self.call.scope else plain, verdict=self._verdict_in_words(), **names)

    def as_json(self) -> dict[str, Any]:
        call = self.call
        return {
            "ident": self.caller.name,
            "would": self.would,
            "sentence": self.sentence,
            "scope": call.scope,
            "method": call.method,
            "event": call.event,
            "rules": [state.as_json() for state in self.rules],
            "not_counting": [
                {"name": other.rule.name, "why": other.why, "doubtful": other.is_doubtful} for other in self.others
            ],
            "overrides": [override_as_json(override) for override in self.overrides],
        }

    def _doubts(self) -> list[tuple[Rule, str, Sequence[str]]]:
        """Return the rules whose outcome depends on the request, with a reason and the functions that decide it."""
        refusing = [state for state in self.rules if state.verdict == "refused" and not state.is_sure]
        unsure = [state for state in self.rules if state.verdict != "refused" and not state.is_sure]
        doubtful = [state for state in self.rules if state.counting.is_doubtful and state.is_sure]
        others = [(other.rule, other.why, ()) for other in self.others if other.is_doubtful]
        return [*map(_doubt, refusing), *others, *map(_doubt, [*unsure, *doubtful])]

    def _named_state(self) -> RuleState | None:
        """Return the rule that the sentence names: that of the decision, or a shadow rule that would refuse."""
        decided = self.decision.rule, self.decision.limit, self.decision.retry_after
        outcomes = ((state, state.outcome) for state in self.rules)
        matching = (
            state for state, outcome in outcomes if (outcome.rule, outcome.limit, outcome.retry_after) == decided
        )
        named = next(matching, None)
        if self.decision.delay or not self.decision.allowed or (named is not None and named.outcome.deferred_for):
            return named
        return next((state for state in self.rules if state.verdict == "shadowed"), named)

    def _call_in_words(self) -> Text:
        """Return the call in words, by its event or an event that the named rule counts."""
        call, named = self.call, self._named_state()
        if call.method and call.event in ("", "request"):
            pattern = gettext_noop("An {method}") if call.method[0] in "AEIO" else gettext_noop("A {method}")
            return translatable(pattern, method=call.method)
        rule = self._doubts()[0][0] if self.would is None else named and named.counting.rule
        return CALLS[call.event or next((event for event in call.events if rule and event in rule.events), "")]

    def _verdict_in_words(self) -> Text:
        named = self._named_state()
        if not self.decision.allowed and self.block is not None:
            pattern = gettext_noop("refused by override {number}: {subject} is blocked")
            return translatable(pattern, number=self.block.number, subject=self.block.subject)
        if named is None or self.decision.allowed:
            return self._allowed_in_words(named)
        return translatable("refused by rule {rule!r}: {why}", rule=named.outcome.rule, why=named.why_with_assumption)

    def _allowed_in_words(self, named: RuleState | None) -> Text:
        if named is not None and self.decision.delay:
            pattern = gettext_noop("allowed after {time} in the queue of rule {rule!r}")
            return translatable(pattern, time=in_short(self.decision.delay), rule=named.outcome.rule)
        if named is not None and named.outcome.deferred_for:
            pattern = gettext_noop("done in {time} and answered 202, by rule {rule!r}")
            return translatable(pattern, time=in_short(named.outcome.deferred_for), rule=named.outcome.rule)
        if named is not None and named.verdict == "shadowed":
            return translatable("allowed: rule {rule!r} would refuse it, but only records", rule=named.outcome.rule)
        if named is not None:
            pattern = gettext_noop("allowed: rule {rule!r} is nearest to its limit, {why}")
            return translatable(pattern, rule=named.outcome.rule, why=named.why_with_assumption)
        return translatable("allowed: no rule that refuses counts it")


def _doubt(state: RuleState) -> tuple[Rule, str, Sequence[str]]:
    return state.counting.rule, state.why_with_assumption, () if state.is_sure else state.counting.functions


def explain(store: AnyStore, snapshot: Snapshot, call: HypotheticalCall, caller: KnownCaller) -> Explanation:
    """Predict the decision on a call of this caller. Raise StoreError if the store fails."""
    covered = list(_with_named_idents(store, list(coverage(snapshot, call, caller))))
    counting = [entry for entry in covered if isinstance(entry, Counting)]
    ranked = snapshot.overrides.for_caller(caller)
    rules = _with_certainty(store, [*_damper_states(store, counting), *_peek(store, counting)])
    blocks = snapshot.overrides.blocks([counted.rule for counted in counting], ranked)
    outcomes = [state.outcome for state in rules if state.verdict in ("allowed", "refused", "shadowed")]
    return Explanation(
        call=call,
        caller=caller,
        rules=rules,
        others=[other for other in covered if isinstance(other, NotCounting)],
        overrides=ranked,
        decision=combine_outcomes((*blocks, *outcomes)),
        block=_blocking_override(ranked, counting) if blocks else None,
    )


def counts_any(store: AnyStore, snapshot: Snapshot, ident: str) -> bool:
    """Return True if a rule of any key has counted calls under this ident. Raise StoreError if the store fails."""
    rules = [rule for rule in snapshot.rules if rule.enabled]
    return any(state.used for state in _peek(store, [Counting(rule, rule, None, ident, 1) for rule in rules]))


def _with_named_idents(store: AnyStore, covered: Sequence[Counting | NotCounting]) -> Iterator[Counting | NotCounting]:
    """Yield ``covered``, and rules that have counted the caller under an ident that code names.

    Such a rule may count the caller by its key as well.
    """
    countings = [entry.if_named for entry in covered if entry.if_named is not None]
    named = {state.counting.rule.name: state.counting for state in _peek(store, countings) if state.used}
    for entry in covered:
        if isinstance(entry, Counting) or entry.rule.name not in named:
            yield entry
        if entry.rule.name in named:
            yield named[entry.rule.name]


def _with_certainty(store: AnyStore, states: Sequence[RuleState]) -> list[RuleState]:
    """Return the states with ``is_sure`` set. Other plans that the caller may have are peeked at too."""
    countings = [
        state.counting._replace(effective=other)
        for state in states
        if state.verdict in ("allowed", "refused")
        for other in state.counting.alternatives
    ]
    passes: dict[tuple[str, str], set[bool]] = {}
    for state in [*states, *_damper_states(store, countings), *_peek(store, countings)]:
        passes.setdefault(_state_key(state), set()).add(state.outcome.allowed)
    return [state._replace(is_sure=_is_sure(state, passes[_state_key(state)])) for state in states]


def _state_key(state: RuleState) -> tuple[str, str]:
    return state.outcome.rule, state.outcome.ident


def _is_sure(state: RuleState, passes: set[bool]) -> bool:
    """Return False if the outcome depends on the request.

    ``passes`` has the answers of the rule's rates under all plans that the caller may have.
    """
    if state.verdict not in ("allowed", "refused"):
        return True
    if state.verdict == "refused" and (state.counting.may_not_count or state.counting.is_doubtful):
        return False
    if state.verdict == "allowed" and is_dotted(str(state.counting.rule.cost)):
        return False  # the cost may exceed the remaining budget
    return not state.counting.alternatives or len(passes) == 1


def override_as_json(override: Override) -> dict[str, object]:
    """Return an override for JSON. ``until`` is in seconds since 1970, None for no end."""
    return {
        "number": override.number,
        "subject": override.subject,
        "effect": override.effect,
        "rules": list(override.rules),
        "words": describe_effect(override),
        "until": override.until,
    }


def with_assumption(why: str, assumed: str) -> str:
    """Return the reason with the assumption about the caller, if there is one."""
    return translatable("{why} ({assumed})", why=why, assumed=assumed) if assumed else why


def in_short(seconds: float) -> Text:
    """Return seconds in words, rounded up: "12 s", "3 min", "5 h" or "2 days"."""
    units = (1, gettext_noop("{count} s")), (60, gettext_noop("{count} min")), (3600, gettext_noop("{count} h"))
    for size, pattern in units:
        if seconds <= 100 * size:
            return translatable(pattern, count=ceil(seconds / size))
    return translatable("{count} days", count=ceil(seconds / 86_400))


def _blocking_override(ranked: Sequence[Override], counting: Sequence[Counting]) -> Override | None:
    for counted in counting:
        if counted.override is not None and counted.override.effect == "block":
            return counted.override
    return next((override for override in ranked if override.effect == "block"), None)


def _peek(store: AnyStore, counting: Sequence[Counting]) -> Iterator[RuleState]:
    exact = [counted for counted in counting if not counted.rule.decided_locally]
    for begin in range(0, len(exact), BATCH_RULES):
        batch = [(counted, charge) for counted in exact[begin : begin + BATCH_RULES] for charge in _charges(counted)]
        decision = run(decide_charges(BlockingIo(store), [charge for _, charge in batch], commit=False))
        if decision.degraded and decision.cause is not None:
            raise StoreError(decision.cause)
        yield from (RuleState(counted, outcome) for (counted, _), outcome in zip(batch, decision.outcomes, strict=True))


def _charges(counted: Counting) -> Sequence[Charge]:
    return charges_of(counted.rule if counted.effective is None else counted.effective, counted.ident, counted.cost)


def _damper_states(store: AnyStore, counting: Sequence[Counting]) -> Iterator[RuleState]:
    """Yield the states of dampers, by the reports of all processes. Each process may still refuse another share."""
    damped = [(counted, charge) for counted in counting if counted.rule.decided_locally for charge in _charges(counted)]
    reports = [DamperReport(charge.rule.id, charge.ident, "", 0, None, ()) for _, charge in damped]
    replies = store.aggregator.damp(reports) if reports else ()
    for (counted, (rule, ident, _)), reply in zip(damped, replies, strict=True):
        if isinstance(reply, BaseException):
            raise reply
        window = rule.rate.window_us if rule.rate else 0
        allowance = Allowance(rule.params.limit, window)
        chance = factor(attempted(rule.estimator, reply.counts, allowance), allowance.per_sub)
        used_share = max(count.attempted for count in reply.counts[:2]) / allowance.per_sub
        left = 0 if chance else max(0, int(allowance.limit * (1 - used_share)))
        reason = Reason.SUPPRESSED if chance else Reason.WITHIN
        passes = chance < REFUSING_CHANCE
        wait = 0.0 if passes else 1.0
        outcome = Outcome(
            rule.name, ident, passes, allowance.limit, left, wait, wait, reason, rule.is_shadow, rule.window
        )
        yield RuleState(counted, outcome._replace(factor=chance), chance)

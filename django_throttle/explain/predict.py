"""What would happen to a call of somebody now, and why: peeks, which charge nothing."""

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
from django_throttle.core.texts import Text, gettext_lazy, gettext_noop, listed, sentences
from django_throttle.exceptions import StoreError
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.local.damper_aggregate import Allowance, Report, attempted, factor
from django_throttle.rulebook.coverage import Counting, HypotheticalCall, NotCounting, coverage
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.stores import AnyStore
from django_throttle.stores.base import BlockingIo

TOGETHER: Final = 100  # rules peeked at in one round trip
MOST: Final = 0.5  # share of calls: where a damper refuses as many, a call is said to be refused
CALLS: Final = {
    "": gettext_lazy("A call"),
    "request": gettext_lazy("A request"),
    "inflight": gettext_lazy("A request in flight"),
    "connect": gettext_lazy("A new WebSocket"),
    "connection": gettext_lazy("A new WebSocket"),
    "message": gettext_lazy("A message"),
    "send": gettext_lazy("An outgoing message"),
    "publish": gettext_lazy("A publication"),
    "task": gettext_lazy("A task"),
}
# What becomes of a call by one rule.
VERDICTS: Final = {
    "allowed": gettext_lazy("allowed"),
    "blocked": gettext_lazy("blocked"),
    "exempt": gettext_lazy("exempt"),
    "refused": gettext_lazy("refused"),
    "shadowed": gettext_lazy("shadowed"),
}
# Why it was refused, by the reason that was recorded.
REASONS: Final[dict[str, Text]] = {
    Reason.EXCEEDED: gettext_lazy("over the limit"),
    Reason.TOO_COSTLY: gettext_lazy("costs more than is ever allowed at once"),
    Reason.BLOCKED: gettext_lazy("blocked by an override"),
    Reason.SUPPRESSED: gettext_lazy("in the share that a damper refuses"),
    Reason.NO_ADDRESS: gettext_lazy("the server reports no address"),
    Reason.STORE_FAILED: gettext_lazy("the store failed"),
}


class RuleState(NamedTuple):
    """A rule that counts the call, or one of its rates, and what it says of the call now.

    Under an override that exempts or blocks, ``outcome`` is what the rule would say without it. ``chance`` is the share
    of calls that a damper refuses. ``is_sure`` is False where the call may pass, or be refused, after all.
    """

    counting: Counting
    outcome: Outcome
    chance: float = 0.0
    is_sure: bool = True

    @property
    def used(self) -> int:
        return max(0, self.outcome.limit - self.outcome.remaining)

    @property
    def verdict(self) -> str:
        """What becomes of the call by this rule: "blocked", "exempt", "refused", "shadowed" or "allowed"."""
        override = self.counting.override
        if override is not None and override.effect in ("block", "exempt"):
            return "blocked" if override.effect == "block" else "exempt"
        return self.outcome.verdict

    @property
    def why(self) -> str:
        """How much is used, and when a refused call could pass."""
        one = self.outcome
        if one.reason is Reason.TOO_COSTLY:
            pattern = gettext_noop("a call costs more than the {most:,} that it ever allows at once")
            return gettext_lazy(pattern, most=one.largest or one.limit)
        if one.reason is Reason.SUPPRESSED:
            return gettext_lazy("{share:.0%} of the calls are refused now", share=self.chance)
        if one.allowed:
            return self._use()
        if one.window is None:
            return gettext_lazy("{use}, free when one ends", use=self._use())
        return gettext_lazy("{use}, free in {time}", use=self._use(), time=in_short(one.retry_after or 0.0))

    @property
    def assuming(self) -> str:
        """The same, and what had to be assumed of the caller."""
        return with_assumption(self.why, self.counting.assumed)

    def _use(self) -> Text:
        one, (rule, held, override, *_) = self.outcome, self.counting
        plan = rule.plan_of
        if plan and override is not None and held is not None and not held.plan_of:
            pattern = gettext_noop("{plan} (changed by override {number})")
            plan = gettext_lazy(pattern, plan=plan, number=override.number)
        used = gettext_noop("{used:,} of {limit:,} used"), gettext_noop("{used:,} of {limit:,} by plan {plan} used")
        open_ = gettext_noop("{used:,} of {limit:,} open"), gettext_noop("{used:,} of {limit:,} by plan {plan} open")
        pattern = (open_ if one.window is None else used)[bool(plan)]
        return gettext_lazy(pattern, used=self.used, limit=one.limit, plan=plan)

    def as_json(self) -> dict[str, object]:
        one, override = self.outcome, self.counting.override
        return {
            "name": one.rule,
            "limit": one.limit,
            "used": self.used,
            "remaining": one.remaining,
            "reset_after": one.reset_after,
            "override": None if override is None else override_as_json(override),
            "retry_after": one.retry_after,
            "window": one.window,
            "unit": one.unit,
            "ident": one.ident,
            "verdict": self.verdict,
            "chance": self.chance,
            "assumed": self.counting.assumed,
            "plan": self.counting.rule.plan_of,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """A call of ``caller``: the rules that count it, dampers first, and those of its scope that do not.

    ``overrides`` are all that hold for the caller, the one that precedes first; ``block`` is the one that refuses the
    call, whatever the rules say.
    """

    call: HypotheticalCall
    caller: KnownCaller
    rules: Sequence[RuleState] = ()
    others: Sequence[NotCounting] = ()
    overrides: Sequence[Override] = ()
    decision: Decision = field(default_factory=Decision)
    block: Override | None = None

    @property
    def would(self) -> str | None:
        """What would happen: "allowed" or "refused"; None where nobody can tell."""
        if self.block is not None or any(state.verdict == "refused" and state.is_sure for state in self.rules):
            return "refused"
        return None if self._doubt() else "allowed"

    @property
    def refusing(self) -> tuple[str, ...]:
        """The names of the rules that refuse; none where an override does."""
        return tuple(dict.fromkeys(one.outcome.rule for one in self.rules if one.verdict == "refused"))

    @property
    def sentence(self) -> str:
        """What would happen, and why, in one sentence."""
        told = {"call": self._call(), "scope": self.call.scope, "caller": self.caller.name}
        if self.would is None:
            scoped, plain = (
                gettext_noop("{call} to {scope} by {caller}: nobody can tell, because of rule {rule!r}: {why}."),
                gettext_noop("{call} by {caller}: nobody can tell, because of rule {rule!r}: {why}."),
            )
            rule, why, functions = self._doubt()[0]
            sentence = gettext_lazy(scoped if self.call.scope else plain, rule=rule.name, why=why, **told)
            pattern = gettext_noop("Only {functions} can tell, from a request.")
            who_can = gettext_lazy(pattern, functions=listed(functions)) if functions else ""
            return sentences([part for part in (sentence, who_can) if part])
        scoped, plain = (
            gettext_noop("{call} to {scope} by {caller} would be {verdict}."),
            gettext_noop("{call} by {caller} would be {verdict}."),
        )
        return gettext_lazy(scoped if self.call.scope else plain, verdict=self._verdict(), **told)

    def as_json(self) -> dict[str, Any]:
        call = self.call
        return {
            "ident": self.caller.name,
            "would": self.would,
            "sentence": self.sentence,
            "scope": call.scope,
            "method": call.method,
            "event": call.event,
            "rules": [one.as_json() for one in self.rules],
            "not_counting": [
                {"name": one.rule.name, "why": one.why, "doubtful": one.is_doubtful} for one in self.others
            ],
            "overrides": [override_as_json(one) for one in self.overrides],
        }

    def _doubt(self) -> list[tuple[Rule, str, Sequence[str]]]:
        """Return the rules of which nobody can tell what they do with the call, why, and which functions can."""
        refusing = [state for state in self.rules if state.verdict == "refused" and not state.is_sure]
        unsure = [state for state in self.rules if state.verdict != "refused" and not state.is_sure]
        doubtful = [state for state in self.rules if state.counting.is_doubtful and state.is_sure]
        others = [(other.rule, other.why, ()) for other in self.others if other.is_doubtful]
        return [*map(_doubt_of, refusing), *others, *map(_doubt_of, [*unsure, *doubtful])]

    def _said(self) -> RuleState | None:
        """The rule that the decision names, or one that only records and would refuse what passes at once."""
        named = self.decision.rule, self.decision.limit, self.decision.retry_after
        outcomes = ((one, one.outcome) for one in self.rules)
        said = next((one for one, told in outcomes if (told.rule, told.limit, told.retry_after) == named), None)
        if self.decision.delay or not self.decision.allowed or (said is not None and said.outcome.deferred_for):
            return said
        return next((one for one in self.rules if one.verdict == "shadowed"), said)

    def _call(self) -> Text:
        """The call by the event that is asked about, else by one that the rule counts which the sentence names."""
        call, said = self.call, self._said()
        if call.method and call.event in ("", "request"):
            pattern = gettext_noop("An {method}") if call.method[0] in "AEIO" else gettext_noop("A {method}")
            return gettext_lazy(pattern, method=call.method)
        rule = self._doubt()[0][0] if self.would is None else said and said.counting.rule
        return CALLS[call.event or next((event for event in call.events if rule and event in rule.events), "")]

    def _verdict(self) -> Text:
        said = self._said()
        if not self.decision.allowed and self.block is not None:
            pattern = gettext_noop("refused by override {number}: {subject} is blocked")
            return gettext_lazy(pattern, number=self.block.number, subject=self.block.subject)
        if said is None or self.decision.allowed:
            return self._how_allowed(said)
        return gettext_lazy("refused by rule {rule!r}: {why}", rule=said.outcome.rule, why=said.assuming)

    def _how_allowed(self, said: RuleState | None) -> Text:
        if said is not None and self.decision.delay:
            pattern = gettext_noop("allowed after {time} in the queue of rule {rule!r}")
            return gettext_lazy(pattern, time=in_short(self.decision.delay), rule=said.outcome.rule)
        if said is not None and said.outcome.deferred_for:
            pattern = gettext_noop("done in {time} and answered 202, by rule {rule!r}")
            return gettext_lazy(pattern, time=in_short(said.outcome.deferred_for), rule=said.outcome.rule)
        if said is not None and said.verdict == "shadowed":
            return gettext_lazy("allowed: rule {rule!r} would refuse it, but only records", rule=said.outcome.rule)
        if said is not None:
            pattern = gettext_noop("allowed: rule {rule!r} is nearest to its limit, {why}")
            return gettext_lazy(pattern, rule=said.outcome.rule, why=said.assuming)
        return gettext_lazy("allowed: no rule that refuses counts it")


def _doubt_of(state: RuleState) -> tuple[Rule, str, Sequence[str]]:
    return state.counting.rule, state.assuming, () if state.is_sure else state.counting.functions


def explain(store: AnyStore, snapshot: Snapshot, call: HypotheticalCall, caller: KnownCaller) -> Explanation:
    """Peek at every rule that counts a call of this caller. Raises StoreError: then nobody knows."""
    covered = list(_with_named(store, list(coverage(snapshot, call, caller))))
    counting = [one for one in covered if isinstance(one, Counting)]
    ranked = snapshot.overrides.of(caller)
    rules = _doubted(store, [*_damped(store, counting), *_peeked(store, counting)])
    blocks = snapshot.overrides.blocks([one.rule for one in counting], ranked)
    outcomes = [one.outcome for one in rules if one.verdict in ("allowed", "refused", "shadowed")]
    return Explanation(
        call=call,
        caller=caller,
        rules=rules,
        others=[one for one in covered if isinstance(one, NotCounting)],
        overrides=ranked,
        decision=combine_outcomes((*blocks, *outcomes)),
        block=_blocking(ranked, counting) if blocks else None,
    )


def counts_any(store: AnyStore, snapshot: Snapshot, ident: str) -> bool:
    """Return True if a rule has counted calls under this ident, whatever its key. Raises StoreError."""
    rules = [rule for rule in snapshot.rules if rule.enabled]
    return any(state.used for state in _peeked(store, [Counting(rule, rule, None, ident, 1) for rule in rules]))


def _with_named(store: AnyStore, covered: Sequence[Counting | NotCounting]) -> Iterator[Counting | NotCounting]:
    """Yield the same, and rules that have counted the caller's ident though their keys do not make it.

    The code names that ident. The rule may count the caller by its key as well.
    """
    countings = [each.if_named for each in covered if each.if_named is not None]
    named = {state.counting.rule.name: state.counting for state in _peeked(store, countings) if state.used}
    for each in covered:
        if isinstance(each, Counting) or each.rule.name not in named:
            yield each
        if each.rule.name in named:
            yield named[each.rule.name]


def _doubted(store: AnyStore, states: Sequence[RuleState]) -> list[RuleState]:
    """The same; those are not sure that refuse what they may not count, or that say another thing by another plan."""
    countings = [
        state.counting._replace(held=other)
        for state in states
        if state.verdict in ("allowed", "refused")
        for other in state.counting.alternatives
    ]
    passes: dict[tuple[str, str], set[bool]] = {}
    for state in [*states, *_damped(store, countings), *_peeked(store, countings)]:
        passes.setdefault(_counted(state), set()).add(state.outcome.allowed)
    return [state._replace(is_sure=_is_sure(state, passes[_counted(state)])) for state in states]


def _counted(state: RuleState) -> tuple[str, str]:
    return state.outcome.rule, state.outcome.ident


def _is_sure(state: RuleState, passes: set[bool]) -> bool:
    """``passes`` are the answers of the rule's rates under all plans that the caller may have."""
    if state.verdict not in ("allowed", "refused"):
        return True
    if state.verdict == "refused" and (state.counting.may_not_count or state.counting.is_doubtful):
        return False
    if state.verdict == "allowed" and is_dotted(str(state.counting.rule.cost)):
        return False  # it may cost more than is left
    return not state.counting.alternatives or len(passes) == 1


def override_as_json(override: Override) -> dict[str, object]:
    """``until`` is in seconds since 1970, None for no end."""
    return {
        "number": override.number,
        "subject": override.subject,
        "effect": override.effect,
        "rules": list(override.rules),
        "words": describe_effect(override),
        "until": override.until,
    }


def with_assumption(why: str, assumed: str) -> str:
    """What a rule says of a call, with what had to be assumed of the caller."""
    return gettext_lazy("{why} ({assumed})", why=why, assumed=assumed) if assumed else why


def in_short(seconds: float) -> Text:
    """A wait, rounded up: "12 s", "3 min", "5 h" or "2 days"."""
    units = (1, gettext_noop("{count} s")), (60, gettext_noop("{count} min")), (3600, gettext_noop("{count} h"))
    for size, pattern in units:
        if seconds <= 100 * size:
            return gettext_lazy(pattern, count=ceil(seconds / size))
    return gettext_lazy("{count} days", count=ceil(seconds / 86_400))


def _blocking(ranked: Sequence[Override], counting: Sequence[Counting]) -> Override | None:
    for one in counting:
        if one.override is not None and one.override.effect == "block":
            return one.override
    return next((override for override in ranked if override.effect == "block"), None)


def _peeked(store: AnyStore, counting: Sequence[Counting]) -> Iterator[RuleState]:
    exact = [counted for counted in counting if not counted.rule.decided_locally]
    for begin in range(0, len(exact), TOGETHER):
        asked = [(one, charge) for one in exact[begin : begin + TOGETHER] for charge in _charges(one)]
        decision = run(decide_charges(BlockingIo(store), [charge for _, charge in asked], commit=False))
        if decision.degraded and decision.cause is not None:
            raise StoreError(decision.cause)
        yield from (RuleState(one, outcome) for (one, _), outcome in zip(asked, decision.outcomes, strict=True))


def _charges(one: Counting) -> Sequence[Charge]:
    return charges_of(one.rule if one.held is None else one.held, one.ident, one.cost)


def _damped(store: AnyStore, counting: Sequence[Counting]) -> Iterator[RuleState]:
    """Dampers by what all processes have reported; a process that has yet to hear of it refuses another share."""
    asked = [(each, charge) for each in counting if each.rule.decided_locally for charge in _charges(each)]
    reports = [Report(charge.rule.id, charge.ident, "", 0, None, ()) for _, charge in asked]
    for (one, (rule, ident, _)), reply in zip(asked, store.aggregator.damp(reports) if reports else (), strict=True):
        if isinstance(reply, BaseException):
            raise reply
        window = rule.rate.window_us if rule.rate else 0
        allowance = Allowance(rule.params.limit, window)
        chance = factor(attempted(rule.estimator, reply.counts, allowance), allowance.per_sub)
        tried = max(count.attempted for count in reply.counts[:2]) / allowance.per_sub
        left = 0 if chance else max(0, int(allowance.limit * (1 - tried)))
        reason = Reason.SUPPRESSED if chance else Reason.WITHIN
        passes = chance < MOST
        wait = 0.0 if passes else 1.0
        outcome = Outcome(
            rule.name, ident, passes, allowance.limit, left, wait, wait, reason, rule.is_shadow, rule.window
        )
        yield RuleState(one, outcome._replace(factor=chance), chance)

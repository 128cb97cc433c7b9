"""What would happen to a call of somebody now, and why: peeks, which charge nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, NamedTuple

from django_throttle.core import Decision, Outcome, Override, Reason
from django_throttle.core.commands import Charge, charges_of
from django_throttle.core.decide import decide_charges
from django_throttle.core.decision import conclude
from django_throttle.core.overrides import describe_effect
from django_throttle.damper.aggregate import Allowance, Report, attempted, factor
from django_throttle.exceptions import StoreError
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.rulebook.coverage import Call, Counting, NotCounting, coverage
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.stores import AnyStore
from django_throttle.stores.base import run

TOGETHER: Final = 100  # rules peeked at in one round trip
MOST: Final = 0.5  # share of calls: where a damper refuses as many, a call is said to be refused
NOUNS: Final = {
    "request": "request",
    "inflight": "request in flight",
    "connect": "new WebSocket",
    "connection": "new WebSocket",
    "message": "message",
    "send": "outgoing message",
    "publish": "publication",
    "task": "task",
}


class RuleState(NamedTuple):
    """A rule that counts the call, or one of its rates, and what it says of the call now.

    Under an override that exempts or blocks, ``outcome`` is what the rule would say without it. ``chance`` is the share
    of calls that a damper refuses.
    """

    counting: Counting
    outcome: Outcome
    chance: float = 0.0

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
            return f"a call costs more than the {one.largest or one.limit:,} that it ever allows at once"
        if one.reason is Reason.SUPPRESSED:
            return f"{self.chance:.0%} of the calls are refused now"
        plan = f" by plan {self.counting.plan}" if self.counting.plan else ""
        use = f"{self.used:,} of {one.limit:,}{plan} {'open' if one.window is None else 'used'}"
        if one.allowed:
            return use
        return f"{use}, free {'when one ends' if one.window is None else f'in {in_short(one.retry_after or 0.0)}'}"

    def as_json(self) -> dict[str, Any]:
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
            "plan": self.counting.plan,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """A call of ``who``: the rules that count it, dampers first, and those of its scope that do not.

    ``overrides`` are all that hold for the caller, the one that precedes first; ``block`` is the one that refuses the
    call, whatever the rules say.
    """

    call: Call
    who: KnownCaller
    rules: Sequence[RuleState] = ()
    others: Sequence[NotCounting] = ()
    overrides: Sequence[Override] = ()
    decision: Decision = field(default_factory=Decision)
    block: Override | None = None

    @property
    def would(self) -> str:
        """What would happen: "allowed" or "refused"."""
        return "allowed" if self.decision.allowed else "refused"

    @property
    def refusing(self) -> tuple[str, ...]:
        """The names of the rules that refuse; none where an override does."""
        return tuple(dict.fromkeys(one.outcome.rule for one in self.rules if one.verdict == "refused"))

    @property
    def sentence(self) -> str:
        """What would happen, and why, in one sentence."""
        return f"{self._subject()} would be {self._verdict()}."

    def as_json(self) -> dict[str, Any]:
        call = self.call
        return {
            "ident": self.who.name,
            "would": self.would,
            "sentence": self.sentence,
            "scope": call.scope,
            "method": call.method,
            "event": call.event,
            "rules": [one.as_json() for one in self.rules],
            "not_counting": [{"name": one.rule.name, "why": one.why} for one in self.others],
            "overrides": [override_as_json(one) for one in self.overrides],
        }

    def _said(self) -> RuleState | None:
        """The rule that the decision names."""
        named = self.decision.rule, self.decision.limit, self.decision.retry_after
        for one in self.rules:
            if (one.outcome.rule, one.outcome.limit, one.outcome.retry_after) == named:
                return one
        return None

    def _subject(self) -> str:
        call, said = self.call, self._said()
        asked = [event for event in call.events if said is None or event in said.counting.rule.events]
        is_known = bool(call.event or call.method or said)
        noun = NOUNS[asked[0]] if is_known and asked else "call"
        noun = call.method if call.method and noun == "request" else noun
        article = "An" if noun[0] in "AEIOaeio" else "A"
        return f"{article} {noun}{f' to {call.scope}' if call.scope else ''} by {self.who.name}"

    def _verdict(self) -> str:
        said = self._said()
        if not self.decision.allowed and self.block is not None:
            return f"refused by override {self.block.number}: {self.block.subject} is blocked"
        if said is None or self.decision.allowed:
            return self._how_allowed(said)
        return f"refused by rule {said.outcome.rule!r}: {said.why}"

    def _how_allowed(self, said: RuleState | None) -> str:
        if said is not None and self.decision.delay:
            return f"allowed after {in_short(self.decision.delay)} in the queue of rule {said.outcome.rule!r}"
        if said is not None and said.outcome.put_off:
            return f"done in {in_short(said.outcome.put_off)} and answered 202, by rule {said.outcome.rule!r}"
        shadowing = [one.outcome.rule for one in self.rules if one.verdict == "shadowed"]
        if shadowing:
            return f"allowed: rule {shadowing[0]!r} would refuse it, but only records"
        if said is not None:
            return f"allowed: rule {said.outcome.rule!r} is nearest to its limit, {said.why}"
        return "allowed: no rule that refuses counts it"


def explain(store: AnyStore, snapshot: Snapshot, call: Call, who: KnownCaller) -> Explanation:
    """Peek at every rule that counts a call of this caller. Raises StoreError: then nobody knows."""
    covered = list(coverage(snapshot, call, who))
    counting = [one for one in covered if isinstance(one, Counting)]
    ranked = snapshot.overrides.of(who)
    rules = [*_damped(store, counting), *_peeked(store, counting)]
    blocks = snapshot.overrides.blocks([one.rule for one in counting], ranked)
    outcomes = [one.outcome for one in rules if one.verdict in ("allowed", "refused", "shadowed")]
    return Explanation(
        call=call,
        who=who,
        rules=rules,
        others=[one for one in covered if isinstance(one, NotCounting)],
        overrides=ranked,
        decision=conclude((*blocks, *outcomes)),
        block=_blocking(ranked, counting) if blocks else None,
    )


def override_as_json(override: Override) -> dict[str, Any]:
    """``until`` is in seconds since 1970, None for no end."""
    return {
        "number": override.number,
        "subject": override.subject,
        "effect": override.effect,
        "rules": list(override.rules),
        "words": describe_effect(override),
        "until": override.until,
    }


def in_short(seconds: float) -> str:
    """A wait, rounded up: "12 s", "3 min", "5 h" or "2 days"."""
    for size, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if seconds <= 100 * size:
            return f"{ceil(seconds / size)} {unit}"
    return f"{ceil(seconds / 86_400)} days"


def _blocking(ranked: Sequence[Override], counting: Sequence[Counting]) -> Override | None:
    for one in counting:
        if one.override is not None and one.override.effect == "block":
            return one.override
    return next((override for override in ranked if override.effect == "block"), None)


def _peeked(store: AnyStore, counting: Sequence[Counting]) -> Iterator[RuleState]:
    exact = [one for one in counting if not one.rule.is_damper]
    for begin in range(0, len(exact), TOGETHER):
        asked = [(one, charge) for one in exact[begin : begin + TOGETHER] for charge in _charges(one)]
        decision = run(decide_charges([charge for _, charge in asked], commit=False), store)
        if decision.degraded and decision.cause is not None:
            raise StoreError(decision.cause)
        yield from (RuleState(one, outcome) for (one, _), outcome in zip(asked, decision.outcomes, strict=True))


def _charges(one: Counting) -> Sequence[Charge]:
    return charges_of(one.rule if one.held is None else one.held, one.ident, one.cost)


def _damped(store: AnyStore, counting: Sequence[Counting]) -> Iterator[RuleState]:
    """Dampers by what all processes have reported; a process that has yet to hear of it refuses another share."""
    asked = [(one, charge) for one in counting if one.rule.is_damper for charge in _charges(one)]
    reports = [Report(charge.rule.id, charge.ident, "", 0, None, ()) for _, charge in asked]
    for (one, (rule, ident, _)), reply in zip(asked, store.aggregator.damp(reports) if reports else (), strict=True):
        if isinstance(reply, BaseException):
            raise reply
        window = rule.rate.window_us if rule.rate else 0
        allowance = Allowance(rule.plan.limit, window)
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

"""What one socket counts by itself: its own rules, by the core's algorithms, on the monotonic clock."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from django_throttle.core.algorithms import State, StepResult
from django_throttle.core.commands import Answer, Charge, wait_once_charged
from django_throttle.core.decision import Decision, Reason, combine_outcomes, outcomes_of
from django_throttle.core.rule import Rule

# Seconds. A frame that waits delays all that its client sends after it, which some servers keep in memory.
MAX_DELAY: Final = 2.0


class CounterResult(NamedTuple):
    """The result of charging all or none; ``steps`` has one for each charge."""

    allowed: bool
    steps: list[StepResult]

    @property
    def is_ordinary(self) -> bool:
        """True when every charge fits, those included that only record."""
        return all([step.retry == 0 for step in self.steps])  # noqa: C419 - on the hot path


class SocketCounters:
    """The counters of one socket, by rule; they end with it."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[str, State] = {}

    def peek(self, charges: tuple[Charge, ...], now: float) -> CounterResult:
        at, states = round(now * 1_000_000), self._states
        steps, allowed = [], True
        for rule, _, cost in charges:
            step = rule.params.step(states.get(rule.id), at, cost, rule.count_denied)
            allowed = allowed and (step.retry == 0 or rule.is_shadow)
            steps.append(step)
        return CounterResult(allowed, steps)

    def charge(self, charges: tuple[Charge, ...], now: float) -> CounterResult:
        """Charge all of them or none, ``now`` in seconds; refused ones are charged where the rule says so."""
        result = self.peek(charges, now)
        for place, ((rule, _, cost), step) in enumerate(zip(charges, result.steps, strict=True)):
            # As in a store: a refused call leaves the state as it was, or as its rule counts refused calls.
            made = step.charged_state is not None and (result.allowed or rule.count_denied)
            if cost and (state := step.charged_state if made else step.refused_state) is not None:
                self._states[rule.id] = state
            if cost and made and not result.allowed:
                wait = wait_once_charged(rule, rule.params, step, round(now * 1_000_000), cost)
                result.steps[place] = step._replace(retry=wait)
        return result

    def clear(self) -> None:
        self._states.clear()


def decision_of(charges: tuple[Charge, ...], result: CounterResult) -> Decision:
    answers = []
    for (rule, _, cost), step in zip(charges, result.steps, strict=True):
        made = cost and step.charged_state is not None and (result.allowed or rule.count_denied)
        left, reset = step[3:5] if made else step[1:3]
        answers.append(Answer(step.retry, left, reset))
    return combine_outcomes(outcomes_of(charges, answers))


@lru_cache(maxsize=1024)
def with_capped_delay(rule: Rule) -> Rule:
    """The rule as a socket keeps it by itself: what would wait for more than two seconds is refused."""
    if rule.action != "delay" or (rule.max_delay is not None and rule.max_delay <= MAX_DELAY):
        return rule
    return replace(rule, max_delay=MAX_DELAY)


def refused_for_delay(decision: Decision) -> Decision:
    """A refusal, by the rules that would have a frame wait for longer than a socket lets one wait."""
    outcomes = [
        one
        if one.delay <= MAX_DELAY
        else one._replace(allowed=False, retry_after=one.delay - MAX_DELAY, delay=0.0, reason=Reason.EXCEEDED)
        for one in decision.outcomes
    ]
    return combine_outcomes(tuple(outcomes), degraded=decision.degraded)._replace(cause=decision.cause)

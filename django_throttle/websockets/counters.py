"""Counters of a single socket, for rules with the key ``connection``: the core's algorithms on the monotonic clock."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from django_throttle.core.algorithms import State, StepResult
from django_throttle.core.commands import Answer, Charge, wait_once_charged
from django_throttle.core.decision import Decision, Reason, combine_outcomes, outcomes_of
from django_throttle.core.rule import Rule

# Seconds. Later frames of the client wait too, and some servers keep them in memory.
MAX_DELAY: Final = 2.0


class CounterResult(NamedTuple):
    """The result of charging all charges or none."""

    allowed: bool
    steps: list[StepResult]  #: step for each charge

    @property
    def is_ordinary(self) -> bool:
        """True if every charge fits, those of shadow rules included."""
        return all([step.retry == 0 for step in self.steps])  # noqa: C419 - on the hot path


class SocketCounters:
    """The counters of one socket by rule."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[str, State] = {}

    def peek(self, charges: tuple[Charge, ...], now: float) -> CounterResult:
        """Return the result of the charges at ``now``, in seconds, without charging them."""
        at, states = round(now * 1_000_000), self._states
        steps, allowed = [], True
        for rule, _, cost in charges:
            step = rule.params.step(states.get(rule.id), at, cost, rule.count_denied)
            allowed = allowed and (step.retry == 0 or rule.is_shadow)
            steps.append(step)
        return CounterResult(allowed, steps)

    def charge(self, charges: tuple[Charge, ...], now: float) -> CounterResult:
        """Charge all charges or none at ``now``, in seconds. Rules with ``count_denied`` are charged in any case."""
        result = self.peek(charges, now)
        for index, ((rule, _, cost), step) in enumerate(zip(charges, result.steps, strict=True)):
            is_charged = step.charged_state is not None and (result.allowed or rule.count_denied)
            if cost and (state := step.charged_state if is_charged else step.refused_state) is not None:
                self._states[rule.id] = state
            if cost and is_charged and not result.allowed:
                wait = wait_once_charged(rule, rule.params, step, round(now * 1_000_000), cost)
                result.steps[index] = step._replace(retry=wait)
        return result

    def clear(self) -> None:
        self._states.clear()


def decision_of(charges: tuple[Charge, ...], result: CounterResult) -> Decision:
    """Return the decision on charges from the result of charging them."""
    answers = []
    for (rule, _, cost), step in zip(charges, result.steps, strict=True):
        is_charged = cost and step.charged_state is not None and (result.allowed or rule.count_denied)
        left, reset = step[3:5] if is_charged else step[1:3]
        answers.append(Answer(step.retry, left, reset))
    return combine_outcomes(outcomes_of(charges, answers))


@lru_cache(maxsize=1024)
def with_capped_delay(rule: Rule) -> Rule:
    """Return the rule with a delay of at most MAX_DELAY. It refuses frames that would wait longer."""
    if rule.action != "delay" or (rule.max_delay is not None and rule.max_delay <= MAX_DELAY):
        return rule
    return replace(rule, max_delay=MAX_DELAY)


def refused_for_delay(decision: Decision) -> Decision:
    """Return a refusal by the rules whose delay is longer than MAX_DELAY."""
    outcomes = [
        outcome
        if outcome.delay <= MAX_DELAY
        else outcome._replace(allowed=False, retry_after=outcome.delay - MAX_DELAY, delay=0.0, reason=Reason.EXCEEDED)
        for outcome in decision.outcomes
    ]
    return combine_outcomes(tuple(outcomes), degraded=decision.degraded)._replace(cause=decision.cause)

"""Plays a case against a limiter: what is asked and compared is written once, for both drivers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from django_throttle.core import Decision
from django_throttle.limiter import Limiter
from tests.cases import ANY, Case, Step
from tests.clock import FrozenClock

# What is called, with what; the answer comes back.
Script = Generator[tuple[str, tuple[Any, ...]], Any, None]


def play(case: Case, limiter: Limiter, clock: FrozenClock) -> None:
    script = _script(case, clock)
    try:
        verb, arguments = next(script)
        while True:
            verb, arguments = script.send(getattr(limiter, verb)(*arguments))
    except StopIteration:
        return


async def aplay(case: Case, limiter: Limiter, clock: FrozenClock) -> None:
    script = _script(case, clock)
    try:
        verb, arguments = next(script)
        while True:
            verb, arguments = script.send(await getattr(limiter, f"a{verb}")(*arguments))
    except StopIteration:
        return


def _script(case: Case, clock: FrozenClock) -> Script:
    for number, step in enumerate(case.steps, 1):
        clock.to(step.at)
        if step.verb == "reset":
            removed = yield "reset", (step.ident,)
            assert removed == step.removed, f"step {number}: {removed} keys removed"
            continue
        decisions: list[Decision] = []
        for _ in range(step.times):
            decisions.append((yield step.verb, (step.ident, step.cost)))  # noqa: PERF401  (a generator's yield)
        told = _told(step, decisions)
        wanted = {name: value for name, value in _wanted(step).items() if value is not ANY}
        assert {name: told[name] for name in wanted} == wanted, f"step {number}, {step}"


def _wanted(step: Step) -> dict[str, Any]:
    return {
        "admitted": ANY if step.admitted is None else step.admitted,
        "allowed": step.allowed,
        "remaining": step.remaining,
        "retry": _us(step.retry),
        "reset": _us(step.reset),
        "rule": step.rule,
        "reason": step.reason,
        "each": step.each,
        "delay": _us(step.delay),
    }


def _told(step: Step, decisions: list[Decision]) -> dict[str, Any]:
    last = decisions[-1]
    return {
        "admitted": sum(decision.allowed for decision in decisions),
        "allowed": last.allowed,
        "remaining": last.remaining,
        "retry": _us(last.retry_after),
        "reset": _us(last.reset_after),
        "rule": last.rule,
        "reason": next((outcome.reason for outcome in last.outcomes if outcome.rule == last.rule), None),
        "each": tuple(outcome.remaining for outcome in last.outcomes),
        "delay": _us(last.delay),
    }


def _us(seconds: Any) -> Any:
    return round(seconds * 1_000_000) if isinstance(seconds, (int, float)) else seconds

"""The commands of a flow, its decision when the store does not answer, and the decision after a refund."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Charge, Decision, Reason, Rule
from django_throttle.core.commands import Answer, Command, Decide, DecideLocally, charge, refund_for_status
from django_throttle.core.decide import after_refunds, decide_charges, refund_charges
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import arun, run
from tests import strategies
from tests.clock import FrozenClock

Drive = Callable[..., Any]


class ScriptedStore:
    """Answers from a list and keeps what it was asked; an exception in the list is raised."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[Command] = []

    def execute(self, command: Command) -> Any:
        self.asked.append(command)
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def aexecute(self, command: Command) -> Any:
        await asyncio.sleep(0)
        return self.execute(command)


@pytest.fixture(params=[run, lambda flow, store: asyncio.run(arun(flow, store))], ids=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    return request.param  # type: ignore[no-any-return]


def charges(*rules: Rule) -> tuple[Charge, ...]:
    return tuple(charge(rule, "user:1", 1) for rule in rules)


def rule(name: str, policy: str = "local", **options: Any) -> Rule:
    return Rule(name, "10/min", on_store_failure=policy, **options)


def down(cause: Cause = Cause.UNAVAILABLE) -> StoreError:
    return StoreError(cause, retry_after=3.0)


def test_one_command_for_all_rules(drive: Drive) -> None:
    asked = charges(rule("a"), rule("b"))
    store = ScriptedStore((Answer(0, 9, 60_000_000), Answer(1_500_000, 0, 2_000_000)))
    decision = drive(decide_charges(asked), store)
    assert store.asked == [Decide(asked, True, None)]
    assert (decision.allowed, decision.rule, decision.retry_after, decision.reset_after) == (False, "b", 1.5, 2.0)
    assert [(outcome.reason, outcome.window) for outcome in decision.outcomes] == [
        (Reason.WITHIN, 60),
        (Reason.EXCEEDED, 60),
    ]
    assert not decision.degraded


@pytest.mark.parametrize(
    ("rules", "local", "commit", "expected"),
    [
        ([rule("a", "allow"), rule("b"), rule("c", "allow"), rule("d")], (1, 3), True, (True, False, "d")),
        # Policies of several rules: what one of them denies is charged nowhere, unless it only records.
        ([rule("a"), rule("b", "deny")], (0,), False, (False, True, "b")),
        ([rule("a"), rule("b", "deny", action="shadow")], (0,), True, (True, False, "a")),
    ],
    ids=["mixed", "denied", "shadow"],
)
def test_policies_mix(drive: Drive, rules: list[Rule], local: tuple[int, ...], commit: bool, expected: Any) -> None:
    asked = charges(*rules)
    store = ScriptedStore(down(), tuple(Answer(0, 4 - number, 0) for number in range(len(local))))
    decision = drive(decide_charges(asked), store)
    assert store.asked[1] == DecideLocally(Decide(tuple(asked[number] for number in local), commit, None))
    assert (decision.allowed, decision.unavailable, decision.rule) == expected
    assert [outcome.rule for outcome in decision.outcomes] == [one.name for one in rules]


def test_only_a_store_error_is_an_answer(drive: Drive) -> None:
    for error in (ValueError("bug"), asyncio.CancelledError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            drive(decide_charges(charges(rule("a", "allow"))), ScriptedStore(error))
    with pytest.raises(StoreError):
        drive(decide_charges(charges(rule("a"))), ScriptedStore(down(), down()))


def after_status(decision: Decision, status: int) -> Decision:
    back = refund_for_status(decision.receipt, status) if decision.receipt else None
    return after_refunds(decision, [back] if back else [])


@given(
    strategies.rate_rules("login", strategies.rates(st.integers(1, 30)), {"count_on": (401,)}),
    st.integers(0, 3),
    st.data(),
)
def test_as_the_store_says_afterwards(rule: Rule, before: int, data: st.DataObject) -> None:
    clock = FrozenClock()
    limiter = Limiter([rule], MemoryStore(clock))
    for _ in range(before):
        limiter.acquire("ip:1")
        clock.tick(data.draw(st.floats(0, 1)) * (rule.window or 0))
    decision = limiter.acquire("ip:1")
    told = after_status(decision, 200)
    if decision.receipt is not None:
        run(refund_charges(refund_for_status(decision.receipt, 200)), limiter.store)
        left = limiter.peek("ip:1", 0)
        assert told.outcomes[0].remaining <= (left.remaining or 0)
        if rule.enforce_at == 1:
            assert told.outcomes[0].remaining == left.remaining
            assert told.outcomes[0].reset_after >= left.reset_after - 0.000002

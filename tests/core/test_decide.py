"""What a flow asks for, what it decides when the store does not answer, and what goes back of a charge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Charge, Decision, Lease, Reason, Rule
from django_throttle.core.commands import (
    Answer,
    Command,
    Decide,
    DecideLocally,
    Release,
    Reset,
    SendControl,
    charge,
    check_cost,
    refund_for_status,
)
from django_throttle.core.control_messages import RESET, ControlMessage
from django_throttle.core.decide import (
    Flow,
    after_refunds,
    decide_charges,
    refund_charges,
    release_lease,
    reset_charges,
)
from django_throttle.exceptions import Cause, InvalidCost, StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import arun, run
from tests import strategies
from tests.clock import FrozenClock

CAP = Rule("cap", limit=2, algorithm="concurrency")


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


def drive_sync(given: Flow[Any], store: ScriptedStore) -> Any:
    return run(given, store)


def drive_async(given: Flow[Any], store: ScriptedStore) -> Any:
    return asyncio.run(arun(given, store))


@pytest.fixture(params=[drive_sync, drive_async], ids=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param  # type: ignore[no-any-return]


def charges(*rules: Rule, ident: str = "user:1", cost: int = 1) -> tuple[Charge, ...]:
    return tuple(charge(rule, ident, cost) for rule in rules)


def rule(name: str, policy: str = "local", **options: Any) -> Rule:
    return Rule(name, "10/min", on_store_failure=policy, **options)


def down(cause: Cause = Cause.UNAVAILABLE) -> StoreError:
    return StoreError(cause, retry_after=3.0)


def test_nothing_to_charge_asks_nothing(drive: Callable[..., Any]) -> None:
    store = ScriptedStore()
    assert drive(decide_charges(()), store) == Decision()
    assert drive(reset_charges(()), store) == 0
    assert drive(release_lease(None), store) is None
    assert store.asked == []


def test_one_command_for_all_rules(drive: Callable[..., Any]) -> None:
    given = charges(rule("a"), rule("b"))
    store = ScriptedStore((Answer(0, 9, 60_000_000), Answer(1_500_000, 0, 2_000_000)))
    decision = drive(decide_charges(given), store)
    assert store.asked == [Decide(given, True, None)]
    assert (decision.allowed, decision.rule, decision.retry_after, decision.reset_after) == (False, "b", 1.5, 2.0)
    assert [outcome.reason for outcome in decision.outcomes] == [Reason.WITHIN, Reason.EXCEEDED]
    assert [outcome.window for outcome in decision.outcomes] == [60, 60]
    assert not decision.degraded


def test_peek_and_lease_are_told_to_the_store(drive: Callable[..., Any]) -> None:
    given = charges(CAP)
    store = ScriptedStore((Answer(0, 1, 0),), (Answer(0, 1, 0),))
    assert drive(decide_charges(given, commit=False, lease="lease"), store).lease is None
    decision = drive(decide_charges(given, lease="lease"), store)
    assert decision.lease == Lease("lease", ((CAP.id, "user:1"),))
    assert [command.commit for command in store.asked if isinstance(command, Decide)] == [False, True]


@pytest.mark.parametrize("told", [None, down()], ids=["told", "not told"])
def test_whoever_is_connected_hears_of_a_reset(drive: Callable[..., Any], told: StoreError | None) -> None:
    given = charges(rule("a"))
    store = ScriptedStore(1, told)
    assert drive(reset_charges(given), store) == 1
    assert store.asked == [Reset(given), SendControl((ControlMessage(RESET, ident="user:1"),))]


def test_release_is_one_command(drive: Callable[..., Any]) -> None:
    lease = Lease("lease", ((CAP.id, "user:1"),))
    store = ScriptedStore(None, down())
    assert drive(release_lease(lease), store) is None
    assert drive(release_lease(lease), store) is None, "the store's bookkeeping repeats what it could not send"
    assert store.asked == [Release(lease.id, lease.holds), Release(lease.id, lease.holds)]


def test_forget_does_not_hide_that_the_store_is_away(drive: Callable[..., Any]) -> None:
    with pytest.raises(StoreError):
        drive(reset_charges(charges(rule("a"))), ScriptedStore(down()))


@pytest.mark.parametrize("cause", Cause)
def test_allow_lets_through_whatever_the_cause(drive: Callable[..., Any], cause: Cause) -> None:
    store = ScriptedStore(down(cause))
    decision = drive(decide_charges(charges(rule("a", "allow"))), store)
    assert (decision.allowed, decision.degraded, decision.unavailable) == (True, True, False)
    assert decision.outcomes[0].reason is Reason.STORE_FAILED
    assert len(store.asked) == 1


@pytest.mark.parametrize("cause", Cause)
def test_deny_is_unavailable_with_the_store_s_own_wait(drive: Callable[..., Any], cause: Cause) -> None:
    decision = drive(decide_charges(charges(rule("a", "deny"))), ScriptedStore(down(cause)))
    assert (decision.allowed, decision.degraded, decision.unavailable) == (False, True, True)
    assert (decision.retry_after, decision.rule) == (3.0, "a")


def test_local_asks_this_process(drive: Callable[..., Any]) -> None:
    given = charges(rule("a"))
    store = ScriptedStore(down(), (Answer(2_000_000, 0, 5_000_000),))
    decision = drive(decide_charges(given, lease="lease"), store)
    assert store.asked[1] == DecideLocally(Decide(given, True, "lease"))
    assert (decision.allowed, decision.retry_after, decision.degraded) == (False, 2.0, True)
    assert not decision.unavailable, "a limit that this process enforces is a refusal like any other"


def test_policies_mix_and_outcomes_keep_their_order(drive: Callable[..., Any]) -> None:
    given = charges(rule("a", "allow"), rule("b"), rule("c", "allow"), rule("d"))
    store = ScriptedStore(down(), (Answer(0, 4, 0), Answer(0, 3, 0)))
    decision = drive(decide_charges(given), store)
    assert [outcome.rule for outcome in decision.outcomes] == ["a", "b", "c", "d"]
    assert store.asked[1] == DecideLocally(Decide((given[1], given[3]), True, None))
    assert decision.allowed and decision.rule == "d"


def test_what_one_policy_denies_is_charged_nowhere(drive: Callable[..., Any]) -> None:
    given = charges(rule("a"), rule("b", "deny"))
    store = ScriptedStore(down(), (Answer(0, 4, 0),))
    decision = drive(decide_charges(given), store)
    assert store.asked[1] == DecideLocally(Decide(given[:1], False, None))
    assert decision.unavailable and decision.rule == "b"


def test_a_shadow_that_denies_refuses_nothing(drive: Callable[..., Any]) -> None:
    given = charges(rule("a"), rule("b", "deny", action="shadow"))
    store = ScriptedStore(down(), (Answer(0, 4, 0),))
    decision = drive(decide_charges(given), store)
    assert store.asked[1] == DecideLocally(Decide(given[:1], True, None))
    assert decision.allowed and not decision.unavailable


def test_no_lease_is_named_when_nothing_of_this_process_holds_it(drive: Callable[..., Any]) -> None:
    """A rule whose policy let the connection through without a slot has nothing to give back."""
    allowing = Rule("cap", limit=2, algorithm="concurrency", on_store_failure="deny")
    decision = drive(decide_charges(charges(allowing), lease="lease"), ScriptedStore(down()))
    assert decision.lease is None and decision.unavailable


def test_only_a_store_error_is_an_answer(drive: Callable[..., Any]) -> None:
    for error in (ValueError("bug"), asyncio.CancelledError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            drive(decide_charges(charges(rule("a", "allow"))), ScriptedStore(error))


def test_a_failing_fallback_is_not_swallowed(drive: Callable[..., Any]) -> None:
    with pytest.raises(StoreError):
        drive(decide_charges(charges(rule("a"))), ScriptedStore(down(), down()))


@pytest.mark.parametrize("cost", [-1, -(2**63), 1.0, "5", True, None, float("nan")])
def test_a_cost_is_a_whole_number_in_range(cost: Any) -> None:
    with pytest.raises(InvalidCost):
        check_cost(cost)


def test_a_connection_holds_one_slot_whatever_it_costs() -> None:
    assert [charge(CAP, "user:1", cost).cost for cost in (0, 1, 5)] == [0, 1, 1]
    assert charge(rule("a", cost=3), "user:1", 2).cost == 6


def after_status(decision: Decision, status: int) -> Decision:
    back = refund_for_status(decision.receipt, status) if decision.receipt else None
    return after_refunds(decision, [back] if back else [])


def test_an_answer_that_counts_changes_nothing() -> None:
    decision = Limiter([Rule("login", "5/min", count_on=(401,))], MemoryStore(FrozenClock())).acquire("ip:1")
    assert after_status(decision, 401) is decision
    assert after_status(Decision(), 200) == Decision()


def test_only_of_the_rule_that_counts_so() -> None:
    rules = [Rule("all", "5/min"), Rule("login", rates=("5/min", "9/hour"), count_on=(401,), cost=2)]
    decision = Limiter(rules, MemoryStore(FrozenClock())).acquire("ip:1")
    assert [outcome.remaining for outcome in decision.outcomes] == [4, 3, 7]
    assert [outcome.remaining for outcome in after_status(decision, 200).outcomes] == [4, 5, 9]


def test_a_queue_that_lacks_a_part_of_a_unit_is_not_full_yet() -> None:
    rule = Rule("login", "1/7s", algorithm="leaky_bucket", burst=2, action="delay", max_delay=1, count_on=(401,))
    limiter = Limiter([rule], MemoryStore(clock := FrozenClock()))
    limiter.acquire("ip:1")
    clock.tick(6.125)
    (outcome,) = after_status(limiter.acquire("ip:1"), 200).outcomes
    assert (outcome.remaining, outcome.reset_after) == (1, 0.875)


@pytest.mark.parametrize("used", [4, 9])
def test_what_is_tolerated_beyond_the_limit_is_not_told(used: int) -> None:
    rule = Rule("login", "5/min", algorithm="fixed_window", enforce_at=2, count_on=(401,))
    limiter = Limiter([rule], MemoryStore(FrozenClock()))
    limiter.acquire("ip:1", used)
    (outcome,) = after_status(limiter.acquire("ip:1"), 200).outcomes
    assert outcome.remaining == 0


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

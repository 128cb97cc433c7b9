"""The commands of a flow, its decision when the store does not answer, and the decision after a refund."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.core import Charge, Decision, Lease, Outcome, Reason, Rule
from django_throttle.core.commands import Answer, Correct, Decide, DecideLocally, StoreCommand, charge
from django_throttle.core.decide import apply_refunds, decide_charges
from django_throttle.core.decision import combine_outcomes
from django_throttle.core.io import run
from django_throttle.core.ledger import Ledger, corrections
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import BlockingIo, LoopIo
from tests.clock import FrozenClock

Drive = Callable[..., Any]


class ScriptedStore:
    """Answers from a list and keeps what it was asked; an exception in the list is raised."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[StoreCommand] = []

    def execute(self, command: StoreCommand) -> Any:
        self.asked.append(command)
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def aexecute(self, command: StoreCommand) -> Any:
        await asyncio.sleep(0)
        return self.execute(command)


def blocking(store: Any, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return run(step(BlockingIo(store), *args, **options))


def awaited(store: Any, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return asyncio.run(step(LoopIo(store), *args, **options))


@pytest.fixture(params=[blocking, awaited])
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
    decision = drive(store, decide_charges, asked)
    assert store.asked == [Decide(asked, True, None)]
    assert (decision.allowed, decision.rule, decision.retry_after, decision.reset_after) == (False, "b", 1.5, 2.0)
    assert [outcome.reason for outcome in decision.outcomes] == [Reason.WITHIN, Reason.EXCEEDED]
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
    decision = drive(store, decide_charges, asked)
    assert store.asked[1] == DecideLocally(Decide(tuple(asked[number] for number in local), commit, None))
    assert (decision.allowed, decision.unavailable, decision.rule) == expected
    assert [outcome.rule for outcome in decision.outcomes] == [one.name for one in rules]


def test_only_a_store_error_is_an_answer(drive: Drive) -> None:
    for error in (ValueError("bug"), asyncio.CancelledError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            drive(ScriptedStore(error), decide_charges, charges(rule("a", "allow")))
    with pytest.raises(StoreError):
        drive(ScriptedStore(down(), down()), decide_charges, charges(rule("a")))


def after_status(decision: Decision, status: int) -> Decision:
    kept = [entry for entry in decision.ledger.entries if not entry.charge.rule.counts(status)]
    return apply_refunds(decision, corrections(kept))


def test_what_goes_back_is_there_again() -> None:
    limiter = Limiter([Rule("login", "9/min", algorithm="fixed_window", count_on=[401])], MemoryStore(FrozenClock()))
    outcomes = [after_status(limiter.acquire("ip:1"), 200).outcomes[0] for _ in range(2)]
    assert [(outcome.remaining, outcome.reset_after) for outcome in outcomes] == [(9, 0.0), (8, 60.0)]


API, DOUBLE = Rule("api", "9/min"), Rule("double", "9/min", cost=2)
CAP = Rule("cap", limit=3, algorithm="concurrency")
LOGIN = Rule("login", "9/min", count_on=[401])
FITS, FULL = Answer(retry=0, remaining=1, reset=60, at=1000), Answer(retry=5, remaining=0, reset=5)


def ledger(rules: list[Rule], answers: list[Answer] | None = None, *, locally: bool = False) -> Ledger:
    charges = tuple(charge(rule, "user:1", 1) for rule in rules)
    return Ledger(charges, answers or [FITS] * len(rules), locally=locally)


def of(refunds: tuple[Correct, ...]) -> list[str]:
    return [entry.charge.rule.name for command in refunds for entry in command.refunds]


@pytest.mark.parametrize(
    ("rules", "answers", "kept"),
    [
        ([API, LOGIN], [FITS, FITS], ["login", "api"]), ([API, LOGIN], [FITS, FULL], ["api"]),
        ([CAP, API], [FITS, FITS], ["api"]), ([], [], []),
    ],
    ids=str,
)  # fmt: skip
def test_what_can_go_back_was_charged_under_a_rate(rules: list[Rule], answers: list[Answer], kept: list[str]) -> None:
    charged = ledger(rules, answers)
    assert of(charged.refund()) == kept
    assert of(charged.refund()) == [], "once"


def test_what_goes_back_is_what_the_answer_does_not_count_for() -> None:
    assert of(ledger([API, LOGIN]).refund_for_status(401)) == []
    assert of(ledger([API, LOGIN]).refund_for_status(200)) == ["login"]
    charged = ledger([API, LOGIN], locally=True)
    assert charged.refund_pairs({("api", "user:2")}) == ()
    (refund,) = charged.refund_pairs({("api", "user:1")})
    assert refund.locally and of((refund,)) == ["api"]
    assert of(charged.refund_for_refusal()) == ["login"], "the rest"


LEASE = Lease("lease", (("rule", "user:1"),))
WITHIN = Outcome("within", "user:1", True, 10, 5, 0.0, 30.0)
NEARER = WITHIN._replace(rule="nearer", remaining=2)
SHORT = Outcome("short", "user:1", False, 10, 0, 1.5, 30.0, Reason.EXCEEDED)
LONG = SHORT._replace(rule="long", retry_after=60.0)
NEVER = SHORT._replace(rule="never", retry_after=None, reason=Reason.TOO_COSTLY)


@pytest.mark.parametrize(
    ("outcomes", "allowed", "rule"),
    [
        ((WITHIN,), True, "within"), ((WITHIN, NEARER), True, "nearer"), ((NEARER, WITHIN), True, "nearer"),
        ((WITHIN, SHORT), False, "short"), ((SHORT, LONG), False, "long"), ((LONG, SHORT), False, "long"),
        ((LONG, NEVER, SHORT), False, "never"), ((SHORT._replace(shadow=True),), True, None),
        ((NEVER._replace(shadow=True), WITHIN), True, "within"),
        ((LONG._replace(shadow=True), SHORT), False, "short"),
    ],
    ids=lambda given: str(given)[:30] if isinstance(given, (bool, str)) else None,
)  # fmt: skip
def test_the_rule_that_is_spoken_of(outcomes: tuple[Outcome, ...], allowed: bool, rule: str | None) -> None:
    decision = combine_outcomes(outcomes, LEASE)
    assert (decision.allowed, decision.rule, decision.outcomes) == (allowed, rule, outcomes)
    assert decision.lease is (LEASE if allowed else None)
    said = next((outcome for outcome in outcomes if outcome.rule == rule), None)
    if said is not None:
        expected = (said.limit, said.remaining, said.retry_after, said.reset_after)
        assert (decision.limit, decision.remaining, decision.retry_after, decision.reset_after) == expected


def test_only_a_failed_store_makes_it_unavailable() -> None:
    failed = SHORT._replace(reason=Reason.STORE_FAILED)
    assert combine_outcomes((WITHIN, failed), degraded=True).unavailable
    assert not combine_outcomes((WITHIN, SHORT)).unavailable
    assert not combine_outcomes((WITHIN._replace(reason=Reason.STORE_FAILED),), degraded=True).unavailable
    assert not combine_outcomes((WITHIN, failed._replace(shadow=True)), degraded=True).unavailable
    assert not combine_outcomes((SHORT, failed._replace(shadow=True)), degraded=True).unavailable

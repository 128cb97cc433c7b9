"""One decision from what all rules say."""

from __future__ import annotations

import pytest

from django_throttle.core import Decision, Lease, Outcome, Reason
from django_throttle.core.decision import conclude

LEASE = Lease("lease", (("rule", "user:1"),))
WITHIN = Outcome("within", "user:1", True, 10, 5, 0.0, 30.0)
NEARER = WITHIN._replace(rule="nearer", remaining=2)
SHORT = Outcome("short", "user:1", False, 10, 0, 1.5, 30.0, Reason.EXCEEDED)
LONG = SHORT._replace(rule="long", retry_after=60.0)
NEVER = SHORT._replace(rule="never", retry_after=None, reason=Reason.TOO_COSTLY)


def test_no_rules_refuse_nothing() -> None:
    assert conclude(()) == Decision(allowed=True, limit=None, remaining=None, retry_after=0.0, rule=None)


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
    decision = conclude(outcomes)
    assert (decision.allowed, decision.rule, decision.outcomes) == (allowed, rule, outcomes)
    said = next((outcome for outcome in outcomes if outcome.rule == rule), None)
    if said is not None:
        expected = (said.limit, said.remaining, said.retry_after, said.reset_after)
        assert (decision.limit, decision.remaining, decision.retry_after, decision.reset_after) == expected


def test_a_refused_call_holds_nothing() -> None:
    assert conclude((WITHIN,), LEASE).lease is LEASE
    assert conclude((WITHIN, SHORT), LEASE).lease is None


def test_only_a_failed_store_makes_it_unavailable() -> None:
    failed = SHORT._replace(reason=Reason.STORE_FAILED)
    assert conclude((WITHIN, failed), degraded=True).unavailable
    assert not conclude((WITHIN, SHORT)).unavailable
    assert not conclude((WITHIN._replace(reason=Reason.STORE_FAILED),), degraded=True).unavailable
    assert not conclude((WITHIN, failed._replace(shadow=True)), degraded=True).unavailable
    assert not conclude((SHORT, failed._replace(shadow=True)), degraded=True).unavailable

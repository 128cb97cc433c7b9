"""Problem documents: what is wrong, by which policies, and for how long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_throttle.core import Decision, Outcome, Reason
from django_throttle.core.decision import conclude, error_code
from django_throttle.http.problem_details import detail, problem

QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"
CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


def refused(rule: str = "api", wait: float | None = 5.0, **options: Any) -> Outcome:
    return Outcome(rule, "ip:192.0.2.1", False, 10, 0, wait, 30.0, **({"window": 60.0} | options))


FAILED = refused(reason=Reason.STORE_FAILED)


def document(*outcomes: Outcome, status: int = 429, seconds: int | None = 5) -> Any:
    return json.loads(problem(conclude(outcomes), status, seconds))


@pytest.mark.row("R05")
def test_a_quota_that_is_exceeded() -> None:
    watching, fine = refused("watch", shadow=True), refused("fine")._replace(allowed=True)
    assert document(refused(), fine, watching) == {
        "type": QUOTA,
        "title": "Rate limit exceeded",
        "status": 429,
        "detail": "Rate limit exceeded. Try again in 5 seconds.",
        "violated-policies": ["api"],
    }


def test_policies_are_called_as_in_the_headers() -> None:
    found = document(refused("Größe"), refused(window=1.0), refused())
    assert found["violated-policies"] == ["Gr%C3%B6%C3%9Fe", "api#s", "api#min"]


def test_a_store_that_failed() -> None:
    found = document(FAILED, status=503, seconds=1)
    assert found["type"] == CAPACITY and found["status"] == 503
    assert found["detail"] == "The limiter is unavailable. Try again in 1 second."


def test_a_block_is_about_no_quota() -> None:
    found = document(refused("*", None, reason=Reason.BLOCKED, window=None), seconds=None)
    assert found == {"type": "about:blank", "title": "Too Many Requests", "status": 429, "detail": "Access is blocked."}


@pytest.mark.parametrize(
    ("is_request", "said"),
    [(True, "Too many requests are being answered at once"), (False, "Too many open connections")],
)
def test_what_is_held_is_a_request_or_a_connection(is_request: bool, said: str) -> None:
    found = json.loads(problem(conclude((refused(window=None),)), 429, 5, is_request=is_request))
    assert (found["title"], found["detail"]) == (said, f"{said}. Try again in 5 seconds.")


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (refused(wait=None), "rate_limited", "Rate limit exceeded. This costs more than the limit ever allows."),
        (
            refused(wait=None, largest=10),
            "rate_limited",
            "Rate limit exceeded. This costs more than the limit ever allows: at most 10 at once.",
        ),
        (
            refused(wait=None, largest=1000, unit="bytes"),
            "rate_limited",
            "Rate limit exceeded. This is too large: at most 1,000 bytes are taken at once.",
        ),
        (refused(window=None), "connection_limit", "Too many open connections. Try again in 5 seconds."),
        (refused(reason=Reason.BLOCKED), "blocked", "Access is blocked. Try again in 5 seconds."),
        (FAILED, "limiter_unavailable", "The limiter is unavailable. Try again in 5 seconds."),
    ],
)
def test_codes_and_sentences(outcome: Outcome, code: str, said: str) -> None:
    decision = conclude((outcome,))
    assert error_code(decision) == code
    assert detail(decision, None if outcome.retry_after is None else 5) == said


def test_a_decision_of_no_rule_is_told_of_too() -> None:
    assert error_code(Decision(allowed=False)) == "rate_limited"

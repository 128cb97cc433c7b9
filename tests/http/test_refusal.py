"""The answer to a refused request: what a browser shows, and what a program reads."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory
from django.utils import timezone, translation
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Decision, Outcome, Reason
from django_throttle.core.decision import combine_outcomes, error_code
from django_throttle.http import refusal as module
from django_throttle.http.problem_details import detail, problem
from django_throttle.http.refusal import refusal
from django_throttle.observe.reports import ident_for_logs

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"
CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
PROBLEM, HTML = "application/problem+json", "text/html; charset=utf-8"


def refused(wait: float | None = 90.0, **options: Any) -> Decision:
    return combine_outcomes(
        (Outcome("secret-rule", "user:alice", False, 10, 0, wait, 90.0, **({"window": 60.0} | options)),)
    )


def answered(decision: Decision, accept: str | None = BROWSER) -> Any:
    extra = {} if accept is None else {"headers": {"Accept": accept}}
    return refusal(RequestFactory().get("/", **extra), decision)  # type: ignore[arg-type]


def text(response: Any) -> str:
    body = re.sub(r"(?s)<head>.*</head>|<[^>]*>", " ", response.content.decode())
    return re.sub(r"\s+([.,])", r"\1", " ".join(body.split()))


@pytest.fixture(autouse=True)
def exactly(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No jitter, and a clock that stands still."""
    settings.DJANGO_THROTTLE = {"RETRY_JITTER": 0.0}
    monkeypatch.setattr(timezone, "now", lambda: datetime(2026, 11, 20, 14, 3, 30, tzinfo=UTC))


TOO_LARGE = refused(None, largest=2500, unit="bytes", reason=Reason.TOO_COSTLY)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, PROBLEM), ("*/*", PROBLEM), (BROWSER, HTML), ("text/html", HTML), ("text/*", HTML),
        ("application/json", PROBLEM), ("application/json, text/html;q=0.9", PROBLEM),
        ("application/json;q=0.5, text/html;q=0.9", HTML), ("application/problem+json, text/html", PROBLEM),
        ("text/html, application/json", HTML), ("application/json, text/html", PROBLEM),
        ("text/html;q=0, */*", PROBLEM), ("image/webp", PROBLEM), ("", PROBLEM), (";;;,,,/", PROBLEM),
        ("text/html;q=nan", HTML),
        ("text/html;q=often, */*;q=0.5", HTML),
        ("text/html;level=1;q=1, */*;q=0.5", PROBLEM),
    ],
)  # fmt: skip
def test_a_client_gets_what_it_would_rather_have(accept: str | None, kind: str) -> None:
    response = answered(refused(), accept)
    assert response["Content-Type"] == kind
    assert (response.status_code, response["Retry-After"]) == (429, "90")
    assert (response["Vary"], response["Cache-Control"]) == ("Accept", "no-store")


PIECES = st.lists(st.sampled_from([*'a*/;,="q0.1', "text/html"])).map("".join)


@given(st.text(st.characters(max_codepoint=255)) | PIECES)
def test_nothing_that_a_client_accepts_is_an_error(accept: str) -> None:
    request = RequestFactory().get("/")
    request.META["HTTP_ACCEPT"] = accept
    assert refusal(request, refused()).status_code == 429


MANY = "Too many requests "
QUICKLY = MANY + "You have sent more requests than this site takes in such a short time. You can try again "
SOON = "You can try again in 1 second."
BLOCKED = "Access is blocked The people who run this site have stopped requests like yours. "
PAGES = [
    (refused(), QUICKLY + "in 90 seconds, at 14:05 UTC."),
    (refused(60.0), QUICKLY + "in 1 minute, at 14:05 UTC."),
    (refused(200_000.0, window=86_400.0), QUICKLY + "in 56 hours, at 21:37 UTC on Nov. 22, 2026."),
    (
        refused(None, reason=Reason.TOO_COSTLY),
        MANY
        + "This request asks for more than this site gives at once. Trying again will not help; asking for less may.",
    ),
    (
        TOO_LARGE,
        MANY + "What you have sent is too large: this site takes at most 2.4 KB (2500 bytes) at once. "
        "Trying again will not help; sending less will.",
    ),
    (
        refused(5.0, window=None),
        MANY + "Too many of your requests are being answered at the same time. Wait until the others are done. "
        "You can try again in 5 seconds.",
    ),
    (refused(None, reason=Reason.BLOCKED), BLOCKED + "If you think that this is a mistake, please ask them."),
    (refused(7200.0, reason=Reason.BLOCKED), BLOCKED + "You can try again in 2 hours, at 16:04 UTC."),
    (
        refused(1.0, reason=Reason.STORE_FAILED),
        "Please try again later We cannot take your request at the moment. This is not your fault. " + SOON,
    ),
]


@pytest.mark.parametrize(("decision", "said"), PAGES)
def test_a_person_reads_when_to_come_back_on_a_page_that_stands_alone(decision: Decision, said: str) -> None:
    status = 503 if decision.outcomes[0].reason is Reason.STORE_FAILED else 429
    response = answered(decision)
    expected = f"{said} Status {status}, reference {ident_for_logs('user:alice')}"
    assert (response.status_code, text(response)) == (status, expected)
    page = response.content.decode()
    assert "secret-rule" not in page and "alice" not in page
    assert re.match(r'<!doctype html>\s*<html lang="en"', page)
    assert not re.search("<script|src=|href=|action=|srcset=", page), "nothing is fetched"
    assert page.count("<h1") == page.count("<main") == page.count("<title") == 1


@pytest.mark.parametrize("decision", [refused(one) for one in (59, 61, 43_199, 90_000)] + [TOO_LARGE])
def test_nor_does_it_keep_another_language_or_zone(monkeypatch: pytest.MonkeyPatch, decision: Decision) -> None:
    for language, zone in [("en", "UTC"), ("de", "UTC"), ("de", "Asia/Tokyo")]:
        with translation.override(language), timezone.override(zone):
            kept = answered(decision).content
            assert f'<html lang="{language}"' in kept.decode()
            with monkeypatch.context() as patched:
                patched.setattr(module, "OUR_TEMPLATE", "another")
                assert answered(decision).content == kept


def test_a_site_has_a_page_of_its_own(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "django_throttle").mkdir()
    own = (
        "{{ status }} {{ code }} {{ seconds }} {{ wait }} {{ when|date:'H:i' }} {{ reference }}{{ request }}{{ user }}"
    )
    (tmp_path / "django_throttle" / "429.html").write_text(own)
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    assert (
        answered(refused()).content == f"429 rate_limited 90 90 seconds 14:05 {ident_for_logs('user:alice')}".encode()
    )


@pytest.mark.parametrize("templates", [[], [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]])
def test_a_site_without_templates_answers_everybody_with_the_problem(settings: Any, templates: Any) -> None:
    settings.TEMPLATES = templates
    assert answered(refused())["Content-Type"] == PROBLEM


def outcome(rule: str = "api", wait: float | None = 5.0, **options: Any) -> Outcome:
    return Outcome(rule, "ip:192.0.2.1", False, 10, 0, wait, 30.0, **({"window": 60.0} | options))


FAILED = outcome(reason=Reason.STORE_FAILED)


def document(*outcomes: Outcome, status: int = 429, seconds: int | None = 5) -> Any:
    return json.loads(problem(combine_outcomes(outcomes), status, seconds))


@pytest.mark.row("R05")
def test_a_quota_that_is_exceeded() -> None:
    watching, fine = outcome("watch", shadow=True), outcome("fine")._replace(allowed=True)
    assert document(outcome(), fine, watching) == {
        "type": QUOTA, "title": "Rate limit exceeded", "status": 429,
        "detail": "Rate limit exceeded. Try again in 5 seconds.", "violated-policies": ["api"],
    }  # fmt: skip


def test_policies_are_called_as_in_the_headers() -> None:
    found = document(outcome("Größe"), outcome(window=1.0), outcome())
    assert found["violated-policies"] == ["Gr%C3%B6%C3%9Fe", "api#s", "api#min"]


def test_a_store_that_failed_and_a_block_are_about_no_quota() -> None:
    found = document(FAILED, status=503, seconds=1)
    assert (found["type"], found["status"]) == (CAPACITY, 503)
    assert found["detail"] == "The limiter is unavailable. Try again in 1 second."
    found = document(outcome("*", None, reason=Reason.BLOCKED, window=None), seconds=None)
    assert found == {"type": "about:blank", "title": "Too Many Requests", "status": 429, "detail": "Access is blocked."}


@pytest.mark.parametrize(
    ("is_request", "said"),
    [(True, "Too many requests are being answered at once"), (False, "Too many open connections")],
)
def test_what_is_held_is_a_request_or_a_connection(is_request: bool, said: str) -> None:
    found = json.loads(problem(combine_outcomes((outcome(window=None),)), 429, 5, is_request=is_request))
    assert (found["title"], found["detail"]) == (said, f"{said}. Try again in 5 seconds.")


@pytest.mark.parametrize(
    ("refused_by", "code", "said"),
    [
        (outcome(wait=None), "rate_limited", "Rate limit exceeded. This costs more than the limit ever allows."),
        (
            outcome(wait=None, largest=10),
            "rate_limited",
            "Rate limit exceeded. This costs more than the limit ever allows: at most 10 at once.",
        ),
        (
            outcome(wait=None, largest=1000, unit="bytes"),
            "rate_limited",
            "Rate limit exceeded. This is too large: at most 1,000 bytes are taken at once.",
        ),
        (outcome(window=None), "connection_limit", "Too many open connections. Try again in 5 seconds."),
        (outcome(reason=Reason.BLOCKED), "blocked", "Access is blocked. Try again in 5 seconds."),
        (FAILED, "limiter_unavailable", "The limiter is unavailable. Try again in 5 seconds."),
    ],
)
def test_codes_and_sentences(refused_by: Outcome, code: str, said: str) -> None:
    decision = combine_outcomes((refused_by,))
    assert error_code(decision) == code
    assert detail(decision, None if refused_by.retry_after is None else 5) == said
    assert error_code(Decision(allowed=False)) == "rate_limited", "of no rule"

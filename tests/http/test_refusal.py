"""Responses under limits: the fields of every answer, and the page or document of a refused request."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone, translation
from django.utils.translation import get_language
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Decision, Outcome, Reason, Rule
from django_throttle.core.decision import combine_outcomes, error_code
from django_throttle.decorators import throttle
from django_throttle.http import refusal as module
from django_throttle.http.finalize import header_fields
from django_throttle.http.problem_details import detail, problem, wait_in_words
from django_throttle.http.refusal import refusal
from django_throttle.http.retry_after import retry_seconds
from django_throttle.limiter import Limiter
from django_throttle.observe.reports import ident_for_logs
from django_throttle.stores import MemoryStore
from django_throttle.websockets.error_frames import Close, refuse_handshake
from tests.clock import FrozenClock
from tests.doors import BOTH, LOGIN, REDIS, Enforce
from tests.entry_points import site
from tests.http.conftest import Ask
from tests.inside import count_in

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


TWO: dict[str, Any] = {"rate": "2/min", "algorithm": "fixed_window", "key": "ip"}
NAMED = "tests.http.test_refusal.login_name"
pytestmark = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")


def login_name(request: HttpRequest) -> str | None:
    return request.GET.get("name")


def told(response: Any) -> dict[str, str]:
    return {name: value for name, value in response.items() if "ratelimit" in name.lower()}


@pytest.mark.row("A39")
class TestWhose:
    """A39: the headers of a login form are the same whoever the name belongs to, and whatever was tried with it."""

    @pytest.fixture(autouse=True)
    def login_form(self, settings: Any) -> None:
        settings.MIDDLEWARE = LOGIN

    @BOTH
    @pytest.mark.django_db
    def test_names_in_a_form_are_not_told_of(self, enforce: Enforce) -> None:
        User.objects.create_user("real")
        enforce(login={"rate": "5/min", "key": NAMED}, ip={"rate": "99/min", "key": "ip", "algorithm": "gcra"})
        for _ in range(3):
            Client(REMOTE_ADDR="203.0.113.5").get("/login?name=real")
        answers = [Client().get(f"/login?name={name}") for name in ("real", "fake")]
        assert [told(answer)["RateLimit-Policy"] for answer in answers] == ['"ip";q=99;w=60'] * 2
        assert [told(answer)["RateLimit"] for answer in answers] == ['"ip";r=98;t=1', '"ip";r=97;t=1']

    def test_unless_the_site_says_that_they_are_the_clients_own(
        self, enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = enforce(login={"rate": "5/min", "key": NAMED, "algorithm": "fixed_window"})
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "TELL_KEYS": [NAMED]}
        count_in(store, monkeypatch)  # with other settings it would be another one
        assert told(Client().get("/login?name=me"))["RateLimit"] == '"login";r=4;t=60'

    @pytest.mark.parametrize(
        ("ident", "expected"),
        [
            *[(ident, [True, True]) for ident in ("ip:192.0.2.1", "everyone", "session:abc", "api_key:2b1c")],
            ("ip+session:ip:192.0.2.1+session:abc", [True, True]),
            *[(ident, [False, True]) for ident in ("user:5", "tenant:acme", "user+ip:user:5+ip:192.0.2.1")],
            *[(ident, [False, False]) for ident in ("shop.limits.name:alice", "alice", "")],
            ("ip+shop.limits.name:ip:192.0.2.1+shop.limits.name:alice", [False, False]),
        ],
    )
    def test_kinds_of_idents(self, ident: str, expected: list[bool]) -> None:
        limiter = Limiter([Rule("api", "5/min")], MemoryStore(FrozenClock()))
        decision = limiter.acquire("ip:192.0.2.1")
        decision = decision._replace(outcomes=(decision.outcomes[0]._replace(ident=ident),))
        assert [
            bool(header_fields([decision], lambda is_logged_in=is_logged_in: is_logged_in))
            for is_logged_in in (False, True)
        ] == expected


urlpatterns = [*site.urlpatterns, path("login", throttle("login")(throttle("ip")(site.DOINGS["ok"])))]


OFF: dict[str, Any] = {"RATELIMIT_HEADERS": "off"}


NEWEST = {"RateLimit-Policy": '"api";q=2;w=60', "RateLimit": '"api";r=1;t=60'}
DRAFT_07 = {"RateLimit-Policy": "2;w=60", "RateLimit": "limit=2, remaining=1, reset=60"}
SECONDS = {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "60"}


@pytest.mark.parametrize(
    ("settings_of_site", "expected"),
    [
        ({}, NEWEST),
        ({"RATELIMIT_HEADERS": "draft-07"}, DRAFT_07),
        (OFF, {}),
        ({**OFF, "X_RATELIMIT_HEADERS": "seconds"}, SECONDS),
        ({"X_RATELIMIT_HEADERS": "seconds"}, NEWEST | SECONDS),
    ],
)
@REDIS
def test_each_format(enforce: Enforce, client: Ask, settings_of_site: dict[str, Any], expected: dict[str, str]) -> None:
    enforce(api=TWO, **settings_of_site)
    assert told(client("/decorated/ok")) == expected


class TestRetry:
    def test_is_spread_upward_by_chance(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {}
        assert [retry_seconds(100.0, lambda chance=chance: chance) for chance in (0.0, 0.5, 0.999)] == [100, 105, 110]
        settings.DJANGO_THROTTLE = {"RETRY_JITTER": 0.0}
        assert retry_seconds(100.0) == 100
        assert retry_seconds(None) is None

    def test_nobody_is_put_off_by_more_than_a_minute(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RETRY_JITTER": 0.1}
        month = 30 * 86_400
        assert retry_seconds(month, lambda: 0.5) == month + 30
        assert retry_seconds(month, lambda: 1.0) == month + 60
        assert retry_seconds(0.0) == 1

    async def test_a_refused_handshake_says_the_same_twice(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"RETRY_JITTER": 1.0}
        limiter = Limiter([Rule("api", "1/day", algorithm="gcra")], MemoryStore(FrozenClock()))
        refused = [limiter.acquire("ip:192.0.2.1") for _ in range(2)][1]
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)

        scope, close = {"extensions": {"websocket.http.response": {}}}, Close(4430, "rate limited")
        await refuse_handshake(scope, send, refused, close, by="http")
        seconds = int(dict(sent[0]["headers"])[b"retry-after"])
        assert 86_400 <= seconds <= 172_800
        assert f"in {wait_in_words(seconds, get_language())}." in json.loads(sent[1]["body"])["detail"]

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [
            *((1, "1 second"), (59, "59 seconds"), (60, "1 minute"), (61, "61 seconds"), (119, "119 seconds")),
            *((120, "2 minutes"), (179, "179 seconds"), (181, "4 minutes"), (3600, "1 hour"), (7199, "120 minutes")),
            *((7200, "2 hours"), (10_801, "4 hours"), (86_400, "1 day"), (200_000, "56 hours"), (300_000, "4 days")),
        ],
    )
    def test_in_words(self, seconds: int, words: str) -> None:
        assert wait_in_words(seconds, get_language()) == words


def test_without_a_decision_there_is_nothing_to_tell() -> None:
    assert header_fields([], bool) == header_fields([Decision()], bool) == {}

"""What responses say of limits: at every door, of whose budgets, and by which settings."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from django.utils.translation import get_language

from django_throttle.core import Decision, Rule
from django_throttle.decorators import throttle
from django_throttle.http.finalize import header_fields
from django_throttle.http.problem_details import wait_in_words
from django_throttle.http.retry_after import retry_seconds
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from django_throttle.websockets.error_frames import Close, refuse_handshake
from tests.clock import FrozenClock
from tests.doors import BOTH, LOGIN, REDIS, Enforce
from tests.entry_points import site
from tests.http.conftest import Ask
from tests.inside import count_in

TWO: dict[str, Any] = {"rate": "2/min", "algorithm": "fixed_window", "key": "ip"}
NAMED = "tests.http.test_headers.login_name"
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
        for _ in range(3):  # somebody tries
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
        """Whom the fields are told: somebody anonymous, and somebody who is logged in."""
        limiter = Limiter([Rule("api", "5/min")], MemoryStore(FrozenClock()))
        decision = limiter.acquire("ip:192.0.2.1")
        decision = decision._replace(outcomes=(decision.outcomes[0]._replace(ident=ident),))
        assert [bool(header_fields([decision], lambda known=known: known)) for known in (False, True)] == expected


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

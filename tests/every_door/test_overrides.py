"""An override holds at every door, on every store: its limit, its end, and what a blocked client is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient
from rest_framework.views import APIView

from django_throttle import decorators, drf, limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.core import Override, Rate, Reason, Rule
from django_throttle.exceptions import Refused
from django_throttle.identity import ScopeWho
from django_throttle.identity.keys import api_key
from django_throttle.observe.reports import ident_for_logs
from django_throttle.signals import throttled
from tests.clock import FrozenClock
from tests.consumers import DENIAL, handshake, held, opened, socket
from tests.doors import BOTH, Store, build
from tests.inside import count_in

HERE = "127.0.0.1"
MINUTE = {"rate": "2/min", "algorithm": "fixed_window", "key": "ip"}
RULES = (
    Rule("api", **{**MINUTE, "events": ("request", "message", "connect")}),
    Rule("sockets", limit=2, algorithm="concurrency", key="ip"),
)
Relieve = Callable[..., Store]


class Search(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]

    def get(self, request: Request) -> Response:
        return Response({})


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("plain")


@decorators.throttle("api")
def decorated(request: HttpRequest) -> HttpResponse:
    return HttpResponse("decorated")


@decorators.throttle("api")
async def adecorated(request: HttpRequest) -> HttpResponse:
    return HttpResponse("decorated")


urlpatterns = [
    path("search", Search.as_view(), name="search"),
    path("plain", plain, name="plain"),
    path("decorated", decorated, name="decorated"),
    path("adecorated", adecorated, name="adecorated"),
]
THROTTLED = "django_throttle.middleware.ThrottleMiddleware"


@pytest.fixture
def enforce(
    request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock
) -> Iterator[Relieve]:
    """Puts overrides in force, beside the rules, on the store that its parameter names."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    settings.DJANGO_THROTTLE = {"DATABASE_RULES": False, "AGENT": False, "RETRY_JITTER": 0.0}
    store = build(request, clock)
    count_in(store, monkeypatch)

    def enforce(*overrides: Override, rules: Sequence[Rule] = RULES) -> Store:
        rulebook.pin(rulebook.Snapshot(rules, overrides=overrides, now=clock))
        return store

    yield enforce
    rulebook.pin(None)


def here(effect: str, **options: Any) -> Override:
    return Override(subject=f"ip:{HERE}", effect=effect, **options)


DOORS = pytest.mark.parametrize(
    "url", ["/search", "/plain", "/decorated", "/adecorated"], ids=["drf", "middleware", "decorator", "async decorator"]
)


def get(settings: Any, url: str) -> Any:
    settings.MIDDLEWARE = [THROTTLED] if url == "/plain" else []
    return Client().get(url, REMOTE_ADDR=HERE)


async def aget(settings: Any, url: str) -> Any:
    settings.MIDDLEWARE = [THROTTLED] if url == "/plain" else []
    return await AsyncClient().get(url, REMOTE_ADDR=HERE)


@DOORS
class TestHttp:
    @BOTH
    def test_a_limit_that_is_raised_by_hand_opens_at_once_and_closes_at_its_end(
        self, enforce: Relieve, settings: Any, clock: FrozenClock, url: str
    ) -> None:
        enforce()
        assert [get(settings, url).status_code for _ in range(3)] == [200, 200, 429]
        enforce(here("multiply", factor=2, until=clock() + 30))
        assert [get(settings, url).status_code for _ in range(3)] == [200, 200, 429]
        clock.to(30)
        assert get(settings, url).status_code == 429  # four used, of two
        clock.to(60)
        assert [get(settings, url).status_code for _ in range(3)] == [200, 200, 429]

    @BOTH
    def test_exempt(self, enforce: Relieve, settings: Any, clock: FrozenClock, url: str) -> None:
        store = enforce(here("exempt", rules=("api",), until=clock() + 30))
        assert [get(settings, url).status_code for _ in range(5)] == [200] * 5
        clock.to(30)  # nothing was charged meanwhile
        assert [get(settings, url).status_code for _ in range(3)] == [200, 200, 429]
        assert held(store) == 0

    @BOTH
    async def test_a_block_and_its_end(self, enforce: Relieve, settings: Any, clock: FrozenClock, url: str) -> None:
        enforce(Override(subject="ip:127.0.0.0/8", effect="block", until=clock() + 90.5))
        answer = await aget(settings, url)
        assert answer.status_code == 429
        assert answer["Retry-After"] == "91"
        clock.to(90.5)
        assert (await aget(settings, url)).status_code == 200

    def test_what_a_blocked_client_is_told(self, enforce: Relieve, settings: Any, url: str) -> None:
        enforce(here("block"))
        answer = get(settings, url)
        assert answer.status_code == 429
        assert "Retry-After" not in answer
        assert "RateLimit" not in answer
        body = answer.content.decode()
        assert "127.0.0" not in body
        if url != "/search":
            assert json.loads(body) == {
                "type": "about:blank",
                "title": "Too Many Requests",
                "status": 429,
                "detail": "Access is blocked.",
                "reference": ident_for_logs(f"ip:{HERE}"),
            }

    def test_another_client_is_not_concerned(self, enforce: Relieve, settings: Any, url: str) -> None:
        enforce(Override(subject="ip:192.0.2.1", effect="block"), Override(subject="user:1", effect="block"))
        assert get(settings, url).status_code == 200


class TestUsers:
    @BOTH
    @pytest.mark.django_db
    def test_a_rule_counts_by_address_and_an_override_names_the_user_or_a_group(self, enforce: Relieve) -> None:
        anna, ben = User.objects.create_user("anna"), User.objects.create_user("ben")
        group = anna.groups.create(name="support")
        client = APIClient()
        for override in (f"user:{anna.pk}", f"group:{group.name}"):
            enforce(Override(subject=override, effect="block"))
            for user, status in ((anna, 429), (ben, 200)):
                client.force_authenticate(User.objects.get(pk=user.pk))  # whose groups nobody has asked for yet
                assert client.get("/search").status_code == status


def typed_name(request: HttpRequest) -> str | None:
    return request.POST.get("name")


class TestAttacks:
    LOGIN = Rule("login", **{**MINUTE, "key": "tests.every_door.test_overrides.typed_name", "count_denied": True})

    @pytest.mark.row("A37")
    @BOTH
    def test_who_is_locked_out_by_others_is_let_in_by_the_address(self, enforce: Relieve, settings: Any) -> None:
        settings.MIDDLEWARE = [THROTTLED]

        def login(address: str) -> int:
            return Client().post("/plain", {"name": "anna"}, REMOTE_ADDR=address).status_code

        enforce(rules=[self.LOGIN])
        assert [login("203.0.113.66") for _ in range(4)] == [200, 200, 429, 429]
        assert login("192.0.2.7") == 429
        enforce(Override(subject="ip:192.0.2.7", effect="exempt"), rules=[self.LOGIN])
        assert [login("192.0.2.7") for _ in range(3)] == [200] * 3
        assert login("203.0.113.66") == 429

    @pytest.mark.row("A34")
    def test_no_header_is_an_exemption(self, enforce: Relieve, settings: Any) -> None:
        tag = api_key("secret")
        enforce(
            Override(subject="ip:192.0.2.7", effect="exempt"),
            Override(subject="user:1", effect="exempt"),
            Override(subject=f"{tag}", effect="exempt"),
        )
        said = {"X-Forwarded-For": "192.0.2.7", "Forwarded": "for=192.0.2.7", "X-Real-IP": "192.0.2.7", "X-User": "1"}
        said |= {"Authorization": "Token secret", "X-Api-Key": "secret"}
        statuses = [Client().get("/search", headers=said, REMOTE_ADDR=HERE).status_code for _ in range(4)]
        assert statuses == [200, 200, 429, 429]


class TestCallables:
    @BOTH
    def test_a_text_may_be_blocked_and_takes_nobody_s_exemption(self, enforce: Relieve) -> None:
        """It may be what a client says; nothing else is known of whoever calls."""

        @decorators.throttle("api", ident=lambda name: name)
        def send(name: str) -> str:
            return name

        enforce(
            Override(subject="tenant:acme", effect="block"),
            Override(subject="user:1", effect="exempt"),
            Override(subject="ip:198.51.100.0/24", effect="multiply", factor=9),
        )
        with pytest.raises(Refused) as caught:
            send("tenant:acme")
        assert [outcome.reason for outcome in caught.value.decision.outcomes] == [Reason.BLOCKED]
        for name in ("user:1", "ip:198.51.100.7", "198.51.100.7", "tenant:other"):
            assert [send(name) for _ in range(2)] == [name] * 2
            with pytest.raises(Refused):
                send(name)

    @BOTH
    @pytest.mark.parametrize("ident", ["user:1", lambda user: user], ids=["text", "user"])
    def test_what_the_code_itself_says_is_believed(self, enforce: Relieve, ident: Any) -> None:
        enforce(Override(subject="user:1", effect="exempt"))
        send = decorators.throttle("api", ident=ident)(lambda user: "sent")
        assert [send(User(pk=1)) for _ in range(9)] == ["sent"] * 9
        send = decorators.throttle("api", ident=lambda user: user)(send.__wrapped__)
        assert [send(User(pk=2)) for _ in range(2)] == ["sent"] * 2
        with pytest.raises(Refused):
            send(User(pk=2))

    def test_a_limiter_of_ones_own_has_its_rules_and_nothing_else(self, enforce: Relieve) -> None:
        store = enforce(here("block"))
        assert limiter.Limiter(RULES[:1], store).acquire(f"ip:{HERE}").allowed


class TestSockets:
    @BOTH
    async def test_a_refused_handshake(self, enforce: Relieve, clock: FrozenClock) -> None:
        store = enforce(here("block", until=clock() + 60))
        start, body = await handshake(extensions=DENIAL, client=(HERE, 1))
        assert start["status"] == 429
        assert dict(start["headers"])[b"retry-after"] == b"60"
        assert json.loads(body["body"])["detail"] == "Access is blocked. Try again in 1 minute."
        assert (await socket(client=(HERE, 1)).connect())[0] is False
        assert held(store) == 0
        clock.to(60)
        communicator = await opened(client=(HERE, 1))
        await communicator.disconnect()

    @BOTH
    async def test_a_socket_that_is_open_is_closed(self, enforce: Relieve, clock: FrozenClock) -> None:
        store = enforce()
        communicator = await opened(client=(HERE, 1))
        enforce(here("block", rules=("api",)))
        assert await communicator.receive_json_from() == {
            "type": "error",
            "code": "blocked",
            "detail": "Access is blocked.",
            "rule": "api",
            "limit": 2,
            "remaining": 0,
            "window": 60,
            "retry_after": None,
            "reference": ident_for_logs(f"ip:{HERE}"),
        }
        assert await communicator.receive_output() == {"type": "websocket.close", "code": 4403, "reason": "blocked"}
        await communicator.wait()
        assert held(store) == 0

    @BOTH
    async def test_the_sockets_of_an_exempt_client_count_and_never_refuse(self, enforce: Relieve) -> None:
        store = enforce(here("exempt"))
        sockets = [await opened(client=(HERE, 1)) for _ in range(4)]
        assert held(store) == 4
        enforce()
        assert (await socket(client=(HERE, 1)).connect())[0] is False
        for communicator in sockets:
            await communicator.disconnect()
        assert held(store) == 0

    @BOTH
    async def test_more_sockets_by_hand(self, enforce: Relieve) -> None:
        enforce(here("replace", limit=3), here("exempt", rules=("api",)))
        sockets = [await opened(client=(HERE, 1)) for _ in range(3)]
        assert (await socket(client=(HERE, 1)).connect()) == (False, 4430)
        for communicator in sockets:
            await communicator.disconnect()

    async def test_where_no_rule_covers_the_call_a_block_of_every_rule_does(self, enforce: Relieve) -> None:
        enforce(here("block"))
        decision = await limiter.adecide(Facts("elsewhere", ("send",), ScopeWho({"client": (HERE, 1)})))
        assert (decision.allowed, decision.rule) == (False, "*")
        enforce(here("block", rules=("api", "sockets")))
        assert (await limiter.adecide(Facts("elsewhere", ("send",), ScopeWho({"client": (HERE, 1)})))).allowed


def test_a_replaced_rate_counts_for_itself(enforce: Relieve, settings: Any, clock: FrozenClock) -> None:
    enforce(here("replace", rates=(Rate(3, 3600),)))
    assert [get(settings, "/search").status_code for _ in range(4)] == [200, 200, 200, 429]
    enforce()
    assert get(settings, "/search").status_code == 200


def test_receivers_hear_of_a_block(enforce: Relieve, settings: Any) -> None:
    heard: list[Any] = []

    def hear(sender: object, facts: Facts, decision: Any, **_: Any) -> None:
        heard.extend(outcome.reason for outcome in decision.outcomes)

    enforce(here("block", rules=("api",)))
    throttled.connect(hear)
    try:
        get(settings, "/search")
    finally:
        throttled.disconnect(hear)
    assert heard == [Reason.BLOCKED]

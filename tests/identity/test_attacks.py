"""Attacks on who is asking, against a real view behind the middleware; each is named by its row of the catalogue."""

import json
import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, JsonResponse
from django.test import Client, RequestFactory
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import drf, limiter
from django_throttle.core.rule import Rule
from django_throttle.identity import AsgiCaller, RequestCaller
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.doors import BOTH, LOGIN, REDIS, Enforce

LIMIT = 10
RULE: dict[str, Any] = {"rate": f"{LIMIT}/min", "algorithm": "fixed_window", "key": "ip"}
MIDDLEWARE = [*LOGIN, "django_throttle.middleware.ThrottleMiddleware"]


class Keys(BaseAuthentication):
    """A site's API keys: what no key opens is nobody's."""

    known: ClassVar[Any] = {"right", "other"}

    def authenticate(self, request: Request) -> Any:
        key = request.headers.get("X-Api-Key")
        return (AnonymousUser(), key) if key in self.known else None


class Search(APIView):
    authentication_classes: ClassVar[Any] = [Keys]
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]
    throttle_scope = "search"

    def get(self, request: Request) -> Response:
        return Response({})


class Login(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]
    throttle_scope = "login"

    def post(self, request: Request) -> Response:
        return Response({})


def page(request: HttpRequest) -> JsonResponse:
    return JsonResponse({})


urlpatterns = [path("search", Search.as_view()), path("login", Login.as_view()), path("page", page, name="page")]


def typed(request: Any) -> Any:
    return json.loads(request.body).get("username")


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = MIDDLEWARE
    settings.ALLOWED_HOSTS = ["*"]


def admitted(client: Client, where: str, times: int, headers: Callable[[], dict[str, str]] = dict, **extra: Any) -> int:
    found = [client.get(where, headers=headers(), **extra).status_code for _ in range(times)]
    assert set(found) <= {200, 429}
    return found.count(200)


def address() -> str:
    return ".".join(str(random.randrange(1, 255)) for _ in range(4))


class TestAddresses:
    @pytest.mark.row("A01")
    @pytest.mark.parametrize("where", ["/search", "/page"])
    @BOTH
    def test_a01_a_rotating_x_forwarded_for(self, enforce: Enforce, where: str) -> None:
        enforce(api=RULE)
        assert admitted(Client(), where, 200, lambda: {"X-Forwarded-For": f"{address()}, {address()}"}) == LIMIT

    @pytest.mark.row("A05")
    @pytest.mark.parametrize(("prefix", "spare"), [(64, 64), (56, 72), (48, 80)])
    @REDIS
    def test_a05_rotation_inside_a_network(
        self, enforce: Enforce, prefix: int, spare: int, redis_server: Any, figure: Callable[..., None]
    ) -> None:
        enforce(api=RULE, IPV6_PREFIX=prefix)
        network = 0x20010DB8 << 96
        found = [ask(f"{network + random.getrandbits(spare):x}") for _ in range(1000)]
        figure(f"passed of 1,000, limit {LIMIT},", sum(found))
        assert sum(found) == LIMIT
        assert keys(redis_server) == 1

    @pytest.mark.row("A06", "A07", "A08")
    @REDIS
    def test_one_address_is_one_key_and_another_address_another(self, enforce: Enforce, redis_server: Any) -> None:
        enforce(api=RULE)
        for number, notations in enumerate(
            [
                ["::ffff:1.2.3.4", "::ffff:102:304", "1.2.3.4", "::FFFF:0102:0304"],
                ["2001:db8::a", "2001:DB8::A", "2001:0db8::000a", "2001:db8::0.0.0.10"],
                [f"fe80::1%{'x' * length}" for length in (0, 1, 10, 3000, 100_000)],
            ],
            start=1,
        ):
            assert all(map(ask_over, notations))
            assert keys(redis_server) == number
        assert all(ask_over(f"::ffff:9.9.{number // 250}.{number % 250}") for number in range(1000))
        assert keys(redis_server) == 1003


class TestNoAddress:
    """A10: a server on a Unix socket tells nothing, and nobody has declared a proxy."""

    @pytest.mark.row("A10")
    @pytest.mark.parametrize("key", ["ip", "user_or_ip", "api_key", "user_or_ip+ip"])
    @pytest.mark.parametrize("where", ["/search", "/page"])
    def test_a10_or_the_call_is_refused_and_it_is_not_the_clients_fault(
        self, enforce: Enforce, where: str, key: str
    ) -> None:
        enforce(api={**RULE, "key": key}, NO_ADDRESS="refuse")
        answer = Client(REMOTE_ADDR="").get(where)
        assert answer.status_code == 503
        assert int(answer["Retry-After"]) >= 1
        assert Client(REMOTE_ADDR="192.0.2.1").get(where).status_code == 200
        enforce(api={**RULE, "key": "user"}, NO_ADDRESS="refuse")
        assert Client(REMOTE_ADDR="").get(where).status_code == 200, "no rule asks for an address"

    @pytest.mark.row("A10")
    def test_a10_the_drop_ins_too(self, enforce: Enforce) -> None:
        class Anonymous(drf.AnonRateThrottle):
            rate = "2/min"

        view = Search.as_view(throttle_classes=[Anonymous])
        request = RequestFactory(REMOTE_ADDR="").get("/")
        enforce()
        assert [view(request).status_code for _ in range(5)] == [200] * 5
        enforce(NO_ADDRESS="refuse")
        answer = view(request)
        assert answer.status_code == 503 and answer["Retry-After"] == "60"


@pytest.fixture(params=[MIDDLEWARE[:-1], MIDDLEWARE], ids=["alone", "behind the middleware"])
def keyed(request: pytest.FixtureRequest, settings: Any) -> None:
    """The view by itself, and behind the middleware, which decides before anybody is authenticated."""
    settings.MIDDLEWARE = request.param


class TestCredentials:
    @pytest.mark.row("A11")
    @pytest.mark.usefixtures("keyed")
    def test_a11_forged_keys_are_nobodys(self, enforce: Enforce) -> None:
        enforce(api={**RULE, "key": "api_key", "scopes": ["search"]})
        client = Client()
        everywhere = [Client(REMOTE_ADDR=address()).get("/search", headers={"X-Api-Key": "right"}) for _ in range(30)]
        assert [answer.status_code for answer in everywhere].count(200) == LIMIT, "a key is one budget"
        assert admitted(client, "/search", 30, lambda: {"X-Api-Key": "other"}) == LIMIT
        assert admitted(client, "/search", 300, lambda: {"X-Api-Key": f"forged-{random.random()}"}) == LIMIT
        assert admitted(Client(REMOTE_ADDR="192.0.2.9"), "/search", 30) == LIMIT

    @pytest.mark.row("A13")
    def test_a13_nobodys_name_is_no_ones_budget(self, enforce: Enforce) -> None:
        enforce(login={**RULE, "key": f"{__name__}.typed", "scopes": ["login"]})
        assert [log_in({"username": ""}) for _ in range(LIMIT * 3)] == [200] * LIMIT * 3
        assert [log_in({}) for _ in range(LIMIT * 3)] == [200] * LIMIT * 3
        assert [log_in({"username": "bob"}) for _ in range(LIMIT)] == [200] * LIMIT

    @pytest.mark.row("A14")
    @pytest.mark.parametrize("value", [["a"], {}, {"a": 1}, [], True, False, None, 1e400, 10**400], ids=ascii)
    def test_a14_whatever_json_has_in_place_of_a_name(self, enforce: Enforce, value: Any) -> None:
        own = {**RULE, "key": f"{__name__}.typed", "scopes": ["login"]}
        enforce(login=own, addresses={**RULE, "scopes": ["login"]})
        assert [log_in({"username": value}) for _ in range(LIMIT * 3)].count(200) == LIMIT


def log_in(body: dict[str, Any], **extra: Any) -> int:
    return Client().post("/login", json.dumps(body), content_type="application/json", **extra).status_code


NASTY = (
    "a\x00b", "a\r\nb", "*1\r\n$8\r\nFLUSHALL\r\n", "%0d%0a", "a b", "{x}", "\x1b[31m", "'; DROP", "../../etc",
    "{{7*7}}", "\ud800", "\udfff\ud800", "💥", "é".encode().decode("latin-1"),
)  # fmt: skip
nasty: str = ""


def named(subject: object) -> str:
    return nasty


class TestText:
    @pytest.mark.row("A16")
    def test_a16_what_looks_like_a_command_is_none(self, redis_url: str, redis_server: Any) -> None:
        store = RedisStore(redis_url, deadline=5.0)
        # A rule's shape, not its ident, decides what is sent: loaded before anyone listens.
        Limiter([Rule("api", "5/min")], store).acquire("warm")
        with redis_server.client() as client:
            client.flushdb()
            with client.monitor() as monitor:
                for text in NASTY:
                    assert Limiter([Rule("api", "5/min")], store).acquire(f"user:{text}").allowed
                client.echo("done")
                seen = []
                while (line := monitor.next_command())["command"] != "ECHO done":
                    seen.append(line)
            sent = [line["command"].split()[0] for line in seen if line["client_type"] != "lua"]
            assert [name for name in sent if name not in ("CLIENT", "HELLO")] == ["EVALSHA"] * len(NASTY)
            assert client.dbsize() == len(NASTY)

    @pytest.mark.row("A17")
    @REDIS
    def test_a17_a_megabyte(self, enforce: Enforce, redis_server: Any, monkeypatch: Any, figure: Any) -> None:
        enforce(api={**RULE, "key": f"{__name__}.named"})
        monkeypatch.setattr(f"{__name__}.nasty", "x" * 2**20)
        assert len(str(AsgiCaller({}).ident(f"{__name__}.named"))) < 128
        assert Client().get("/page").status_code == 200
        with redis_server.client() as client:
            assert [len(key) <= 128 for key in client.scan_iter()] == [True]

    @pytest.mark.row("A18")
    @pytest.mark.parametrize("text", ["\ud800", "x\udcff", "\udfff\ud800", "\ud800" * 5000], ids=ascii)
    @BOTH
    def test_a18_half_a_character(self, enforce: Enforce, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        enforce(api={**RULE, "key": f"{__name__}.named"})
        monkeypatch.setattr(f"{__name__}.nasty", text)
        assert admitted(Client(), "/search", LIMIT * 2) == LIMIT


def over(peer: str, forwarded: str = "") -> RequestCaller:
    return RequestCaller(RequestFactory(REMOTE_ADDR=peer).get("/", headers={"X-Forwarded-For": forwarded}))


def ask_over(peer: str) -> bool:
    return limiter.decide(Call("page", ("request",), over(peer), method="GET")).allowed


def ask(bits: str) -> bool:
    peer = ":".join(bits.zfill(32)[at : at + 4] for at in range(0, 32, 4))
    caller = AsgiCaller({"client": (peer, 1)})
    return limiter.decide(Call("page", ("request",), caller, method="GET")).allowed


def keys(redis_server: Any) -> int:
    with redis_server.client() as client:
        return int(client.dbsize())

"""The name that a login is about, by every way that a login has, and by those of whoever wants not to be counted."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
from asgiref.sync import async_to_sync
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.testing import WebsocketCommunicator
from django.contrib import admin
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView, PasswordResetView
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from rest_framework.authtoken.serializers import AuthTokenSerializer
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework_simplejwt.views import TokenObtainPairView

from django_throttle import limiter, rulebook
from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.contrib.logins import UNCLEAR, login_name
from django_throttle.core import Rule
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import Refused
from django_throttle.identity import RequestCaller
from django_throttle.identity.call import Call
from django_throttle.stores import MemoryStore, RedisStore
from tests.clock import FrozenClock
from tests.doors import LOGIN, Enforce
from tests.entry_points import site
from tests.inside import commands_to, count_in
from tests.pages import block, run

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
LIMIT = 5
QUICK_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
KEY = "django_throttle.contrib.logins.login_name"


def json_login(request: HttpRequest) -> HttpResponse:
    """A login that many sites have: whatever the content type says."""
    user = authenticate(request, **json.loads(request.body))
    return JsonResponse({}, status=403 if user is None else 200)


class JwtView(TokenObtainPairView):
    throttle_classes = (RuleThrottle,)


urlpatterns = [
    path("form", LoginView.as_view(success_url="/", template_name="admin/login.html")),
    path("jwt", JwtView.as_view()),
    path("json", json_login),
    path("admin/", admin.site.urls),  # whose template the form has
]
# The statuses of a wrong password, and what each view reads.
WRONG = {"form": (200, [FORM, "multipart"]), "jwt": (401, [FORM, "multipart", JSON]),
         "json": (403, [JSON, FORM, "text/plain"])}  # fmt: skip


@pytest.fixture
def anna(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock) -> Iterator[User]:
    """Five wrong passwords an hour at one name, right ones free, under the middleware and the throttle class."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [*LOGIN, "django_throttle.middleware.ThrottleMiddleware"]
    settings.PASSWORD_HASHERS = QUICK_HASHERS
    settings.DJANGO_THROTTLE = {"DATABASE_RULES": False}
    count_in(MemoryStore(clock), monkeypatch)
    yield User.objects.create_user("anna", password="right")
    rulebook.pin(None)


SPELLINGS = ("lea", "léa", "lèa", "LÊA ", "le\u0301a", "ĺëá", "l\u200bea", "le\ufe0fa\u20dd")


@pytest.mark.row("A12")
@pytest.mark.parametrize("server", ["wsgi", "asgi"])
@pytest.mark.parametrize(
    ("view", "kind"), [(view, kind) for view, (_, kinds) in WRONG.items() for kind in kinds], ids=str
)
def test_of_twenty_guesses_five_pass(anna: User, view: str, kind: str, server: str) -> None:
    """The spellings are one account to a database that compares as MySQL does."""
    status = WRONG[view][0]
    rule = Rule("by name", f"{LIMIT}/h", algorithm="fixed_window", methods=("POST",), count_on=(status,), key=KEY)
    rulebook.pin(rulebook.Snapshot([rule]))
    post = Client().post if server == "wsgi" else async_to_sync(AsyncClient().post)

    def ask(name: str) -> int:
        fields = {"username": name, "password": "guess"}
        if kind == "multipart":
            return post(f"/{view}", fields).status_code
        body = json.dumps(fields) if kind == JSON or view == "json" else urlencode(fields)
        return post(f"/{view}", body, content_type=kind).status_code

    assert [ask(SPELLINGS[turn % 8]) for turn in range(20)] == [status] * LIMIT + [429] * (20 - LIMIT)
    assert ask("otto") == status, "somebody else is no worse off"


class TestGuesses:
    """With the two rules of the recipe: by address and by name."""

    BY_ADDRESS = Rule("by address", "20/10m", methods=("POST",), key="ip", count_on=(403,))
    BY_NAME = Rule("by name", "10/15m", methods=("POST",), key=KEY, count_on=(403,))

    @pytest.fixture
    def guess(self, anna: User) -> Callable[..., int]:
        rulebook.pin(rulebook.Snapshot([self.BY_ADDRESS, self.BY_NAME]))

        def guess(name: str, address: str, password: str = "wrong") -> int:
            said = {"username": name, "password": password}
            return Client(REMOTE_ADDR=address).post("/json", said, content_type=JSON).status_code

        return guess

    @pytest.mark.row("A36")
    def test_from_many_at_many(self, guess: Callable[..., int]) -> None:
        tried = Counter[str]()
        for name, number in [(f"user {n}", number) for _ in range(5) for n in range(4) for number in range(4)]:
            if guess(name, f"203.0.113.{number}") == 403:
                tried.update((name, str(number)))
        assert all(tried[f"user {number}"] == 10 for number in range(4))
        assert all(tried[str(number)] <= 20 for number in range(4))

    @pytest.mark.row("A37")
    def test_by_both_together_a_victim_gets_in_from_elsewhere(self, guess: Callable[..., int]) -> None:
        both = Rule("by both", "10/15m", methods=("POST",), key=f"ip+{KEY}", count_on=(403,))
        rulebook.pin(rulebook.Snapshot([self.BY_ADDRESS, both]))
        assert [guess("anna", "203.0.113.66") for _ in range(11)] == [403] * 10 + [429]
        assert guess("anna", "203.0.113.66", "right") == 429
        assert guess("anna", "192.0.2.7", "right") == 200

    @pytest.mark.row("A38")
    def test_logging_in_between_buys_no_guesses(self, guess: Callable[..., int]) -> None:
        statuses = []
        for number in range(25):
            assert guess("anna", "203.0.113.9", "right") == (200 if number < 20 else 429)
            statuses.append(guess(f"user {number}", "203.0.113.9"))
        assert statuses == [403] * 20 + [429] * 5


@pytest.mark.row("A21")
@pytest.mark.django_db
def test_a_name_that_nobody_has_is_counted_like_any_other(
    anna: User, redis_url: str, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    rulebook.pin(rulebook.Snapshot([Rule("by name", "9/h", key=KEY)]))
    store = RedisStore(redis_url, deadline=5.0)
    count_in(store, monkeypatch)
    commands = commands_to(store, monkeypatch)
    with django_assert_num_queries(0):
        for name in ("anna", "emma"):
            call = Call("json", ("request",), RequestCaller(post({"username": name})), method="POST")
            assert not limiter.decide(call).degraded
    assert len(commands) == 2 and type(commands[0]) is type(commands[1])


def post(data: Any, kind: str = JSON, url: str = "/", **extra: Any) -> HttpRequest:
    """A request with this body: a form of several parts, or these bytes, or else JSON."""
    if kind == "multipart":
        return RequestFactory().post(url, data, **extra)
    sent = data if isinstance(data, (bytes, str)) else json.dumps(data)
    return RequestFactory().generic("POST", url, sent, content_type=kind, **extra)


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (post({"username": "Anna"}), "anna"), (post({"username": " ＡNNA\u2009"}), "anna"),
        (post({"username": "STRASSE"}), "strasse"), (post({"username": "straße"}), "strasse"),
        (post({"username": 5}), "5"), (post('{"username": "anna"}'.encode("utf-16")), "anna"),
        (post(b"\xef\xbb\xbf" + b'{"username": "anna"}'), "anna"),
        (post('{"username": "änna"}'.encode("latin-1"), f"{JSON}; charset=latin-1"), "anna"),
        (post({"username": "한 Đức"}), "한 đuc"), (post('{"username": "anna"}', f"{JSON}; charset=nonsense"), "anna"),
        (post("username=anna", FORM), "anna"), (post("username=&username=anna", FORM), "anna"),
        (post({"username": "anna"}, "multipart"), "anna"), (post("", FORM, "/?username=anna"), "anna"),
        (post({"username": "anna"}, url="/?username=ANNA"), "anna"),
        (post({"username": "anna"}, "text/plain"), "anna"), (post({"username": "anna"}, FORM), "anna"),
        (RequestFactory().put("/", '{"username": "anna"}', content_type=JSON), "anna"),
        (RequestFactory().get("/"), None), (post("", JSON), None), ({"type": "websocket"}, None),
    ],
    ids=str,
)  # fmt: skip
def test_the_name(request_: Any, name: str | None) -> None:
    assert login_name(request_) == name


DEEP, ENDLESS = b'{"username": ' + b"[" * 30_000, b'{"username": ' + b"9" * 9000 + b"}"
STRANGE: list[Any] = [
    *(post({"username": name}) for name in (["anna"], {"anna": 1}, True, None, "", "  ", "an\0na", "\ud800", "\u0301")),
    *(post(body) for body in (b"{", b"\xff\xfe\xff", b'["anna"]', b"null", b"7", DEEP, ENDLESS)),
    post(b'{"username": "anna", "username": "otto"}'), post("username=anna&username=otto", FORM),
    post({"username": ["anna", "otto"]}, "multipart"), post({"username": "anna"}, url="/?username=otto"),
    post('{"username":"anna","x":"&username=otto&"}', FORM),
    post('{"username":"anna","x":"&username=otto&"}', "text/plain"), post({"user": "anna"}),
    post("&".join(["a=1"] * 5000), FORM),
    *(post({"username": "anna", "more": "x" * 70_000}, kind) for kind in (JSON, FORM, "multipart")),
    post(b"no parts", "multipart/form-data"), post(b"--x\r\nrubbish", "multipart/form-data; boundary=x"),
    post(b'{"other": 1}', f"{JSON}; charset=nonsense"),
    post("{+ACI-username+ACI-: +ACI-anna+ACI-}", f"{JSON}; charset=utf-7"),
    *(post(b"a" * 65_000, f"{JSON}; charset={slow}") for slow in ("punycode", "idna", "zlib")),
    post(b"\x1f\x8b\x08", JSON, CONTENT_ENCODING="gzip"),
    RequestFactory().post("/", HTTP_TRANSFER_ENCODING="chunked"),
]  # fmt: skip


@pytest.mark.parametrize("request_", STRANGE, ids=lambda request: str(request.META.get("CONTENT_TYPE")))
def test_what_says_no_one_name_counts_together(request_: HttpRequest) -> None:
    assert login_name(request_) == UNCLEAR


@pytest.mark.parametrize("reads_before", [False, True])
@pytest.mark.parametrize("kind", [JSON, FORM, "multipart"])
def test_the_view_reads_as_if_nobody_had_looked(reads_before: bool, kind: str) -> None:
    body: Any = "username=Anna" if kind == FORM else {"username": "Anna"}
    rest = Request(post(body, kind), parsers=[JSONParser(), FormParser(), MultiPartParser()])
    if reads_before:
        assert rest.data["username"] == "Anna"
    assert login_name(rest) == "anna"
    assert rest.data["username"] == "Anna"
    request = post(body, kind)
    assert login_name(request) == "anna"
    assert (json.load(request) if kind == JSON else request.POST.dict()) == {"username": "Anna"}


def test_as_it_was_typed() -> None:
    assert login_name(post({"username": " Léa Groß "}), as_typed=True) == "Léa Groß"
    assert login_name(post({"username": "\u200b"}), as_typed=True) == "\u200b"
    assert login_name(post({"username": "Léa"}, url="/?username=lea"), as_typed=True) == UNCLEAR
    assert login_name(post({"username": ""}), as_typed=True) == UNCLEAR


def test_other_fields() -> None:
    request = post({"email": "Anna@Example.org", "username": "otto"})
    assert login_name(request, "email") == "anna@example.org"
    assert login_name(request, "email", "username") == UNCLEAR
    assert login_name(post({"email": "anna", "username": ""}), "email", "username") == "anna"


SLOTS = block("entry_points", '"reports": {')
LOGINS = block("logins", '"logins": {')
BACKEND = block("logins", "class LimitedBackend")
ADDRESS = "203.0.113.40"
WRONG_PASSWORD = {"username": "anna", "password": "wrong"}


class Token(APIView):
    authentication_classes: ClassVar[Any] = []

    def post(self, request: Request) -> Response:
        AuthTokenSerializer(data=request.data, context={"request": request}).is_valid(raise_exception=True)
        return Response()


class Chat(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    throttle_scope = "chat"

    async def receive_json(self, content: Any, **_: Any) -> None:
        try:
            user = await database_sync_to_async(authenticate)(None, **content)
        except Refused as refused:
            await self.send_json({"refused": refused.decision.rule})
        else:
            await self.send_json({"user": user and user.pk})


urlpatterns += [
    path("token", Token.as_view(), name="token"),
    path("reset", PasswordResetView.as_view(success_url="/"), name="password_reset"),
]


DEFAULT = [*LOGIN, "django.contrib.messages.middleware.MessageMiddleware"]


def ways_in() -> dict[str, Callable[[], int]]:
    client = Client(REMOTE_ADDR=ADDRESS)
    return {
        "admin": lambda: client.post("/admin/login/", WRONG_PASSWORD).status_code,
        "token": lambda: client.post("/token", WRONG_PASSWORD).status_code,
        "reset": lambda: client.post("/reset", {"email": "anna@example.com"}).status_code,
    }


def socket() -> WebsocketCommunicator:
    communicator = WebsocketCommunicator(Chat.as_asgi(), "/")
    communicator.scope |= {"client": (ADDRESS, 1)}
    return communicator


@pytest.mark.row("A40")
@pytest.mark.django_db(transaction=True)
class TestEveryWayIn:
    """A40: one counter for all doors to the same credential."""

    @pytest.fixture(autouse=True)
    def here(self, settings: Any) -> None:
        settings.ROOT_URLCONF = __name__
        settings.MIDDLEWARE = [*DEFAULT, *site.MIDDLEWARE]
        settings.PASSWORD_HASHERS = QUICK_HASHERS

    def test_one_rule_over_all_their_scopes(self, enforce: Enforce) -> None:
        reports, logins = (run(text)["DJANGO_THROTTLE"]["RULES"] for text in (SLOTS, LOGINS))
        enforce(**reports, **logins)
        tried = [way() for _ in range(3) for way in ways_in().values()]
        assert 429 not in tried
        assert async_to_sync(connects)() is True
        assert [way() for way in ways_in().values()] == [429] * 3
        assert async_to_sync(connects)() is False

    def test_what_all_of_them_call(self, enforce: Enforce, settings: Any) -> None:
        User.objects.create_user("anna", password="right")
        backend = ModuleType("tests.http.backend_shown")
        backend.__dict__.update(run(BACKEND))
        sys.modules[backend.__name__] = backend
        settings.AUTHENTICATION_BACKENDS = [f"{backend.__name__}.LimitedBackend"]
        enforce(passwords={"rate": "5/15m", "algorithm": "fixed_window"})
        ways = ways_in()
        assert [ways["admin"](), ways["token"](), ways["admin"]()] == [200, 400, 200]
        assert async_to_sync(says)({"username": "ANNA ", "password": "wrong"}) == {"user": None}
        assert Client().post("/token", {"username": "anna", "password": "right"}).status_code == 200
        assert [ways["admin"](), ways["token"]()] == [429, 429]
        assert async_to_sync(says)(WRONG_PASSWORD) == {"refused": "passwords"}
        assert Client().post("/token", {"username": "otto", "password": "x"}).status_code == 400


async def connects() -> bool:
    communicator = socket()
    accepted, _ = await communicator.connect(timeout=5)
    await communicator.disconnect(timeout=5)
    return bool(accepted)


async def says(content: dict[str, str]) -> Any:
    communicator = socket()
    await communicator.connect(timeout=5)
    await communicator.send_json_to(content)
    answer = await communicator.receive_json_from(timeout=5)
    await communicator.disconnect(timeout=5)
    return answer

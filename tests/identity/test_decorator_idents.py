"""What @throttle counts under where a function of the site's says it, by what a client has sent."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import Celery
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from django_throttle import rulebook
from django_throttle.core import Override, Reason, Rule
from django_throttle.decorators import throttle
from django_throttle.exceptions import InvalidIdent, Refused
from django_throttle.http.request_state import decisions_of
from django_throttle.limiter import Limiter, allows
from django_throttle.tasks import throttled_task
from tests.clock import FrozenClock
from tests.doors import BOTH, LOGIN, Store, build
from tests.inside import count_in

HERE, ELSEWHERE = "127.0.0.1", "198.51.100.7"
RULE = Rule("api", "2/min", algorithm="fixed_window")
Enforce = Callable[..., Store]
Ask = Callable[..., Any]
requests: list[HttpRequest] = []


def said(request: HttpRequest) -> Any:
    return json.loads(request.body)["name"]


def answered(request: HttpRequest) -> HttpResponse:
    requests.append(request)
    return HttpResponse()


@throttle("api", ident=said)
def view(request: HttpRequest) -> HttpResponse:
    return answered(request)


@throttle("api", ident=said)
async def aview(request: HttpRequest) -> HttpResponse:
    return answered(request)


@throttle("api", ident=lambda request: get_user_model().objects.get(username=said(request)))
async def found(request: HttpRequest) -> HttpResponse:
    return answered(request)


urlpatterns = [path(each.__name__, each) for each in (view, aview, found)]


@pytest.fixture
def enforce(request: pytest.FixtureRequest, settings: Any, monkeypatch: Any, clock: FrozenClock) -> Iterator[Enforce]:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = LOGIN
    settings.DJANGO_THROTTLE = {"DATABASE_RULES": False, "RETRY_JITTER": 0.0, "TRUSTED_PROXIES": 1}
    store = build(request, clock)
    count_in(store, monkeypatch)

    def enforce(*overrides: Override) -> Store:
        rulebook.pin(rulebook.Snapshot([RULE], overrides=overrides, now=clock))
        return store

    requests.clear()
    yield enforce
    rulebook.pin(None)


@pytest.fixture(params=["view", "aview"])
def ask(request: pytest.FixtureRequest) -> Ask:
    def ask(name: Any, *, address: str = HERE) -> Any:
        sent: dict[str, Any] = {"data": json.dumps({"name": name}), "content_type": "application/json"}
        if request.param == "view":
            return Client().post("/view", **sent, headers={"X-Forwarded-For": address})
        return async_to_sync(AsyncClient().post)("/aview", **sent, headers={"X-Forwarded-For": address})

    return ask


def statuses(ask: Ask, *names: Any) -> list[int]:
    return [ask(name).status_code for name in names]


def left(store: Store, ident: str) -> int | None:
    return Limiter([RULE], store).peek(ident).remaining


@BOTH
@pytest.mark.parametrize("name", [["a"], {"a": 1}, True, "", []], ids=str)
def test_what_is_no_text_counts_under_the_address(enforce: Enforce, ask: Ask, name: Any) -> None:
    store = enforce()
    assert statuses(ask, name, name, name) == [200, 200, 429]
    assert left(store, f"ip:{HERE}") == 0
    assert ask(name, address=ELSEWHERE).status_code == 200


def test_a_number_is_a_text_and_of_a_long_text_a_hash_is_kept(enforce: Enforce, ask: Ask) -> None:
    enforce()
    assert statuses(ask, 5, "5", 5.0, 5) == [200, 200, 200, 429]
    requests.clear()
    long = "a" * 2_000_000
    for number in range(3):
        assert ask(f"{long}{number}").status_code == ask(f"mail:{long}{number}").status_code == 200
    idents = [
        outcome.ident for request in requests for decision in decisions_of(request) for outcome in decision.outcomes
    ]
    assert len(set(idents)) == 6 and max(map(len, idents)) < 100
    assert statuses(ask, f"{long}0", f"{long}0") == [200, 429]


@BOTH
def test_of_a_number_that_python_does_not_write_too(enforce: Enforce) -> None:
    enforce()
    limited = throttle("api", ident=lambda number: number)(lambda number: number)
    huge = 10**5000
    for number in (huge, huge + 1, -huge):
        assert limited(number) == limited(number) == number
        with pytest.raises(Refused) as refused:
            limited(number)
        assert all(len(outcome.ident) < 100 for outcome in refused.value.decision.outcomes)


CLAIMS = ["ip:198.51.100.7", "user:1", "tenant:acme", "session:abc", "api_key:abc", "group:staff",
          "user+ip:user:1%2Bip:198.51.100.7", "tests.limits.tenant:acme", "198.51.100.7", "ident:user:1"]  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", CLAIMS)
def test_nobody_s_exemption_or_budget_is_had_by_a_name(enforce: Enforce, ask: Ask, name: str) -> None:
    subjects = ["ip:198.51.100.7", "ip:198.51.100.0/24", "user:1", "tenant:acme", "api_key:abc", "group:staff"]
    store = enforce(*(Override(subject=subject, effect="exempt") for subject in subjects))
    answers = [ask(name) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    if name not in ("198.51.100.7", "group:staff"):
        assert left(store, name) == 2
        assert not any(answer.has_header("RateLimit") for answer in answers)


@BOTH
def test_a_block_of_the_address_holds_whatever_the_name(enforce: Enforce, ask: Ask) -> None:
    enforce(Override(subject=f"ip:{HERE}", effect="block"))
    assert statuses(ask, "anna", "user:1", ["a"]) == [429] * 3
    assert ask("anna", address=ELSEWHERE).status_code == 200


@pytest.mark.django_db(transaction=True)
async def test_on_an_event_loop_a_function_may_ask_the_database(enforce: Enforce) -> None:
    await User.objects.acreate(username="anna")
    enforce()
    sent: dict[str, Any] = {"data": {"name": "anna"}, "content_type": "application/json"}
    assert [(await AsyncClient().post("/found", **sent)).status_code for _ in range(3)] == [200, 200, 429]


class TestCallables:
    @BOTH
    def test_a_block_of_whoever_asks_holds(self, enforce: Enforce) -> None:
        class Backend:
            @throttle("api", ident=lambda backend, request, username: f"account:{username}")
            def authenticate(self, request: HttpRequest | None, username: str) -> str:
                return username

        enforce(Override(subject=f"ip:{HERE}", effect="block"))
        request = HttpRequest()
        request.META["REMOTE_ADDR"] = HERE
        for given in ({"request": request}, {"request": type("Wrapped", (), {"_request": request})()}):
            with pytest.raises(Refused) as caught:
                Backend().authenticate(**given, username="anna")
            assert caught.value.decision.outcomes[0].reason is Reason.BLOCKED
        assert Backend().authenticate(None, "anna") == "anna"

    async def test_a_consumer_is_whoever_opened_the_socket(self, enforce: Enforce) -> None:
        class Consumer:
            scope: dict[str, Any] = {"type": "websocket", "client": [HERE, 1], "headers": []}

            @throttle("api", ident=lambda consumer, content: content["name"])
            async def receive_json(self, content: Any) -> str:
                return "received"

        enforce(Override(subject=f"ip:{HERE}", effect="block"))
        with pytest.raises(Refused):
            await Consumer().receive_json({"name": "anna"})
        enforce(Override(subject=f"ip:{ELSEWHERE}", effect="exempt"))
        for name in (f"ip:{ELSEWHERE}", ["a"]):
            assert [await Consumer().receive_json({"name": name}) for _ in range(2)] == ["received"] * 2
            with pytest.raises(Refused):
                await Consumer().receive_json({"name": name})

    def test_a_user_counts_as_that_user(self, enforce: Enforce) -> None:
        store = enforce()
        send = throttle("api", ident=lambda user: user)(lambda user: "sent")
        assert (send(User(pk=7)), left(store, "user:7")) == ("sent", 1)
        assert [send(AnonymousUser()) for _ in range(2)] == ["sent"] * 2
        with pytest.raises(Refused):
            send(AnonymousUser())

    @pytest.mark.parametrize("value", [object(), b"anna", Ellipsis])
    def test_anything_else_is_a_mistake_of_the_site_s(self, enforce: Enforce, value: Any) -> None:
        enforce()
        with pytest.raises(InvalidIdent, match="ident returns a text, a number"):
            throttle("api", ident=lambda: value)(lambda: "sent")()

    def test_above_a_task_it_says_where_it_goes(self) -> None:
        def send() -> None: ...

        celery = Celery("tests", broker="memory://", set_as_current=False)
        for task in (celery.task(send), type("Job", (), {"enqueue": lambda self: None})()):
            with pytest.raises(TypeError, match="below the decorator that makes a task"):
                throttle("api", ident="everyone")(task)

    @pytest.mark.parametrize("ident", [5, "", b"anna", ["a"]], ids=str)
    def test_a_constant_is_a_text(self, ident: Any) -> None:
        with pytest.raises(TypeError, match="ident is a text or a function"):
            throttle("api", ident=ident)(lambda: "sent")


@pytest.mark.parametrize(
    "options",
    [
        {"plans": {"tenant:acme": "60/min", "staff": "60/min", "group:staff": "60/min", "authenticated": "60/min"}},
        {"audience": ["anonymous"], "key": "ip"}, {"audience": ["authenticated", "staff"]},
        {"audience": ["tenant:other", "group:others"]}, {"plans": {"anonymous": "2/min"}, "rate": "60/min"},
    ],
    ids=str,
)  # fmt: skip
def test_a_text_is_no_way_into_a_plan_nor_out_of_an_audience(enforce: Enforce, options: dict[str, Any]) -> None:
    enforce()
    rulebook.pin(rulebook.Snapshot([Rule.from_options("api", {"rate": "2/min", **options})]))
    ways: list[Any] = [way("api", ident=lambda name: name)(lambda name: None) for way in (throttle, throttled_task)]
    for number, name in enumerate(("tenant:acme", "user:1", "api_key:x", "group:staff", "someone")):
        way = ways[number % 2]
        way(name)
        way(name)
        with pytest.raises(Refused):
            way(name)


def tenant(request: HttpRequest) -> str:
    return "acme"


@pytest.mark.parametrize(
    ("setting", "audience", "caller", "is_limited"),
    [
        ("", "tenant:acme", User(pk=7), False), (f"{__name__}.tenant", "tenant:acme", User(pk=7), True),
        ("user.last_name", "tenant:acme", User(pk=7, last_name="acme"), True),
        ("user.last_name", "tenant:acme", User(pk=7, last_name="other"), False),
        (f"{__name__}.tenant", "tenant:acme", "nightly", True),
        (f"{__name__}.tenant", "tenant:acme", "tenant:b", False),
        ("", "staff", User(pk=7), False), ("", "staff", "user:7", True), ("", "staff", "nightly", False),
    ],
)  # fmt: skip
def test_an_audience_covers_a_named_caller_unless_that_is_known_to_be_outside(
    enforce: Enforce, settings: Any, setting: str, audience: str, caller: Any, is_limited: bool
) -> None:
    enforce()
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "TENANT": setting}
    rulebook.pin(rulebook.Snapshot([Rule("api", "2/min", audience=[audience])]))
    call = throttle("api", ident=caller if isinstance(caller, str) else lambda: caller)(lambda: True)
    assert call() and call()
    if is_limited:
        with pytest.raises(Refused):
            call()
    else:
        assert call()
    if isinstance(caller, User):
        assert bool(allows("api", caller)) is not is_limited


@pytest.mark.parametrize(
    ("plan", "ident", "caller"),
    [("authenticated", lambda user: user, [User(pk=7)]), ("tenant:acme", "tenant:acme", [])],
    ids=["a user", "a text of the site's own"],
)
def test_what_proves_who_it_is_has_the_plan(enforce: Enforce, plan: str, ident: Any, caller: list[User]) -> None:
    enforce()
    rulebook.pin(rulebook.Snapshot([Rule("api", "2/min", plans={plan: "4/min"})]))
    call = throttle("api", ident=ident)(lambda *caller: True)
    assert [call(*caller) for _ in range(4)] == [True] * 4
    with pytest.raises(Refused):
        call(*caller)

"""Beyond what holds at each entry point: what several charge together, whom overrides and audiences mean."""

import asyncio
import json
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.authentication import SessionAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient
from rest_framework.views import APIView

from django_throttle import limiter
from django_throttle.core import Override, Rule
from django_throttle.core.commands import Correct
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.exceptions import Cause, StoreError
from django_throttle.http import finalize
from django_throttle.identity import AsgiCaller
from django_throttle.identity.call import Call
from django_throttle.identity.keys import api_key
from django_throttle.limiter import Limiter
from django_throttle.observe.reports import ident_for_logs
from django_throttle.stores.base import Store
from tests.consumers import held, opened, socket
from tests.doors import BOTH, LOGIN, REDIS, Enforce
from tests.entry_points import site
from tests.entry_points.table import ENTRY_POINTS, Http
from tests.inside import commands_to, unsaid

pytestmark = pytest.mark.django_db
SITE: dict[str, Any] = {"rate": "9/h", "key": "everyone", "algorithm": "fixed_window", "cost": 2}
SLOTS: dict[str, Any] = {"limit": 3, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}
LAST: dict[str, Any] = {"rate": "1/h", "key": "ip", "algorithm": "fixed_window", "scopes": ["last"]}
MIDDLE: dict[str, Any] = {"rate": "7/h", "key": "ip", "algorithm": "sliding_log", "scopes": ["middle"]}


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


async def aplain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@throttle("last", ident="somebody")
def call() -> None:
    """Something that a view calls."""


def calling(request: HttpRequest) -> HttpResponse:
    call()
    return HttpResponse("done")


class Drf(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    inside = "last"

    def initial(self, *args: Any, **kwargs: Any) -> None:
        self.throttle_scope = self.inside  # which the middleware does not know
        super().initial(*args, **kwargs)

    def get(self, request: Request) -> Response:
        return Response("done")


class Within(Drf):
    inside = "middle"

    @method_decorator(throttle("last"))
    def get(self, request: Request) -> Response:
        return Response("done")


class Last(UserRateThrottle):
    rate = "1/h"


class Mixed(Drf):
    """Each throttle class is asked, however many have refused."""

    inside = "middle"
    throttle_classes: ClassVar[Any] = [Last, RuleThrottle]


VIEWS: dict[str, Any] = {
    "drf": Drf.as_view(), "rules and drop-in": Mixed.as_view(),
    "two decorators": throttle("middle")(throttle("last")(plain)),
    "two async decorators": throttle("middle")(throttle("last")(aplain)),
    "decorator in a throttle class": Within.as_view(), "callable in a decorator": throttle("middle")(calling),
}  # fmt: skip
urlpatterns = [*site.urlpatterns, *(path(name.replace(" ", "-"), view) for name, view in VIEWS.items())]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = site.MIDDLEWARE


def ask(view: str, server: str = "wsgi") -> Any:
    address = "/" + view.replace(" ", "-")
    if server == "wsgi" and "async" not in view:
        return Client().get(address)
    return asyncio.run(AsyncClient().get(address))  # type: ignore[arg-type]


def left(store: Store, **options: Any) -> list[int]:
    rule = Rule("site", **{**SITE, **options})
    return [outcome.remaining for outcome in Limiter([rule], store).peek("everyone").outcomes]


def left_of(store: Store, name: str, options: Any) -> int | None:
    return Limiter([Rule(name, **options)], store).peek("ip:127.0.0.1").remaining


@pytest.mark.parametrize(("view", "server"), [*((view, "wsgi") for view in VIEWS), ("drf", "asgi")])
@BOTH
def test_a_refused_request_is_charged_nowhere_by_one_more_command(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch, view: str, server: str
) -> None:
    store = enforce(site=SITE, slots=SLOTS, middle=MIDDLE, last=LAST)
    commands = commands_to(store, monkeypatch)
    assert ask(view, server).status_code == 200
    assert not any(
        isinstance(command, Correct) and command.refunds[0].charge.rule.name != "slots" for command in commands
    )
    before = left(store), left_of(store, "middle", MIDDLE)
    for _ in range(8):  # more than any rule has left
        commands.clear()
        answer = ask(view, server)
        assert answer.status_code == 429
        assert '"site";r=7' in answer["RateLimit"] and '"slots";r=3' in answer["RateLimit"]
        (refund,) = (command for command in commands if isinstance(command, Correct))
        assert "site" in [entry.charge.rule.name for entry in refund.refunds]
    assert (left(store), left_of(store, "middle", MIDDLE)) == before == ([7], before[1])
    assert len(store.leases) == 0


@BOTH
@pytest.mark.parametrize(
    ("options", "expected"),
    [({"count_denied": True}, 3), ({"count_on": (200, 429)}, 7), ({"action": "shadow"}, 7)],
    ids=["of refused calls", "of some answers", "of a shadow"],
)
def test_the_charge_of_a_refused_request(enforce: Enforce, options: dict[str, Any], expected: int) -> None:
    store = enforce(site={**SITE, **options}, last=LAST)
    assert [ask("drf").status_code for _ in range(3)] == [200, 429, 429]
    assert left(store, **options) == [expected]


BEHIND = [row for row in ENTRY_POINTS if isinstance(row, Http) and {"rules"} <= row.traits]


@BOTH
@pytest.mark.parametrize("entry_point", BEHIND, ids=str, indirect=True)
def test_behind_the_middleware_each_rule_is_charged_once(enforce: Enforce, entry_point: Http, settings: Any) -> None:
    settings.MIDDLEWARE = [*site.MIDDLEWARE, *site.MIDDLEWARE]  # twice, by mistake
    failures = {"rate": "3/min", "algorithm": "fixed_window", "key": "everyone", "count_on": [401]}
    store = enforce(api=failures, slots={**SLOTS, "limit": 1})
    assert entry_point.get("login?status=401").status_code == 401
    assert entry_point.get().status_code == 200
    assert Limiter([Rule("api", **failures)], store).peek("everyone").remaining == 2
    assert (site.seen, len(store.leases)) == ([1, 1], 0)


@REDIS
def test_where_redis_goes_away_the_charge_stays(enforce: Enforce, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    unsaid(finalize, monkeypatch)
    store = enforce(site=SITE, last=LAST)
    execute = store.execute

    def away(command: Any) -> Any:
        if isinstance(command, Correct):
            raise StoreError(Cause.UNAVAILABLE)
        return execute(command)

    assert ask("drf").status_code == 200
    monkeypatch.setattr(store, "execute", away)
    assert [ask("drf").status_code for _ in range(4)] == [429] * 4
    assert left(store) == [1]
    assert "could not be refunded" in caplog.text


HERE = "127.0.0.1"
TWO = {"rate": "2/min", "algorithm": "fixed_window", "key": "ip", "events": ["request", "message", "connect"]}
SOCKETS = {"limit": 2, "algorithm": "concurrency", "key": "ip"}
BLOCKED = {"detail": "Access is blocked.", "reference": ident_for_logs(f"ip:{HERE}")}


def block(**options: Any) -> Override:
    return Override(subject=f"ip:{HERE}", effect="block", **options)


def statuses(times: int, path: str = "/drf/ok", **extra: Any) -> list[int]:
    return [Client().get(path, **extra).status_code for _ in range(times)]


@pytest.mark.parametrize("path", ["/middleware/ok", "/decorated/ok", "/drf/ok"])
def test_what_a_blocked_client_is_told(enforce: Enforce, override: Any, settings: Any, path: str) -> None:
    settings.MIDDLEWARE = site.MIDDLEWARE if "middleware" in path else []
    enforce(api=TWO)
    override(block())
    answer = Client().get(path)
    assert answer.status_code == 429
    assert "Retry-After" not in answer and "RateLimit" not in answer
    assert "127.0.0" not in answer.content.decode()
    if path != "/drf/ok":
        expected = {"type": "about:blank", "title": "Too Many Requests", "status": 429, **BLOCKED}
        assert json.loads(answer.content) == expected
    override(Override(subject="ip:127.0.0.0/8", effect="block"))
    assert statuses(1, path) + statuses(1, path, REMOTE_ADDR="128.0.0.1") == [429, 200]


@BOTH
def test_a_rule_counts_by_address_and_an_override_names_the_user_or_a_group(
    enforce: Enforce, override: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce(api=TWO)
    monkeypatch.setattr(site.Api, "authentication_classes", [])
    anna, ben = User.objects.create_user("anna"), User.objects.create_user("ben")
    group = anna.groups.create(name="support")
    client = APIClient()
    for subject in (f"user:{anna.pk}", f"group:{group.name}"):
        override(Override(subject=subject, effect="block"))
        for user, status in ((anna, 429), (ben, 200)):
            client.force_authenticate(User.objects.get(pk=user.pk))  # a user whose groups have not been read yet
            assert client.get("/drf/ok").status_code == status


@BOTH
async def test_a_socket_that_is_open_is_closed(enforce: Enforce, override: Any) -> None:
    store = enforce(api=TWO, sockets=SOCKETS)
    communicator = await opened(client=(HERE, 1))
    override(block(rules=("api",)))
    wanted = {"rule": "api", "limit": 2, "remaining": 0, "window": 60, "retry_after": None}
    assert await communicator.receive_json_from() == {"type": "error", "code": "blocked", **wanted, **BLOCKED}
    assert await communicator.receive_output() == {"type": "websocket.close", "code": 4403, "reason": "blocked"}
    await communicator.wait()
    assert held(store) == 0


@BOTH
async def test_sockets_of_an_exempt_client_count_and_never_refuse(enforce: Enforce, override: Any) -> None:
    store = enforce(api=TWO, sockets=SOCKETS)
    override(Override(subject=f"ip:{HERE}", effect="exempt"))
    sockets = [await opened(client=(HERE, 1)) for _ in range(4)]
    assert held(store) == 4
    override(Override(subject=f"ip:{HERE}", effect="replace", limit=4))
    assert (await socket(client=(HERE, 1)).connect()) == (False, 4430)
    for communicator in sockets:
        await communicator.disconnect()
    assert held(store) == 0


async def test_where_no_rule_covers_the_call_a_block_of_every_rule_does(enforce: Enforce, override: Any) -> None:
    enforce(api=TWO)
    call = Call("elsewhere", ("send",), AsgiCaller({"client": (HERE, 1)}))
    override(block())
    decision = await limiter.adecide(call)
    assert (decision.allowed, decision.rule) == (False, "*")
    override(block(rules=("api",)))
    assert (await limiter.adecide(call)).allowed


FORGED = {
    "X-HTTP-Method-Override": "OPTIONS", "X-Forwarded-User": "boss", "X-Remote-User": "boss",
    "X-Groups": "partners,staff", "X-Staff": "true", "X-Throttle-Bypass": "1", "X-Forwarded-For": "192.0.2.7",
    "Forwarded": "for=192.0.2.7", "X-Real-IP": "192.0.2.7", "User": "1", "Authorization": "Bearer secret",
    "X-Api-Key": "secret", "Cookie": "is_staff=1; user=boss",
}  # fmt: skip


@pytest.fixture(params=["/middleware/ok", "/decorated/ok", "/drf/ok"])
def where(request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(site.Api, "authentication_classes", [SessionAuthentication])
    monkeypatch.setattr(site.Api, "post", site.Api.get, raising=False)
    settings.MIDDLEWARE = [*LOGIN, *(site.MIDDLEWARE if "middleware" in request.param else [])]
    return str(request.param)


def admitted(answers: list[Any]) -> int:
    return sum(answer.status_code != 429 for answer in answers)


@pytest.mark.row("A34")
def test_nobody_is_exempt_for_what_he_says_of_himself(enforce: Enforce, override: Any, where: str) -> None:
    Group.objects.create(name="partners")
    meant = {"audience": ["staff", "group:partners"]}
    enforce(api={"rate": "2/min", "audience": ["anonymous"]}, few={"rate": "9/min", **meant})
    override(
        *(Override(subject=caller, effect="exempt") for caller in ("ip:192.0.2.7", "user:1", str(api_key("secret"))))
    )
    assert admitted([Client().get(f"{where}?user=boss&is_staff=1", headers=FORGED) for _ in range(5)]) == 2


def test_what_is_too_large_is_told_how_large_it_may_be(enforce: Enforce, where: str) -> None:
    enforce(api={"rate": "3000/min", "unit": "bytes", "cost": 2})
    answer = Client().post(where, b"x" * 1501, "text/plain")
    assert (answer.status_code, "Retry-After" in answer) == (429, False)
    assert "This is too large: at most 1,500 bytes are taken at once." in answer.json()["detail"]
    assert Client().post(where, b"x" * 1500, "text/plain").status_code != 429

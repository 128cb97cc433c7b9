"""Beyond what holds at each entry point: whom overrides, audiences and costs mean, and that nobody gets around."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from rest_framework.authentication import SessionAuthentication
from rest_framework.test import APIClient

from django_throttle import limiter
from django_throttle.core import Override
from django_throttle.identity import AsgiCaller
from django_throttle.identity.call import Call
from django_throttle.identity.keys import api_key
from django_throttle.observe.reports import ident_for_logs
from tests.consumers import held, opened, socket
from tests.doors import BOTH, LOGIN, Enforce
from tests.entry_points import site

pytestmark = pytest.mark.django_db
HERE = "127.0.0.1"
TWO = {"rate": "2/min", "algorithm": "fixed_window", "key": "ip", "events": ["request", "message", "connect"]}
SOCKETS = {"limit": 2, "algorithm": "concurrency", "key": "ip"}
BLOCKED = {"detail": "Access is blocked.", "reference": ident_for_logs(f"ip:{HERE}")}


@pytest.fixture(autouse=True)
def here(settings: Any, enforce: Enforce) -> None:
    settings.ROOT_URLCONF = site.__name__
    settings.MIDDLEWARE = site.MIDDLEWARE


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
            client.force_authenticate(User.objects.get(pk=user.pk))  # whose groups nobody has asked for yet
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
    settings.ROOT_URLCONF = site.__name__
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

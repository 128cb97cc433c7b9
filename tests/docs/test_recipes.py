"""The code of the how-to pages is run: it does what they say, and answers what they show that the client sees."""

import asyncio
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import RequestFactory

from django_throttle import limiter
from django_throttle.core import Decision, Reason
from django_throttle.identity import AsgiCaller, RequestCaller
from django_throttle.identity.call import Call
from django_throttle.signals import quota_warning
from tests.clock import FrozenClock
from tests.consumers import opened, socket
from tests.doors import Enforce
from tests.outside.pages import assert_shown
from tests.pages import run, seen, shown
from tests.websockets.guarded import Line

(QUOTAS, TOLD), (OPERATIONS, GRAPHQL, *_VIEWS) = shown("quotas"), shown("graphql")
_, PLAN_FUNCTION, BY_FUNCTION, _AUDIENCES = shown("plans")


@pytest.fixture
def rules(enforce: Enforce) -> Any:
    """Puts the settings of a recipe in force, counted in memory by a clock that stands still."""

    def put(recipe: str) -> dict[str, Any]:
        given: dict[str, Any] = run(recipe)["DJANGO_THROTTLE"]
        enforce(**given["RULES"], **{name: value for name, value in given.items() if name not in ("RULES", "REDIS")})
        return given

    return put


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Any:
    limits = ModuleType("shop.limits")
    for name, module in (("shop", ModuleType("shop")), ("shop.limits", limits)):
        monkeypatch.setitem(sys.modules, name, module)
    return limits


def post(body: object = None, user: int = 1, tenant: str = "", **headers: str) -> HttpRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    request: Any = RequestFactory().post("/graphql", text, content_type="application/json", headers=headers)
    request.user = SimpleNamespace(pk=user, tenant_id=tenant, is_authenticated=True)
    return request  # type: ignore[no-any-return]


def decide(request: HttpRequest, cost: int = 1, scope: str = "graphql") -> Decision:
    return limiter.decide(Call(scope, ("request",), RequestCaller(request), cost, method="POST"))


def test_quotas_are_told_at_80_and_100_and_restricted_at_two_and_a_half(rules: Any, clock: FrozenClock) -> None:
    texts: list[str] = []
    names = run(TOLD, notify=lambda row, text: texts.append(text))
    try:
        rules(QUOTAS)
        passed = 0
        for hour in range(190):
            clock.to(hour * 3600)
            passed += sum(decide(post(), cost=200, scope="search").allowed for _ in range(6))
    finally:
        quota_warning.disconnect(names["tell"])
    assert passed * 200 == 180_000
    assert texts == [f"{share}% of 72,000 calls used" for share in (80, 100)]


@pytest.mark.row("A27")
@pytest.mark.parametrize("spread", ["mutation {{ {} }}", "fragment f on Mutation {{ {} }} mutation {{ ...f }}"])
def test_a_hundred_aliased_logins_cost_a_hundred_times_one(rules: Any, shop: Any, spread: str) -> None:
    vars(shop).update(run(OPERATIONS))
    rules(GRAPHQL)
    logins = " ".join(f'a{number}: login(name: "anna", password: "{number}") {{ ok }}' for number in range(100))
    decision = decide(post({"query": spread.format(logins)}))
    assert decision.outcomes[0].reason is Reason.TOO_COSTLY and decision.retry_after is None
    bodies = [b"", b"{", b"\xff", b"null", b"7", b'"login"', b"[]", b"[[]]", b'{"query": 5}', b'{"q": "login"}']
    left = [decide(post(body)).remaining for body in bodies]
    assert left == [*range(999, 989, -1)], "what is no query costs one, and nothing was charged for the logins"
    assert not decide(post(b"[" * 100_000)).allowed
    assert decide(post([{"query": "query { me }"}] * 100)).remaining == 890


def test_a_function_names_the_plan(rules: Any, shop: Any) -> None:
    vars(shop).update(run(PLAN_FUNCTION))
    rules(BY_FUNCTION)
    for plan, limit, slots in (("free", 100, 3), ("pro", 1000, 3), ("team", 5000, 50)):
        user = SimpleNamespace(plan=plan, pk=1, is_authenticated=True)
        for scope, event, found in (("search", "request", limit), ("chat", "connection", slots)):
            call = Call(scope, (event,), AsgiCaller({"user": user, "client": ("192.0.2.1", 1)}))
            assert limiter.decide(call).limit == found


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("limit", [1000, 10_000])
async def test_an_export_and_a_last_frame_say_they_are_incomplete(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    async def tokens(request: Any) -> Any:
        for number in range(2000):
            yield f"token {number}"

    orders = {"orders": lambda: (f"order {number}" for number in range(2000))}
    for name, names in {"mysite": {}, "mysite.orders": orders, "mysite.model": {"tokens": tokens}}.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(names)
    code, _events, export, consumer = shown("streams")
    (options,) = run(code)["DJANGO_THROTTLE"]["RULES"].values()
    rule = {**options, "key": "everyone", "rate": f"{limit}/h"}
    enforce(tokens=rule)
    view = run(export)["ExportView"].as_view()
    sent = await asyncio.to_thread(lambda: b"".join(view(RequestFactory().get("/export")).streaming_content))
    lines = sent.decode().splitlines()
    assert lines[: min(limit, 2000)] == [f"order {number}" for number in range(min(limit, 2000))]
    assert [line.partition(":")[0] for line in lines[limit:]] == ["# incomplete"] * (limit < 2000)
    enforce(tokens=rule)
    line = await Line(run(consumer)["Answers"].as_asgi()).open()
    line.send("{}")
    await line.until(lambda: line.told("error") or len(line.frames) > 2000)
    assert [frame["type"] for frame in line.frames[limit:]] == ["error"] * (limit < 2000)
    await line.close()


async def test_websockets(rules: Any) -> None:
    """What one of three sockets gets for the eleventh message, and a fourth socket."""
    code, consumer, _asgi = shown("websockets")
    rules(code)
    app, mine = run(consumer)["ChatConsumer"].as_asgi(), {"client": ("203.0.113.9", 1)}
    sockets = [await opened(app, **mine) for _ in range(3)]
    for number in range(10):
        await sockets[0].send_json_to(number)
        assert await sockets[0].receive_json_from() == number
    await sockets[0].send_json_to(10)
    frames = [await sockets[0].receive_json_from()]
    fourth = socket(app, **mine)
    assert (await fourth.connect())[0]
    frames.append(await fourth.receive_json_from())
    assert (await fourth.receive_output())["code"] == 4430
    for one in sockets:
        await one.disconnect()
    for told, frame in zip(seen("websockets"), frames, strict=True):
        assert_shown(json.dumps(json.loads(told), indent=2).splitlines(), json.dumps(frame, indent=2))

"""However a socket ends, and whatever fails around it, its slot comes back; servers are in test_matrix.py."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from channels.layers import InMemoryChannelLayer

from django_throttle.channels import ThrottleMiddleware
from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.clock import LoopClock
from tests.consumers import TWO_SOCKETS, AsyncEcho, SyncEcho, held
from tests.doors import Enforce
from tests.inside import count_in
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.stores.conftest import evaluations
from tests.websockets.guarded import Line, becomes

LIMIT = 1000
MANY = {**TWO_SOCKETS, "limit": LIMIT}
RULE = Rule.from_options("sockets", MANY)
KNOCKS = {"rate": "20/h", "algorithm": "gcra", "events": ["connect"], "key": "everyone"}


class Broken(Exception):
    """Fails here on purpose."""


class BrokenLayer(InMemoryChannelLayer):
    """A layer that is away by the time a socket leaves its groups."""

    async def group_discard(self, group: str, channel: str) -> None:
        raise Broken


async def fails(*_: Any, **__: Any) -> None:
    raise Broken


def fails_sync(*_: Any, **__: Any) -> None:
    raise Broken


async def breaking(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await receive()
    raise Broken


FAILING: dict[str, Any] = {
    "a layer": (AsyncEcho, {"groups": ["lobby"]}), "a layer, sync": (SyncEcho, {"groups": ["lobby"]}),
    "disconnect": (AsyncEcho, {"disconnect": fails}), "disconnect, sync": (SyncEcho, {"disconnect": fails_sync}),
    "websocket_disconnect": (AsyncEcho, {"websocket_disconnect": fails}), "receive": (AsyncEcho, {"receive": fails}),
    "receive, sync": (SyncEcho, {"receive": fails_sync}), "an application": None,
}  # fmt: skip


@pytest.mark.row("F47")
@pytest.mark.parametrize("fault", FAILING)
async def test_f47_something_fails_as_a_socket_ends(enforce: Enforce, settings: Any, fault: str) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "tests.websockets.test_slots.BrokenLayer"}}
    store = enforce(sockets=MANY)
    if FAILING[fault] is None:
        app = ThrottleMiddleware(breaking, scope="chat")
    else:
        base, attributes = FAILING[fault]
        app = type("Failing", (base,), attributes).as_asgi()
    lines = [await Line(app).open() for _ in range(20)]
    assert held(store) == 20
    for line in lines:
        line.send("x") if fault.startswith("receive") else line.leave()
    ended = await asyncio.gather(*(line.ended() for line in lines), return_exceptions=True)
    assert {type(error) for error in ended} == {Broken}
    assert held(store) == 0


@pytest.mark.row("A42")
@pytest.mark.parametrize(("cap", "admitted"), [(5, 5), (1000, 20)], ids=["the cap", "the rate"])
async def test_a42_of_handshakes_nobody_finishes_no_more_are_held_than_either_rule_admits(
    enforce_live: Any, redis_server: RedisServer, cap: int, admitted: int, figure: Callable[..., None]
) -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            await receive()

    store = enforce_live(sockets={**TWO_SOCKETS, "limit": cap}, knocks=KNOCKS)
    with redis_server.client() as redis:
        before = evaluations(redis)
        opening = [asyncio.ensure_future(Line(inside=never).open()) for _ in range(200)]
        await becomes(lambda: sum(not each.done() for each in opening) == admitted)
        figure("questions to Redis of 200 handshakes", evaluations(redis) - before)
        assert held(store) == admitted
        if admitted < cap:
            assert evaluations(redis) - before < 10 * admitted


@pytest.mark.row("A42")
async def test_a42_a_handshake_that_is_never_accepted_gives_its_slot_back(
    enforce: Enforce, loop_clock: LoopClock
) -> None:
    heard: list[Any] = []

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        heard.append(await receive())
        await send({"type": "websocket.accept"})  # too late: nobody hears it

    store = enforce(sockets={**TWO_SOCKETS, "limit": 5})
    lines = [Line(inside=late) for _ in range(5)]
    opening = [asyncio.ensure_future(line.open()) for line in lines]
    await becomes(lambda: held(store) == 5)
    began = loop_clock()
    await asyncio.gather(*opening)
    assert loop_clock() - began == pytest.approx(10, abs=0.1)
    assert held(store) == 0
    for line in lines:
        await line.ended()
        assert line.sent == [{"type": "websocket.close", "code": 4408, "reason": "not accepted"}]
    assert heard == [{"type": "websocket.disconnect", "code": 4408, "reason": "not accepted"}] * 5


@pytest.mark.row("F48")
@pytest.mark.parametrize("steps", [40, 400], ids=["handshakes", "whole lives"])
async def test_f48_cancelled_at_any_moment(
    enforce: Enforce, redis_server: RedisServer, redis_url: str, monkeypatch: Any, steps: int
) -> None:
    """Sockets whose answers from Redis are late, cancelled after more and more steps of the event loop."""
    enforce(sockets=MANY)
    direct = Limiter([RULE], RedisStore(redis_url, deadline=5.0))
    with Proxy(redis_server.port) as proxy:
        store: Any = RedisStore(proxy.url, deadline=5.0)
        count_in(store, monkeypatch)
        limiter, cancelled = Limiter([RULE], store), 0
        await limiter.apeek("everyone")  # connected, and knows its scripts
        proxy.set("delay", 0.005)
        for number in range(60):
            task = asyncio.create_task(come_and_go())
            for _ in range(number * steps // 60):
                await asyncio.sleep(0)
            task.cancel()
            _, still_running = await asyncio.wait({task}, timeout=20)
            assert not still_running, f"the cancellation was swallowed at {number}"
            cancelled += task.cancelled()
        proxy.set("pass")
        assert cancelled > 0

        def settled() -> bool:
            Reconciler(store).resend()  # as the agent does twice a second
            return direct.peek("everyone").remaining == LIMIT

        await becomes(settled)
        assert held(store) == 0
        for number in range(20):  # nor does anybody read an answer that was meant for another
            decision = await limiter.aacquire(f"other:{number % 4}")
            assert (decision.degraded, decision.remaining) == (False, LIMIT - 1 - number // 4)
        assert not store.transport.breaker.is_open


async def come_and_go() -> None:
    events: list[Any] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]

    async def receive() -> Any:
        return events.pop(0)

    async def send(event: Any) -> None: ...

    grouped = type("Grouped", (AsyncEcho,), {"groups": ["lobby"]})
    await grouped()({"type": "websocket", "path": "/"}, receive, send)
    await becomes(lambda: not get_store().leases.unconfirmed())

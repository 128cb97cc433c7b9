"""What attackers do to sockets, row by row."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.security.websocket import AllowedHostsOriginValidator
from django.contrib.auth.models import User
from redis import Redis
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.core.commands import Command
from django_throttle.exceptions import Cause, StoreError
from django_throttle.stores import RedisStore
from tests.consumers import DENIAL, TWO_SOCKETS, AsyncEcho, handshake, held, opened, socket
from tests.doors import REDIS, Enforce, enforcer
from tests.inside import count_in
from tests.servers import RedisServer, slack
from tests.sockets.servers import Server
from tests.sockets.visitor import PATIENCE, Visitor, echo, until

enforce = pytest.fixture(enforcer)
FLOOD = 10_000  # messages
KNOCKS = {"rate": "20/h", "algorithm": "gcra", "events": ["connect"], "key": "everyone"}


@pytest.fixture
def flooded(redis_server: RedisServer, tmp_path: Any) -> Iterator[Server]:
    """One that never closes for too many messages."""
    server = Server("uvicorn-sansio", redis_server, tmp_path, settings={"MAX_VIOLATIONS": 0})
    try:
        yield server.wait()
    finally:
        server.kill()


def asked(redis: Redis) -> int:
    """The decisions that Redis was asked for."""
    stats: Any = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@pytest.mark.row("A41")
@REDIS
async def test_a41_another_site_s_page_takes_no_lease(
    enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validator stands before the consumer, so nothing is even asked."""
    settings.ALLOWED_HOSTS = ["ours.example"]
    store = enforce(sockets=TWO_SOCKETS)
    app: Any = AllowedHostsOriginValidator(AsyncEcho.as_asgi())
    ours = await opened(app, headers=[(b"origin", b"https://ours.example")])
    assert held(store) == 1

    async def fail(command: Command) -> Any:
        raise AssertionError("it was asked")

    with monkeypatch.context() as patch:
        patch.setattr(store, "aexecute", fail)
        for origin in (b"https://evil.example", b"https://ours.example.evil.example", b"null", b""):
            evil = socket(app, headers=[(b"origin", origin)])
            assert (await evil.connect())[0] is False
    assert held(store) == 1
    await ours.disconnect()


class Unfinished(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    """Accepts nobody, as an attacker's handshakes may well have it."""

    throttle_scope = "chat"

    async def connect(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.row("A42")
@pytest.mark.parametrize(
    ("cap", "admitted", "handshakes"), [(5, 5, 500), (1000, 20, 2000)], ids=["the cap", "the rate"]
)
async def test_a42_a_flood_of_handshakes_that_nobody_finishes(
    enforce: Enforce,
    redis_server: RedisServer,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    cap: int,
    admitted: int,
    handshakes: int,
    figure: Callable[..., None],
) -> None:
    """No more are held than either rule admits; what the rate refuses, Redis is asked once a second."""
    enforce(sockets={**TWO_SOCKETS, "limit": cap}, knocks=KNOCKS)
    store = RedisStore(redis_url, deadline=5.0)
    count_in(store, monkeypatch)
    with redis_server.client() as redis:
        before = asked(redis)
        sockets = [socket(Unfinished.as_asgi()) for _ in range(handshakes)]
        for each in sockets:
            await each.send_input({"type": "websocket.connect"})
            await asyncio.sleep(0)
        await until(lambda: sum(not each.future.done() for each in sockets) == admitted)
        figure(f"questions to Redis of {handshakes:,} handshakes", asked(redis) - before)
        assert held(store) == admitted
        if admitted < cap:
            assert asked(redis) - before < 10 * admitted
        for each in sockets:
            each.future.cancel()
        await asyncio.wait([each.future for each in sockets])
        assert held(store) == 0


@pytest.mark.row("A42")
async def test_a42_a_flood_at_a_full_cap_asks_ten_times_a_second(
    enforce: Enforce,
    redis_server: RedisServer,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    figure: Callable[..., None],
) -> None:
    """No rate charges what the cap refuses, so the cap itself bounds what Redis is asked; a free slot shows at once."""
    enforce(sockets=TWO_SOCKETS, knocks=KNOCKS)
    count_in(RedisStore(redis_url, deadline=5.0), monkeypatch)
    both = [await opened(), await opened()]
    with redis_server.client() as redis:
        before, began, refused = asked(redis), time.monotonic(), 0
        while time.monotonic() - began < 1.0:
            assert (await handshake())[-1]["type"] == "websocket.close"
            refused += 1
        took, calls = time.monotonic() - began, asked(redis) - before
    figure("refused at a full cap in a second", refused / took)
    figure("questions to Redis meanwhile", calls)
    assert calls <= 10 + 10 * took + 1 < refused
    await both[0].disconnect()
    began = time.monotonic()
    while not (await (again := socket()).connect())[0]:
        assert time.monotonic() - began < slack(0.5)
    await again.disconnect()
    await both[1].disconnect()


@pytest.mark.row("A42")
async def test_a42_what_is_never_finished_has_its_slot_for_a_while(enforce: Enforce) -> None:
    store = enforce(sockets=TWO_SOCKETS, SOCKET_ACCEPT_TIMEOUT=0.2)
    unfinished = [socket(Unfinished.as_asgi()) for _ in range(2)]
    for each in unfinished:
        await each.send_input({"type": "websocket.connect"})
    await until(lambda: held(store) == 2)
    await until(lambda: held(store) == 0)
    for each in unfinished:
        assert (await each.receive_output())["type"] == "websocket.close"
    await (await opened()).disconnect()


@pytest.mark.row("A44")
async def test_a44_a_flood_of_messages_stays_in_its_process(flooded: Server, figure: Callable[..., None]) -> None:
    """Ten thousand on one socket: the others answer as before, and Redis hears of ten a second at most."""
    attacker, other = Visitor(flooded), Visitor(flooded)
    async with attacker.open() as flood, other.open() as calm:
        with flooded.redis.client() as redis:
            before, began = asked(redis), time.monotonic()
            flooding = asyncio.create_task(send_many(flood, FLOOD))
            delays = []
            while not flooding.done():
                sent = time.monotonic()
                await (await calm.ping())
                delays.append(time.monotonic() - sent)
                await asyncio.sleep(0.01)
            took = time.monotonic() - began
            calls = asked(redis) - before
        middle, worst = statistics.median(delays), max(delays)
        figure("scripts in Redis a second, the agent's included,", calls / took)
        figure("others wait", middle * 1000, "ms")
        figure("and at worst", worst * 1000, "ms")
        assert calls <= 20 + 10 * (took + 1)
        assert middle < slack(0.05)
        await echo(calm)
    assert await attacker.holds(0) <= slack(2)


async def send_many(connection: ClientConnection, messages: int) -> None:
    """Ten thousand a second, in bursts that leave other clients of this process a turn."""
    for _ in range(messages // 50):
        for _ in range(50):
            await connection.send("flood")
        await asyncio.sleep(0.005)


@pytest.mark.row("A46")
async def test_a46_who_sits_there_in_silence_makes_room(enforce: Enforce) -> None:
    """Every slot of an address is held by somebody who says nothing; who talks stays."""
    store = enforce(sockets={**TWO_SOCKETS, "limit": 3, "key": "ip"}, SOCKET_IDLE_TIMEOUT=0.3)
    shared = {"client": ["203.0.113.9", 1]}
    silent, talking = [await opened(**shared) for _ in range(2)], await opened(**shared)
    assert (await socket(**shared).connect())[0] is False
    began = time.monotonic()
    while held(store) > 1:
        assert time.monotonic() - began < PATIENCE
        await talking.send_to("still here")
        assert await talking.receive_from() == "still here"
        await asyncio.sleep(0.02)
    for each in silent:
        assert (await each.receive_json_from())["code"] == "idle"
        assert (await each.receive_output())["code"] == 4408
    await talking.disconnect()


@pytest.mark.row("A47")
@REDIS
async def test_a47_who_logs_in_is_not_kept_out_by_their_neighbours(enforce: Enforce) -> None:
    """Somebody holds every slot of an address that many share."""
    store = enforce(sockets={**TWO_SOCKETS, "key": "user_or_ip"})
    shared = {"client": ["203.0.113.9", 1]}
    hogs = [await opened(**shared) for _ in range(2)]
    assert (await socket(**shared).connect())[0] is False
    known = [await opened(user=User(pk=1), **shared) for _ in range(2)]
    assert (await socket(user=User(pk=1), **shared).connect())[0] is False
    for communicator in hogs + known:
        await communicator.disconnect()
    assert held(store) == 0


@pytest.mark.row("A48")
class TestA48:
    """What closes a socket says what the client has to know, and nothing of how we know it."""

    @pytest.mark.parametrize("key", ["everyone", "ip", "user"])
    async def test_a_cap_sounds_alike_whoever_reached_it(self, enforce: Enforce, key: str) -> None:
        enforce(**{f"plan-of-{key}": {**TWO_SOCKETS, "limit": 1, "key": key}})
        scope = {"client": ["203.0.113.9", 1], "user": User(pk=42)}
        first = await opened(**scope)
        (close,) = await handshake(**scope)
        assert close["code"] == 4430
        assert close["reason"].startswith("connection limit; retry_after=")
        assert close["reason"].removeprefix("connection limit; retry_after=").isdigit()
        await first.disconnect()

    @pytest.mark.parametrize("cause", Cause)
    async def test_a_store_that_fails_is_not_described(
        self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch, cause: Cause
    ) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "on_store_failure": "deny"})

        async def fail(command: Command) -> Any:
            raise StoreError(cause, retry_after=2.5) from ConnectionError("redis://:secret@10.0.0.7:6379")

        monkeypatch.setattr(store, "aexecute", fail)
        (close,) = await handshake()
        assert (close["code"], close["reason"]) == (4503, "limiter unavailable; retry_after=3")
        start, body = await handshake(extensions=DENIAL)
        assert start["status"] == 503
        told = json.loads(body["body"])
        assert told["detail"] == "The limiter is unavailable. Try again in 3 seconds."
        assert "secret" not in str((start, body))

    async def test_an_exception_of_the_consumer_is_not_told(self, flooded: Server) -> None:
        visitor = Visitor(flooded)
        connection = await visitor.open()
        await connection.send("fail")
        with pytest.raises(ConnectionClosed) as closed:
            await connection.recv()
        assert closed.value.rcvd is None or not closed.value.rcvd.reason
        assert await visitor.holds(0) <= slack(2)

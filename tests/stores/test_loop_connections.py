"""An event loop's connection: its replies in any parts, to whom they belong, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.addresses import find_address
from django_throttle.stores.clients import loop_client
from django_throttle.stores.loop_connections import Incomplete, LoopClient, read_reply
from django_throttle.stores.sync_pool import pack
from tests.proxy import Proxy
from tests.servers import RedisServer, slack

RATE = Rule("rate", "1000/hour", algorithm="fixed_window")
REPLIES = {
    b"$-1\r\n": None,
    b"$0\r\n\r\n": b"",
    b"$4\r\na\r\nb\r\n": b"a\r\nb",
    b":-5\r\n": -5,
    b"+OK\r\n": b"OK",
    b"*-1\r\n": None,
    b"*0\r\n": [],
    b"*3\r\n*1\r\n:1\r\n$1\r\nx\r\n+y\r\n": [[1], b"x", b"y"],
}


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as between:
        yield between


def to(url: str) -> LoopClient:
    return loop_client(find_address(url).settings, 5.0)


async def asked(client: LoopClient, *commands: tuple[Any, ...], seconds: float = 5.0) -> list[Any]:
    until = asyncio.get_running_loop().time() + seconds
    return await client.ask(b"".join(map(pack, commands)), len(commands), until)


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_is_read_once_all_of_it_is_there(reply: bytes) -> None:
    for size in range(len(reply)):
        with pytest.raises(Incomplete):
            read_reply(reply[:size], 0, ResponseError)
    assert read_reply(b"+before\r\n" + reply + b":7\r\n", 9, ResponseError) == (REPLIES[reply], 9 + len(reply))


def test_an_error_is_a_reply() -> None:
    error, end = read_reply(b"-ERR no\r\n", 0, ResponseError)
    assert (type(error), str(error), end) == (ResponseError, "ERR no", 9)


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"\r\n"])
def test_noise_is_no_reply(noise: bytes) -> None:
    with pytest.raises(ValueError, match=r"reply|invalid literal"):
        read_reply(noise, 0, ResponseError)


async def test_all_calls_of_a_loop_travel_on_one_connection_each_to_its_own(proxy: Proxy) -> None:
    client = to(proxy.url)
    echoed = await asyncio.gather(*(asked(client, ("ECHO", n), ("ECHO", -n)) for n in range(200)))
    assert echoed == [[b"%d" % n, b"%d" % -n] for n in range(200)]
    assert proxy.open_links == 1
    await client.close()


@pytest.mark.usefixtures("stopwatch")
async def test_replies_that_come_byte_by_byte(proxy: Proxy, servers: None) -> None:
    client = to(proxy.url)
    await asked(client, ("PING",))
    proxy.set("trickle", 0.001)
    assert await asked(client, ("ECHO", "x" * 20), ("TIME", "wrong"), seconds=slack(5.0))
    await client.close()


async def test_errors_stand_in_their_places(redis_url: str) -> None:
    client = to(redis_url)
    first, error, last = await asked(client, ("ECHO", 1), ("EVALSHA", "0" * 40, 0), ("ECHO", 2))
    assert (first, type(error), last) == (b"1", NoScriptError, b"2")
    await client.close()


async def test_a_late_reply_is_nobody_else_s(proxy: Proxy) -> None:
    client = to(proxy.url)
    await asked(client, ("PING",))
    proxy.set("delay", 0.3)
    with pytest.raises(TimeoutError):
        await asked(client, ("ECHO", "late"), seconds=0.05)
    proxy.set("pass")
    assert await asked(client, ("ECHO", "next")) == [b"next"]
    await client.close()


async def test_whoever_has_more_time_keeps_waiting(proxy: Proxy) -> None:
    client = to(proxy.url)
    await asked(client, ("PING",))
    proxy.set("delay", 0.3)
    patient = asyncio.create_task(asked(client, ("ECHO", "patient")))
    with pytest.raises(TimeoutError):
        await asked(client, ("ECHO", "late"), seconds=0.05)
    assert await patient == [b"patient"]
    await client.close()


async def test_a_call_that_is_cancelled_takes_nobody_s_reply(redis_url: str) -> None:
    client = to(redis_url)
    await asked(client, ("PING",))
    tasks = [asyncio.create_task(asked(client, ("ECHO", n))) for n in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    first, cancelled, last = await asyncio.gather(*tasks, return_exceptions=True)
    assert (first, type(cancelled), last) == ([b"0"], asyncio.CancelledError, [b"2"])
    assert await asked(client, ("ECHO", 3)) == [b"3"]
    await client.close()


async def test_a_connection_that_the_server_has_closed_is_made_anew(redis_url: str, redis_server: RedisServer) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    limiter = Limiter([RATE], store)
    await limiter.aacquire("user:1")
    with redis_server.client() as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
    await asyncio.sleep(0)
    decisions = [await limiter.aacquire("user:1") for _ in range(3)]
    assert [decision.remaining for decision in decisions if not decision.degraded][-1:] == [1000 - 4]


async def test_scripts_that_are_lost_are_sent_again_and_counted_once(redis_url: str, redis_server: RedisServer) -> None:
    limiters = [
        Limiter([RATE], store := RedisStore(redis_url, deadline=5.0)),
        Limiter([RATE, Rule("b", "9/min")], store),
    ]
    for limiter in limiters:
        await limiter.aacquire("user:1")
    with redis_server.client() as admin:
        admin.script_flush()
    found = await asyncio.gather(*(limiter.aacquire("user:1") for limiter in limiters for _ in range(3)))
    assert not any(decision.degraded for decision in found)
    assert (await limiters[0].apeek("user:1")).remaining == 1000 - 8

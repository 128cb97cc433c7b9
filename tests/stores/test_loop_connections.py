"""An event loop's connection: its replies in any parts, and to whom they belong."""

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.addresses import find_address
from django_throttle.stores.redis.clients import loop_client
from django_throttle.stores.redis.loop_connections import Incomplete, LoopClient, read_reply
from django_throttle.stores.redis.pool import pack
from tests.clock import LoopClock
from tests.proxy import Proxy

REPLIES = {
    b"$-1\r\n": None, b"$0\r\n\r\n": b"", b"$4\r\na\r\nb\r\n": b"a\r\nb", b":-5\r\n": -5, b"+OK\r\n": b"OK",
    b"*-1\r\n": None, b"*0\r\n": [], b"*3\r\n*1\r\n:1\r\n$1\r\nx\r\n+y\r\n": [[1], b"x", b"y"],
}  # fmt: skip


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


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"\r\n"])
def test_noise_is_no_reply(noise: bytes) -> None:
    with pytest.raises(ValueError, match=r"reply|invalid literal"):
        read_reply(noise, 0, ResponseError)


async def test_all_calls_of_a_loop_travel_on_one_connection_each_to_its_own(redis_url: str) -> None:
    client = to(redis_url)
    ((connection,),) = [await asked(client, ("CLIENT", "ID"))]
    for _ in range(2):  # replies arrive while others are being sent
        echoed = await asyncio.gather(*(asked(client, ("ECHO", n), ("CLIENT", "ID")) for n in range(200)))
        assert echoed == [[b"%d" % n, connection] for n in range(200)]
    await client.close()


@pytest.mark.parametrize("together", [1, 2])
async def test_a_call_has_all_of_its_deadline(together: int, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RedisStore(proxy.url, deadline=5.0)
    limiter, calls = Limiter([Rule("api", "10/min")], store), ["user:1"] * together
    for _ in range(2):
        assert not any(decision.degraded for decision in await asyncio.gather(*map(limiter.aacquire, calls)))
    proxy.set("dead")
    clock = LoopClock(asyncio.get_running_loop(), monkeypatch)
    began = clock()
    assert all(decision.degraded for decision in await asyncio.gather(*map(limiter.aacquire, calls)))
    assert (clock() - began >= 5.0, store.breaker.is_failing) == (True, True)


async def test_whoever_has_more_time_keeps_waiting(proxy: Proxy) -> None:
    client = to(proxy.url)
    await asked(client, ("PING",))
    proxy.set("delay", 0.3)
    patient = asyncio.create_task(asked(client, ("ECHO", "patient")))
    with pytest.raises(TimeoutError):
        await asked(client, ("ECHO", "late"), seconds=0.05)
    proxy.set("pass")
    assert await patient == [b"patient"]
    assert await asked(client, ("ECHO", "next")) == [b"next"], "a late reply is nobody else's"
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


def test_the_end_of_a_loop_says_nothing_of_redis_or_the_site(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    store = RedisStore(proxy.url, deadline=5.0)
    limiter = Limiter([Rule("api", "5/min")], store)

    async def serve() -> list[bool]:
        await limiter.aacquire("user:1")
        proxy.set("dead")
        under_way = asyncio.create_task(limiter.aacquire("user:1"))
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.get_running_loop().shutdown_asyncgens()  # as whatever runs it does in the end
        return [decision.degraded for decision in (await under_way, await limiter.aacquire("user:1"))]

    assert (asyncio.run(serve()), store.breaker.is_calm, caplog.messages) == ([True, True], True, [])

"""Rules that sockets share on a real Redis: few questions, no frame too many, and nothing kept that is not used."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_throttle import rulebook
from django_throttle.core.prepaid import MOST_ASKED
from django_throttle.limiter import Limiter
from django_throttle.prepaid import give_back
from django_throttle.stores import RedisStore
from tests.inside import buys
from tests.sockets.guarded import IDENT, Line, Live, accepting, becomes, scripts, texts, used

CHAT: dict[str, Any] = {"rate": "1000/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
QUEUE = {**CHAT, "algorithm": "leaky_bucket", "action": "delay"}


def settled(store: RedisStore) -> int:
    """What is counted once the agent has given back what may be spent no longer."""
    give_back(store)
    return used(store)


async def test_a_stream_within_its_limit_asks_rarely_and_counts_exactly(enforce_live: Live, redis_server: Any) -> None:
    store = enforce_live(chat={**CHAT, "rate": "1000000/h"})
    loop = asyncio.get_running_loop()
    async with Line() as line:
        with redis_server.client() as redis:
            before, began = scripts(redis), loop.time()
            for number in range(100):
                line.send(*["x"] * 10)
                await line.received(10 * number + 10)
            seconds, questions = loop.time() - began, scripts(redis) - before
        assert questions <= MOST_ASKED * (1 + seconds) + 1
    await becomes(lambda: settled(store) == 1000)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "gcra", "token_bucket"])
async def test_frames_use_all_that_calls_elsewhere_have_left(enforce_live: Live, algorithm: str) -> None:
    """Of a rule that counts refusals: a purchase larger than what is left would count as a refused call."""
    store = enforce_live(chat={**CHAT, "rate": "100/h", "algorithm": algorithm, "count_denied": True}, MAX_VIOLATIONS=0)
    async with Line() as line, Line() as second:
        line.send(*["x"] * 6)
        await line.received(6)
        assert Limiter(rulebook.current().rules, store).acquire(IDENT, cost=75).allowed
        line.send(*["x"] * 17)
        await line.received(23)
        second.send("x", "x", "one more")
        await second.error()
        assert (len(texts(second)), used(store)) == (2, 100)


@pytest.mark.parametrize("algorithm", ["fixed_window", "gcra"])
@pytest.mark.row("B12")
async def test_many_sockets_of_one_ident_get_exactly_the_limit(enforce_live: Live, algorithm: str) -> None:
    """They ask again once what others have not used has come back."""
    store = enforce_live(chat={**CHAT, "rate": "600/day", "algorithm": algorithm}, MAX_VIOLATIONS=0)
    lines = [await Line().open() for _ in range(6)]

    def passed() -> int:
        count = sum(len(texts(line)) for line in lines)
        assert count <= used(store)
        for line in lines:
            if line.queue.empty():
                line.send(*["x"] * 40)
        settled(store)
        return count

    await becomes(lambda: passed() == 600)
    await lines[-1].until(lambda: all(line.queue.empty() for line in lines))
    assert passed() == 600
    for line in lines:
        await line.close()


async def test_a_frame_whose_decision_was_abandoned_is_charged_once(enforce_live: Live) -> None:
    """An application with a timeout around receive gets the frame next time, by what was bought for it."""
    got: list[str] = []

    @accepting
    async def impatient(receive: Any, send: Any) -> None:
        event: Any = {"type": ""}
        while event["type"] != "websocket.disconnect":
            try:
                event = await asyncio.wait_for(receive(), 0.0005)
            except TimeoutError:
                continue
            got.append(event.get("text", ""))

    store = enforce_live(chat=CHAT)
    async with Line(inside=impatient) as line:
        for number in range(20):
            line.send(f"{number}")
            await becomes(lambda number=number: len(got) > number)
    assert got == [*map(str, range(20)), ""]
    await becomes(lambda: settled(store) == 20)


@pytest.mark.parametrize("size", [1, 5])
async def test_frames_that_wait_as_the_socket_ends_give_their_turns_back(
    enforce_live: Live, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    buys(size, monkeypatch)
    store = enforce_live(chat={**QUEUE, "rate": "1/s", "burst": 50})
    line = await Line().open()
    line.send("first", "second", "third")
    assert await line.received(1) == ["first"]
    await becomes(lambda: settled(store) >= 2)
    line.task.cancel()
    await asyncio.wait({line.task})
    await becomes(lambda: settled(store) == 1)

"""Rules that sockets share on a real Redis: few questions, no frame too many, and what is measured is settled."""

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group

from django_throttle import rulebook
from django_throttle.agent import refund_prepaid
from django_throttle.core import Rule
from django_throttle.core.prepaid import MAX_ORDER_BURST
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.consumers import AsyncEcho, SyncEcho
from tests.stores.conftest import evaluations
from tests.websockets.guarded import IDENT, Line, Live, accepting, becomes, texts, used

CHAT: dict[str, Any] = {"rate": "1000/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
QUEUE = {**CHAT, "algorithm": "leaky_bucket", "action": "delay"}


def settled(store: RedisStore) -> int:
    refund_prepaid(store)
    return used(store)


async def test_a_stream_within_its_limit_asks_rarely_and_counts_exactly(enforce_live: Live, redis_server: Any) -> None:
    store = enforce_live(chat={**CHAT, "rate": "1000000/h", "prepaid": True})
    loop = asyncio.get_running_loop()
    async with Line() as line:
        with redis_server.client() as redis:
            before, began = evaluations(redis), loop.time()
            for number in range(100):
                line.send(*["x"] * 10)
                await line.received(10 * number + 10)
            seconds, questions = loop.time() - began, evaluations(redis) - before
        assert questions <= MAX_ORDER_BURST * (1 + seconds) + 1
    await becomes(lambda: settled(store) == 1000)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "gcra", "token_bucket"])
@pytest.mark.usefixtures("never_closed")
async def test_frames_use_all_that_calls_elsewhere_have_left(enforce_live: Live, algorithm: str) -> None:
    store = enforce_live(chat={**CHAT, "rate": "100/h", "algorithm": algorithm, "count_denied": True})
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
@pytest.mark.usefixtures("never_closed")
async def test_many_sockets_of_one_ident_get_exactly_the_limit(enforce_live: Live, algorithm: str) -> None:
    store = enforce_live(chat={**CHAT, "rate": "600/day", "algorithm": algorithm})
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


async def test_frames_that_wait_as_the_socket_ends_give_their_turns_back(enforce_live: Live) -> None:
    store = enforce_live(chat={**QUEUE, "rate": "1/s", "burst": 50})
    line = await Line().open()
    line.send("first", "second", "third")
    assert await line.received(1) == ["first"]
    await becomes(lambda: settled(store) >= 2)
    line.task.cancel()
    await asyncio.wait({line.task})
    await becomes(lambda: settled(store) == 1)


MEASURED: dict[str, Any] = {"rate": "1000/h", "unit": "units", "reserve": 10, "events": ["message"], "key": "everyone"}


class Talk(AsyncEcho):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        doing, number = (text_data or "").split()
        if doing == "spend":
            decision = await self.throttle.aspend(int(number))
            await self.send("spent" if decision.allowed else "refused")
        elif doing == "fail":
            await self.throttle.aspend(int(number))
            raise ZeroDivisionError
        elif doing == "later":
            self.spending = asyncio.ensure_future(self.later(int(number)))
        elif doing == "thread":
            with pytest.raises(RuntimeError, match="aspend"):
                self.throttle.spend(1)
            await sync_to_async(self.throttle.spend)(int(number))
            await self.send("spent")
        else:
            await sync_to_async(ask)(int(number))
            await self.send(f"{self.throttle.meter.queries}")

    async def later(self, units: int) -> None:
        await asyncio.sleep(0.05)
        assert (await self.throttle.aspend(units)).allowed
        await self.send("later")


class SyncTalk(SyncEcho):
    def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        doing, number = (text_data or "").split()
        if doing == "spend":
            self.send("spent" if self.throttle.spend(int(number)).allowed else "refused")
        else:
            ask(int(number))
            self.send(f"{self.throttle.meter.queries}")


def ask(times: int) -> None:
    for _ in range(times):
        Group.objects.count()


async def settles(least: int, most: int | None = None, **options: Any) -> None:
    """Wait until so much is used, as frames are settled without anybody waiting for it."""
    rule = Rule("tokens", **{**MEASURED, **options})

    def is_settled() -> bool:
        refund_prepaid(get_store())  # what was bought ahead, as the agent does
        return least <= used(get_store(), "everyone", rule) <= (most or least)

    await becomes(is_settled)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("consumer", [Talk, SyncTalk])
@pytest.mark.parametrize(
    ("unit", "sent", "answers", "least", "most"),
    [
        ("units", ["spend 3", "spend 40"], ["spent"] * 2, 43, 43),
        ("queries", ["ask 3", "ask 20"], [3, 20], 23, 23),
        ("wall_ms", ["ask 2"], [2], 1, 900),
    ],
)
async def test_a_frame_is_charged_what_it_uses(
    enforce_live: Live, consumer: Any, unit: str, sent: list[str], answers: list[Any], least: int, most: int
) -> None:
    options = {"unit": unit, "reserve": 500 if unit.endswith("ms") else 10}
    enforce_live(tokens={**MEASURED, **options})
    async with Line(consumer.as_asgi()) as line:
        line.send(*sent)
        await line.until(lambda: line.frames == answers)
    await settles(least, most, **options)


async def test_frames_are_refused_by_what_others_have_used(enforce_live: Live) -> None:
    enforce_live(tokens={**MEASURED, "rate": "100/h", "algorithm": "token_bucket"})
    async with Line(Talk.as_asgi()) as line:
        line.send("spend 130")
        await line.until(lambda: line.frames == ["refused"])
        await settles(100, rate="100/h", algorithm="token_bucket")
        line.send("spend 1")
        error = await line.error()
        assert error["rule"] == "tokens"
        assert error["retry_after"] > 36 * 30  # what is owed comes first


@pytest.mark.parametrize(
    ("text", "answer", "units"), [("later 7", "later", 7), ("thread 25", "spent", 25), ("fail 4", None, 4)]
)
async def test_what_goes_on_beside_a_frame_or_fails_is_charged_too(
    enforce_live: Live, text: str, answer: str | None, units: int
) -> None:
    enforce_live(tokens=MEASURED)
    line = await Line(Talk.as_asgi()).open()
    line.send(text)
    if answer:
        await line.until(lambda: answer in line.frames)
        await line.close()
    else:
        with pytest.raises(ZeroDivisionError):
            await line.ended()
    await settles(units)

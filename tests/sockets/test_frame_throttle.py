"""Frames under rules of measured units: each reserves a cost, and is settled by what its handler has used."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer, WebsocketConsumer
from django.contrib.auth.models import Group

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.prepaid import give_back
from django_throttle.stores import get_store
from tests.sockets.guarded import Line, Live, live_enforcer

pytestmark = pytest.mark.django_db(transaction=True)
enforce = pytest.fixture(live_enforcer)
MEASURED: dict[str, Any] = {"rate": "1000/h", "unit": "units", "reserve": 10, "events": ["message"], "key": "everyone"}


class Talk(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    throttle_scope = "chat"

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        doing, number = (text_data or "").split()
        if doing == "spend":
            decision = await self.throttle.aspend(int(number))
            await self.send("spent" if decision.allowed else "refused")
        elif doing == "ask":
            for _ in range(int(number)):
                await Group.objects.acount()
            await self.send(f"{self.throttle.meter.queries}")
        elif doing == "rest":
            await asyncio.sleep(int(number) / 1000)
        elif doing == "fail":
            await self.throttle.aspend(int(number))
            raise ZeroDivisionError
        elif doing == "later":
            spending = asyncio.ensure_future(self.later(int(number)))
            spending.add_done_callback(lambda _: None)

    async def later(self, units: int) -> None:
        await asyncio.sleep(0.05)
        assert (await self.throttle.aspend(units)).allowed
        await self.send("later")


class SyncTalk(ThrottledConsumerMixin, WebsocketConsumer):
    throttle_scope = "chat"

    def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        doing, number = (text_data or "").split()
        if doing == "spend":
            self.send("spent" if self.throttle.spend(int(number)).allowed else "refused")
        elif doing == "ask":
            for _ in range(int(number)):
                Group.objects.count()
            self.send(f"{self.throttle.meter.queries}")
        elif doing == "rest":
            time.sleep(int(number) / 1000)


BOTH = pytest.mark.parametrize("consumer", [Talk, SyncTalk])


async def left(**options: Any) -> int | None:
    give_back(get_store())  # what was bought ahead, as the agent does
    rule = Rule(**{"name": "tokens", **MEASURED, **options})
    return (await Limiter([rule], get_store()).apeek("everyone")).remaining


async def becomes(least: int, most: int | None = None, **options: Any) -> None:
    """Until so much is left, as frames are settled without anybody waiting for it."""
    found: int | None = None
    try:
        async with asyncio.timeout(10):
            while not least <= (found := await left(**options) or 0) <= (most or least):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"{found} are left, not {least}")


async def opened(consumer: Any) -> Line:
    return await Line(consumer.as_asgi()).open()


@BOTH
async def test_a_frame_is_charged_what_it_spends(enforce: Live, consumer: Any) -> None:
    enforce(tokens=MEASURED)
    line = await opened(consumer)
    for units in (3, 40):
        line.send(f"spend {units}")
    await line.until(lambda: line.frames == ["spent"] * 2)
    await becomes(957)
    await line.close()
    await becomes(957)


@BOTH
async def test_a_frame_is_charged_its_queries(enforce: Live, consumer: Any) -> None:
    options = {"unit": "queries"}
    enforce(tokens={**MEASURED, **options})
    line = await opened(consumer)
    line.send("ask 3", "ask 20")
    await line.until(lambda: line.frames == [3, 20])
    await line.close()
    await becomes(977, **options)


@BOTH
@pytest.mark.parametrize("unit", ["rows", "db_ms", "wall_ms", "cpu_ms"])
async def test_every_measure_of_a_frame_counts(enforce: Live, consumer: Any, unit: str) -> None:
    options = {"unit": unit, "reserve": 500}
    enforce(tokens={**MEASURED, **options})
    line = await opened(consumer)
    line.send("ask 2", "rest 100")
    await line.until(lambda: line.frames)
    await line.close()
    least, most = {"rows": (2, 2), "db_ms": (1, 400), "wall_ms": (100, 900), "cpu_ms": (2, 400)}[unit]
    await becomes(1000 - most, 1000 - least, **options)


async def test_frames_are_refused_by_what_others_have_used(enforce: Live) -> None:
    enforce(tokens={**MEASURED, "rate": "100/h", "algorithm": "token_bucket"})
    line = await opened(Talk)
    line.send("spend 130")
    await line.until(lambda: line.frames == ["refused"])
    await becomes(0, rate="100/h", algorithm="token_bucket")
    line.send("spend 1")
    await line.until(lambda: line.told("error"))
    (error,) = line.told("error")
    assert error["rule"] == "tokens"
    assert error["retry_after"] > 36 * 30  # what is owed comes first
    await line.close()


async def test_what_fails_is_settled(enforce: Live) -> None:
    enforce(tokens=MEASURED)
    line = await opened(Talk)
    line.send("fail 4")
    assert line.task is not None
    with pytest.raises(ZeroDivisionError):
        await line.task
    await becomes(996)


async def test_a_task_that_outlives_its_frame_is_charged_one_by_one(enforce: Live) -> None:
    enforce(tokens=MEASURED)
    line = await opened(Talk)
    line.send("later 7")
    await line.until(lambda: "later" in line.frames)
    await becomes(993)
    await line.close()


async def test_without_a_rule_a_frame_spends_nothing(enforce: Live) -> None:
    enforce(tokens={**MEASURED, "unit": "calls", "reserve": ""})
    line = await opened(Talk)
    line.send("spend 5000")
    await line.until(lambda: line.frames == ["spent"])
    await line.close()
    assert await left(unit="calls", reserve="") == 999


async def test_other_rules_of_a_frame_count_as_before(enforce: Live) -> None:
    frames = {"rate": "100/h", "events": ["message"], "key": "everyone"}
    own = {"rate": "50/h", "events": ["message"], "key": "connection"}
    enforce(tokens=MEASURED, frames=frames, own=own)
    line = await opened(Talk)
    line.send(*["spend 1"] * 20)
    await line.until(lambda: line.frames == ["spent"] * 20)
    await line.close()
    await becomes(980)
    await becomes(80, name="frames", **frames, unit="calls", reserve="")


async def test_a_reserve_of_two_purchases_is_settled_as_one(enforce: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_throttle.core.prepaid.PrepaidBudget.size", lambda budget, cost, now: 15)
    enforce(tokens=MEASURED)
    line = await opened(Talk)
    line.send(*["spend 1"] * 6)
    await line.until(lambda: line.frames == ["spent"] * 6)
    await line.close()
    await becomes(994)


async def test_a_consumer_may_spend_in_a_thread(enforce: Live) -> None:
    class Threads(Talk):
        async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
            with pytest.raises(RuntimeError, match="aspend"):
                self.throttle.spend(1)
            await sync_to_async(self.throttle.spend)(25)
            await self.send("spent")

    enforce(tokens=MEASURED)
    line = await opened(Threads)
    line.send("go 1")
    await line.until(lambda: line.frames == ["spent"])
    await line.close()
    await becomes(975)


async def test_a_frame_that_its_own_rule_delays_is_settled_too(enforce: Live) -> None:
    own = {"rate": "1000/s", "algorithm": "leaky_bucket", "action": "delay", "key": "connection"}
    enforce(tokens=MEASURED, own={**own, "events": ["message"]})
    line = await opened(Talk)
    line.send(*["spend 1"] * 5)
    await line.until(lambda: line.frames == ["spent"] * 5)
    await line.close()
    await becomes(995)

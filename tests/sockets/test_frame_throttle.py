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
from django_throttle.prepaid import give_back
from django_throttle.stores import get_store
from tests.sockets import guarded
from tests.sockets.guarded import Line, Live

pytestmark = pytest.mark.django_db(transaction=True)
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
            self.spending = asyncio.ensure_future(self.later(int(number)))
        elif doing == "thread":
            with pytest.raises(RuntimeError, match="aspend"):
                self.throttle.spend(1)
            await sync_to_async(self.throttle.spend)(int(number))
            await self.send("spent")

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


def spent(**options: Any) -> int:
    """Return the units that are used, once what was bought ahead is given back, as the agent does."""
    give_back(get_store())
    return guarded.used(get_store(), "everyone", Rule("tokens", **{**MEASURED, **options}))


async def becomes(least: int, most: int | None = None, **options: Any) -> None:
    """Wait until so much is used, as frames are settled without anybody waiting for it."""
    await guarded.becomes(lambda: least <= spent(**options) <= (most or least))


@pytest.mark.parametrize("consumer", [Talk, SyncTalk])
@pytest.mark.parametrize(
    ("unit", "sent", "answers", "least", "most"),
    [
        ("units", ["spend 3", "spend 40"], ["spent"] * 2, 43, 43),
        ("queries", ["ask 3", "ask 20"], [3, 20], 23, 23),
        ("rows", ["ask 2"], [2], 2, 2),
        ("db_ms", ["ask 2"], [2], 1, 400),
        ("wall_ms", ["ask 2", "rest 20"], [2], 20, 900),
        ("cpu_ms", ["ask 2"], [2], 1, 400),
    ],
)
async def test_a_frame_is_charged_what_it_uses(
    enforce_live: Live, consumer: Any, unit: str, sent: list[str], answers: list[Any], least: int, most: int
) -> None:
    """The reserve of 500 is settled where time is measured."""
    options = {"unit": unit, "reserve": 500 if unit.endswith("ms") else 10}
    enforce_live(tokens={**MEASURED, **options})
    async with Line(consumer.as_asgi()) as line:
        line.send(*sent)
        await line.until(lambda: line.frames == answers)
    await becomes(least, most, **options)


async def test_frames_are_refused_by_what_others_have_used(enforce_live: Live) -> None:
    enforce_live(tokens={**MEASURED, "rate": "100/h", "algorithm": "token_bucket"})
    async with Line(Talk.as_asgi()) as line:
        line.send("spend 130")
        await line.until(lambda: line.frames == ["refused"])
        await becomes(100, rate="100/h", algorithm="token_bucket")
        line.send("spend 1")
        error = await line.error()
        assert error["rule"] == "tokens"
        assert error["retry_after"] > 36 * 30  # what is owed comes first


async def test_what_fails_is_settled(enforce_live: Live) -> None:
    enforce_live(tokens=MEASURED)
    line = await Line(Talk.as_asgi()).open()
    line.send("fail 4")
    with pytest.raises(ZeroDivisionError):
        await line.ended()
    await becomes(4)


@pytest.mark.parametrize(
    ("text", "answer", "units"), [("later 7", "later", 7), ("thread 25", "spent", 25)], ids=["a task", "a thread"]
)
async def test_what_goes_on_beside_a_frame_is_charged_too(
    enforce_live: Live, text: str, answer: str, units: int
) -> None:
    enforce_live(tokens=MEASURED)
    async with Line(Talk.as_asgi()) as line:
        line.send(text)
        await line.until(lambda: answer in line.frames)
    await becomes(units)

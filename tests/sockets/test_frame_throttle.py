"""Frames under rules of measured units: each reserves a cost, and is settled by what its handler has used."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group

from django_throttle.core import Rule
from django_throttle.prepaid import give_back
from django_throttle.stores import get_store
from tests.consumers import AsyncEcho, SyncEcho
from tests.sockets import guarded
from tests.sockets.guarded import Line, Live

pytestmark = pytest.mark.django_db(transaction=True)
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


async def becomes(least: int, most: int | None = None, **options: Any) -> None:
    """Wait until so much is used, as frames are settled without anybody waiting for it."""
    rule = Rule("tokens", **{**MEASURED, **options})

    def is_settled() -> bool:
        give_back(get_store())  # what was bought ahead, as the agent does
        return least <= guarded.used(get_store(), "everyone", rule) <= (most or least)

    await guarded.becomes(is_settled)


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
    await becomes(units)

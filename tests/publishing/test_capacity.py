"""What channels_redis drops at its capacity: nobody is told but its log, so it stays charged, as the docs say."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from channels.layers import channel_layers

from django_throttle.channels import throttled_group_send
from django_throttle.limiter import Limiter
from django_throttle.publishing.groups import CountingLayer
from django_throttle.rulebook import current
from django_throttle.stores import get_store
from tests.doors import Enforce
from tests.servers import RedisServer, need_package

DOCS = " ".join((Path(__file__).parents[2] / "docs" / "doors.rst").read_text(encoding="utf-8").split())
CAPACITY, PROCESSES, PUBLICATIONS = 20, 6, 100
LIMIT = 10_000


async def test_what_is_dropped_at_capacity_stays_charged(
    enforce: Enforce, redis_url: str, redis_server: RedisServer, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    need_package("channels_redis")
    given = {"hosts": [{"address": redis_url, "socket_timeout": None}], "capacity": CAPACITY}
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": given}}
    enforce(news={"rate": f"{LIMIT}/h", "events": ["publish"], "key": "everyone", "algorithm": "fixed_window"})
    # A layer has a queue of its own in Redis, as each process has one.
    layers = [channel_layers.make_backend("default") for _ in range(PROCESSES)]
    for layer in layers:
        reader = CountingLayer(layer, "default")
        await reader.group_add("news", await reader.new_channel())
    with caplog.at_level(logging.INFO, logger="channels_redis.core"):
        for _ in range(PUBLICATIONS):
            await throttled_group_send("news", {"type": "news.item"}, publisher="user:1", layer=layers[0])
    for layer in layers:
        await layer.close_pools()
    (rule,) = current().rules
    used = LIMIT - (Limiter([rule], get_store()).peek("everyone").remaining or 0)
    with redis_server.client() as client:
        kept = sum(client.zcard(key) for key in client.scan_iter("asgispecific*"))
    charged = used - PUBLICATIONS
    assert (charged, kept) == (PUBLICATIONS * PROCESSES, CAPACITY * PROCESSES)
    assert len([one for one in caplog.records if "over capacity in group news" in one.getMessage()]) == 80
    assert f"{charged - kept} of {charged} deliveries" in DOCS

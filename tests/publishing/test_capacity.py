"""What channels_redis drops at its capacity is counted apart from our refusals, and stays charged."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from django_throttle.observe import prometheus
from django_throttle.publishing import groups
from django_throttle.publishing.groups import CountingLayer
from django_throttle.signals import layer_dropped
from tests.doors import REDIS, Enforce
from tests.publishing.conftest import refusal
from tests.servers import need_package
from tests.sockets.guarded import used

CAPACITY = 20
Drops = Counter[str]


@pytest.fixture
def dropped() -> Iterator[Drops]:
    """Full queues by the layer's method, as receivers of the signal hear of them."""
    found: Drops = Counter()

    def hear(*, method: str, queues: int, **_: object) -> None:
        found[method] += queues

    layer_dropped.connect(hear)
    yield found
    layer_dropped.disconnect(hear)


def redis_layer(redis_url: str) -> Any:
    need_package("channels_redis")
    from channels_redis.core import RedisChannelLayer

    return RedisChannelLayer(hosts=[{"address": redis_url, "socket_timeout": None}], capacity=CAPACITY)


def metric(method: str) -> float:
    assert prometheus.count  # is imported, which connects its receiver
    return REGISTRY.get_sample_value("django_throttle_layer_drops_total", {"method": method}) or 0.0


@REDIS
async def test_a_refusal_is_no_drop_and_what_is_dropped_stays_charged(
    enforce: Enforce, redis_url: str, caplog: pytest.LogCaptureFixture, dropped: Drops
) -> None:
    """Two processes that read nothing: one refusal by the rule, and what is dropped for want of room."""
    publications, before = CAPACITY + 5, metric("group_send")
    rate = f"{3 * publications}/h"
    store = enforce(news={"rate": rate, "events": ["publish"], "key": "everyone", "algorithm": "fixed_window"})
    layers = [redis_layer(redis_url) for _ in range(2)]
    for layer in layers:
        reader = CountingLayer(layer, "default")
        await reader.group_add("news", await reader.new_channel())
    with caplog.at_level(logging.INFO, logger="channels_redis.core"):
        refusals = [await refusal("news", layer=layers[0]) for _ in range(publications + 1)]
    for layer in layers:
        await layer.close_pools()
    assert [bool(refused) for refused in refusals] == [False] * publications + [True]
    assert (used(store, "everyone"), dropped) == (3 * publications, {"group_send": 2 * 5})
    assert metric("group_send") - before == 2 * 5
    assert len([one for one in caplog.records if "over capacity in group news" in one.getMessage()]) == 5


@pytest.mark.parametrize("level", [logging.NOTSET, logging.ERROR], ids=["as it comes", "set"])
def test_it_is_counted_though_the_log_is_silent(dropped: Drops, caplog: pytest.LogCaptureFixture, level: int) -> None:
    log = logging.getLogger(f"tests.capacity.{level}")
    log.setLevel(level)
    caplog.set_level(logging.WARNING)
    caplog.handler.setLevel(logging.NOTSET)
    groups.DropFilter(log)
    log.info("%s of %s channels over capacity in group %s", 3, 600, "news")
    log.error("else")
    assert [record.getMessage() for record in caplog.records] == ["else"]
    log.setLevel(logging.INFO)  # the site asks for it
    log.info("%s of %s channels over capacity in group %s", 4, 600, "news")
    assert len(caplog.records) == 2
    assert dropped == {"group_send": 7}


async def test_what_a_slow_consumer_loses_beside_a_quick_one_is_counted(redis_url: str, dropped: Drops) -> None:
    """Both are in one process: it reads for both, and the slow one's own queue is full; not even the log says so."""
    shared = redis_layer(redis_url)
    quick, slow = CountingLayer(shared, "default"), CountingLayer(shared, "default")
    channels = [await layer.new_channel() for layer in (quick, slow)]
    for layer, channel in zip((quick, slow), channels, strict=True):
        await layer.group_add("news", channel)
    for number in range(CAPACITY + 7):
        await shared.group_send("news", {"type": "news.item", "number": number})
        assert (await quick.receive(channels[0]))["number"] == number
    heard = [(await slow.receive(channels[1]))["number"] for _ in range(CAPACITY)]
    await shared.close_pools()
    assert heard == list(range(7, CAPACITY + 7)), "the oldest are gone"
    assert dropped == {"receive": 7}

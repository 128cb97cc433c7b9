"""A plugin of pytest: channels_redis' tests name the default ports of Redis and Sentinel; ours listen elsewhere."""

from __future__ import annotations

import os
from typing import Any

from channels_redis import core, pubsub, utils

REDIS, SENTINEL = os.environ["FOREIGN_THEIR_REDIS"], int(os.environ["FOREIGN_SENTINEL"])
create_pool = utils.create_pool


def create_pool_elsewhere(host: dict[str, Any]) -> Any:
    if "address" in host:
        host = {**host, "address": host["address"].replace("redis://localhost:6379", REDIS)}
    if "sentinels" in host:
        host = {**host, "sentinels": [("127.0.0.1", SENTINEL)]}
    return create_pool(host)


core.create_pool = pubsub.create_pool = create_pool_elsewhere

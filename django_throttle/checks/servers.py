"""What the Redis server itself is set to, where that lets limits be exceeded; asked only by ``check --deploy``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from django.core.checks import CheckMessage, Warning

from django_throttle.exceptions import InvalidSetting
from django_throttle.stores import RedisStore, get_store
from django_throttle.stores.transport import Transport

# What has a time to live goes first, which all of ours has; or anything does.
HARMFUL: Final = ("volatile-lru", "volatile-lfu", "volatile-ttl", "volatile-random", "allkeys-random")


def server_messages() -> Iterator[CheckMessage]:
    """Nothing where Redis does not answer, or forbids INFO: that says nothing of how it is set."""
    try:
        store = get_store()
    except InvalidSetting:
        return  # another check says so
    if not isinstance(store, RedisStore) or not isinstance(store.transport, Transport):
        return
    try:
        replication, memory = store.transport.server_says("replication"), store.transport.server_says("memory")
    except Exception:  # noqa: BLE001 - whatever Redis or the way to it has to complain of
        return
    if store.transport.has_sentinels and "min_slaves_good_slaves" not in replication:
        yield Warning(
            "a Redis primary that is cut off together with some processes goes on counting for them: twice the limit "
            "passes for as long as that lasts",
            hint="Set min-replicas-to-write 1 and min-replicas-max-lag 10 on the primary and its replicas.",
            id="django_throttle.W037",
        )
    policy = _value(memory, "maxmemory_policy")
    if _value(memory, "maxmemory") not in ("", "0") and policy in HARMFUL:
        yield Warning(
            f"Redis may evict counters and connection slots before anything else (maxmemory-policy {policy})",
            hint="Use noeviction on a server of its own, or allkeys-lfu on one that is shared.",
            id="django_throttle.W038",
        )


def _value(told: str, name: str) -> str:
    found = re.search(rf"^{name}:(\S*)", told, re.MULTILINE)
    return found[1] if found else ""

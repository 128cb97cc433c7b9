"""However many announcements are idle, one beat takes all of them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_throttle.stores.transport import BATCH
from tests.connections.conftest import Site
from tests.connections.worker import RULE


def test_more_than_a_batch_is_retired_in_one_beat(make_site: Callable[..., Site], redis_server: Any) -> None:
    site = make_site()
    for number in range(2 * BATCH + 100):
        (decision,) = site.take(f"user:{number}")
        site.limiter.release(decision.lease)
    site.take("user:0")
    held = f"dt:{{p}}:held:{site.leases.uid}"
    with redis_server.client() as redis:
        site.beat()
        assert redis.scard(held) == 2 * BATCH + 100, "it may be taken again soon"
        site.beat()
        assert redis.smembers(held) == {site.store.key(RULE.id, "user:0")}
    site.take("user:7")
    assert (site.count("user:0"), site.count("user:7")) == (1, 1)

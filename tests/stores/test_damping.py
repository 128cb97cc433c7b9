"""Reports of dampers go to Redis all at once."""

from __future__ import annotations

from django_throttle.core import Rule
from django_throttle.damper.flush import flush
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.clock import FrozenClock
from tests.servers import RedisServer

DAMPER = Rule("account", "100/s", algorithm="damper")


def test_one_round_trip_reports_all_idents(redis_server: RedisServer, redis_url: str, clock: FrozenClock) -> None:
    store = RedisStore(redis_url, clock=clock, deadline=5.0)
    limiter = Limiter([DAMPER], store)
    limiter.acquire("user:0")
    flush(store.meters, store.aggregates)
    for number in range(50):
        limiter.acquire(f"user:{number}")
    with redis_server.client() as client:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert flush(store.meters, store.aggregates) == 50
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 50
    clock.step(30)
    assert flush(store.meters, store.aggregates) == 0, "who is idle costs nothing"

"""Keys of the store: nothing of an ident is readable in them, and stores of other sites do not meet."""

from __future__ import annotations

from redis import Redis

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.servers import RedisServer
from tests.stores.conftest import CAP, RATES


def test_no_ident_is_readable_in_redis(redis_url: str, client: Redis) -> None:
    limiter = Limiter([*RATES, CAP], RedisStore(redis_url, secret="secret", deadline=5.0))
    limiter.acquire("user:canary@example.com")
    dump = "".join(key + repr(client.dump(key)) for key in map(str, client.scan_iter()))
    assert "canary" not in dump and "example" not in dump


def test_stores_with_other_prefixes_secrets_and_databases_do_not_meet(
    redis_url: str, redis_server: RedisServer
) -> None:
    rule = Rule("one", "1/h", algorithm="fixed_window")
    stores = [
        RedisStore(redis_url, deadline=5.0),
        RedisStore(redis_url, prefix="other", deadline=5.0),
        RedisStore(redis_url, secret="other", deadline=5.0),
        RedisStore(redis_url.removesuffix("/0") + "/1", deadline=5.0),
    ]
    assert all(Limiter([rule], store).acquire("user:1").allowed for store in stores)
    assert not any(Limiter([rule], store).acquire("user:1").allowed for store in stores)

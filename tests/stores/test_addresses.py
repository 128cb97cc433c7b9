"""Where the counters are, as people write it down."""

import asyncio
from typing import Any

import pytest
from redis.connection import Connection, SSLConnection

from django_throttle.core import Rule
from django_throttle.exceptions import Cause, InvalidSetting
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.addresses import find_address, parse_address

SENSELESS = """
http://one redis-sentinel://one/dt redis+sentinels://one/dt unix+cluster://one redis://one/0?db=first
redis+sentinel://one redis+sentinel:///dt redis+sentinel://one/dt/three redis+sentinel://one/dt/0/1
redis+sentinel://one,/dt redis+sentinel://one:port/dt redis+sentinel://[::1/dt
redis+cluster://one/1 redis+cluster://
"""


def test_one_server() -> None:
    found = parse_address("redis://user:secret@one:6380/2")
    assert (found.hosts, found.service, found.is_cluster, found.place) == ((), "", False, "one:6380")
    assert found.settings == {"host": "one", "port": 6380, "db": 2, "username": "user", "password": "secret"}


def test_a_unix_socket_that_is_not_there_is_no_defect() -> None:
    limiter = Limiter([Rule("api", "1/hour")], RedisStore("unix:///nowhere/redis.sock"))
    decisions = limiter.acquire("user:1"), asyncio.run(limiter.aacquire("user:1"))
    assert [decision.cause for decision in decisions] == [Cause.UNAVAILABLE] * 2


@pytest.mark.parametrize("path", ["-1", "+1", "name", "0/1"])
def test_what_is_no_number_of_a_database_is_left_out(path: str) -> None:
    found = parse_address(f"redis://one/{path}")
    assert "db" not in found.settings and found.wrong == ("its path is the number of a database",)
    assert parse_address(f"redis://one/{path}?db=2").settings["db"] == 2


def test_sentinels_and_clusters() -> None:
    found = parse_address("redis+sentinel://user:se%40cret@one:26380,two,[::1]:5/dt/3?sentinel_password=other")
    assert found.hosts == (("one", 26380), ("two", 26379), ("::1", 5))
    assert found.place == "one:26380, two:26379, ::1:5/dt"
    assert (found.service, found.is_cluster, found.settings["db"]) == ("dt", False, 3)
    assert (found.settings["username"], found.settings["password"]) == ("user", "se@cret")
    assert found.sentinel == {"username": None, "password": "other"}
    assert parse_address("redis+sentinel://one:26380,two/dt").settings["db"] == 0
    found = parse_address("redis+cluster://:secret@one:7000,two")
    assert found.hosts == (("one", 7000), ("two", 6379))
    assert found.is_cluster and "db" not in found.settings and found.settings["password"] == "secret"


@pytest.mark.parametrize(
    "url", ["rediss+sentinel://one/dt?ssl_cert_reqs=none", "rediss+cluster://one?ssl_cert_reqs=none"]
)
def test_with_tls(url: str) -> None:
    found = parse_address(url)
    assert found.settings["connection_class"] is SSLConnection
    assert found.settings["ssl_cert_reqs"] == "none"
    if found.service:
        assert found.sentinel["connection_class"] is SSLConnection
    RedisStore(url)


@pytest.mark.parametrize("url", [*SENSELESS.split(), "redis+cluster://one two"])
def test_what_makes_no_sense_is_an_invalid_setting(url: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_address(url)


def test_an_error_names_the_option_and_shows_no_password() -> None:
    with pytest.raises(InvalidSetting, match="cannot read the value of the option 'db'"):
        parse_address("redis://one/?db=first")
    for url in ("redis+sentinel://:secret@one,?/dt", "ftp://:secret@one", "redis://:secret@one/?db=secret"):
        with pytest.raises(InvalidSetting) as raised:
            parse_address(url)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_an_alias_that_sentinels_serve(secure: bool, settings: Any) -> None:
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis{'s' * secure}://dt{secure:d}/2?max_connections=9",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient", "SENTINELS": [("one", 26379), ("two", 26380)],
                "SENTINEL_KWARGS": {"password": "watch"}, "PASSWORD": "secret",
                "SOCKET_TIMEOUT": 5,
            },
        }
    }  # fmt: skip
    found = find_address("default")
    assert found.hosts == (("one", 26379), ("two", 26380))
    assert (found.service, found.settings["db"], found.settings["password"]) == (f"dt{secure:d}", 2, "secret")
    assert (found.sentinel["password"], found.replaced) == ("watch", ("SOCKET_TIMEOUT", "max_connections"))
    assert found.settings["connection_class"] is (SSLConnection if secure else Connection)
    RedisStore("default")

"""Each option of a URL or a CACHES entry goes to redis-py, or a check names it: what redis-py refuses is left out."""

import asyncio
import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django_redis.pool import ConnectionFactory
from redis.credentials import UsernamePasswordCredentialProvider

from django_throttle.checks.settings import check_settings
from django_throttle.core import Decision, Rule
from django_throttle.exceptions import InvalidSetting
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.servers import RedisServer

RULE = Rule("rule", "100000/min")


@pytest.fixture(scope="module")
def server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def no_pools() -> None:
    """django-redis keeps the pool of a URL, whatever options come with it later."""
    ConnectionFactory._pools.clear()


def decide(address: str) -> list[Decision]:
    limiter = Limiter([RULE], RedisStore(address, deadline=5.0))
    return [limiter.acquire("user:1"), asyncio.run(limiter.aacquire("user:1"))]


def numbers(settings: Any, address: str) -> list[str]:
    settings.DJANGO_THROTTLE = {"REDIS": address}
    return [str(message.id).removeprefix("django_throttle.") for message in check_settings(None)]


@pytest.mark.parametrize(
    ("query", "number", "words"),
    [
        ("max_connections=50", "W036", "up to 20 connections"), ("timeout=20", "W036", "DEADLINE"),
        ("socket_timeout=soon", "W036", "DEADLINE"), ("redis_connect_func=x", "W036", "event loops"),
        ("foo=bar", "E036", "refuse the option 'foo'"),
        ("socket_red_size=1", "E036", "did you mean 'socket_read_size'?"),
        ("parser_class=x", "E036", "refuse the option 'parser_class'"),
        ("protocol=4", "E036", "refuse the option 'protocol': protocol must be either 2 or 3"),
        ("socket_read_size=large", "E036", "cannot read the value of the option 'socket_read_size'"),
        ("ssl_cert_reqs=none", "E036", "rediss://"),
    ],
)  # fmt: skip
def test_what_is_said_of_those_that_do_not_hold(query: str, number: str, words: str, settings: Any) -> None:
    for place in ("redis://one/0", "redis+sentinel://one/name/0", "redis+cluster://one"):
        settings.DJANGO_THROTTLE = {"REDIS": f"{place}?{query}"}
        (message,) = check_settings(None)
        assert message.id == f"django_throttle.{number}" and words in message.msg


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://one/0?host=two", "'host' is in the URL already"),
        ("redis://one:two@three/0?password=four", "'password' is in the URL already"),
        ("unix:///a?path=/b", "'path' is in the URL already"),
        ("redis://one/0?path=/a", "the option 'path'"),  # it is one of Unix sockets
        ("redis://one/0?queue_clas=x", "the option 'queue_clas'"),  # nearly one that others of ours replace
        ("redis://one/0?ssl_keyfil=x", "the option 'ssl_keyfil'"),  # nearly one that needs rediss://
        ("rediss://one?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("rediss://one?ssl_min_version=3", "ssl_min_version"),
        ("rediss://one?ssl_validate_ocsp=true", "the connections of event loops"),
        ("redis+cluster://one?db=1", "db"),
        ("redis://one/name", "its path is the number of a database"),
    ],
)
def test_what_does_not_hold_of_an_address_is_named(url: str, words: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": url}
    (message,) = check_settings(None)
    assert message.id == "django_throttle.E036"
    assert words in message.msg and "did you mean" not in message.msg
    RedisStore(url)


def test_an_address_that_makes_no_sense_is_refused_by_the_setting_s_name(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": "http://127.0.0.1/0"}
    with pytest.raises(InvalidSetting, match=r"^REDIS: "):
        get_store()


def test_eventlet_is_refused_by_a_check_and_when_the_store_is_made(settings: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "eventlet.patcher", SimpleNamespace(is_monkey_patched="socket".__eq__))
    assert "E039" in numbers(settings, "redis://127.0.0.1:1/0")
    with pytest.raises(InvalidSetting, match=r"eventlet has replaced .*: use gevent, or threads"):
        get_store()


def test_the_log_names_what_is_left_out(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    RedisStore(f"{server.url}?foo=secret")
    (record,) = caplog.records
    assert "'foo'" in record.getMessage() and "secret" not in record.getMessage()


def entry(backend: str, location: Any, **options: Any) -> dict[str, Any]:
    path = {"ours": "django.core.cache.backends.redis.RedisCache", "django_redis": "django_redis.cache.RedisCache"}
    return {"default": {"BACKEND": path[backend], "LOCATION": location, "OPTIONS": options}}


def pool(**options: Any) -> dict[str, Any]:
    return {"CONNECTION_POOL_KWARGS": options}


BLOCKING = "redis.connection.BlockingConnectionPool"
KEEPALIVE = {"socket_keepalive": True, "socket_keepalive_options": {socket.TCP_KEEPCNT: 3}}
PROVIDER = UsernamePasswordCredentialProvider(None, "secret")


@pytest.mark.parametrize(
    ("backend", "options", "named"),
    [
        ("django_redis", {}, ""),
        ("django_redis", {"PASSWORD": "secret"}, ""),
        ("django_redis", pool(max_connections=50, retry_on_timeout=True), "I036 I036"),
        ("django_redis", {"CONNECTION_POOL_CLASS": BLOCKING, **pool(max_connections=50, timeout=20)}, "I036 I036"),
        ("django_redis", pool(decode_responses=True, encoding="utf-16"), "I036 I036"),
        ("django_redis", pool(protocol=3, client_name="site"), ""),
        ("django_redis", pool(socket_type=socket.AF_INET, **KEEPALIVE), "I036"),
        ("django_redis", pool(credential_provider=PROVIDER, password=None), ""),
        ("django_redis", pool(foo=1), "E036"),
        ("django_redis", pool(redis_connect_func=print), "I036"),
        ("ours", {"pool_class": BLOCKING, "max_connections": 50, "timeout": 20}, "I036 I036"),
        ("ours", {"db": 3, "client_name": "site"}, ""),
        ("ours", {"foo": 1}, "E036"),
        ("django_redis", {"CLIENT_CLASS": "django_redis.client.ShardClient"}, "E039"),
        ("django_redis", {"CLIENT_CLASS": "nowhere.Client"}, "E039"),
        ("django_redis", {"CONNECTION_POOL_CLASS": "nowhere.Pool"}, "E039"),
        ("django_redis", {"PARSER_CLASS": "nowhere.Parser"}, "E039"),
        ("django_redis", {"SOCKET_TIMEOUT": "soon"}, "E039"),
        ("django_redis", {"PASSWORD": "secret", **pool(credential_provider=PROVIDER)}, "E039"),  # one of the two
    ],
    ids=lambda value: str(value).partition(" object at")[0],  # no address, which each process has of its own
)
def test_each_option_of_a_cache_holds_or_is_named(
    backend: str, options: dict[str, Any], named: str, server: RedisServer, settings: Any
) -> None:
    provided = options.get("CONNECTION_POOL_KWARGS", {}).get("credential_provider")
    with server.client() as admin:
        admin.config_set("requirepass", options.get("PASSWORD", "secret" if provided else ""))
        try:
            for location in (server.url, [server.url, "redis://127.0.0.1:1/0"]):  # whose second one is a replica
                settings.CACHES = entry(backend, location, **options)
                assert " ".join(numbers(settings, "default")) == named
                if named != "E039":  # such a cache cannot be used
                    assert not any(decision.degraded for decision in decide("default"))
        finally:
            admin.config_set("requirepass", "")

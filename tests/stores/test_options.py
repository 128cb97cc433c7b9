"""Every option of a URL or a CACHES entry holds, or a check names it: none is an error, none has it count locally."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django_redis.pool import ConnectionFactory
from redis import BlockingConnectionPool, connection
from redis.credentials import UsernamePasswordCredentialProvider

from django_throttle.checks.settings import check_settings
from django_throttle.core import Decision, Rule
from django_throttle.exceptions import Cause, InvalidSetting
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.servers import RedisServer

RULE = Rule("rule", "100000/min")
CLASSES = (
    connection.AbstractConnection,
    connection.Connection,
    connection.SSLConnection,
    connection.UnixDomainSocketConnection,
    connection.ConnectionPool,
    BlockingConnectionPool,
)
PARAMETERS = {name for one in CLASSES for name in inspect.signature(one.__init__).parameters}
NAMES = sorted(PARAMETERS.union(connection.URL_QUERY_ARGUMENT_PARSERS) - {"self", "kwargs", "connection_kwargs"})
# Another server or another user is not a matter of options.
OPTIONS = [name for name in NAMES if name not in ("host", "port", "path", "username", "password")]
VALUES = ("3", "none", "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, servers: None) -> Iterator[RedisServer]:
    path = tmp_path_factory.mktemp("redis") / "socket"
    with RedisServer("--unixsocket", str(path)) as server:
        yield server


@pytest.fixture(autouse=True)
def no_pools() -> None:
    """django-redis keeps the pool of a URL, whatever options come with it later."""
    ConnectionFactory._pools.clear()


def decide(address: str) -> list[Decision]:
    """One decision of each driver."""
    limiter = Limiter([RULE], RedisStore(address, deadline=5.0))
    return [limiter.acquire("user:1"), asyncio.run(limiter.aacquire("user:1"))]


def numbers(settings: Any, address: str) -> list[str]:
    settings.DJANGO_THROTTLE = {"REDIS": address}
    return [str(message.id).removeprefix("django_throttle.") for message in check_settings(None)]


@pytest.mark.filterwarnings("ignore:.*lib_:DeprecationWarning")
@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("name", [*OPTIONS, "foo", "max_connection"])
def test_each_option_of_a_url_holds_or_is_named(name: str, kind: str, server: RedisServer, settings: Any) -> None:
    for value in VALUES if kind == "tcp" else VALUES[:1]:
        where = server.url if kind == "tcp" else f"unix://{server.client().config_get('unixsocket')['unixsocket']}"
        url = f"{where}?{name}={value}"
        named = numbers(settings, url)
        if "E030" in named:
            assert name == "db" and value != "3"
            continue
        assert not any(decision.degraded for decision in decide(url)), url
        assert named or name in ("client_name", "lib_name", "lib_version", "protocol", "socket_read_size", "db"), url


@pytest.mark.filterwarnings("ignore:.*lib_:DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "db"])
def test_with_tls_too_they_make_connections(name: str, servers: None) -> None:
    for value in VALUES:
        url = f"rediss://127.0.0.1:1/0?{name}={value}"
        # Nobody is there, which is all there is to be said against it.
        assert {decision.cause for decision in decide(url)} == {Cause.UNAVAILABLE}, url


@pytest.mark.parametrize(
    ("query", "number", "words"),
    [
        ("max_connections=50", "W036", "MAX_CONNECTIONS"),
        ("timeout=20", "W036", "DEADLINE"),
        ("socket_timeout=soon", "W036", "DEADLINE"),
        ("foo=bar", "E036", "no option 'foo'"),
        ("socket_red_size=1", "E036", "did you mean 'socket_read_size'?"),
        ("socket_type=2", "E036", "text"),
        ("parser_class=x", "E036", "text"),
        ("protocol=4", "E036", "no valid value for redis-py: it is 2 or 3"),
        ("client_name=a+b", "E036", "it is ASCII text without spaces"),  # Redis refuses it, and with it every call
        ("client_name=%C3%A9", "E036", "no valid value for redis-py: it is ASCII text"),
        (
            "socket_read_size=0",
            "E036",
            "it is a whole number from 1 to",
        ),  # reads nothing, which is taken for the end
        ("socket_read_size=99999999999999", "E036", "no valid value"),
        ("ssl_cert_reqs=none", "E036", "rediss://"),
        ("redis_connect_func=x", "E036", "event loops"),
    ],
)
def test_what_is_said_of_those_that_do_not_hold(query: str, number: str, words: str, settings: Any) -> None:
    for place in ("redis://one/0", "redis+sentinel://one/name/0", "redis+cluster://one"):
        settings.DJANGO_THROTTLE = {"REDIS": f"{place}?{query}"}
        (message,) = check_settings(None)
        assert message.id == f"django_throttle.{number}" and words in message.msg


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://one/0?host=two", "host"),
        ("redis://one:6379/0?port=1", "port"),
        ("redis://one:two@three/0?password=four", "password"),
        ("redis+cluster://one:two@three?username=four", "username"),
        ("unix:///a?path=/b", "path"),
    ],
)
def test_of_two_places_the_url_s_own_is_used(url: str, name: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": url}
    (message,) = check_settings(None)
    assert message.id == "django_throttle.E036" and f"{name!r} is in the URL already" in message.msg


@pytest.mark.parametrize(
    "url",
    [
        "redis://one/0?path=/a",  # an option of Unix sockets
        "unix:///a?port=1",
        "redis://one/0?queue_clas=x",  # nearly one that others of ours replace
        "redis://one/0?ssl_keyfil=x",  # nearly one that needs rediss://
    ],
)
def test_only_options_that_hold_are_offered(url: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": url}
    (message,) = check_settings(None)
    assert "no option" in message.msg and "did you mean" not in message.msg


@pytest.mark.parametrize(
    "url",
    [
        "rediss://one?ssl_ca_certs=/nowhere.pem",
        "rediss://one?ssl_min_version=3",
        "rediss://one?ssl_validate_ocsp=true",
        "redis+cluster://one?db=1",
        "redis+sentinel://one/name?host=two",
        "redis+sentinel://one/name?sentinel_name=two",
        "redis://one/name",
    ],
)
def test_what_does_not_hold_of_an_address_is_named(url: str, settings: Any) -> None:
    assert numbers(settings, url) == ["E036"]
    RedisStore(url)


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1/0?db=abc", "http://127.0.0.1/0", "redis+cluster://a:1/1"])
def test_an_address_that_makes_no_sense_is_refused_by_the_setting_s_name(address: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": address}
    with pytest.raises(InvalidSetting, match=r"^REDIS: "):
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
ALIASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "plain": ("django_redis", {}, []),
    "password": ("django_redis", {"PASSWORD": "secret"}, []),
    "limits": ("django_redis", {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5}, ["I036", "I036"]),
    "pool": ("django_redis", pool(max_connections=50, retry_on_timeout=True), ["I036", "I036"]),
    "blocking": (
        "django_redis",
        {"CONNECTION_POOL_CLASS": BLOCKING, **pool(max_connections=50, timeout=20)},
        ["I036", "I036"],
    ),
    "decoded": ("django_redis", pool(decode_responses=True, encoding="utf-16"), ["I036", "I036"]),
    "protocol": ("django_redis", pool(protocol=3, client_name="site"), []),
    "protocol as text": ("django_redis", pool(protocol="3"), []),
    "keepalive": (
        "django_redis",
        pool(socket_keepalive=True, socket_keepalive_options={socket.TCP_KEEPCNT: 3}, socket_type=socket.AF_INET),
        ["I036"],
    ),
    "provider": (
        "django_redis",
        pool(credential_provider=UsernamePasswordCredentialProvider(None, "secret"), password=None),
        [],
    ),
    "unknown": ("django_redis", pool(foo=1), ["E036"]),
    "function": ("django_redis", pool(redis_connect_func=print), ["E036"]),
    "wrong": ("django_redis", pool(protocol=4), ["E036"]),
    "Django's": ("ours", {}, []),
    "Django's with a pool": ("ours", {"pool_class": BLOCKING, "max_connections": 50, "timeout": 20}, ["I036", "I036"]),
    "Django's with a database": ("ours", {"db": 3, "client_name": "site"}, []),
    "Django's with an unknown one": ("ours", {"foo": 1}, ["E036"]),
}


@pytest.mark.parametrize("several", [False, True], ids=["", "replicas"])
@pytest.mark.parametrize(("backend", "options", "named"), ALIASES.values(), ids=ALIASES)
def test_each_option_of_a_cache_holds_or_is_named(
    backend: str, options: dict[str, Any], named: list[str], several: bool, server: RedisServer, settings: Any
) -> None:
    kwargs = options.get("CONNECTION_POOL_KWARGS", {})
    secret = options.get("PASSWORD") or ("secret" if "credential_provider" in kwargs else "")
    with server.client() as admin:
        admin.config_set("requirepass", secret)
        try:
            location = [server.url, "redis://127.0.0.1:1/0"] if several else server.url
            settings.CACHES = entry(backend, location, **options)
            assert numbers(settings, "default") == named
            assert not any(decision.degraded for decision in decide("default"))
        finally:
            admin.config_set("requirepass", "")


def test_a_location_s_own_options_are_those_of_a_url(server: RedisServer, settings: Any) -> None:
    settings.CACHES = entry("django_redis", f"{server.url}?max_connections=50&socket_timeout=3&client_name=site")
    assert numbers(settings, "default") == ["I036", "I036"]
    assert not any(decision.degraded for decision in decide("default"))


@pytest.mark.parametrize(
    "options",
    [
        {"CLIENT_CLASS": "django_redis.client.ShardClient"},
        {"CLIENT_CLASS": "nowhere.Client"},
        {"CONNECTION_POOL_CLASS": "nowhere.Pool"},
        {"PARSER_CLASS": "nowhere.Parser"},
        {"SOCKET_TIMEOUT": "soon"},
    ],
    ids=str,
)
def test_a_cache_that_cannot_be_used_is_named(options: dict[str, Any], server: RedisServer, settings: Any) -> None:
    settings.CACHES = entry("django_redis", [server.url, server.url], **options)
    assert numbers(settings, "default") == ["E032"]


def test_a_file_that_is_there_is_not_named(tmp_path: Path, settings: Any) -> None:
    (tmp_path / "ca.pem").touch()
    assert numbers(settings, f"rediss://one?ssl_ca_certs={tmp_path}/ca.pem&ssl_ca_path={tmp_path}") == []

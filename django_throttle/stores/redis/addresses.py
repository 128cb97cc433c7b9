"""Addresses of Redis: parses the URL or CACHES alias of the setting REDIS, and checks its options."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import ConnectionPool
from redis import __version__ as redis_version
from redis import connection as redis_connection
from redis.asyncio import connection as async_connection
from redis.sentinel import SentinelConnectionPool

from django_throttle.conf import Conf
from django_throttle.core.options import did_you_mean
from django_throttle.exceptions import InvalidSetting

#: Options of a site that are replaced, and why.
REPLACED: Final = {
    **dict.fromkeys(("timeout", "socket_timeout", "socket_connect_timeout"), "DEADLINE bounds each decision"),
    "maint_notifications_config": "DEADLINE bounds each decision",
    "max_connections": "a process opens up to 20 connections",
    **dict.fromkeys(("retry", "retry_on_error", "retry_on_timeout"), "no call is sent twice"),
    "health_check_interval": "idle connections are checked before use",
    "socket_keepalive": "it is always on",
    **dict.fromkeys(
        ("decode_responses", "encoding", "encoding_errors", "legacy_responses"), "replies are read as bytes"
    ),
    "queue_class": "connections are in a pool of this package",
    **dict.fromkeys(("cache", "cache_config"), "nothing is cached in the client"),
    "redis_connect_func": "connections of event loops cannot call it",
}
#: Options with classes for redis-py's synchronous connections only.
SYNC_ONLY: Final = frozenset(("command_packer", "parser_class"))
#: Arguments that redis-py's pools add themselves, the last two during a maintenance of the server.
POOL_ARGUMENTS: Final = frozenset(
    ("connection_pool", *ConnectionPool().connection_kwargs, "maintenance_notification_hash", "maintenance_state")
)
#: Parsers of options in a URL. redis-py lacks one for the port, redis-py 5 for the two options after it.
PARSERS: Final[dict[str, Any]] = {
    **redis_connection.URL_QUERY_ARGUMENT_PARSERS,
    **dict.fromkeys(("port", "socket_read_size"), int),
    "ssl_min_version": lambda text: ssl.TLSVersion(int(text)),
}
_ASYNC_CLASSES: Final = (
    (redis_connection.SSLConnection, async_connection.SSLConnection),
    (redis_connection.UnixDomainSocketConnection, async_connection.UnixDomainSocketConnection),
    (redis_connection.Connection, async_connection.Connection),
)


def async_class(connection_class: type[Any]) -> type[Any]:
    """Return redis-py's asynchronous class for a synchronous one."""
    return next(twin for base, twin in _ASYNC_CLASSES if issubclass(connection_class, base))


def usable_options(
    options: Mapping[str, object], connection_class: type[Any]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the options that redis-py's connections accept, and why they refuse each other one.

    Raise InvalidSetting if they accept each of the options, and not all of them together.
    """
    reasons = {name: _refusal(name, options[name], connection_class) for name in options if name not in REPLACED}
    usable = {name: options[name] for name, reason in reasons.items() if not reason}
    try:
        connection_class(**usable)
    except Exception as error:
        raise InvalidSetting(f"redis-py {redis_version} refuses these options together: {error}") from error
    return usable, tuple(filter(None, reasons.values()))


def _refusal(name: str, value: object, connection_class: type[Any]) -> str:
    """Return why redis-py's connections refuse an option; empty if they accept it."""
    classes = [connection_class] if name in SYNC_ONLY else [connection_class, async_class(connection_class)]
    for refusing in classes:
        try:
            refusing(**{name: value})  # connects to nothing yet
        except Exception as error:  # noqa: BLE001 - whatever redis-py raises
            accepted = {option for base in connection_class.__mro__ for option in signature(base).parameters}
            hint = "" if name in accepted else did_you_mean(name, accepted.difference(REPLACED, POOL_ARGUMENTS))
            if name.startswith("ssl_") and not issubclass(connection_class, redis_connection.SSLConnection):
                hint = "; it needs rediss://"
            kind = "connections of event loops" if refusing is not connection_class else "connections"
            return f"the {kind} of redis-py {redis_version} refuse the option {name!r}: {error}{hint}"
    return ""


Host = tuple[str, int]

SCHEMES: Final = ("redis", "rediss", "unix")
DEFAULT_PORTS: Final = {"sentinel": 26379, "cluster": 6379}  # of URLs with several hosts
_HOST: Final = re.compile(r"(?P<host>[^:\[\]/@\s]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")
_PLAIN: Final = (redis_connection.Connection, redis_connection.UnixDomainSocketConnection)


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server, of a primary under Sentinels, or of a Cluster."""

    #: Arguments of redis-py for a connection to the server, the primary or a node.
    settings: dict[str, Any]
    #: The Sentinels if there is a service, some nodes of a Cluster, or empty.
    hosts: tuple[Host, ...] = ()
    #: Name of the primary that Sentinels watch.
    service: str = ""
    #: Arguments of redis-py for a connection to a Sentinel.
    sentinel: dict[str, object] = field(default_factory=dict)
    #: Faults of options that are ignored.
    wrong: tuple[str, ...] = ()
    #: Names of options in REPLACED.
    replaced: tuple[str, ...] = ()

    @property
    def is_cluster(self) -> bool:
        return bool(self.hosts) and not self.service

    @property
    def place(self) -> str:
        """Hosts and ports for messages, without a user or a password."""
        hosts = self.hosts or ((self.settings.get("host", "localhost"), self.settings.get("port", 6379)),)
        named = ", ".join(f"{host}:{port}" for host, port in hosts)
        return str(self.settings.get("path") or named) + (f"/{self.service}" if self.service else "")


def find_address(address: str) -> Address:
    """Return the address of a URL or of a CACHES alias. Raise InvalidSetting."""
    return parse_address(address) if "://" in address else _alias_address(address)


def parse_address(url: str) -> Address:
    """Return the address of a URL. Raise InvalidSetting, whose text has no password."""
    try:
        scheme, _, kind = url.partition("://")[0].lower().partition("+")
        if kind in DEFAULT_PORTS and scheme in ("redis", "rediss"):
            return _parse_hosts(url, scheme, kind)
        if kind or scheme not in SCHEMES:
            raise InvalidSetting(
                "a Redis URL begins with redis://, rediss:// or unix://, or with redis+sentinel:// or redis+cluster://"
            )
        return _parse_server(url)
    except ValueError as error:  # InvalidSetting is one
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting("redis-py cannot read the Redis URL") from error


def _parse_server(url: str) -> Address:
    parts = urlsplit(url)
    options_of_url = dict(parse_qsl(parts.query, keep_blank_values=True))
    settings = dict(redis_connection.parse_url(url.partition("?")[0]))
    options, wrong = _parse_options(options_of_url)
    usable, refused = usable_options(options, settings.get("connection_class", redis_connection.Connection))
    wrong += refused
    database = "" if parts.scheme == "unix" else parts.path.strip("/")
    if database and not database.isdecimal():
        wrong.append("its path is the number of a database")
        settings.pop("db", None)
    if "db" in usable:
        settings.pop("db", None)
    wrong += [f"the option {name!r} is in the URL already" for name in options_of_url if name in settings]
    replaced = tuple(name for name in options_of_url if name in REPLACED)
    return Address({**usable, **settings}, wrong=tuple(wrong), replaced=replaced)


def _parse_options(query: Mapping[str, str]) -> tuple[dict[str, object], list[str]]:
    """Parse the options of a URL. Return them, and faults. Raise InvalidSetting for a faulty database or port."""
    options, wrong = {}, []
    for name, value in query.items():
        if name in REPLACED:
            continue
        try:
            options[name] = PARSERS.get(name, str)(value)
        except (TypeError, ValueError, AttributeError) as error:
            reason = f"redis-py cannot read the value of the option {name!r}"
            if name in ("db", "port"):
                raise InvalidSetting(reason) from error
            wrong.append(reason)
    return options, wrong


def _parse_hosts(url: str, scheme: str, kind: str) -> Address:
    rest = url.partition("://")[2]
    network = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"//localhost{rest.removeprefix(network)}")  # urlsplit refuses several hosts with brackets
    credentials, at, names = network.rpartition("@")
    hosts = tuple(_host(name, DEFAULT_PORTS[kind]) for name in names.split(","))
    service, database = _path(parts.path, kind)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    sentinel_options = (
        {name: query.pop(f"sentinel_{name}", None) for name in ("username", "password")} if service else {}
    )
    ignored_names = [name for name in ("host", "port", "path", *(() if service else ("db",))) if query.pop(name, None)]
    server = _parse_server(f"{scheme}://{credentials}{at}localhost/{database}?{urlencode(query)}")
    settings = dict(server.settings)
    if kind == "cluster":
        settings.pop("db", None)
    tls_settings = {name: settings[name] for name in settings if name == "connection_class" or name.startswith("ssl")}
    wrong = server.wrong + tuple(f"the option {name!r} has no effect with several hosts" for name in ignored_names)
    return Address(settings, hosts, service, {**tls_settings, **sentinel_options}, wrong, server.replaced)


def _host(name: str, port: int) -> Host:
    match = _HOST.fullmatch(name)
    if not match:
        raise InvalidSetting("a Redis URL names hosts like this: host1:port,host2:port")
    return match["host"].strip("[]"), int(match["port"] or port)


def _path(path: str, kind: str) -> tuple[str, str]:
    """Return the primary's name and the number of the database."""
    names = [name for name in path.split("/") if name]
    if kind == "cluster":
        if names not in ([], ["0"]):
            raise InvalidSetting("a Redis Cluster has no databases: end its URL after the hosts")
        return "", "0"
    service, database, *rest = [*names, "", "0"] if not names else [*names, "0"]
    if not service or rest[1:] or not database.isdecimal():
        raise InvalidSetting("a Sentinel URL ends with the name of the primary: redis+sentinel://host:port/name/0")
    return service, database


def _cache_client(alias: str) -> Any:
    """Return the client of a CACHES alias, which is private in Django's own backend."""
    from django.core.cache import caches  # a URL needs no Django settings

    cache: Any = caches[alias]
    return cache.client if hasattr(cache, "client") else cache._cache


def load_cache_backend() -> None:
    """Import the modules of the CACHES alias in the settings before the first call. Do not connect."""
    from django.conf import settings

    with suppress(Exception):  # the first call and the system checks report it
        alias = {"REDIS": Conf().REDIS, **settings.DJANGO_THROTTLE}["REDIS"]
        if "://" not in alias:
            _cache_client(alias)


def _alias_address(alias: str) -> Address:
    from django.conf import settings

    try:
        pool = _cache_client(alias).get_client(write=True).connection_pool
    except Exception as error:  # whatever a backend, a pool or a client of the site's own may raise
        raise InvalidSetting(
            f"CACHES has no alias {alias!r} that django-redis, or Django's own Redis backend, serves with plain clients"
            f" ({type(error).__name__})"
        ) from error
    replaced_names = _replaced_options(settings.CACHES[alias])
    if isinstance(pool, SentinelConnectionPool):
        return replace(_sentinel_address(pool), replaced=replaced_names)
    if not issubclass(pool.connection_class, _PLAIN):
        message = f"the cache {alias!r} uses {pool.connection_class.__name__}: name the servers by a URL instead"
        raise InvalidSetting(message)
    usable, wrong = usable_options(_arguments(pool), pool.connection_class)
    return Address({**usable, "connection_class": pool.connection_class}, wrong=wrong, replaced=replaced_names)


def _arguments(pool: ConnectionPool) -> dict[str, object]:
    """Return the arguments of a pool's connections, without those of redis-py's pools."""
    return {name: value for name, value in pool.connection_kwargs.items() if name not in POOL_ARGUMENTS}


def _replaced_options(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options of a CACHES entry that are in REPLACED, as written there."""
    options = dict(entry.get("OPTIONS") or {})
    places = entry.get("LOCATION") or ()
    urls = [places] if isinstance(places, str) else list(places)
    names = [*options, *(options.get("CONNECTION_POOL_KWARGS") or {})]
    names += [name for url in urls for name, _ in parse_qsl(urlsplit(str(url)).query)]
    return tuple(dict.fromkeys(name for name in names if name.lower() in REPLACED))


def _sentinel_address(pool: SentinelConnectionPool) -> Address:
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    is_tls = issubclass(pool.connection_class, redis_connection.SSLConnection)
    connection = redis_connection.SSLConnection if is_tls else redis_connection.Connection
    usable, wrong = usable_options(_arguments(pool), connection)
    all_arguments = [sentinel_pool.connection_kwargs for sentinel_pool in pools]
    hosts = tuple((arguments["host"], int(arguments["port"])) for arguments in all_arguments)
    sentinel, _ = usable_options(_arguments(pools[0]), pools[0].connection_class)  # redis-py adds every default
    sentinel["connection_class"] = pools[0].connection_class
    return Address({**usable, "connection_class": connection}, hosts, pool.service_name, sentinel, wrong)

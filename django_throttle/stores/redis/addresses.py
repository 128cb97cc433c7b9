"""What the setting REDIS may name, and the options of a URL or a CACHES entry."""

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

#: Options that are set here, whatever a site says, and why.
REPLACED: Final = {
    **dict.fromkeys(("timeout", "socket_timeout", "socket_connect_timeout"), "DEADLINE bounds each decision"),
    "maint_notifications_config": "DEADLINE bounds each decision",
    "max_connections": "MAX_CONNECTIONS says how many",
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
#: Python classes of redis-py's synchronous connections; those of event loops keep their own.
SYNC_ONLY: Final = frozenset(("command_packer", "parser_class"))
#: Arguments that redis-py's pools add by themselves, the last two during a maintenance of the server.
POOL_ARGUMENTS: Final = frozenset(
    ("connection_pool", *ConnectionPool().connection_kwargs, "maintenance_notification_hash", "maintenance_state")
)
#: Functions that read an option of a URL. redis-py leaves the port as text, and redis-py 5 the two after it.
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


def usable_options(options: Mapping[str, Any], connection_class: type[Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
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
MANY: Final = {"sentinel": 26379, "cluster": 6379}  # and their usual ports
_HOST: Final = re.compile(r"(?P<host>[^:\[\]/@\s]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")
_PLAIN: Final = (redis_connection.Connection, redis_connection.UnixDomainSocketConnection)


@dataclass(frozen=True, slots=True)
class Address:
    """``settings`` are redis-py's arguments for a connection to a server that counts.

    ``hosts`` are the Sentinels that watch the primary named ``service``, reached with the arguments in
    ``sentinel``; or, without a service, some nodes of a Cluster; or nothing. ``wrong`` says which options are not
    used, and why; ``replaced`` names those in REPLACED.
    """

    settings: dict[str, Any]
    hosts: tuple[Host, ...] = ()
    service: str = ""
    sentinel: dict[str, Any] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    @property
    def is_cluster(self) -> bool:
        return bool(self.hosts) and not self.service

    @property
    def place(self) -> str:
        """Where the servers are, without a user or a password."""
        hosts = self.hosts or ((self.settings.get("host", "localhost"), self.settings.get("port", 6379)),)
        named = ", ".join(f"{host}:{port}" for host, port in hosts)
        return str(self.settings.get("path") or named) + (f"/{self.service}" if self.service else "")


def find_address(address: str) -> Address:
    """The address of a URL or of a CACHES alias; raises InvalidSetting for anything else."""
    return parse_address(address) if "://" in address else _alias_address(address)


def parse_address(url: str) -> Address:
    """The address of a URL; raises InvalidSetting, whose text has no password."""
    try:
        scheme, _, kind = url.partition("://")[0].lower().partition("+")
        if kind in MANY and scheme in ("redis", "rediss"):
            return _many(url, scheme, kind)
        if kind or scheme not in SCHEMES:
            raise InvalidSetting(
                "a Redis URL begins with redis://, rediss:// or unix://, or with redis+sentinel:// or redis+cluster://"
            )
        return _one(url)
    except ValueError as error:  # InvalidSetting is one
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting("redis-py cannot read the Redis URL") from error


def _one(url: str) -> Address:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    settings = dict(redis_connection.parse_url(url.partition("?")[0]))
    options, wrong = _read(given)
    usable, refused = usable_options(options, settings.get("connection_class", redis_connection.Connection))
    wrong += refused
    number = "" if parts.scheme == "unix" else parts.path.strip("/")
    if number and not number.isdecimal():
        wrong.append("its path is the number of a database")
        settings.pop("db", None)
    if "db" in usable:
        settings.pop("db", None)
    wrong += [f"the option {name!r} is in the URL already" for name in given if name in settings]
    replaced = tuple(name for name in given if name in REPLACED)
    return Address({**usable, **settings}, wrong=tuple(wrong), replaced=replaced)


def _read(query: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Read the options of a URL; say which cannot be read. Raise InvalidSetting if they say where the server is."""
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


def _many(url: str, scheme: str, kind: str) -> Address:
    rest = url.partition("://")[2]
    network = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"//localhost{rest.removeprefix(network)}")  # urlsplit refuses several hosts with brackets
    credentials, at, names = network.rpartition("@")
    hosts = tuple(_host(name, MANY[kind]) for name in names.split(","))
    service, database = _path(parts.path, kind)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: query.pop(f"sentinel_{name}", None) for name in ("username", "password")} if service else {}
    elsewhere = [name for name in ("host", "port", "path", *(() if service else ("db",))) if query.pop(name, None)]
    plain = _one(f"{scheme}://{credentials}{at}localhost/{database}?{urlencode(query)}")
    settings = dict(plain.settings)
    if kind == "cluster":
        settings.pop("db", None)
    secure = {name: settings[name] for name in settings if name == "connection_class" or name.startswith("ssl")}
    wrong = plain.wrong + tuple(f"the option {name!r} has no effect with several hosts" for name in elsewhere)
    return Address(settings, hosts, service, {**secure, **own}, wrong, plain.replaced)


def _host(name: str, port: int) -> Host:
    match = _HOST.fullmatch(name)
    if not match:
        raise InvalidSetting("a Redis URL names hosts like this: host1:port,host2:port")
    return match["host"].strip("[]"), int(match["port"] or port)


def _path(path: str, kind: str) -> tuple[str, str]:
    """The primary's name and the number of the database."""
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
    """Return the client of a CACHES alias; Django's own backend keeps it out of sight."""
    from django.core.cache import caches  # a URL needs no Django settings

    cache: Any = caches[alias]
    return cache.client if hasattr(cache, "client") else cache._cache


def load_cache_backend() -> None:
    """Import what the CACHES alias in settings needs, so that no call does. Connect to nothing."""
    from django.conf import settings

    with suppress(Exception):  # the first call raises it, and the checks name it
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
    written = _written(settings.CACHES[alias])
    if isinstance(pool, SentinelConnectionPool):
        return replace(_sentinel_address(pool), replaced=written)
    if not issubclass(pool.connection_class, _PLAIN):
        fault = f"the cache {alias!r} uses {pool.connection_class.__name__}: name the servers by a URL instead"
        raise InvalidSetting(fault)
    usable, wrong = usable_options(_arguments(pool), pool.connection_class)
    return Address({**usable, "connection_class": pool.connection_class}, wrong=wrong, replaced=written)


def _arguments(pool: ConnectionPool) -> dict[str, Any]:
    """Return the arguments of a pool's connections that its owner has given."""
    return {name: value for name, value in pool.connection_kwargs.items() if name not in POOL_ARGUMENTS}


def _written(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of a CACHES entry that are in REPLACED, as they are written there."""
    given = dict(entry.get("OPTIONS") or {})
    places = entry.get("LOCATION") or ()
    urls = [places] if isinstance(places, str) else list(places)
    names = [*given, *(given.get("CONNECTION_POOL_KWARGS") or {})]
    names += [name for url in urls for name, _ in parse_qsl(urlsplit(str(url)).query)]
    return tuple(dict.fromkeys(name for name in names if name.lower() in REPLACED))


def _sentinel_address(pool: SentinelConnectionPool) -> Address:
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    secure = issubclass(pool.connection_class, redis_connection.SSLConnection)
    connection = redis_connection.SSLConnection if secure else redis_connection.Connection
    usable, wrong = usable_options(_arguments(pool), connection)
    hosts = tuple((one.connection_kwargs["host"], int(one.connection_kwargs["port"])) for one in pools)
    sentinel, _ = usable_options(_arguments(pools[0]), pools[0].connection_class)  # redis-py adds every default
    sentinel["connection_class"] = pools[0].connection_class
    return Address({**usable, "connection_class": connection}, hosts, pool.service_name, sentinel, wrong)

"""What the setting REDIS may name: one server, a master watched by Sentinels, or a Cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import connection as redis_connection
from redis.sentinel import SentinelConnectionPool

from django_throttle.exceptions import InvalidSetting
from django_throttle.stores import options

Host = tuple[str, int]

SCHEMES: Final = ("redis", "rediss", "unix")
MANY: Final = {"sentinel": 26379, "cluster": 6379}  # and their usual ports
_HOST: Final = re.compile(r"(?P<host>[^:\[\]/@\s]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")
_PLAIN: Final = (redis_connection.Connection, redis_connection.UnixDomainSocketConnection)


@dataclass(frozen=True, slots=True)
class Address:
    """``settings`` are redis-py's arguments for a connection to a server that counts.

    ``hosts`` are the Sentinels that watch the master named ``service``, reached with the arguments in
    ``sentinel``; or, without a service, some nodes of a Cluster; or nothing. ``wrong`` says what does not hold of it,
    and ``replaced`` which options others of ours replace.
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


def find_address(address: str) -> Address:
    """The address that a URL says, or a CACHES alias; raises InvalidSetting for what is neither."""
    return parse_address(address) if "://" in address else _alias_address(address)


def parse_address(url: str) -> Address:
    """The address that a URL says; raises InvalidSetting, which shows no password."""
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
        raise InvalidSetting("the Redis URL makes no sense to redis-py") from error


def _one(url: str) -> Address:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    settings = dict(redis_connection.parse_url(url.partition("?")[0]))
    chosen = options.choose(given, settings.get("connection_class", redis_connection.Connection), text=True)
    number = "" if parts.scheme == "unix" else parts.path.strip("/")
    wrong = () if number.isdecimal() or not number else ("its path is the number of a database",)
    if wrong or "db" in chosen.settings:
        settings.pop("db", None)
    return Address({**chosen.settings, **settings}, wrong=chosen.wrong + wrong, replaced=chosen.replaced)


def _many(url: str, scheme: str, kind: str) -> Address:
    rest = url.partition("://")[2]
    network = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"//localhost{rest.removeprefix(network)}")  # it refuses several hosts with brackets among them
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
    wrong = plain.wrong + tuple(f"the option {name!r} makes no sense for several hosts" for name in elsewhere)
    return Address(settings, hosts, service, {**secure, **own}, wrong, plain.replaced)


def _host(name: str, port: int) -> Host:
    found = _HOST.fullmatch(name)
    if not found:
        raise InvalidSetting("a Redis URL names hosts like this: host1:port,host2:port")
    return found["host"].strip("[]"), int(found["port"] or port)


def _path(path: str, kind: str) -> tuple[str, str]:
    """The master's name and the number of the database."""
    names = [name for name in path.split("/") if name]
    if kind == "cluster":
        if names not in ([], ["0"]):
            raise InvalidSetting("a Redis Cluster has no databases: end its URL after the hosts")
        return "", "0"
    service, database, *rest = [*names, "", "0"] if not names else [*names, "0"]
    if not service or rest[1:] or not database.isdecimal():
        raise InvalidSetting("a Sentinel URL ends with the name of the master: redis+sentinel://host:port/name/0")
    return service, database


def _alias_address(alias: str) -> Address:
    from django.conf import settings
    from django.core.cache import caches  # a URL needs no Django settings

    try:
        cache: Any = caches[alias]
        # Django's own backend keeps its client out of sight.
        pool = (cache.client if hasattr(cache, "client") else cache._cache).get_client(write=True).connection_pool
    except Exception as error:  # whatever a backend, a pool or a client of the site's own may raise
        raise InvalidSetting(
            f"CACHES has no alias {alias!r} that django-redis, or Django's own Redis backend, serves with plain clients"
            f" ({type(error).__name__})"
        ) from error
    written = _written(settings.CACHES[alias])
    if isinstance(pool, SentinelConnectionPool):
        return replace(_watched(pool), replaced=written)
    if not issubclass(pool.connection_class, _PLAIN):
        raise InvalidSetting(
            f"the cache {alias!r} uses {pool.connection_class.__name__}: name the servers by a URL instead"
        )
    chosen = options.choose(pool.connection_kwargs, pool.connection_class, text=False)
    found = {**chosen.settings, "connection_class": pool.connection_class}
    return Address(found, wrong=chosen.wrong, replaced=written)


def _written(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of a CACHES entry that others of ours replace, as they are written there."""
    given = dict(entry.get("OPTIONS") or {})
    places = entry.get("LOCATION") or ()
    urls = [places] if isinstance(places, str) else list(places)
    names = [*given, *(given.get("CONNECTION_POOL_KWARGS") or {})]
    names += [name for url in urls for name, _ in parse_qsl(urlsplit(str(url)).query)]
    return tuple(dict.fromkeys(name for name in names if name.lower() in options.REPLACED))


def _watched(pool: SentinelConnectionPool) -> Address:
    sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    secure = issubclass(pool.connection_class, redis_connection.SSLConnection)
    connection = redis_connection.SSLConnection if secure else redis_connection.Connection
    chosen = options.choose(pool.connection_kwargs, connection, text=False)
    settings = {**chosen.settings, "connection_class": connection}
    return Address(
        settings,
        tuple((given["host"], int(given["port"])) for given in sentinels),
        pool.service_name,
        {**sentinels[0], "connection_class": pool.sentinel_manager.sentinels[0].connection_pool.connection_class},
        chosen.wrong,
    )

"""What the setting REDIS may name: one server, a master watched by Sentinels, or a Cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import connection as redis_connection
from redis.sentinel import SentinelConnectionPool

from django_throttle.exceptions import InvalidSetting

Host = tuple[str, int]

SCHEMES: Final = ("redis", "rediss", "unix")
MANY: Final = {"sentinel": 26379, "cluster": 6379}  # and their usual ports
_HOST: Final = re.compile(r"(?P<host>[^:\[\]/@\s]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")
_PLAIN: Final = (redis_connection.Connection, redis_connection.UnixDomainSocketConnection)


@dataclass(frozen=True, slots=True)
class Address:
    """``settings`` are redis-py's arguments for a connection to a server that counts.

    ``hosts`` are the Sentinels that watch the master named ``service``, reached with the arguments in
    ``sentinel``; or, without a service, some nodes of a Cluster; or nothing.
    """

    settings: dict[str, Any]
    hosts: tuple[Host, ...] = ()
    service: str = ""
    sentinel: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cluster(self) -> bool:
        return bool(self.hosts) and not self.service


def find_address(address: str) -> Address:
    """The address that a URL says, or a CACHES alias that django-redis serves; raises InvalidSetting for others."""
    return parse_address(address) if "://" in address else _alias_address(address)


def parse_address(url: str) -> Address:
    """The address that a URL says; raises InvalidSetting, which shows no password."""
    try:
        scheme, _, kind = urlsplit(url).scheme.partition("+")
        if kind in MANY and scheme in ("redis", "rediss"):
            return _many(url, scheme, kind)
        if kind or scheme not in SCHEMES:
            raise InvalidSetting(
                "a Redis URL begins with redis://, rediss:// or unix://, or with redis+sentinel:// or redis+cluster://"
            )
        return Address(dict(redis_connection.parse_url(url)))
    except ValueError as error:  # InvalidSetting is one
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting("the Redis URL makes no sense to redis-py") from error


def _many(url: str, scheme: str, kind: str) -> Address:
    parts = urlsplit(url)
    credentials, at, names = parts.netloc.rpartition("@")
    hosts = tuple(_host(name, MANY[kind]) for name in names.split(","))
    service, database = _path(parts.path, kind)
    query = dict(parse_qsl(parts.query))
    own = {name: query.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    plain = f"{scheme}://{credentials}{at}localhost/{database}?{urlencode(query)}"
    settings = dict(redis_connection.parse_url(plain))
    if kind == "cluster":
        settings.pop("db", None)
    secure = {name: settings[name] for name in settings if name == "connection_class" or name.startswith("ssl")}
    return Address(settings, hosts, service, {**secure, **own} if service else {})


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
    from django.core.cache import InvalidCacheBackendError, caches  # a URL needs no Django settings

    try:
        cache: Any = caches[alias]
        pool = cache.client.get_client(write=True).connection_pool
    except (AttributeError, InvalidCacheBackendError, NotImplementedError) as error:
        raise InvalidSetting(f"CACHES has no alias {alias!r} that django-redis serves with plain clients") from error
    if isinstance(pool, SentinelConnectionPool):
        return _watched(pool)
    if not issubclass(pool.connection_class, _PLAIN):
        raise InvalidSetting(
            f"the cache {alias!r} uses {pool.connection_class.__name__}: name the servers by a URL instead"
        )
    return Address({**pool.connection_kwargs, "connection_class": pool.connection_class})


def _watched(pool: SentinelConnectionPool) -> Address:
    sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    secure = issubclass(pool.connection_class, redis_connection.SSLConnection)
    settings = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    settings["connection_class"] = redis_connection.SSLConnection if secure else redis_connection.Connection
    return Address(
        settings,
        tuple((given["host"], int(given["port"])) for given in sentinels),
        pool.service_name,
        {**sentinels[0], "connection_class": pool.sentinel_manager.sentinels[0].connection_pool.connection_class},
    )

"""What the setting REDIS may name, and the options of a URL or a CACHES entry."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import __version__ as redis_version
from redis import connection as redis_connection
from redis.connection import to_bool
from redis.sentinel import SentinelConnectionPool

from django_throttle.conf import Conf
from django_throttle.core.options import did_you_mean
from django_throttle.exceptions import InvalidSetting

Read = Callable[[Any], Any]

MAX_READ_SIZE: Final = 2**24  # a buffer of this size is made for each connection


def _among(read: Read, allowed: Container[Any]) -> Read:
    """Reads a text by that function, and refuses what is not allowed."""

    def read_allowed(text: Any) -> Any:
        if (value := read(text)) in allowed:
            return value
        raise ValueError

    return read_allowed


def _client_name(text: Any) -> str:
    name = str(text)
    if any(not "!" <= letter <= "~" for letter in name):  # Redis refuses each connection of any other
        raise ValueError
    return name


def _verify_flags(text: Any) -> Any:
    return redis_connection.parse_ssl_verify_flags(text)  # redis-py 7 has it, and older ones no such option


_WHOLE: Final = _among(int, range(2**31))
# What the values of those are that not every text is.
_EXPECTED: Final = {
    **dict.fromkeys(("db", "port"), "a whole number from 0 on"),
    "client_name": "ASCII text without spaces",
    "protocol": "2 or 3",
    "socket_read_size": f"a whole number from 1 to {MAX_READ_SIZE}",
    "ssl_cert_reqs": "none, optional or required",
    "ssl_min_version": "the number of a TLS version, such as 771 for TLS 1.2",
    **dict.fromkeys(("ssl_exclude_verify_flags", "ssl_include_verify_flags"), "a list of names of ssl.VerifyFlags"),
}

# Without these the counters would be somewhere else: a value that cannot be read is no mere blemish.
WHERE: Final[dict[str, Read]] = {"db": _WHOLE, "port": _WHOLE} | dict.fromkeys(
    ("host", "path", "username", "password"), str
)
# What text can say, for both drivers.
TYPED: Final[dict[str, Read]] = {
    **WHERE,
    **dict.fromkeys(("lib_name", "lib_version", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path"), str),
    **dict.fromkeys(("ssl_certfile", "ssl_ciphers", "ssl_keyfile", "ssl_password"), str),
    **dict.fromkeys(("ssl_exclude_verify_flags", "ssl_include_verify_flags"), _verify_flags),
    "client_name": _client_name,
    "protocol": _among(int, (2, 3)),
    "socket_read_size": _among(int, range(1, MAX_READ_SIZE + 1)),
    "ssl_cert_reqs": _among(str, ("none", "optional", "required")),
    "ssl_check_hostname": to_bool,
    "ssl_min_version": lambda text: ssl.TLSVersion(int(text)),
}
FILES: Final = frozenset(("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"))
# Options that are Python objects: the first for both drivers, the others for the synchronous one.
SHARED_OBJECTS: Final = frozenset(("credential_provider", "driver_info", "socket_keepalive_options", "socket_type"))
OBJECTS: Final = SHARED_OBJECTS | {"command_packer", "parser_class"}
# Options that are ignored, and what holds instead.
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
}
# Options that one of the drivers does not support.
UNFIT: Final = frozenset(
    (
        *("redis_connect_func", "ssl_ocsp_context", "ssl_ocsp_expected_cert"),
        *("ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
    )
)
# What redis-py's pools add by themselves.
ADDED: Final = frozenset(
    (
        *("connection_class", "connection_pool", "encoder_class", "event_dispatcher", "himport_registry"),
        *("maint_notifications_pool_handler", "maintenance_notification_hash", "maintenance_state"),
        *("orig_host_address", "orig_socket_connect_timeout", "orig_socket_timeout"),
        "oss_cluster_maint_notifications_handler",
    )
)


def choose(given: Mapping[str, Any], connection: type[Any], *, text: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options of ``given`` that a connection of this class uses; which others it does not, and why.

    With ``text`` they are those of a URL. Raises InvalidSetting for an invalid value that says where the server is.
    """
    settings, wrong = {}, []
    for name, value in given.items():
        if name in REPLACED or (name in ADDED and not text):
            continue
        if reason := _objection(name, value, connection, text):
            wrong.append(reason)
            continue
        try:
            settings[name] = TYPED[name](value) if name in TYPED and type(value) in (str, int) else value
        except (ValueError, TypeError, AttributeError) as error:
            if name in WHERE:
                raise InvalidSetting(f"the option {name!r} has no valid value: it is {_EXPECTED[name]}") from error
            wrong.append(f"the option {name!r} has no valid value for redis-py: it is {_EXPECTED[name]}")
    missing = [name for name in FILES.intersection(settings) if settings[name] and not Path(settings[name]).exists()]
    wrong += [f"the option {name!r} names a file that does not exist" for name in missing]
    return settings, tuple(wrong)


def _objection(name: str, value: Any, connection: type[Any], text: bool) -> str:
    """Why this option cannot be used; empty when it can."""
    if name in UNFIT:
        return f"the option {name!r} cannot hold for connections of event loops"
    if name in accepted(connection) and (name in TYPED or not (text or isinstance(value, str))):
        return ""
    if name in OBJECTS or name in accepted(connection):
        return f"the option {name!r} cannot be written as text"
    if name in TYPED and name in accepted(redis_connection.SSLConnection) and name.startswith("ssl_"):
        return f"the option {name!r} needs rediss://"
    known = [one for one in TYPED if one in accepted(connection)]
    return f"redis-py {redis_version} has no option {name!r}{did_you_mean(name, known)}"


def accepted(connection: type[Any]) -> frozenset[str]:
    """The options that connections of this class take in the installed redis-py."""
    classes = [one for one in connection.__mro__ if "__init__" in vars(one) and one is not object]
    return frozenset(name for one in classes for name in signature(one.__init__).parameters)  # type: ignore[misc]


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
    chosen, unused = choose(given, settings.get("connection_class", redis_connection.Connection), text=True)
    number = "" if parts.scheme == "unix" else parts.path.strip("/")
    wrong = [] if number.isdecimal() or not number else ["its path is the number of a database"]
    if wrong or "db" in chosen:
        settings.pop("db", None)
    wrong += [f"the option {name!r} is in the URL already" for name in given if name in settings]
    replaced = tuple(name for name in given if name in REPLACED)
    return Address({**chosen, **settings}, wrong=(*unused, *wrong), replaced=replaced)


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
    chosen, wrong = choose(pool.connection_kwargs, pool.connection_class, text=False)
    return Address({**chosen, "connection_class": pool.connection_class}, wrong=wrong, replaced=written)


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
    chosen, wrong = choose(pool.connection_kwargs, connection, text=False)
    hosts = tuple((one.connection_kwargs["host"], int(one.connection_kwargs["port"])) for one in pools)
    sentinel = {**pools[0].connection_kwargs, "connection_class": pools[0].connection_class}
    return Address({**chosen, "connection_class": connection}, hosts, pool.service_name, sentinel, wrong)

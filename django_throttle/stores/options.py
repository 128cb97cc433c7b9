"""What a URL or a CACHES entry may say of a connection: redis-py's options, and what becomes of each of them here.

Those that name a server, or how to be admitted by it, hold. Limits on time, connections and retries are ours: they are
left out, and the checks say what holds in their place. What nobody knows is left out too, and the checks name it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis import __version__ as redis_version
from redis import connection as redis_connection
from redis.connection import to_bool

from django_throttle.exceptions import InvalidSetting


def _whole(text: Any) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _client_name(text: Any) -> str:
    name = str(text)
    if any(not "!" <= letter <= "~" for letter in name):  # Redis refuses each connection of any other
        raise ValueError
    return name


def _read_size(text: Any) -> int:
    number = int(text)
    if not 1 <= number <= MAX_READ_SIZE:  # nothing is read by 0, and a buffer of this size is made for each connection
        raise ValueError
    return number


def _protocol(text: Any) -> int:
    if int(text) not in (2, 3):
        raise ValueError
    return int(text)


def _cert_reqs(text: Any) -> str:
    if text not in ("none", "optional", "required"):
        raise ValueError
    return str(text)


def _tls_version(text: Any) -> ssl.TLSVersion:
    return ssl.TLSVersion(int(text))


def _verify_flags(text: Any) -> Any:
    return redis_connection.parse_ssl_verify_flags(text)  # redis-py 7 has it, and older ones no such option


Read = Callable[[Any], Any]

MAX_READ_SIZE: Final = 2**24

# Without these the counters would be somewhere else: a value that cannot be read is no mere blemish.
WHERE: Final[dict[str, Read]] = {
    "db": _whole,
    "host": str,
    "port": _whole,
    "path": str,
    "username": str,
    "password": str,
}
# What text can say, for both drivers.
TYPED: Final[dict[str, Read]] = {
    **WHERE,
    "client_name": _client_name,
    "lib_name": str,
    "lib_version": str,
    "protocol": _protocol,
    "socket_read_size": _read_size,
    "ssl_ca_certs": str,
    "ssl_ca_data": str,
    "ssl_ca_path": str,
    "ssl_cert_reqs": _cert_reqs,
    "ssl_certfile": str,
    "ssl_check_hostname": to_bool,
    "ssl_ciphers": str,
    "ssl_exclude_verify_flags": _verify_flags,
    "ssl_include_verify_flags": _verify_flags,
    "ssl_keyfile": str,
    "ssl_min_version": _tls_version,
    "ssl_password": str,
}
FILES: Final = frozenset(("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"))
# What only Python can say. The first are for both drivers, the others for the synchronous one.
SHARED_OBJECTS: Final = frozenset(("credential_provider", "driver_info", "socket_keepalive_options", "socket_type"))
OBJECTS: Final = SHARED_OBJECTS | {"command_packer", "parser_class"}
# What holds in place of what is written.
TIME: Final = "DEADLINE bounds each decision"
RETRIES: Final = "no call is sent twice"
BYTES: Final = "replies are read as bytes"
REPLACED: Final = {
    "socket_timeout": TIME,
    "socket_connect_timeout": TIME,
    "timeout": TIME,
    "max_connections": "MAX_CONNECTIONS says how many",
    "retry": RETRIES,
    "retry_on_error": RETRIES,
    "retry_on_timeout": RETRIES,
    "health_check_interval": "connections that have rested are looked at",
    "socket_keepalive": "it is always on",
    "decode_responses": BYTES,
    "encoding": BYTES,
    "encoding_errors": BYTES,
    "legacy_responses": BYTES,
    "queue_class": "connections have a pool of our own",
    "cache": "nothing is kept on the client's side",
    "cache_config": "nothing is kept on the client's side",
    "maint_notifications_config": TIME,
}
# Ones that connections on one of the drivers could not go by.
UNFIT: Final = frozenset(
    (
        "redis_connect_func",
        "ssl_ocsp_context",
        "ssl_ocsp_expected_cert",
        "ssl_validate_ocsp",
        "ssl_validate_ocsp_stapled",
    )
)
# What redis-py's pools add by themselves.
ADDED: Final = frozenset(
    (
        "connection_class",
        "connection_pool",
        "encoder_class",
        "event_dispatcher",
        "himport_registry",
        "maint_notifications_pool_handler",
        "maintenance_notification_hash",
        "maintenance_state",
        "orig_host_address",
        "orig_socket_connect_timeout",
        "orig_socket_timeout",
        "oss_cluster_maint_notifications_handler",
    )
)


class Options(NamedTuple):
    """``settings`` hold; ``wrong`` says what does not, and why; ``replaced`` names what others of ours replace."""

    settings: dict[str, Any]
    wrong: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


def choose(given: Mapping[str, Any], connection: type[Any], *, text: bool) -> Options:
    """What of ``given`` a connection of this class goes by; ``text`` for a URL's options, which are written.

    Raises InvalidSetting for a server that cannot be told.
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
                raise InvalidSetting(f"the option {name!r} makes no sense to redis-py") from error
            wrong.append(f"the option {name!r} has a value that makes no sense")
    wrong += [f"the option {name!r} names what is not there" for name in _missing(settings)]
    return Options(settings, tuple(wrong), tuple(name for name in given if name in REPLACED))


def _objection(name: str, value: Any, connection: type[Any], text: bool) -> str:
    """Why this option cannot hold; empty when it can."""
    if name in UNFIT:
        return f"the option {name!r} cannot hold for connections of event loops"
    if name in accepted(connection) and (name in TYPED or not (text or isinstance(value, str))):
        return ""
    if name in OBJECTS or name in accepted(connection):
        return f"the option {name!r} cannot be written as text"
    if name in TYPED and name in accepted(redis_connection.SSLConnection) and name.startswith("ssl_"):
        return f"the option {name!r} needs rediss://"
    near = get_close_matches(name, [one for one in TYPED if one in accepted(connection)], n=1)
    return f"redis-py {redis_version} has no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _missing(settings: Mapping[str, Any]) -> Iterator[str]:
    for name in FILES.intersection(settings):
        if settings[name] and not Path(settings[name]).exists():
            yield name


def accepted(connection: type[Any]) -> frozenset[str]:
    """The options that connections of this class take, of whatever version redis-py is."""
    classes = [one for one in connection.__mro__ if "__init__" in vars(one) and one is not object]
    return frozenset(name for one in classes for name in signature(one.__init__).parameters)  # type: ignore[misc]

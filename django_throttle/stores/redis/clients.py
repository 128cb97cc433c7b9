"""Clients of redis-py with deadlines and without retries, and clients that find the primary by Sentinels."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from inspect import signature
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from redis import BlockingConnectionPool, Redis
from redis import connection as sync_connection
from redis.asyncio import connection as async_connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from django_throttle.core.io import run
from django_throttle.stores.redis.addresses import SYNC_ONLY, Address, Host, async_class
from django_throttle.stores.redis.loop_connections import LoopClient
from django_throttle.stores.redis.pool import TIMEOUTS, Pool, pack, text
from django_throttle.stores.redis.timeouts import (
    Certificates,
    Deadline,
    bounded,
    connect_seconds,
    seconds_left,
    with_deadline,
)

MAINTENANCE_OPTION: Final = "maint_notifications_config"
# RESP2, as some replies are maps in RESP3 instead of arrays.
RESP2: Final = {"protocol": 2}
CLOSING_SECONDS: Final = 1.0  # redis-py ends an encrypted connection within its timeout for connecting


def _limits(seconds: float, retry: object, connection_class: type[Any]) -> dict[str, object]:
    limits = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": retry,
        "retry_on_error": [],
        "health_check_interval": 0,
    }
    if issubclass(connection_class, (sync_connection.Connection, async_connection.Connection)):
        limits["socket_keepalive"] = True  # a Unix socket has none
    # redis-py 7 and later relax timeouts to 10 s in a maintenance unless disabled; 7 in its synchronous client only.
    if any(MAINTENANCE_OPTION in signature(base).parameters for base in connection_class.__mro__):
        from redis.maint_notifications import MaintNotificationsConfig

        limits[MAINTENANCE_OPTION] = MaintNotificationsConfig(enabled=False)
    return limits


def sync_client(settings: dict[str, Any], seconds: float, max_connections: int) -> Redis:
    """Return a client that is safe to use from threads and after a fork.

    ``seconds`` limits its I/O, and half of them the wait for a connection.
    """
    connection_class = settings.get("connection_class", sync_connection.Connection)
    arguments = {**settings, **_limits(seconds, Retry(NoBackoff(), 0), connection_class)}
    arguments["connection_class"] = with_deadline(connection_class)
    if provider := arguments.get("credential_provider"):
        arguments["credential_provider"] = bounded(provider)
    return Redis(connection_pool=BlockingConnectionPool(max_connections, seconds / 2, **arguments))


def loop_client(
    settings: dict[str, Any],
    seconds: float,
    find: Callable[[], Awaitable[Host]] | None = None,
    is_former: Callable[[object, object], bool] | None = None,
) -> LoopClient:
    """Return a client for the running loop, of the server of ``settings`` or the one that ``find`` returns.

    It has its own deadlines, as redis-py's timeouts would fail calls whose replies a blocked loop can still read.
    """
    connection_class = async_class(settings.get("connection_class", sync_connection.Connection))
    arguments = {name: settings[name] for name in settings if name not in SYNC_ONLY and name != "connection_class"}
    arguments |= _limits(seconds, AsyncRetry(NoBackoff(), 0), connection_class) | RESP2
    arguments["socket_timeout"] = None
    arguments["socket_connect_timeout"] = CLOSING_SECONDS + connect_seconds(seconds, is_watched=False)
    if provider := arguments.get("credential_provider"):
        arguments["credential_provider"] = bounded(provider)
    if issubclass(connection_class, async_connection.SSLConnection):
        connection_class = _reading_once(connection_class)

    async def make_connection() -> object:
        connection = connection_class(**arguments)
        if find is not None:
            connection.host, connection.port = await find()
        return connection

    return LoopClient(make_connection, seconds, is_former)


def _reading_once(connection_class: type[Any]) -> type[object]:
    """Return a subclass whose connections share a TLS context."""
    certificates = Certificates()

    class ReadingOnce(connection_class):  # type: ignore[misc]
        async def _connect(self) -> None:
            self.ssl_context.context = None  # otherwise ``get`` returns the context of the last connection
            self.ssl_context.context = await asyncio.wrap_future(certificates.of(self, self.ssl_context.get))
            await super()._connect()

    return ReadingOnce


class LoopClients:
    """Clients by event loop. ``make`` returns a client, and the clients that it uses itself."""

    def __init__(self, make: Callable[[], Sequence[LoopClient]]) -> None:
        self._make = make
        #: The clients. ``get`` adds that of the running loop.
        self.by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopClient] = WeakKeyDictionary()
        _all_clients.add(self)

    async def get(self) -> LoopClient:
        """Return the running loop's client, which is closed with the loop's async generators."""
        loop = asyncio.get_running_loop()
        client = self.by_loop.get(loop)
        if client is None:
            client, *others = self._make()
            lifetime = _closed_with_loop(client, *others)
            with _lock:  # loops live in several threads
                for closed_loop in [other for other in self.by_loop if other.is_closed()]:
                    del self.by_loop[closed_loop]
                for closed_loop in [other for other in _lifetimes if other.is_closed()]:
                    del _lifetimes[closed_loop]  # its values refer to the loop, so it is never collected
                self.by_loop[loop] = client
                _lifetimes.setdefault(loop, []).append(lifetime)
            await anext(lifetime)
        return client

    def forget(self) -> None:
        """Drop every client without closing it. In a forked child their sockets belong to the parent."""
        self.by_loop = WeakKeyDictionary()


async def _closed_with_loop(*clients: LoopClient) -> AsyncGenerator[None]:
    # asyncio.run, async_to_sync and servers shut down a loop's async generators before they close it.
    try:
        yield
    finally:
        for client in clients:
            await client.close()


_lock = Lock()
# Kept by event loop, not by store: a client must be closed on its own loop.
_lifetimes: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]] = WeakKeyDictionary()
_all_clients: WeakSet[LoopClients] = WeakSet()


def _forget_all() -> None:
    global _lock
    _lock = Lock()  # a thread of the parent may hold the old one
    _lifetimes.clear()
    for clients in _all_clients:
        clients.forget()


os.register_at_fork(after_in_child=_forget_all)


T = TypeVar("T")
UNREACHABLE_ERRORS: Final = (RedisConnectionError, RedisTimeoutError, OSError)


class KnownPrimary:
    """Primary after the latest failover that a Sentinel has reported, for both drivers."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self.host: Host | None = None
        self.epoch = -1
        self._moved = moved

    def learn(self, host: Host, epoch: int) -> None:
        is_new = self.host not in (None, host)
        self.host, self.epoch = host, epoch
        if is_new:
            self._moved()

    def is_former(self, host: object, port: object) -> bool:
        """Return True if another server is the primary."""
        return self.host is not None and self.host != (host, port)


class PrimarySearch(Generic[T]):
    """Finds the primary by the Sentinels, beginning with the Sentinel of the last good reply."""

    def __init__(self, sentinels: Iterable[T], service: str, known_primary: KnownPrimary) -> None:
        self._sentinels = list(sentinels)
        self.known = known_primary
        self.question = ("SENTINEL", "MASTER", service)

    async def search(self, ask: Callable[[T], Awaitable[object]], *, everyone: bool = False) -> Host:
        """Return the primary's host and port.

        The latest failover wins, as a Sentinel that is partitioned with the old primary reports that one. Stop at the
        first good reply unless ``everyone`` is True. Raise MasterNotFoundError, TimeoutError if a Sentinel may still
        answer, or the error of a Sentinel that refuses the command.
        """
        is_late = False
        replies: list[tuple[int, Host | None, T]] = []
        for sentinel in tuple(self._sentinels):
            try:
                epoch, host = _primary(await ask(sentinel))
            except UNREACHABLE_ERRORS as error:
                is_late = is_late or isinstance(error, TIMEOUTS)
                continue
            except ResponseError as error:
                if "No such master" in str(error):
                    continue
                raise
            replies.append((epoch, host, sentinel))
            if host is not None and epoch >= self.known.epoch and not everyone:
                break

        # Of replies with the same epoch, prefer one whose primary is up.
        def rank(reply: tuple[int, Host | None, T]) -> tuple[int, bool]:
            return reply[0], reply[1] is not None

        epoch, host, best_sentinel = max(replies, key=rank, default=(0, None, None))
        if host is None:
            if is_late and not replies:
                raise TimeoutError("no Sentinel has answered in time")
            raise MasterNotFoundError(f"no Sentinel knows a primary {self.question[-1]!r} that is up")
        # A new list, as other threads see an empty one while it is sorted.
        self._sentinels = sorted(self._sentinels, key=lambda sentinel: sentinel is not best_sentinel)
        self.known.learn(host, epoch)
        return host


def _primary(reply: Any) -> tuple[int, Host | None]:
    """Return the epoch of the failover, and the primary or None if it is down, of a flat list of names and values."""
    state = {text(name): text(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}
    is_up = "master" in state["flags"] and "_down" not in state["flags"]
    return int(state["config-epoch"]), ((state["ip"], int(state["port"])) if is_up else None)


def _sentinels(address: Address) -> list[dict[str, object]]:
    """Return the settings of each Sentinel."""
    return [{**address.sentinel, **RESP2, "host": host, "port": port} for host, port in address.hosts]


def _share(address: Address, seconds: float) -> float:
    """Return the seconds for one Sentinel, so that a dead one leaves time for the others."""
    return seconds / (len(address.hosts) + 1)


class Sentinels:
    """Sentinels for the synchronous driver."""

    def __init__(self, address: Address, seconds: float, max_connections: int, known_primary: KnownPrimary) -> None:
        self._address, self._seconds = address, seconds
        clients = [sync_client(settings, seconds, max_connections) for settings in _sentinels(address)]
        pools = [Pool(client.connection_pool, max_connections, seconds) for client in clients]
        self._primary = PrimarySearch(pools, address.service, known_primary)

    def find(self, *, everyone: bool = False) -> Host:
        return run(self._primary.search(self._ask, everyone=everyone))

    def check_primary(self) -> None:
        """Ask every Sentinel for the primary, as an old primary that is partitioned may still accept commands.

        No call waits for this, so Sentinels may take as long as for a connection.
        """
        seconds = connect_seconds(self._seconds, is_watched=True)
        with suppress(MasterNotFoundError, ResponseError, TimeoutError), Deadline(seconds):
            self.find(everyone=True)

    async def _ask(self, pool: Pool) -> object:
        share = _share(self._address, seconds_left(self._seconds))
        return pool.call(pack(self._primary.question), time.monotonic() + share)


def following(connection_class: type[AbstractConnection], find: Callable[[], Host]) -> type[AbstractConnection]:
    """Return a subclass that connects to the server that ``find`` returns."""

    class PrimaryConnection(connection_class):  # type: ignore[misc, valid-type]
        def _connect(self) -> object:
            self.host, self.port = find()
            return super()._connect()

    return PrimaryConnection


def loop_clients(address: Address, seconds: float, known_primary: KnownPrimary) -> list[LoopClient]:
    """Return the running loop's client of the server or primary, then its clients of the Sentinels."""
    if not address.service:
        return [loop_client(address.settings, seconds)]
    share = _share(address, connect_seconds(seconds, is_watched=True))
    sentinel_clients = [loop_client(settings, seconds) for settings in _sentinels(address)]
    primary = PrimarySearch(sentinel_clients, address.service, known_primary)

    async def find() -> Host:
        return await primary.search(ask)

    async def ask(sentinel: LoopClient) -> object:
        until = asyncio.get_running_loop().time() + share
        (reply,) = await sentinel.ask(pack(primary.question), 1, until)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return [loop_client(address.settings, seconds, find, known_primary.is_former), *sentinel_clients]

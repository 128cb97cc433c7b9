"""Redis clients with our own limits on time and retries, never redis-py's defaults.

Those retry a lost reply (one call would count several times) and wait for up to a minute.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from inspect import signature
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from redis import BlockingConnectionPool, Redis
from redis import asyncio as aioredis
from redis import connection as sync_connection
from redis.asyncio import connection as async_connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_throttle.stores import options
from django_throttle.stores.deadline import with_deadline

MAINTENANCE: Final = "maint_notifications_config"
CLOSING: Final = 1.0  # redis-py ends an encrypted connection within its timeout for connecting
# What an async client can take over from the settings of a synchronous one.
_SHARED: Final = options.SHARED_OBJECTS.union(options.TYPED)
_ASYNC_CLASSES: Final = (
    (sync_connection.SSLConnection, async_connection.SSLConnection),
    (sync_connection.UnixDomainSocketConnection, async_connection.UnixDomainSocketConnection),
    (sync_connection.Connection, async_connection.Connection),
)


def _limits(seconds: float, retry: object, connection: type[Any]) -> dict[str, Any]:
    limits = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": retry,
        "retry_on_error": [],
        "health_check_interval": 0,
        "socket_keepalive": True,
    }
    # redis-py 7 and later relax timeouts to 10 s during a maintenance unless told not to; 7 has that for threads only.
    if MAINTENANCE not in signature(connection.__init__).parameters:
        return limits
    from redis.maint_notifications import MaintNotificationsConfig

    return {**limits, MAINTENANCE: MaintNotificationsConfig(enabled=False)}


def _fitting(given: dict[str, Any], connection: type[Any]) -> dict[str, Any]:
    """A connection to a file has no host, and no keepalive."""
    return {name: given[name] for name in given if name in options.accepted(connection)}


def sync_client(settings: dict[str, Any], seconds: float, max_connections: int) -> Redis:
    """A thread- and fork-safe client; waiting for a connection takes at most half of ``seconds``."""
    connection = settings.get("connection_class", sync_connection.Connection)
    given = {name: settings[name] for name in settings if name not in options.REPLACED and name not in options.ADDED}
    given.update(_limits(seconds, Retry(NoBackoff(), 0), sync_connection.AbstractConnection))
    given = _fitting(given, connection)
    given["connection_class"] = with_deadline(connection)
    return Redis(connection_pool=BlockingConnectionPool(max_connections, seconds / 2, **given))


def async_client(
    settings: dict[str, Any],
    seconds: float,
    max_connections: int,
    adapt: Callable[[type[Any]], type[Any]] | None = None,
) -> aioredis.Redis:
    """A client for the running loop, from the same settings; ``adapt`` makes of its connection class another.

    Who calls it does so with ``Patience``: timeouts of its own would end what a loop that stood still may yet read.
    """
    given = {name: settings[name] for name in settings if name in _SHARED}
    given.update(_limits(seconds, AsyncRetry(NoBackoff(), 0), async_connection.AbstractConnection))
    given.update(socket_timeout=None, socket_connect_timeout=seconds + CLOSING)
    sync_class = settings.get("connection_class", sync_connection.Connection)
    twin = next(twin for base, twin in _ASYNC_CLASSES if issubclass(sync_class, base))
    given = _fitting(given, twin)
    if issubclass(twin, async_connection.SSLConnection):
        twin = _reading_once(twin)
    given["connection_class"] = adapt(twin) if adapt else twin
    pool = aioredis.BlockingConnectionPool(max_connections, seconds / 2, **given)
    return aioredis.Redis(connection_pool=pool)


def _reading_once(connection_class: type[Any]) -> type[Any]:
    """The same class, whose certificates are read once and in a thread: that takes a third of the usual deadline."""

    class ReadingOnce(connection_class):  # type: ignore[misc]
        reading: asyncio.Future[Any] | None = None

        async def _connect(self) -> None:
            own = type(self)
            if own.reading is None:
                own.reading = asyncio.ensure_future(asyncio.to_thread(self.ssl_context.get))
            try:
                self.ssl_context.context = await asyncio.shield(own.reading)
            except Exception:
                own.reading = None  # whoever connects next tries again
                raise
            await super()._connect()

    return ReadingOnce


class LoopClients:
    """One async client for each running event loop; a client used from two loops fails every second call.

    ``make`` returns the client, and those that it needs itself.
    """

    def __init__(self, make: Callable[[], Sequence[aioredis.Redis]]) -> None:
        self._make = make
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, aioredis.Redis] = WeakKeyDictionary()
        _all_clients.add(self)

    async def get(self) -> aioredis.Redis:
        """The running loop's client, closed with the loop's async generators."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client, *others = self._make()
            life = _life(client, *others)
            with _lock:  # loops live in several threads
                for closed in [known for known in self._clients if known.is_closed()]:
                    del self._clients[closed]
                for closed in [known for known in _lives if known.is_closed()]:
                    del _lives[closed]  # what it holds refers to its loop, so it would stay for ever
                self._clients[loop] = client
                _lives.setdefault(loop, []).append(life)
            await anext(life)
        return client

    def forget(self) -> None:
        """Drop every client unclosed: in a forked child their sockets are the parent's."""
        self._clients = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._clients)


async def _life(*clients: aioredis.Redis) -> AsyncGenerator[None]:
    # asyncio.run, async_to_sync and servers all shut a loop's async generators down before closing it.
    try:
        yield
    finally:
        for client in clients:
            await client.connection_pool.disconnect()


_lock = Lock()
# Held by their loop, not by their store: a client must be closed by the loop that it belongs to.
_lives: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]] = WeakKeyDictionary()
_all_clients: WeakSet[LoopClients] = WeakSet()


def _forget_all() -> None:
    global _lock
    _lock = Lock()  # whoever held it stayed in the parent
    _lives.clear()
    for clients in _all_clients:
        clients.forget()


os.register_at_fork(after_in_child=_forget_all)

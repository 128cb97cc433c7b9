"""Clients of redis-py with our limits on time and retries, and those that ask Sentinels for the primary."""

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
from django_throttle.stores.redis.pool import Pool, pack, text
from django_throttle.stores.redis.timeouts import Certificates, bounded, connect_seconds, seconds_left, with_deadline

MAINTENANCE: Final = "maint_notifications_config"
# Some replies are maps in RESP3 and arrays in RESP2: ask for arrays.
RESP2: Final = {"protocol": 2}
CLOSING: Final = 1.0  # redis-py ends an encrypted connection within its timeout for connecting


def _limits(seconds: float, retry: object, connection_class: type[Any]) -> dict[str, Any]:
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
    if any(MAINTENANCE in signature(base).parameters for base in connection_class.__mro__):
        from redis.maint_notifications import MaintNotificationsConfig

        limits[MAINTENANCE] = MaintNotificationsConfig(enabled=False)
    return limits


def sync_client(settings: dict[str, Any], seconds: float, max_connections: int) -> Redis:
    """A thread- and fork-safe client; waiting for a connection takes at most half of ``seconds``."""
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
    """A client for the running loop, from the same settings; of the server that ``find`` returns, where it is given.

    It has its own deadlines: redis-py's timeouts would end what a blocked loop can still read.
    """
    twin = async_class(settings.get("connection_class", sync_connection.Connection))
    arguments = {name: settings[name] for name in settings if name not in SYNC_ONLY and name != "connection_class"}
    arguments |= _limits(seconds, AsyncRetry(NoBackoff(), 0), twin) | RESP2
    arguments["socket_timeout"] = None
    arguments["socket_connect_timeout"] = CLOSING + connect_seconds(seconds, is_watched=False)
    if provider := arguments.get("credential_provider"):
        arguments["credential_provider"] = bounded(provider)
    if issubclass(twin, async_connection.SSLConnection):
        twin = _reading_once(twin)

    async def made() -> Any:
        connection = twin(**arguments)
        if find is not None:
            connection.host, connection.port = await find()
        return connection

    return LoopClient(made, seconds, is_former)


def _reading_once(connection_class: type[Any]) -> type[Any]:
    """The same class, whose connections share a TLS context."""
    certificates = Certificates()

    class ReadingOnce(connection_class):  # type: ignore[misc]
        async def _connect(self) -> None:
            self.ssl_context.context = None  # else ``get`` would return the one of its last connection
            self.ssl_context.context = await asyncio.wrap_future(certificates.of(self, self.ssl_context.get))
            await super()._connect()

    return ReadingOnce


class LoopClients:
    """A client for each running event loop. ``make`` returns it, and those that it needs itself."""

    def __init__(self, make: Callable[[], Sequence[LoopClient]]) -> None:
        self._make = make
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopClient] = WeakKeyDictionary()
        _all_clients.add(self)

    def known(self, loop: asyncio.AbstractEventLoop) -> LoopClient | None:
        """That of a loop, if it has one by now."""
        return self._clients.get(loop)

    async def get(self) -> LoopClient:
        """The running loop's client, closed with the loop's async generators."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client, *others = self._make()
            life = _closed_with_loop(client, *others)
            with _lock:  # loops live in several threads
                for closed in [known for known in self._clients if known.is_closed()]:
                    del self._clients[closed]
                for closed in [known for known in _lives if known.is_closed()]:
                    del _lives[closed]  # its values refer to the loop, so it is never collected
                self._clients[loop] = client
                _lives.setdefault(loop, []).append(life)
            await anext(life)
        return client

    def forget(self) -> None:
        """Drop every client unclosed: in a forked child their sockets are the parent's."""
        self._clients = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._clients)


async def _closed_with_loop(*clients: LoopClient) -> AsyncGenerator[None]:
    # asyncio.run, async_to_sync and servers all shut a loop's async generators down before closing it.
    try:
        yield
    finally:
        for client in clients:
            await client.close()


_lock = Lock()
# Kept by event loop, not by store: a client must be closed on its own loop.
_lives: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]] = WeakKeyDictionary()
_all_clients: WeakSet[LoopClients] = WeakSet()


def _forget_all() -> None:
    global _lock
    _lock = Lock()  # its owner may be a thread of the parent
    _lives.clear()
    for clients in _all_clients:
        clients.forget()


os.register_at_fork(after_in_child=_forget_all)


T = TypeVar("T")
AWAY: Final = (RedisConnectionError, RedisTimeoutError, OSError)


class KnownPrimary:
    """The primary by the latest failover that a Sentinel has reported, for both drivers."""

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
        """Whether another server than this is the primary."""
        return self.host is not None and self.host != (host, port)


class PrimarySearch(Generic[T]):
    """Finds the primary by the Sentinels; the one that answered best last time is asked first."""

    def __init__(self, sentinels: Iterable[T], service: str, known: KnownPrimary) -> None:
        self._sentinels = list(sentinels)
        self.known = known
        self.question = ("SENTINEL", "MASTER", service)

    async def search(self, ask: Callable[[T], Awaitable[Any]], *, everyone: bool = False) -> Host:
        """Ask the Sentinels; return the primary's host and port.

        A Sentinel that is partitioned with the old primary reports that one: the latest failover wins. Stops at the
        first good reply unless ``everyone``. Raises MasterNotFoundError, or what a Sentinel refuses the question with.
        """
        replies: list[tuple[int, Host | None, T]] = []
        for sentinel in tuple(self._sentinels):
            try:
                epoch, host = _primary(await ask(sentinel))
            except AWAY:
                continue
            except ResponseError as error:
                if "No such master" in str(error):
                    continue
                raise
            replies.append((epoch, host, sentinel))
            if host is not None and epoch >= self.known.epoch and not everyone:
                break
        # Of Sentinels with the same epoch, one for which the primary is up.
        epoch, host, best = max(replies, key=lambda one: (one[0], one[1] is not None), default=(0, None, None))
        if host is None:
            raise MasterNotFoundError(f"no Sentinel knows a primary {self.question[-1]!r} that is up")
        # A new list: one that is being sorted is empty for other threads.
        self._sentinels = sorted(self._sentinels, key=lambda one: one is not best)
        self.known.learn(host, epoch)
        return host


def _primary(reply: Any) -> tuple[int, Host | None]:
    """The failover's epoch, and the primary or None if it is down, from a flat list of names and values."""
    state = {text(name): text(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}
    is_up = "master" in state["flags"] and "_down" not in state["flags"]
    return int(state["config-epoch"]), ((state["ip"], int(state["port"])) if is_up else None)


def _sentinels(address: Address) -> list[dict[str, Any]]:
    """The settings for each."""
    return [{**address.sentinel, **RESP2, "host": host, "port": port} for host, port in address.hosts]


def _share(address: Address, seconds: float) -> float:
    """The part of the seconds that one Sentinel has, so that a dead one leaves time."""
    return seconds / (len(address.hosts) + 1)


class Sentinels:
    """The Sentinels for the synchronous driver."""

    def __init__(self, address: Address, seconds: float, most: int, known: KnownPrimary) -> None:
        self._address, self._seconds = address, seconds
        pools = [Pool(sync_client(one, seconds, most).connection_pool, most, seconds) for one in _sentinels(address)]
        self._primary = PrimarySearch(pools, address.service, known)

    def find(self, *, everyone: bool = False) -> Host:
        return run(self._primary.search(self._ask, everyone=everyone))

    def check_primary(self) -> None:
        """Ask every Sentinel for the primary: an old one that is partitioned may still accept commands."""
        with suppress(MasterNotFoundError, ResponseError):
            self.find(everyone=True)

    async def _ask(self, pool: Pool) -> Any:
        share = _share(self._address, seconds_left(self._seconds))
        return pool.call(pack(self._primary.question), time.monotonic() + share)


def following(connection_class: type[AbstractConnection], find: Callable[[], Host]) -> type[AbstractConnection]:
    """A subclass that connects to the server that ``find`` returns."""

    class PrimaryConnection(connection_class):  # type: ignore[misc, valid-type]
        def _connect(self) -> Any:
            self.host, self.port = find()
            return super()._connect()

    return PrimaryConnection


def loop_clients(address: Address, seconds: float, known: KnownPrimary) -> list[LoopClient]:
    """The running loop's client of the server, or of the primary; then its clients of the Sentinels."""
    if not address.service:
        return [loop_client(address.settings, seconds)]
    share = _share(address, connect_seconds(seconds, is_watched=True))
    asked = [loop_client(one, seconds) for one in _sentinels(address)]
    primary = PrimarySearch(asked, address.service, known)

    async def find() -> Host:
        return await primary.search(ask)

    async def ask(sentinel: LoopClient) -> Any:
        until = asyncio.get_running_loop().time() + share
        (reply,) = await sentinel.ask(pack(primary.question), 1, until)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return [loop_client(address.settings, seconds, find, known.is_former), *asked]

"""Connections that ask the Sentinels for the master each time they connect.

After a failover the old master is gone or refuses writes: its connections are closed, and so ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, Final, Generic, TypeVar

from redis import asyncio as aioredis
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from django_throttle.stores.addresses import Address, Host
from django_throttle.stores.clients import async_client, sync_client
from django_throttle.stores.deadline import Within
from django_throttle.stores.patience import Patience
from django_throttle.stores.wire import Wire

T = TypeVar("T")
# A reply that is a map under one version of the protocol and an array under the other is asked for as an array.
RESP2: Final = {"protocol": 2}
AWAY: Final = (RedisConnectionError, RedisTimeoutError, OSError)


class Master(Generic[T]):
    """Where the master is, as the Sentinels say; the one that answered last is asked first."""

    def __init__(self, sentinels: Iterable[T], service: str) -> None:
        self._sentinels = list(sentinels)
        self.service = service
        self.host: Host | None = None

    def search(self) -> Generator[T, Any, tuple[Host, bool]]:
        """Yields whom to ask, receives a reply or an error; returns the host, and whether it is a new one."""
        for sentinel in tuple(self._sentinels):
            reply = yield sentinel
            if isinstance(reply, ResponseError) and "No such master" not in str(reply):
                raise reply
            host = None if isinstance(reply, Exception) else _host(reply)
            if host is not None:
                self._sentinels.sort(key=lambda one: one is not sentinel)
                is_new, self.host = self.host not in (None, host), host
                return host, is_new
        raise MasterNotFoundError(f"no Sentinel knows a master {self.service!r} that is up")

    @property
    def question(self) -> tuple[str, str, str]:
        return "SENTINEL", "MASTER", self.service


def _host(reply: Any) -> Host | None:
    """The master's host, None when it is said to be down; names and values come in a row."""
    state = {_text(name): _text(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}
    if "master" not in state["flags"] or "_down" in state["flags"]:
        return None
    return state["ip"], int(state["port"])


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Sentinels:
    """The synchronous side: ``find`` asks, within a share of ``seconds`` each so that a dead one does not take all."""

    def __init__(self, address: Address, seconds: float, most: int, moved: Callable[[], None]) -> None:
        self._share = seconds / (len(address.hosts) + 1)
        self._moved = moved
        settings = [{**address.sentinel, **RESP2, "host": host, "port": port} for host, port in address.hosts]
        wires = [Wire(sync_client(one, self._share, most).connection_pool, most, self._share) for one in settings]
        self._master = Master(wires, address.service)

    def find(self) -> Host:
        search = self._master.search()
        try:
            wire = next(search)
            while True:
                wire = search.send(self._ask(wire))
        except StopIteration as stop:
            host, is_new = stop.value
        if is_new:
            self._moved()
        return host  # type: ignore[no-any-return]

    def _ask(self, wire: Wire) -> Any:
        try:
            with Within(self._share):
                return wire.call(self._master.question)
        except (*AWAY, ResponseError) as error:
            return error


def following(connection_class: type[AbstractConnection], find: Callable[[], Host]) -> type[AbstractConnection]:
    """The same connection class, but it connects to what ``find`` says, and not for longer than that is the master."""

    class MasterConnection(connection_class):  # type: ignore[misc, valid-type]
        def _connect(self) -> Any:
            self.host, self.port = find()
            return super()._connect()

        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except ResponseError as error:
                if _is_demotion(error):
                    self.disconnect()
                    raise RedisConnectionError("the server is the master no more") from error
                raise

    return MasterConnection


def following_async(connection_class: type[Any], find: Callable[[], Awaitable[Host]]) -> type[Any]:
    """The same for asyncio."""

    class MasterConnection(connection_class):  # type: ignore[misc]
        async def _connect(self) -> None:
            self.host, self.port = await find()
            await super()._connect()

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return await super().read_response(*args, **options)
            except ResponseError as error:
                if _is_demotion(error):
                    await self.disconnect()
                    raise RedisConnectionError("the server is the master no more") from error
                raise

    return MasterConnection


def _is_demotion(error: ResponseError) -> bool:
    return "write against a read only replica" in str(error)  # a script of Redis 6.2 wraps it


def async_clients(address: Address, seconds: float, most: int) -> list[aioredis.Redis]:
    """A client of the master for the running loop, and the clients of the Sentinels that it asks."""
    settings = [{**address.sentinel, **RESP2, "host": host, "port": port} for host, port in address.hosts]
    share = seconds / (len(address.hosts) + 1)
    asked = [async_client(one, share, most) for one in settings]
    master = Master(asked, address.service)

    async def find() -> Host:
        search = master.search()
        try:
            sentinel = next(search)
            while True:
                sentinel = search.send(await ask(sentinel))
        except StopIteration as stop:
            host, is_new = stop.value
        if is_new:
            await client.connection_pool.disconnect(inuse_connections=False)
        return host  # type: ignore[no-any-return]

    async def ask(sentinel: aioredis.Redis) -> Any:
        try:
            async with Patience(asyncio.get_running_loop().time() + share):
                return await sentinel.execute_command(*master.question)
        except (*AWAY, ResponseError) as error:
            return error

    client = async_client(address.settings, seconds, most, lambda base: following_async(base, find))
    return [client, *asked]

"""Connections that ask the Sentinels for the master each time they connect.

After a failover the old master is gone or refuses writes: its connections are closed, and so ask again. One that is cut
off from its Sentinels does neither: they are asked at each beat, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress
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


class Known:
    """The master as both drivers know it, from the latest failover that any Sentinel has told of."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self.host: Host | None = None
        self.epoch = -1
        self._moved = moved

    def learn(self, host: Host, epoch: int) -> None:
        is_new = self.host not in (None, host)
        self.host, self.epoch = host, epoch
        if is_new:
            self._moved()

    def is_left(self, host: object, port: object) -> bool:
        """Whether this was the master, and is not any more."""
        return self.host is not None and self.host != (host, port)


class Master(Generic[T]):
    """Where the master is, as the Sentinels say; the one that answered last is asked first."""

    def __init__(self, sentinels: Iterable[T], service: str, known: Known) -> None:
        self._sentinels = list(sentinels)
        self.service = service
        self.known = known

    def search(self, *, everyone: bool = False) -> Generator[T, Any, Host]:
        """Yields whom to ask, receives a reply or an error; returns the host.

        A Sentinel that is cut off with the old master names that: whoever knows of a later failover is right.
        """
        found: list[tuple[int, Host | None, T]] = []
        for sentinel in tuple(self._sentinels):
            reply = yield sentinel
            if isinstance(reply, ResponseError) and "No such master" not in str(reply):
                raise reply
            named = None if isinstance(reply, Exception) else _named(reply)
            if named is not None:
                found.append((*named, sentinel))
                if named[1] is not None and named[0] >= self.known.epoch and not everyone:
                    break
        # Of those that know of the same failover, one that sees its master.
        epoch, host, best = max(found, key=lambda one: (one[0], one[1] is not None), default=(0, None, None))
        if host is None:
            raise MasterNotFoundError(f"no Sentinel knows a master {self.service!r} that is up")
        self._sentinels.sort(key=lambda one: one is not best)
        self.known.learn(host, epoch)
        return host

    @property
    def question(self) -> tuple[str, str, str]:
        return "SENTINEL", "MASTER", self.service


def _named(reply: Any) -> tuple[int, Host | None]:
    """The number of its failover and the master, None when it is said to be down; names and values come in a row."""
    state = {_text(name): _text(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}
    is_up = "master" in state["flags"] and "_down" not in state["flags"]
    return int(state["config-epoch"]), ((state["ip"], int(state["port"])) if is_up else None)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Sentinels:
    """The synchronous side: ``find`` asks, within a share of ``seconds`` each so that a dead one does not take all."""

    def __init__(self, address: Address, seconds: float, most: int, known: Known) -> None:
        self._share = seconds / (len(address.hosts) + 1)
        settings = [{**address.sentinel, **RESP2, "host": host, "port": port} for host, port in address.hosts]
        wires = [Wire(sync_client(one, self._share, most).connection_pool, most, self._share) for one in settings]
        self._master = Master(wires, address.service, known)

    def find(self, *, everyone: bool = False) -> Host:
        search = self._master.search(everyone=everyone)
        try:
            wire = next(search)
            while True:
                wire = search.send(self._ask(wire))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def look(self) -> None:
        """Ask all of them whether another server has become the master: an old one may go on as if it were it."""
        with suppress(MasterNotFoundError, ResponseError):
            self.find(everyone=True)

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


def following_async(connection_class: type[Any], find: Callable[[], Awaitable[Host]], known: Known) -> type[Any]:
    """The same for asyncio; what others learn of another master is seen before each command."""

    class MasterConnection(connection_class):  # type: ignore[misc]
        async def _connect(self) -> None:
            self.host, self.port = await find()
            await super()._connect()

        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            if self.is_connected and known.is_left(self.host, self.port):
                await self.disconnect()
            await super().send_packed_command(*args, **options)

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


def async_clients(address: Address, seconds: float, most: int, known: Known) -> list[aioredis.Redis]:
    """A client of the master for the running loop, and the clients of the Sentinels that it asks."""
    settings = [{**address.sentinel, **RESP2, "host": host, "port": port} for host, port in address.hosts]
    share = seconds / (len(address.hosts) + 1)
    asked = [async_client(one, share, most) for one in settings]
    master = Master(asked, address.service, known)

    async def find() -> Host:
        search = master.search()
        try:
            sentinel = next(search)
            while True:
                sentinel = search.send(await ask(sentinel))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def ask(sentinel: aioredis.Redis) -> Any:
        try:
            async with Patience(asyncio.get_running_loop().time() + share):
                return await sentinel.execute_command(*master.question)
        except (*AWAY, ResponseError) as error:
            return error

    client = async_client(address.settings, seconds, most, lambda base: following_async(base, find, known))
    return [client, *asked]

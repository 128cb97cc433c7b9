"""Sends script calls to Redis within a deadline, and reloads scripts that Redis has lost."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from redis.connection import Connection
from redis.exceptions import NoScriptError

from django_throttle.core.io import run
from django_throttle.stores.redis.addresses import Address
from django_throttle.stores.redis.clients import (
    KnownPrimary,
    LoopClients,
    Sentinels,
    following,
    loop_clients,
    sync_client,
)
from django_throttle.stores.redis.failures import Breaker
from django_throttle.stores.redis.loop_connections import Request
from django_throttle.stores.redis.pool import Pool, pack, text
from django_throttle.stores.redis.scripts import Script
from django_throttle.stores.redis.timeouts import Deadline, call_began, seconds_for

T = TypeVar("T")


BATCH: Final = 500  # commands in one pipeline, or keys in one script: a few milliseconds of Redis' time


def batches(whole: Iterable[T]) -> Iterator[list[T]]:
    """Lists of at most BATCH, in order."""
    rest = iter(whole)
    while batch := list(islice(rest, BATCH)):
        yield batch


def grouped(whole: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Lists of those with the same key, in the order of their first."""
    groups: dict[object, list[T]] = {}
    for one in whole:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())


ASK_SECONDS: Final = 1.0


class ScriptCall(ABC):
    """A script call as it is sent.

    ``derives`` when the script touches more keys than it is given, all of the same slot; ``leads`` when
    Redis must have it before it gets the others; ``follows`` when it only reads, and is to read what those
    before it have left.
    """

    __slots__ = ()

    derives = leads = follows = False
    packed_once = b""  #: ``packed()`` as it was the last time, where it does not change

    @property
    @abstractmethod
    def script(self) -> Script: ...

    @property
    @abstractmethod
    def keys(self) -> Sequence[str]: ...

    @property
    @abstractmethod
    def args(self) -> Sequence[Any]: ...

    def packed(self) -> bytes:
        """What ``by_sha`` comes to as it is sent."""
        return pack(self.by_sha())

    def by_sha(self) -> tuple[Any, ...]:
        keys = self.keys
        return ("EVALSHA", self.script.sha, len(keys), *keys, *self.args)

    def by_text(self) -> tuple[Any, ...]:
        # EVAL runs the script and keeps it, so a lost script costs one round trip, once.
        keys = self.keys
        return ("EVAL", self.script.text, len(keys), *keys, *self.args)


@dataclass(slots=True)
class RedisCall(ScriptCall):
    """One script call."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Any]
    derives: bool = False
    leads: bool = False


class LoadingCall(RedisCall):
    """One script call with the script's text: if the server had lost it, what follows would be executed before."""

    __slots__ = ()

    def packed(self) -> bytes:
        return pack(self.by_text())


def begin_call(script: Script, keys: int, args: int = 1) -> bytes:
    """What a call with so many keys and arguments sends before its keys."""
    return pack(("EVALSHA", script.sha, keys), more=keys + args)


class Transport:
    """Sends calls in one round trip, ``seconds`` at most for all of it; raises redis-py's errors.

    To one server, or to the master that Sentinels name.
    """

    slot_of = None  # one server has all keys

    def __init__(self, address: Address, seconds: float, max_connections: int) -> None:
        self.seconds = seconds
        self.failovers = 0  # how often another server has taken over, as far as was noticed
        self.place = address.place
        settings = dict(address.settings)
        known = KnownPrimary(self._moved)
        self._sentinels = Sentinels(address, seconds, max_connections, known) if address.service else None
        if self._sentinels:
            find = self._sentinels.find
            settings["connection_class"] = following(settings.get("connection_class", Connection), find)
        self.breaker = Breaker(fails_over=bool(address.service))
        self.client = sync_client(settings, seconds, max_connections)
        is_watched = self._sentinels is not None
        self.pool = Pool(self.client.connection_pool, max_connections, seconds / 2, is_watched=is_watched)
        self.loops = LoopClients(partial(loop_clients, address, seconds, known))

    @property
    def breakers(self) -> tuple[Breaker, ...]:
        """One, of all calls."""
        return (self.breaker,)

    def node_of(self, key: str) -> object:
        """Which server has a key: there is but one."""

    def send(self, call: ScriptCall, seconds: float | None = None) -> Any:
        """The reply to one call, or its error."""
        if call_began.get() is not None:  # on the hot path
            seconds = seconds_for(seconds, self.seconds)
        until, pool = time.monotonic() + (seconds or self.seconds), self.pool
        try:
            return pool.call(call.packed_once or call.packed(), until)
        except NoScriptError:
            return pool.call(pack(call.by_text()), until)

    def send_all(self, calls: Sequence[ScriptCall], seconds: float | None = None) -> list[Any]:
        """One round trip; in a pipeline a call's error stands in place of its reply, and nothing hides a lost link."""
        if not calls:
            return []
        if len(calls) == 1:
            return [self.send(calls[0], seconds)]
        with Deadline(seconds_for(seconds, self.seconds)):
            return run(_replies(calls, self._exchange))

    async def _exchange(self, commands: list[bytes]) -> list[Any]:
        return self.pool.collect(self.pool.post(commands), len(commands))

    def post(self, requests: Sequence[Request], until: float) -> bool:
        """Send these on the running loop; False where it has no connection, and sends nothing."""
        client = self.loops.known(asyncio.get_running_loop())
        return client is not None and client.post(requests, until)

    async def asend_all(
        self, calls: Sequence[ScriptCall], seconds: float | None = None, replies: list[Any] | None = None
    ) -> list[Any]:
        """The same without blocking the event loop. With ``replies``, only calls of lost scripts are sent, again."""
        if not calls:
            return []
        until = asyncio.get_running_loop().time() + seconds_for(seconds, self.seconds)
        client = await self.loops.get()
        found = await _replies(calls, lambda sent: client.ask(b"".join(sent), len(sent), until), replies)
        if len(found) == 1 and isinstance(found[0], Exception):
            raise found[0]
        return found

    @property
    def has_sentinels(self) -> bool:
        return self._sentinels is not None

    def server_state(self, section: str) -> str:
        """A part of what INFO tells of the server."""
        return text(self.pool.call(pack(("INFO", section)), time.monotonic() + ASK_SECONDS))

    def check_primary(self) -> None:
        """Whether another server has taken over while this one goes on; nothing where no Sentinels are."""
        if self._sentinels:
            self._sentinels.check_primary()

    def _moved(self) -> None:
        self.failovers += 1
        self.pool.close_idle()


def is_lost(reply: object) -> bool:
    """Whether the server has lost the script of the call."""
    return isinstance(reply, NoScriptError)


async def _replies(
    calls: Sequence[ScriptCall],
    exchange: Callable[[list[bytes]], Awaitable[list[Any]]],
    replies: list[Any] | None = None,
) -> list[Any]:
    """Send a pipeline of calls, and then those again that the server has lost the scripts of."""
    if replies is None:
        replies = await exchange([call.packed() for call in calls])
    if lost := [at for at, reply in enumerate(replies) if is_lost(reply)]:
        first = {calls[at].script.sha: at for at in reversed(lost)}  # brings the script along for the others
        again = [pack(calls[at].by_text()) if at in first.values() else calls[at].packed() for at in lost]
        for at, reply in zip(lost, await exchange(again), strict=True):
            replies[at] = reply
    return replies

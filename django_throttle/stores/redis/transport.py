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


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """Split into lists of at most BATCH, in order."""
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Group by key into lists, in the order of their first entries."""
    groups: dict[object, list[T]] = {}
    for entry in items:
        groups.setdefault(key(entry), []).append(entry)
    return list(groups.values())


INFO_SECONDS: Final = 1.0


class ScriptCall(ABC):
    """Base of script calls."""

    __slots__ = ()

    #: True if the script uses keys that it derives from the given keys, in the same slot.
    has_derived_keys = False
    #: True if Redis must execute the call before the others.
    goes_first = False
    #: True if the call only reads, and must read the state after the calls before it.
    goes_last = False
    #: ``packed()`` of the last time, if it does not change.
    packed_cache = b""

    @property
    @abstractmethod
    def script(self) -> Script: ...

    @property
    @abstractmethod
    def keys(self) -> Sequence[str]: ...

    @property
    @abstractmethod
    def args(self) -> Sequence[object]: ...

    def packed(self) -> bytes:
        """Return ``by_sha()`` in RESP."""
        return pack(self.by_sha())

    def by_sha(self) -> tuple[object, ...]:
        keys = self.keys
        return ("EVALSHA", self.script.sha, len(keys), *keys, *self.args)

    def by_text(self) -> tuple[object, ...]:
        # EVAL also loads the script, so a lost script costs one round trip, once.
        keys = self.keys
        return ("EVAL", self.script.text, len(keys), *keys, *self.args)


@dataclass(slots=True)
class RedisCall(ScriptCall):
    """Script call with given keys and arguments."""

    script: Script
    keys: Sequence[str]
    args: Sequence[object]
    has_derived_keys: bool = False
    goes_first: bool = False


class LoadingCall(RedisCall):
    """Script call that brings its text along. A call that is sent again would be executed after later calls."""

    __slots__ = ()

    def packed(self) -> bytes:
        return pack(self.by_text())


def begin_call(script: Script, keys: int, args: int = 1) -> bytes:
    """Return the bytes of a call with so many keys and arguments before its keys."""
    return pack(("EVALSHA", script.sha, keys), more=keys + args)


class Transport:
    """Transport to one server, or to the primary that Sentinels name.

    ``seconds`` is the deadline of a round trip. The methods raise redis-py's errors.
    """

    slot_of = None  # one server has all keys

    def __init__(self, address: Address, seconds: float, max_connections: int) -> None:
        self.seconds = seconds
        self.failovers = 0  # noticed so far
        self.place = address.place
        settings = dict(address.settings)
        known_primary = KnownPrimary(self._moved)
        self._sentinels = Sentinels(address, seconds, max_connections, known_primary) if address.service else None
        if self._sentinels:
            find = self._sentinels.find
            settings["connection_class"] = following(settings.get("connection_class", Connection), find)
        self.breaker = Breaker(fails_over=bool(address.service))
        self.client = sync_client(settings, seconds, max_connections)
        is_watched = self._sentinels is not None
        self.pool = Pool(self.client.connection_pool, max_connections, seconds / 2, is_watched=is_watched)
        self.loops = LoopClients(partial(loop_clients, address, seconds, known_primary))

    @property
    def breakers(self) -> tuple[Breaker, ...]:
        """The breaker of all calls."""
        return (self.breaker,)

    def node_of(self, key: str) -> object:
        """Return None for every key, as there is one server."""

    def send(self, call: ScriptCall, seconds: float | None = None) -> Any:
        """Send a call. Return the reply. Raise its error."""
        if call_began.get() is not None:  # on the hot path
            seconds = seconds_for(seconds, self.seconds)
        until, pool = time.monotonic() + (seconds or self.seconds), self.pool
        try:
            return pool.call(call.packed_cache or call.packed(), until)
        except NoScriptError:
            return pool.call(pack(call.by_text()), until)

    def send_all(self, calls: Sequence[ScriptCall], seconds: float | None = None) -> list[object]:
        """Send calls in one round trip. Return the replies, with errors of several calls in their places."""
        if not calls:
            return []
        if len(calls) == 1:
            return [self.send(calls[0], seconds)]
        with Deadline(seconds_for(seconds, self.seconds)):
            return run(_replies(calls, self._exchange))

    async def _exchange(self, commands: list[bytes]) -> list[object]:
        return self.pool.collect(self.pool.post(commands), len(commands))

    def post(self, requests: Sequence[Request], until: float) -> bool:
        """Send requests on the running loop. Return False, without sending, if the loop has no connection."""
        client = self.loops.by_loop.get(asyncio.get_running_loop())
        return client is not None and client.post(requests, until)

    async def asend_all(
        self, calls: Sequence[ScriptCall], seconds: float | None = None, replies: list[object] | None = None
    ) -> list[object]:
        """Send calls on the running loop. If there are ``replies``, only resend calls of lost scripts."""
        if not calls:
            return []
        until = asyncio.get_running_loop().time() + seconds_for(seconds, self.seconds)
        client = await self.loops.get()
        replies = await _replies(calls, lambda parts: client.ask(b"".join(parts), len(parts), until), replies)
        if len(replies) == 1 and isinstance(replies[0], Exception):
            raise replies[0]
        return replies

    @property
    def has_sentinels(self) -> bool:
        return self._sentinels is not None

    def server_state(self, section: str) -> str:
        """Return a section of the server's INFO."""
        return text(self.pool.call(pack(("INFO", section)), time.monotonic() + INFO_SECONDS))

    def check_primary(self) -> None:
        """Find out if another server has become the primary. Do nothing without Sentinels."""
        if self._sentinels:
            self._sentinels.check_primary()

    def _moved(self) -> None:
        self.failovers += 1
        self.pool.close_idle()


def is_script_lost(reply: object) -> bool:
    """Return True if the server does not know the script of a call."""
    return isinstance(reply, NoScriptError)


async def _replies(
    calls: Sequence[ScriptCall],
    exchange: Callable[[list[bytes]], Awaitable[list[object]]],
    replies: list[object] | None = None,
) -> list[object]:
    """Send a pipeline of calls, then resend calls whose scripts the server has lost."""
    if replies is None:
        replies = await exchange([call.packed() for call in calls])
    if lost_indexes := [i for i, reply in enumerate(replies) if is_script_lost(reply)]:
        # The first call of each script brings its text along.
        loading = {calls[i].script.sha: i for i in reversed(lost_indexes)}
        commands = [pack(calls[i].by_text()) if i in loading.values() else calls[i].packed() for i in lost_indexes]
        for i, reply in zip(lost_indexes, await exchange(commands), strict=True):
            replies[i] = reply
    return replies

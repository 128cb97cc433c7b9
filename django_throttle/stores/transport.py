"""Sends script calls to Redis within a deadline, and reloads scripts that Redis has lost."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from redis.connection import Connection
from redis.exceptions import NoScriptError, ResponseError

from django_throttle.core.algorithms.base import Plan
from django_throttle.stores.addresses import Address
from django_throttle.stores.clients import (
    KnownPrimary,
    LoopClients,
    Sentinels,
    async_clients,
    following,
    sync_client,
)
from django_throttle.stores.failures import Breaker
from django_throttle.stores.sync_pool import Pool, is_demotion, text
from django_throttle.stores.timeouts import Deadline, LoopDeadline, heed_cancellation

T = TypeVar("T")
# Begins a section of an algorithm's file, and stands in a script where those of all its algorithms go.
_SECTION: Final = re.compile(r"^ *--- (\w+)\n", re.MULTILINE)


LUA: Final = Path(__file__).with_name("lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the SHA-1 by which Redis knows it."""

    text: str
    sha: str


@cache
def script(name: str, plans: frozenset[type[Plan]] = frozenset()) -> Script:
    """The script in ``lua/name.lua``, with the sections of these algorithms: the others' would only cost time.

    Sections are branches of one loop rather than functions, because a script makes its functions anew on every call.
    """
    paths = sorted({path for plan in plans for path in plan.lua or (f"{plan.name}.lua",)})
    sections = [_sections(path) for path in paths]
    frame = _text(f"{name}.lua")
    text = _SECTION.sub(lambda mark: "".join([found.get(mark[1], "") for found in sections]), frame)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@cache
def _sections(path: str) -> dict[str, str]:
    _, *parts = _SECTION.split(_text(path))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _text(path: str) -> str:
    # importlib.resources imports at its first use, and a fork meanwhile would leave that lock taken in the child.
    return (LUA / path).read_text(encoding="utf-8")


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


class Call(NamedTuple):
    """One script call.

    ``derives`` when the script touches more keys than it is given, all of the same slot; ``leads`` when
    Redis must have it before it gets the others; ``follows`` when it only reads, and is to read what those
    before it have left.
    """

    script: Script
    keys: Sequence[str]
    args: Sequence[Any]
    derives: bool = False
    leads: bool = False
    follows: bool = False

    def by_sha(self) -> tuple[Any, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_text(self) -> tuple[Any, ...]:
        # EVAL runs the script and keeps it, so a lost script costs one round trip, once.
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


class Transport:
    """Sends calls in one round trip, ``seconds`` at most for all of it; raises redis-py's errors.

    To one server, or to the master that Sentinels name.
    """

    slot_of = None  # one server has all keys

    def __init__(self, address: Address, seconds: float, max_connections: int) -> None:
        self.seconds = seconds
        self.failovers = 0  # how often another server has taken over, as far as was noticed
        settings = dict(address.settings)
        known = KnownPrimary(self._moved)
        self._sentinels = Sentinels(address, seconds, max_connections, known) if address.service else None
        if self._sentinels:
            find = self._sentinels.find
            settings["connection_class"] = following(settings.get("connection_class", Connection), find)
        self.breaker = Breaker(fails_over=bool(address.service))
        self.client = sync_client(settings, seconds, max_connections)
        self.pool = Pool(self.client.connection_pool, max_connections, seconds / 2)
        self.loops = LoopClients(partial(async_clients, address, seconds, max_connections, known))

    @property
    def breakers(self) -> tuple[Breaker, ...]:
        """One, of all calls."""
        return (self.breaker,)

    def node_of(self, key: str) -> object:
        """Which server has a key: there is but one."""

    def send_all(self, calls: Sequence[Call], seconds: float | None = None) -> list[Any]:
        """One round trip; in a pipeline a call's error stands in place of its reply, and nothing hides a lost link."""
        if not calls:
            return []
        with Deadline(seconds or self.seconds):
            if len(calls) == 1:
                return [self._send(calls[0])]
            replies = self.pool.collect(self.pool.post([call.by_sha() for call in calls]), len(calls))
            if lost := _lost(replies):
                again = _with_texts([calls[at] for at in lost])
                _fill(replies, lost, self.pool.collect(self.pool.post(again), len(again)))
            return replies

    async def asend_all(self, calls: Sequence[Call], seconds: float | None = None) -> list[Any]:
        """The same without blocking the event loop, within the decision's deadline."""
        if not calls:
            return []
        async with LoopDeadline(asyncio.get_running_loop().time() + (seconds or self.seconds)):
            with heed_cancellation():
                return await self._asend_all(await self.loops.get(), calls)

    async def _asend_all(self, client: Any, calls: Sequence[Call]) -> list[Any]:
        try:
            if len(calls) == 1:
                return [await self._asend(client, calls[0])]
            replies = await send_pipeline(client, [call.by_sha() for call in calls])
            if lost := _lost(replies):
                again = _with_texts([calls[at] for at in lost])
                _fill(replies, lost, await send_pipeline(client, again))
        except ResponseError as error:
            await _disconnect_demoted(client, [error])
            raise
        await _disconnect_demoted(client, replies)
        return replies

    def _send(self, call: Call) -> Any:
        try:
            return self.pool.call(call.by_sha())
        except NoScriptError:
            return self.pool.call(call.by_text())

    @staticmethod
    async def _asend(client: Any, call: Call) -> Any:
        try:
            return await client.execute_command(*call.by_sha())
        except NoScriptError:
            return await client.execute_command(*call.by_text())

    @property
    def has_sentinels(self) -> bool:
        return self._sentinels is not None

    def server_state(self, section: str) -> str:
        """A part of what INFO tells of the server."""
        with Deadline(ASK_SECONDS):
            return text(self.pool.call(("INFO", section)))

    def check_primary(self) -> None:
        """Whether another server has taken over while this one goes on; nothing where no Sentinels are."""
        if self._sentinels:
            self._sentinels.check_primary()

    def _moved(self) -> None:
        self.failovers += 1
        self.pool.close_idle()


async def send_pipeline(client: Any, commands: Iterable[Sequence[Any]]) -> list[Any]:
    """The replies to several commands, errors in their places."""
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return list(await pipeline.execute(raise_on_error=False))


async def _disconnect_demoted(client: Any, replies: Sequence[Any]) -> None:
    """Where the server has become a replica, whoever connects anew finds the master."""
    if any(map(is_demotion, replies)):
        await client.connection_pool.disconnect()


def _with_texts(calls: Sequence[Call]) -> list[tuple[Any, ...]]:
    """The same calls for a server that has lost the scripts: the first of each brings it along."""
    brought: set[str] = set()
    commands = []
    for call in calls:
        commands.append(call.by_sha() if call.script.sha in brought else call.by_text())
        brought.add(call.script.sha)
    return commands


def _fill(replies: list[Any], places: Sequence[int], found: Sequence[Any]) -> None:
    for place, reply in zip(places, found, strict=True):
        replies[place] = reply


def _lost(replies: Sequence[Any]) -> list[int]:
    return [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]

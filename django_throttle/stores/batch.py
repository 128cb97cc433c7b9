"""Decisions asked for in one turn of an event loop travel as one script call.

A coroutine that waits for Redis costs a loop more than Redis spends on the decision; fifty that wait for
the same reply cost little more than one. Each call is still decided by itself, all of its charges or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django_throttle.stores.link import Call
from django_throttle.stores.scripts import decision_script

# Redis serves nobody else meanwhile: so many decisions take it about half a millisecond.
MOST: Final = 100
HEAD: Final = 8  # the reply's first number; see end.lua
TOLD: Final = 24  # and three for each charge

Send = Callable[[Sequence[Call]], Awaitable[list[Any]]]


class Ask(NamedTuple):
    """One call to be decided: its keys, its part of the script's argument, and the algorithms of its rules."""

    keys: Sequence[str]
    packed: bytes
    algorithms: frozenset[str]


class Alongside(Exception):
    """A call failed because the batch did that it travelled in; ``error`` is reported by another call of it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Batcher:
    """Collects the asks of each loop's turn and sends them with ``send``; ``now_arg`` is the script's clock."""

    def __init__(self, send: Send, now_arg: Callable[[], str]) -> None:
        self._send = send
        self._now_arg = now_arg
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[Ask, asyncio.Future[bytes]]]]
        self._waiting = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself holds tasks only weakly

    async def ask(self, ask: Ask) -> bytes:
        """The script's reply to this ask alone; raises what sending raised, or Alongside it."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = []
        if not waiting:
            loop.call_soon(self._flush, loop)
        future: asyncio.Future[bytes] = loop.create_future()
        waiting.append((ask, future))
        return await future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting[loop] = self._waiting[loop], []
        for start in range(0, len(waiting), MOST):
            task = loop.create_task(self._travel(waiting[start : start + MOST]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _travel(self, asks: list[tuple[Ask, asyncio.Future[bytes]]]) -> None:
        try:
            (reply,) = await self._send([together([ask for ask, _ in asks], self._now_arg())])
        except BaseException as error:
            _fail(asks, error)
            if not isinstance(error, Exception):
                raise
        else:
            _deal(asks, reply)


def together(asks: Sequence[Ask], now_arg: str, *tail: Any) -> Call:
    """One script call for these asks; ``tail`` is what concurrency needs."""
    keys = [key for ask in asks for key in ask.keys]
    algorithms = asks[0].algorithms.union(*(ask.algorithms for ask in asks[1:]))
    return Call(decision_script(algorithms), keys, (now_arg, b"".join([ask.packed for ask in asks]), *tail))


def _deal(asks: list[tuple[Ask, asyncio.Future[bytes]]], reply: bytes) -> None:
    """To each its share; a reply too short for that says the same to all: nothing was decided."""
    at = HEAD
    whole = len(reply) == HEAD + TOLD * sum(len(ask.keys) for ask, _ in asks)
    for ask, future in asks:
        end = at + TOLD * len(ask.keys)
        if not future.done():
            future.set_result(reply[:HEAD] + reply[at:end] if whole else reply)
        at = end


def _fail(asks: list[tuple[Ask, asyncio.Future[bytes]]], error: BaseException) -> None:
    told = False
    for _, future in asks:
        if future.done():
            continue
        if not isinstance(error, Exception):
            future.cancel()
        else:
            future.set_exception(Alongside(error) if told else error)
        told = True

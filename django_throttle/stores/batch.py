"""Decisions asked for in one turn of an event loop travel as one script call.

A coroutine that waits for Redis costs a loop more than Redis spends on the decision; fifty that wait for
the same reply cost little more than one. Each call is still decided by itself, all of its charges or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from django_throttle.stores.ask import Announcement, Ask, together
from django_throttle.stores.link import Call

# Redis serves nobody else meanwhile: so many decisions take it about half a millisecond.
MOST: Final = 100
HEAD: Final = 16  # the reply's first two numbers; see end.lua
TOLD: Final = 24  # and three for each charge

Send = Callable[[Sequence[Call]], Awaitable[list[Any]]]


Waiting = tuple[Ask, "asyncio.Future[list[Any]]"]
Announce = Callable[[Announcement], Call]


class Alongside(Exception):
    """A call failed because the batch did that it travelled in; ``error`` is reported by another call of it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Batcher:
    """Collects the asks of each loop's turn and sends them with ``send``; ``now_arg`` is the script's clock.

    ``announce`` makes the call that announces leases.

    On a Cluster, where ``slot_of`` tells a key's slot, those of one slot are one call.
    """

    def __init__(
        self,
        send: Send,
        now_arg: Callable[[], str],
        announce: Announce,
        slot_of: Callable[[str], int] | None = None,
    ) -> None:
        self._send = send
        self._now_arg = now_arg
        self._announce = announce
        self._slot_of = slot_of
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Waiting]]
        self._waiting = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself holds tasks only weakly

    async def ask(self, ask: Ask) -> list[Any]:
        """The replies to this ask alone, to its announcement first; raises what sending raised, or Alongside it."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = []
        if not waiting:
            loop.call_soon(self._flush, loop)
        future: asyncio.Future[list[Any]] = loop.create_future()
        waiting.append((ask, future))
        return await future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting[loop] = self._waiting[loop], []
        for load in _loads([one for one in waiting if not one[1].done()]):  # done: cancelled meanwhile
            task = loop.create_task(self._travel(load))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _travel(self, waiting: list[Waiting]) -> None:
        waiting = [one for one in waiting if not one[1].done()]
        if not waiting:
            return
        groups = [waiting] if self._slot_of is None else _by_slot(waiting, self._slot_of)
        announcements = _merged([ask.announcement for ask, _ in waiting if ask.announcement])
        try:
            calls = [self._announce(one) for one in announcements.values()]
            calls += [together([ask for ask, _ in asks], self._now_arg()) for asks in groups]
            replies = await self._send(calls)
            told = dict(zip(announcements, replies, strict=False))
            for asks, reply in zip(groups, replies[len(told) :], strict=True):
                _deal(asks, reply, told)
        except BaseException as error:
            _fail(waiting, error)
            if not isinstance(error, Exception):
                raise
        finally:
            for ask, future in waiting:
                if future.cancelled() and ask.abandoned:  # what was given back meanwhile may have come too early
                    ask.abandoned()


def _loads(waiting: list[Waiting]) -> Iterator[list[Waiting]]:
    load: list[Waiting] = []
    weight = 0
    for one in waiting:
        if load and weight + len(one[0].keys) > MOST:
            yield load
            load, weight = [], 0
        load.append(one)
        weight += len(one[0].keys)
    if load:
        yield load


def _merged(announcements: list[Announcement]) -> dict[str, Announcement]:
    """One for each uid; there is but one uid, unless it was replaced a moment ago."""
    merged: dict[str, Announcement] = {}
    for one in announcements:
        known = merged.get(one.uid)
        merged[one.uid] = one if known is None else one._replace(indexes=known.indexes + one.indexes)
    return merged


def _by_slot(waiting: list[Waiting], slot_of: Callable[[str], int]) -> list[list[Waiting]]:
    groups: dict[int, list[Waiting]] = {}
    for one in waiting:
        groups.setdefault(slot_of(one[0].keys[0]), []).append(one)
    return list(groups.values())


def _deal(asks: list[Waiting], reply: bytes | Exception, told: Mapping[str, Any]) -> None:
    """To each its share; a reply too short for that says the same to all: nothing was decided."""
    if isinstance(reply, Exception):
        return _fail(asks, reply)
    at = HEAD
    whole = len(reply) == HEAD + TOLD * sum(len(ask.keys) for ask, _ in asks)
    for ask, future in asks:
        end = at + TOLD * len(ask.keys)
        if not future.done():
            first = [told[ask.announcement.uid]] if ask.announcement else []
            future.set_result([*first, reply[:HEAD] + reply[at:end] if whole else reply])
        at = end


def _fail(asks: list[Waiting], error: BaseException) -> None:
    told = False
    for _, future in asks:
        if future.done():
            continue
        if not isinstance(error, Exception):
            future.cancel()
        else:
            future.set_exception(Alongside(error) if told else error)
        told = True

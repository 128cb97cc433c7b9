"""Decisions and releases of one turn of an event loop travel as one script call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django_throttle.core.algorithms import Plan
from django_throttle.stores.transport import Call, script


class Announcement(NamedTuple):
    """What Redis is to know before a lease is taken: which process may hold leases under which indexes."""

    uid: str
    introduction: str
    indexes: tuple[str, ...]


class Ask(NamedTuple):
    """One decision to be sent: its keys, its part of the script's argument, and the kinds of its rules' plans.

    ``own`` are the arguments of its lease. ``repack`` packs it again when it is sent, where it depends on the
    calendar: decisions of one batch must agree on the time. ``abandoned`` is called when it has been sent, and
    whoever asked was cancelled.
    """

    keys: Sequence[str]
    packed: bytes
    plans: frozenset[type[Plan]]
    own: tuple[Any, ...] = ()
    announcement: Announcement | None = None
    repack: Callable[[], bytes] | None = None
    abandoned: Callable[[], None] | None = None


def together(asks: Sequence[Ask], now_arg: str) -> Call:
    """One script call for these asks."""
    keys = [key for ask in asks for key in ask.keys]
    plans = asks[0].plans.union(*(ask.plans for ask in asks[1:]))
    own = [one for ask in asks for one in ask.own]
    packed = b"".join([ask.repack() if ask.repack else ask.packed for ask in asks])
    return Call(script("decide", plans), keys, (now_arg, packed, *own), bool(own))


# Redis serves nobody else meanwhile: so many decisions take it about half a millisecond.
MOST: Final = 100
HEAD: Final = 16  # the reply's first two numbers; see decide.lua
TOLD: Final = 24  # and three for each charge

Send = Callable[[Sequence[Call]], Awaitable[list[Any]]]


Waiting = tuple[Ask, "asyncio.Future[list[Any]]"]
Announce = Callable[[Announcement], Call]


class Alongside(Exception):
    """A call failed because its batch did; another call of the batch reports the ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Batcher:
    """Sends the decisions of one turn of an event loop together, as one script call; on a Cluster one a slot.

    ``send`` sends calls, ``now_arg`` is the script's clock, ``announce`` makes the call that announces leases, and
    ``slot_of`` gives the slot of a key of a Cluster.
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
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Waiting]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself holds tasks only weakly

    async def ask(self, ask: Ask) -> list[Any]:
        """The replies to this decision, to its announcement first; raises what sending raised, or Alongside."""
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
            _fail([future for _, future in waiting], error)
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
    """One for each uid: there are two only where the uid was replaced a moment ago."""
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
    """Give each its part of the reply; one that is too short for that says to all that nothing was decided."""
    if isinstance(reply, Exception):
        return _fail([future for _, future in asks], reply)
    at = HEAD
    whole = len(reply) == HEAD + TOLD * sum(len(ask.keys) for ask, _ in asks)
    for ask, future in asks:
        end = at + TOLD * len(ask.keys)
        if not future.done():
            first = [told[ask.announcement.uid]] if ask.announcement else []
            future.set_result([*first, reply[:HEAD] + reply[at:end] if whole else reply])
        at = end


def _fail(futures: Iterable[asyncio.Future[list[Any]]], error: BaseException) -> None:
    """Fail all that wait; the first reports the error, the others that they failed alongside."""
    is_reported = False
    for future in futures:
        if future.done():
            continue
        if not isinstance(error, Exception):
            future.cancel()
        else:
            future.set_exception(Alongside(error) if is_reported else error)
        is_reported = True


MAX_RELEASES: Final = 100  # calls in one batch: they take Redis about a millisecond

WaitingRelease = tuple[Sequence[Call], "asyncio.Future[list[Any]]"]


class Releases:
    """Sends the releases of each loop with ``send``, one batch at a time."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[WaitingRelease]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself holds tasks only weakly

    async def send(self, calls: Sequence[Call]) -> list[Any]:
        """The replies to these calls; raises what sending raised, or Alongside."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = deque()
        future: asyncio.Future[list[Any]] = loop.create_future()
        waiting.append((calls, future))
        if len(waiting) == 1:  # else the task takes it along
            task = loop.create_task(self._travel(waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _travel(self, waiting: deque[WaitingRelease]) -> None:
        """The first stays in the queue until its batch is answered, so that nobody else begins to send."""
        while waiting:
            some = _load(waiting)
            try:
                replies = iter(await self._send([call for calls, _ in some for call in calls]))
            except BaseException as error:  # all that wait: each would wait in vain for as long
                _fail([future for _, future in waiting], error)
                waiting.clear()
                if not isinstance(error, Exception):
                    raise
                return
            for calls, future in some:
                found = [next(replies) for _ in calls]
                if not future.done():
                    future.set_result(found)
                waiting.popleft()


def _load(waiting: deque[WaitingRelease]) -> list[WaitingRelease]:
    load: list[WaitingRelease] = []
    size = 0
    for one in waiting:
        size += len(one[0])
        if load and size > MAX_RELEASES:
            break
        load.append(one)
    return load

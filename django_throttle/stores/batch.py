"""Batches: all decisions of one iteration of an event loop are sent as one script call, and releases together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from django_throttle.core.algorithms import Plan
from django_throttle.lifecycle import spawn
from django_throttle.stores.transport import Call, grouped, script


class Announcement(NamedTuple):
    """Sent before a lease is taken: which process may have leases under which index keys."""

    uid: str
    introduction: str
    indexes: tuple[str, ...]


class Ask(NamedTuple):
    """One decision to be sent: its keys, its part of the script's argument, and the classes of its rules' plans.

    ``own`` are the arguments of its lease. ``repack`` packs it again when it is sent, if it depends on the calendar:
    the decisions of one batch must agree on the time. ``abandoned`` is called after sending if the caller was
    cancelled.
    """

    keys: Sequence[str]
    packed: bytes
    plans: frozenset[type[Plan]]
    own: tuple[Any, ...] = ()
    announcement: Announcement | None = None
    repack: Callable[[], bytes] | None = None
    abandoned: Callable[[], None] | None = None


def joined_call(asks: Sequence[Ask], now_arg: str) -> Call:
    """One script call for these decisions."""
    keys = [key for ask in asks for key in ask.keys]
    plans = asks[0].plans.union(*(ask.plans for ask in asks[1:]))
    own = [one for ask in asks for one in ask.own]
    packed = b"".join([ask.repack() if ask.repack else ask.packed for ask in asks])
    return Call(script("decide", plans), keys, (now_arg, packed, *own), bool(own))


MOST: Final = 100  # charges of one call: Redis serves nothing else for the half millisecond that they take
HEAD: Final = 16  # bytes of the reply's first two numbers; see decide.lua
ANSWER: Final = 24  # bytes of the three numbers of each charge

Send = Callable[[Sequence[Call]], Awaitable[list[Any]]]


A = TypeVar("A")
Future = asyncio.Future[list[Any]]
Waiting = tuple[Ask, Future]


class BatchFailed(Exception):
    """A call failed because its batch did; another call of the batch reports the ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Batcher:
    """Sends the decisions of one iteration of an event loop as one script call; on a Cluster, one for each slot.

    ``send`` sends calls, ``now_arg`` returns the script's argument for the time, ``announce`` makes the call of an
    announcement, and ``slot_of`` returns the slot of a key on a Cluster.
    """

    def __init__(
        self,
        send: Send,
        now_arg: Callable[[], str],
        announce: Callable[[Announcement], Call],
        slot_of: Callable[[str], int] | None = None,
    ) -> None:
        self._send = send
        self._now_arg = now_arg
        self._announce = announce
        self._slot_of = slot_of
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Waiting]] = WeakKeyDictionary()

    async def ask(self, ask: Ask) -> list[Any]:
        """The replies to the announcement, if any, and to the decision; raises what sending raised, or BatchFailed."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = []
        if not waiting:
            loop.call_soon(self._flush, loop)
        future: Future = loop.create_future()
        waiting.append((ask, future))
        return await future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting[loop] = self._waiting[loop], []
        live = [one for one in waiting if not one[1].done()]  # done: cancelled meanwhile
        for load in _loads(live, MOST, lambda ask: len(ask.keys)):
            spawn(self._send_batch(load))

    async def _send_batch(self, waiting: list[Waiting]) -> None:
        waiting = [one for one in waiting if not one[1].done()]
        if not waiting:
            return
        slot_of = self._slot_of
        groups = [waiting] if slot_of is None else grouped(waiting, lambda one: slot_of(one[0].keys[0]))
        announcements = _merged([ask.announcement for ask, _ in waiting if ask.announcement])
        try:
            calls = [self._announce(one) for one in announcements.values()]
            calls += [joined_call([ask for ask, _ in asks], self._now_arg()) for asks in groups]
            replies = await self._send(calls)
            announced = dict(zip(announcements, replies, strict=False))
            for asks, reply in zip(groups, replies[len(announced) :], strict=True):
                _resolve(asks, reply, announced)
        except BaseException as error:
            _fail([future for _, future in waiting], error)
            if not isinstance(error, Exception):
                raise
        finally:
            for ask, future in waiting:
                if future.cancelled() and ask.abandoned:  # its release may have been sent before it
                    ask.abandoned()


def _loads(
    waiting: Iterable[tuple[A, Future]], most: int, size: Callable[[A], int]
) -> Iterator[list[tuple[A, Future]]]:
    """What waits, in loads of at most ``most``; one that is larger by itself goes alone."""
    load: list[tuple[A, Future]] = []
    weight = 0
    for one in waiting:
        if load and weight + size(one[0]) > most:
            yield load
            load, weight = [], 0
        load.append(one)
        weight += size(one[0])
    if load:
        yield load


def _merged(announcements: list[Announcement]) -> dict[str, Announcement]:
    """One announcement for each uid; there are two uids only if the process has just got a new one."""
    merged: dict[str, Announcement] = {}
    for one in announcements:
        known = merged.get(one.uid)
        merged[one.uid] = one if known is None else one._replace(indexes=known.indexes + one.indexes)
    return merged


def _resolve(asks: list[Waiting], reply: bytes | Exception, announced: Mapping[str, Any]) -> None:
    """Give each caller its part of the reply; all get one of another length, which says that nothing was decided."""
    if isinstance(reply, Exception):
        return _fail([future for _, future in asks], reply)
    at = HEAD
    whole = len(reply) == HEAD + ANSWER * sum(len(ask.keys) for ask, _ in asks)
    for ask, future in asks:
        end = at + ANSWER * len(ask.keys)
        if not future.done():
            first = [announced[ask.announcement.uid]] if ask.announcement else []
            future.set_result([*first, reply[:HEAD] + reply[at:end] if whole else reply])
        at = end


def _fail(futures: Iterable[Future], error: BaseException) -> None:
    """Fail all waiting callers: the first with the error, the others with BatchFailed."""
    is_reported = False
    for future in futures:
        if future.done():
            continue
        if not isinstance(error, Exception):
            future.cancel()
        else:
            future.set_exception(BatchFailed(error) if is_reported else error)
        is_reported = True


MAX_RELEASES: Final = 100  # calls in one batch: they take Redis about a millisecond

WaitingRelease = tuple[Sequence[Call], Future]


class Releases:
    """Sends the releases of each event loop with ``send``, one batch at a time."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[WaitingRelease]] = WeakKeyDictionary()

    async def send(self, calls: Sequence[Call]) -> list[Any]:
        """The replies to these calls; raises what sending raised, or BatchFailed."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(loop, deque())
        future: Future = loop.create_future()
        waiting.append((calls, future))
        if len(waiting) == 1:  # else the running task sends it
            spawn(self._send_batch(waiting))
        return await future

    async def _send_batch(self, waiting: deque[WaitingRelease]) -> None:
        """Send batches until none wait; the first stays queued until its reply, so that no second task starts."""
        while waiting:
            some = next(_loads(waiting, MAX_RELEASES, len))
            try:
                replies = iter(await self._send([call for calls, _ in some for call in calls]))
            except BaseException as error:  # fail all: each would wait as long for the same error
                _fail([future for _, future in waiting], error)
                waiting.clear()
                if not isinstance(error, Exception):
                    raise
                return
            for calls, future in some:
                own = [next(replies) for _ in calls]
                if not future.done():
                    future.set_result(own)
                waiting.popleft()

"""Batches: all decisions of one iteration of an event loop are sent as one script call, and releases together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from django_throttle.core.commands import Answers
from django_throttle.event_loop import spawn
from django_throttle.exceptions import RepeatCommand
from django_throttle.stores.context import RedisContext
from django_throttle.stores.loop_connections import Request, answer
from django_throttle.stores.scripts import Script, script
from django_throttle.stores.transport import Call, ScriptCall, grouped, is_lost


class Announcement(NamedTuple):
    """Sent before a lease is taken: which process may have leases under which index keys."""

    uid: str
    introduction: str
    indexes: tuple[str, ...]


def announce_call(context: RedisContext, one: Announcement) -> Call:
    """The call that tells Redis of this process, and of the indexes under which it may hold leases."""
    keys = [context.process_key(name) for name in ("live", "meta", f"held:{one.uid}")]
    args = [context.now_arg(), one.uid, one.introduction, context.lease_ttl_ms, *one.indexes]
    return Call(script("announce"), keys, args, leads=True)


class Ask(Protocol):
    """One decision to be sent: ``size`` charges, by a script.

    ``keys`` are those of its call. ``give_up`` is called after sending if the caller was cancelled and it takes a
    lease: that may have been released before it was taken.
    """

    @property
    def script(self) -> Script: ...

    @property
    def keys(self) -> Sequence[str]: ...

    size: int
    announced: Any  # the reply to the announcement

    @property
    def announcement(self) -> Announcement | None: ...

    def packed(self) -> bytes:
        """The call of this decision alone, as it is sent."""

    def alone(self, answers: Answers) -> bytes:
        """The reply as if nothing else had been decided."""

    def joined(self, asks: Sequence[Any]) -> ScriptCall:
        """One call for these decisions, of which this is the first; all have the same script."""

    def read_joined(self, asks: Sequence[Any], reply: bytes) -> Sequence[Answers]:
        """What the reply to that call says of each. Raises RepeatCommand, or InvalidResponse."""

    def read_reply(self, reply: bytes) -> Answers:
        """What the reply says where this was sent by itself; raises the same."""

    def give_up(self) -> None: ...


_size: Final = attrgetter("size")
MOST: Final = 100  # charges of one call: Redis serves nothing else for the half millisecond that they take

A = TypeVar("A")
B = TypeVar("B")
Future = asyncio.Future[A]
Waiting = tuple[Ask, "PendingAnswers"]
Outcome = list[Any] | BaseException


class PendingAnswers(asyncio.Future[Answers]):
    """The answers to a decision. Whoever is cancelled while it is on its way has them first, within the deadline."""

    __slots__ = ("is_sent",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.is_sent = False

    def cancel(self, msg: object = None) -> bool:
        return not self.is_sent and super().cancel(msg)

    def abandon(self) -> None:
        """Cancel it: nobody will answer."""
        self.is_sent = False
        super().cancel()


class BatchFailed(Exception):
    """A call failed because its batch did; another call of the batch reports the ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _LoopAsks:
    """The decisions of one event loop that are to be sent, and how many are on their way.

    ``come_alone`` where the last one was the only one of its iteration, and none was on its way.
    """

    __slots__ = ("come_alone", "sent", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.sent, self.come_alone = 0, False


class Batcher:
    """Sends the decisions of one iteration of an event loop as one script call; on a Cluster, one for each slot.

    Where they come one after another, each is sent at once, which saves an iteration. Releases that are due soon travel
    with them, and before them.
    """

    def __init__(self, context: RedisContext, releases: Releases) -> None:
        self._context, self._releases = context, releases
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopAsks] = WeakKeyDictionary()

    def ask(self, ask: Ask) -> Future[Answers]:
        """What sending it comes to; the future of the answers has the error of sending, or BatchFailed."""
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            mine = self._loops[loop] = _LoopAsks()
        future = PendingAnswers(loop)
        is_alone = mine.come_alone and not mine.sent
        if is_alone and ask.announcement is None and self._post_alone(loop, mine, ask, future):
            return future
        mine.waiting.append((ask, future))
        if is_alone:
            self._flush(loop, mine)
        elif len(mine.waiting) == 1:
            loop.call_soon(self._flush, loop, mine)
        return future

    def _post_alone(self, loop: asyncio.AbstractEventLoop, mine: _LoopAsks, ask: Ask, future: PendingAnswers) -> bool:
        """Send one decision as it is; False where that takes connecting first, or releases travel with it."""
        if self._releases.wait(loop):
            return False
        until = loop.time() + self._context.transport.seconds
        request = Request(ask.packed(), 1, until, partial(self._answer_alone, mine, ask, future, until))
        if not self._context.transport.post((request,), until):
            return False
        mine.sent += 1
        future.is_sent = True
        return True

    def _answer_alone(
        self, mine: _LoopAsks, ask: Ask, future: PendingAnswers, until: float, outcome: list[Any] | Exception
    ) -> None:
        """Tell the caller; what is not the usual reply is for a batch of one."""
        if isinstance(outcome, list) and type(outcome[0]) is bytes and not future.done():
            mine.sent -= 1
            try:
                future.set_result(ask.read_reply(outcome[0]))
            except Exception as error:  # noqa: BLE001  (raised where it is waited for)
                future.set_exception(error)
        else:
            _Batch(self._context, [(ask, future)], until, mine).take(outcome)

    def _flush(self, loop: asyncio.AbstractEventLoop, mine: _LoopAsks) -> None:
        live = [one for one in mine.waiting if not one[1].done()]  # done: cancelled meanwhile
        mine.waiting, mine.come_alone = [], len(live) == 1 and not mine.sent
        mine.sent += len(live)
        for _, future in live:
            future.is_sent = True
        until = loop.time() + self._context.transport.seconds
        trips = self._releases.ready(loop, until)
        for load in _loads(live, MOST, _size):
            trips += _Batch(self._context, load, until, mine).ready()
        _post(self._context, trips, until)


class _Trip(Request):
    """Calls that travel together; ``end`` is told their replies, or why there are none by then."""

    __slots__ = ("_calls", "_end", "_transport")

    def __init__(
        self, context: RedisContext, calls: Sequence[ScriptCall], until: float, end: Callable[[Outcome], object]
    ) -> None:
        self._transport, self._calls, self._end = context.transport, calls, end
        packed = calls[0].packed() if len(calls) == 1 else b"".join([call.packed() for call in calls])
        super().__init__(packed, len(calls), until, self._take)

    def send(self) -> None:
        """Send it in a task, which connects."""
        spawn(self._send())

    async def _send(self, replies: list[Any] | None = None) -> None:
        """``replies`` are those to calls that were sent, some of which the server has lost the scripts of."""
        try:
            left = self.until - asyncio.get_running_loop().time()
            found = await self._transport.asend_all(self._calls, left, replies)
        except BaseException as error:
            self._end(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._end(found)

    def _take(self, outcome: list[Any] | Exception) -> None:
        if isinstance(outcome, list) and any(map(is_lost, outcome)):
            spawn(self._send(outcome))
        else:
            self._end(outcome)


def _post(context: RedisContext, trips: Sequence[_Trip], until: float) -> None:
    """Send these in one write; where that takes connecting first, each in a task."""
    if trips and not context.transport.post(trips, until):
        for trip in trips:
            trip.send()


class _Batch:
    """Decisions that travel together."""

    def __init__(self, context: RedisContext, waiting: list[Waiting], until: float, of_loop: _LoopAsks) -> None:
        self._context, self._waiting, self._until, self._of_loop = context, waiting, until, of_loop
        self._groups = [waiting]
        slot_of, script = context.transport.slot_of, waiting[0][0].script
        if slot_of is not None or [1 for ask, _ in waiting if ask.script is not script]:
            self._groups = grouped(waiting, lambda one: (one[0].script.sha, slot_of and slot_of(one[0].keys[0])))
        announced_by = [ask.announcement for ask, _ in waiting if ask.announcement is not None]
        self._announcements = _merged(announced_by) if announced_by else {}

    def ready(self) -> list[_Trip]:
        """What is to be sent; nothing where that could not be made, which all are told."""
        try:
            calls: list[ScriptCall] = [announce_call(self._context, one) for one in self._announcements.values()]
            calls += [asks[0][0].joined([ask for ask, _ in asks]) for asks in self._groups]
            return [_Trip(self._context, calls, self._until, self._end)]
        except Exception as error:  # noqa: BLE001  (raised where it is waited for)
            self._end(error)
            return []

    def take(self, outcome: list[Any] | Exception) -> None:
        """What came of sending it."""
        for trip in self.ready():
            trip.end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self._of_loop.sent -= len(self._waiting)
        if isinstance(outcome, list):
            announced = dict(zip(self._announcements, outcome, strict=False))
            for asks, reply in zip(self._groups, outcome[len(announced) :], strict=True):
                _resolve(asks, reply, announced)
        else:
            _fail([future for _, future in self._waiting], outcome)
        for ask, future in self._waiting:
            if future.cancelled():
                ask.give_up()


def _loads(waiting: Iterable[tuple[A, B]], most: int, size: Callable[[A], int]) -> Iterator[list[tuple[A, B]]]:
    """What waits, in loads of at most ``most``; one that is larger by itself goes alone."""
    waiting = list(waiting)
    if len(waiting) == 1:
        yield waiting
        return
    sizes = {size(one[0]) for one in waiting}
    if len(sizes) == 1:  # as of calls under the same rules
        count = max(1, most // sizes.pop())
        yield from (waiting[at : at + count] for at in range(0, len(waiting), count))
        return
    load: list[tuple[A, B]] = []
    weight = 0
    for one in waiting:
        more = size(one[0])
        if load and weight + more > most:
            yield load
            load, weight = [], 0
        load.append(one)
        weight += more
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
    """Tell each caller what the reply says of its decision."""
    try:
        if isinstance(reply, Exception):
            raise reply
        answers = asks[0][0].read_joined([ask for ask, _ in asks], reply)
    except RepeatCommand:
        for _, future in asks:
            if not future.done():
                future.set_exception(RepeatCommand())
    except Exception as error:  # noqa: BLE001  (raised where it is waited for)
        _fail([future for _, future in asks], error)
    else:
        for (ask, future), one in zip(asks, answers, strict=True):
            if not future.done():
                if ask.announcement is not None:
                    ask.announced = announced[ask.announcement.uid]
                future.set_result(one)


def _fail(futures: Iterable[PendingAnswers], error: BaseException) -> None:
    """Fail all waiting callers: the first with the error, the others with BatchFailed."""
    for at, future in enumerate([future for future in futures if not future.done()]):
        if isinstance(error, Exception):
            future.set_exception(BatchFailed(error) if at else error)
        else:
            future.abandon()


MAX_RELEASES: Final = 100  # calls in one batch: they take Redis about a millisecond
SOON: Final = 0.005  # seconds that a release may wait for decisions that it can travel with

Told = Callable[[Outcome], object]  # with the replies, or what sending raised, or BatchFailed
Releasing = tuple[Sequence[ScriptCall], Told]


class _LoopReleases:
    """The releases of one event loop that are to be sent, and how many batches are on their way."""

    __slots__ = ("has_timer", "sent", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Releasing] = deque()
        self.sent, self.has_timer = 0, False


class Releases:
    """Sends the releases of each event loop: one batch at a time, but always before decisions that come after them."""

    def __init__(self, context: RedisContext) -> None:
        self._context = context
        self._has_script = False  # the server: else a release would be sent again, and arrive after those decisions
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopReleases] = WeakKeyDictionary()

    def send(self, calls: Sequence[ScriptCall]) -> Future[list[Any]]:
        """Send them now; the replies, or what sending raised, or BatchFailed."""
        loop = asyncio.get_running_loop()
        future: Future[list[Any]] = loop.create_future()
        self._add(calls, partial(answer, future), loop)
        self._send(loop)
        return future

    def send_soon(self, calls: Sequence[ScriptCall], told: Told) -> None:
        """Send them with this loop's next decisions, if these come soon: that saves a write, and a wake-up."""
        loop = asyncio.get_running_loop()
        mine = self._add(calls, told, loop)
        if not self._has_script:
            self._send(loop)
        elif not mine.has_timer:
            mine.has_timer = True
            loop.call_later(SOON, self._when_due, loop)

    def wait(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether any are to be sent on this loop."""
        mine = self._loops.get(loop)
        return mine is not None and bool(mine.waiting)

    def ready(self, loop: asyncio.AbstractEventLoop, until: float) -> list[_Trip]:
        """What is to be sent now: a batch of what waits, if anything does."""
        mine = self._loops.get(loop)
        if mine is None or not mine.waiting:
            return []
        count = len(next(_loads(islice(mine.waiting, MAX_RELEASES), MAX_RELEASES, len)))
        some = [mine.waiting.popleft() for _ in range(count)]
        mine.sent += 1
        calls = [call for calls, _ in some for call in calls]
        return [_Trip(self._context, calls, until, partial(self._end, loop, some))]

    def _add(self, calls: Sequence[ScriptCall], told: Told, loop: asyncio.AbstractEventLoop) -> _LoopReleases:
        mine = self._loops.get(loop)
        if mine is None:
            mine = self._loops[loop] = _LoopReleases()
        mine.waiting.append((calls, told))
        return mine

    def _when_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops[loop].has_timer = False
        self._send(loop)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loops[loop].sent:  # what waits goes once that has ended
            return
        until = loop.time() + self._context.transport.seconds
        _post(self._context, self.ready(loop, until), until)

    def _end(self, loop: asyncio.AbstractEventLoop, some: list[Releasing], outcome: Outcome) -> None:
        mine = self._loops[loop]
        mine.sent -= 1
        if isinstance(outcome, BaseException):  # fail all: each would wait as long for the same error
            failed, mine.waiting = [*some, *mine.waiting], deque()
            for at, (_, told) in enumerate(failed):
                told(BatchFailed(outcome) if at and isinstance(outcome, Exception) else outcome)
            return
        self._has_script, replies = True, iter(outcome)
        for calls, told in some:
            told([next(replies) for _ in calls])
        self._send(loop)

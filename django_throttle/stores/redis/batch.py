"""Batches: an event loop sends the decisions of one iteration as one script call, and the releases before them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from django_throttle.core.commands import Answers
from django_throttle.exceptions import RepeatCommand
from django_throttle.runtime import spawn
from django_throttle.stores.redis.context import RedisContext
from django_throttle.stores.redis.loop_connections import Request, answer
from django_throttle.stores.redis.scripts import script
from django_throttle.stores.redis.transport import RedisCall, ScriptCall, grouped, is_lost

MAX_BATCH_CHARGES: Final = 100  # Redis serves nothing else for the half millisecond that they take
MAX_BATCH_RELEASES: Final = 100  # about a millisecond
RELEASE_SECONDS: Final = 0.005  # that a release may wait for decisions that it can travel with


class Announcement(NamedTuple):
    """Sent before a lease is taken: which process may have leases under which index keys."""

    uid: str
    introduction: str
    indexes: tuple[str, ...]


def announce_call(context: RedisContext, announcement: Announcement) -> RedisCall:
    """The call that tells Redis of this process, and of the indexes under which it may hold leases."""
    uid, introduction, indexes = announcement
    keys = [context.process_key(name) for name in ("live", "meta", f"held:{uid}")]
    args = [context.now_arg(), uid, introduction, context.lease_ttl_ms, *indexes]
    return RedisCall(script("announce"), keys, args, leads=True)


class PendingDecision(Protocol):
    """A decision to be sent: ``size`` charges. ``keys`` are those of its call."""

    @property
    def keys(self) -> Sequence[str]: ...

    size: int
    announced: Any  # the reply to the announcement
    packed_once: bytes

    @property
    def announcement(self) -> Announcement | None: ...

    def packed(self) -> bytes:
        """The call of this decision alone, as it is sent."""

    def read_reply(self, reply: bytes) -> Answers:
        """Read the reply to that call. Raise RepeatCommand or InvalidResponse."""

    def alone(self, answers: Answers) -> bytes:
        """The reply as if nothing else had been decided."""

    def joined(self, decisions: Sequence[Any]) -> ScriptCall:
        """Make a call of these decisions, of which this is the first."""

    def read_joined(self, decisions: Sequence[Any], reply: bytes) -> Sequence[Answers | RepeatCommand]:
        """Read the answers to each from the reply to that call, or that it is to be repeated. Raise InvalidResponse."""

    def give_up(self) -> None:
        """Undo what a decision may have taken whose caller was cancelled after it was sent."""


class PendingAnswers(asyncio.Future[Answers]):
    """The answers to a decision. A caller that is cancelled while it is on its way still gets them, in the deadline."""

    is_sent = False

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


T = TypeVar("T")
Outcome = list[Any] | BaseException
Waiting = tuple[PendingDecision, PendingAnswers]
# Calls, and the callback that gets their replies, the error of sending them, or BatchFailed.
WaitingRelease = tuple[Sequence[ScriptCall], Callable[[Outcome], object]]


class Batcher:
    """Sends decisions and releases in batches: one queue for each event loop."""

    def __init__(self, context: RedisContext) -> None:
        self._context = context
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = WeakKeyDictionary()

    def decide(self, decision: PendingDecision) -> asyncio.Future[Answers]:
        """Send a decision. The future has the answers, the error of sending, or BatchFailed."""
        loop = asyncio.get_running_loop()
        future = PendingAnswers(loop=loop)
        (self._queues.get(loop) or self._queue(loop)).add_decision(decision, future)
        return future

    def release(self, calls: Sequence[ScriptCall]) -> asyncio.Future[list[Any]]:
        """Send releases. The future has the replies, the error of sending, or BatchFailed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._queue(loop).add_release(calls, partial(answer, future))
        return future

    def release_soon(self, calls: Sequence[ScriptCall], on_outcome: Callable[[Outcome], object]) -> None:
        """Send releases with the next decisions, if these come soon: that saves a write, and a wake-up."""
        self._queue(asyncio.get_running_loop()).add_release(calls, on_outcome, may_wait=True)

    def _queue(self, loop: asyncio.AbstractEventLoop) -> LoopQueue:
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = LoopQueue(self._context)
        return queue


class LoopQueue:
    """Decisions and releases of one event loop that wait to be sent.

    They go at the end of the iteration, and each release goes before the decisions that come after it. Where decisions
    come one after another, each is sent at once, which saves an iteration. Releases without decisions go one batch at a
    time.
    """

    def __init__(self, context: RedisContext) -> None:
        self._context = context
        self._decisions: list[Waiting] = []
        self.releases: deque[WaitingRelease] = deque()
        self._is_scheduled = self._has_release_timer = False
        self._came_alone = False  # the last decision: the only one of its iteration, with none on its way
        self.decisions_sent = self.releases_sent = 0  # decisions, and batches of releases, that are on their way
        #: Redis has the script of releases. Else one would be sent again, and arrive after the decisions that follow.
        self.has_release_script = False

    def add_decision(self, decision: PendingDecision, future: PendingAnswers) -> None:
        goes_now = self._came_alone and not self.decisions_sent
        if goes_now and not self.releases and decision.announcement is None and self._send_alone(decision, future):
            return
        self._decisions.append((decision, future))
        if goes_now:
            self._send()
        else:
            self.schedule()

    def add_release(
        self, calls: Sequence[ScriptCall], on_outcome: Callable[[Outcome], object], *, may_wait: bool = False
    ) -> None:
        self.releases.append((calls, on_outcome))
        if not (may_wait and self.has_release_script):
            self.schedule()
        elif not self._has_release_timer:
            self._has_release_timer = True
            asyncio.get_running_loop().call_later(RELEASE_SECONDS, self.schedule)

    def schedule(self) -> None:
        """Send what waits at the end of this iteration."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send_alone(self, decision: PendingDecision, future: PendingAnswers) -> bool:
        """Send a decision as it is, without the work of a batch. Return False if that takes connecting first."""
        until = asyncio.get_running_loop().time() + self._context.transport.seconds
        packed, report = decision.packed_once or decision.packed(), partial(self._on_reply, decision, future, until)
        future.is_sent = self._context.transport.post((Request(packed, 1, until, report),), until)
        self.decisions_sent += future.is_sent
        return future.is_sent

    def _on_reply(
        self, decision: PendingDecision, future: PendingAnswers, until: float, outcome: list[Any] | Exception
    ) -> None:
        """Report to the caller of a decision that was sent by itself; leave unusual outcomes to a batch of one."""
        self.decisions_sent -= 1
        if isinstance(outcome, list) and type(outcome[0]) is bytes and not future.done():
            try:
                future.set_result(decision.read_reply(outcome[0]))
            except Exception as error:  # noqa: BLE001  (raised where it is waited for)
                future.set_exception(error)
        else:
            DecisionBatch(self._context, self, [(decision, future)], until).on_replies(outcome)

    def _send(self) -> None:
        self._is_scheduled = self._has_release_timer = False
        decisions = deque([waiting for waiting in self._decisions if not waiting[1].done()])  # done: cancelled
        self._decisions.clear()
        until = asyncio.get_running_loop().time() + self._context.transport.seconds
        batches: list[Batch] = []
        if self.releases and (decisions or not self.releases_sent):
            releases = _take(self.releases, MAX_BATCH_RELEASES, lambda release: len(release[0]))
            batches.append(ReleaseBatch(self._context, self, releases, until))
        if decisions:
            self._came_alone = len(decisions) == 1 and not self.decisions_sent
        while decisions:
            some = _take(decisions, MAX_BATCH_CHARGES, lambda waiting: waiting[0].size)
            try:
                batches.append(DecisionBatch(self._context, self, some, until))
            except Exception as error:  # noqa: BLE001  (raised where it is waited for)
                _fail(some, error)
        if batches and not self._context.transport.post(batches, until):
            for batch in batches:
                spawn(batch.send())  # which connects


def _take(queue: deque[T], most: int, size: Callable[[T], int]) -> list[T]:
    """Take the first of a queue, of a total size of at most ``most``, or the first alone."""
    taken = [queue.popleft()]
    total = size(taken[0])
    while queue and (total := total + size(queue[0])) <= most:
        taken.append(queue.popleft())
    return taken


class Batch(Request, ABC):
    """Script calls that travel together."""

    __slots__ = ("_calls", "_queue", "_transport")

    def __init__(self, context: RedisContext, queue: LoopQueue, calls: Sequence[ScriptCall], until: float) -> None:
        self._transport, self._queue, self._calls = context.transport, queue, calls
        packed = calls[0].packed() if len(calls) == 1 else b"".join([call.packed() for call in calls])
        super().__init__(packed, len(calls), until, self.on_replies)

    @abstractmethod
    def on_outcome(self, outcome: Outcome) -> None:
        """Report to all callers. Must not raise."""

    async def send(self, replies: list[Any] | None = None) -> None:
        """Send the calls. With ``replies``, send only those again whose scripts the server has lost."""
        try:
            left = self.until - asyncio.get_running_loop().time()
            outcome = await self._transport.asend_all(self._calls, left, replies)
        except BaseException as error:
            self.on_outcome(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.on_outcome(outcome)

    def on_replies(self, outcome: list[Any] | Exception) -> None:
        """Report to all callers, after sending the calls again whose scripts the server has lost."""
        if isinstance(outcome, list) and any(map(is_lost, outcome)):
            spawn(self.send(outcome))
        else:
            self.on_outcome(outcome)


class ReleaseBatch(Batch):
    """Releases that travel together."""

    __slots__ = ("_releases",)

    def __init__(
        self, context: RedisContext, queue: LoopQueue, releases: Sequence[WaitingRelease], until: float
    ) -> None:
        self._releases = releases
        super().__init__(context, queue, [call for calls, _ in releases for call in calls], until)
        queue.releases_sent += 1

    def on_outcome(self, outcome: Outcome) -> None:
        """Report to all callers; an error also to those that wait: each would wait as long for it."""
        queue = self._queue
        queue.releases_sent -= 1
        if isinstance(outcome, BaseException):
            failed, queue.releases = [*self._releases, *queue.releases], deque()
            for at, (_, report) in enumerate(failed):
                report(BatchFailed(outcome) if at and isinstance(outcome, Exception) else outcome)
            return
        queue.has_release_script, replies = True, iter(outcome)
        for calls, report in self._releases:
            report([next(replies) for _ in calls])
        if queue.releases:
            queue.schedule()


class DecisionBatch(Batch):
    """Decisions that travel together, after the announcements of leases that they take."""

    __slots__ = ("_announcements", "_groups", "_waiting")

    def __init__(self, context: RedisContext, queue: LoopQueue, waiting: list[Waiting], until: float) -> None:
        self._waiting, self._groups = waiting, _by_call(waiting, context.transport.slot_of)
        self._announcements = _merged([decision.announcement for decision, _ in waiting if decision.announcement])
        calls: list[ScriptCall] = [group[0][0].joined([decision for decision, _ in group]) for group in self._groups]
        if self._announcements:
            calls[:0] = [announce_call(context, announcement) for announcement in self._announcements.values()]
        super().__init__(context, queue, calls, until)
        queue.decisions_sent += len(waiting)
        for _, future in waiting:
            future.is_sent = True

    def on_outcome(self, outcome: Outcome) -> None:
        self._queue.decisions_sent -= len(self._waiting)
        if isinstance(outcome, BaseException):
            _fail(self._waiting, outcome)
        else:
            announced = dict(zip(self._announcements, outcome, strict=False))
            for group, reply in zip(self._groups, outcome[len(announced) :], strict=True):
                _resolve(group, reply, announced)
        for decision, future in self._waiting:
            if future.cancelled():
                decision.give_up()


def _by_call(waiting: list[Waiting], slot_of: Callable[[str], int] | None) -> list[list[Waiting]]:
    """Group decisions that one call may make: all, or on a Cluster those of one slot."""
    return [waiting] if slot_of is None else grouped(waiting, lambda one: slot_of(one[0].keys[0]))


def _merged(announcements: list[Announcement]) -> dict[str, Announcement]:
    """One announcement for each uid; there are two uids only if the process has just got a new one."""
    merged: dict[str, Announcement] = {}
    for announcement in announcements:
        earlier = merged.get(announcement.uid)
        indexes = announcement.indexes if earlier is None else earlier.indexes + announcement.indexes
        merged[announcement.uid] = announcement._replace(indexes=indexes)
    return merged


def _resolve(waiting: list[Waiting], reply: bytes | Exception, announced: Mapping[str, Any]) -> None:
    """Report to each caller what the reply says of its decision."""
    try:
        if isinstance(reply, Exception):
            raise reply
        answers = waiting[0][0].read_joined([decision for decision, _ in waiting], reply)
    except Exception as error:  # noqa: BLE001  (raised where it is waited for)
        _fail(waiting, error)
    else:
        for (decision, future), answered in zip(waiting, answers, strict=True):
            if future.done():
                continue
            if decision.announcement is not None:
                decision.announced = announced[decision.announcement.uid]
            if isinstance(answered, RepeatCommand):
                future.set_exception(answered)
            else:
                future.set_result(answered)


def _fail(waiting: Iterable[Waiting], error: BaseException) -> None:
    """Fail all callers: the first with the error, the others with BatchFailed."""
    for at, future in enumerate([future for _, future in waiting if not future.done()]):
        if isinstance(error, Exception):
            future.set_exception(BatchFailed(error) if at else error)
        else:
            future.abandon()

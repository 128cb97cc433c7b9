"""Batches: an event loop sends the decisions of one iteration in one script call, together with earlier releases."""

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
from django_throttle.stores.redis.transport import RedisCall, ScriptCall, grouped, is_script_lost

MAX_BATCH_CHARGES: Final = 100  # which block Redis for half a millisecond
MAX_BATCH_RELEASES: Final = 100  # about a millisecond
RELEASE_SECONDS: Final = 0.005  # maximum wait of a release for decisions to be sent with


class Announcement(NamedTuple):
    """Registration of a process, sent before its first lease under these index keys."""

    uid: str
    introduction: str
    indexes: tuple[str, ...]


def announce_call(context: RedisContext, announcement: Announcement) -> RedisCall:
    """Return the call that registers this process, and the indexes under which it is going to hold leases."""
    uid, introduction, indexes = announcement
    keys = [context.process_key(name) for name in ("live", "meta", f"held:{uid}")]
    args = [context.now_arg(), uid, introduction, context.lease_ttl_ms, *indexes]
    return RedisCall(script("announce"), keys, args, goes_first=True)


class PendingDecision(Protocol):
    """A decision to be sent. ``size`` is the number of its charges, ``keys`` are the keys of its call."""

    @property
    def keys(self) -> Sequence[str]: ...

    size: int
    announce_reply: Any  # the reply to the announcement
    packed_cache: bytes

    @property
    def announcement(self) -> Announcement | None: ...

    def packed(self) -> bytes:
        """Return the call of this decision alone, in RESP."""

    def read_reply(self, reply: bytes) -> Answers:
        """Read the reply to ``packed()``. Raise RepeatCommand or InvalidResponse."""

    def pack_reply(self, answers: Answers) -> bytes:
        """Return these answers as a reply to ``packed()``."""

    def join(self, decisions: Sequence[Any]) -> ScriptCall:
        """Return one call for several decisions, of which this is the first."""

    def read_joined(self, decisions: Sequence[Any], reply: bytes) -> Sequence[Answers | RepeatCommand]:
        """Read the reply to such a call: answers to each decision, or RepeatCommand. Raise InvalidResponse."""

    def on_unknown_outcome(self) -> None:
        """Undo the decision, which may have been made, as its caller was cancelled after it was sent."""


class PendingAnswers(asyncio.Future[Answers]):
    """Future of the answers to a decision. Once the decision is sent, a cancelled caller still receives them."""

    is_sent = False

    def cancel(self, msg: object = None) -> bool:
        return not self.is_sent and super().cancel(msg)

    def abandon(self) -> None:
        """Cancel the future, as no answer will come."""
        self.is_sent = False
        super().cancel()


class BatchFailed(Exception):
    """A call failed because its batch failed. The first call of the batch reports the ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


T = TypeVar("T")
Outcome = list[Any] | BaseException
WaitingDecision = tuple[PendingDecision, PendingAnswers]
# Calls, and the callback for their replies, the error of sending them, or BatchFailed.
WaitingRelease = tuple[Sequence[ScriptCall], Callable[[Outcome], object]]


class Batcher:
    """Sends decisions and releases in batches: one queue for each event loop, see ``LoopQueue``."""

    def __init__(self, context: RedisContext) -> None:
        self._context = context
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = WeakKeyDictionary()

    def queue(self) -> LoopQueue:
        """Return the queue of the running loop."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = LoopQueue(self._context)
        return queue


class LoopQueue:
    """Queue of decisions and releases of one event loop.

    They are sent at the end of an iteration of the loop, each release before later decisions. A decision after one that
    was alone in its iteration is sent immediately, which saves an iteration. Releases without decisions are sent one
    batch at a time.
    """

    def __init__(self, context: RedisContext) -> None:
        self._context = context
        self._decisions: list[WaitingDecision] = []
        self.releases: deque[WaitingRelease] = deque()
        self._is_scheduled = self._has_release_timer = False
        self._last_came_alone = False  # the last decision was alone in its iteration, and no other was on its way
        self.decisions_sent = self.releases_sent = 0  # decisions and batches of releases without a reply yet
        #: True if Redis has the script of releases. A release that is sent again would arrive after later decisions.
        self.has_release_script = False

    def decide(self, decision: PendingDecision) -> asyncio.Future[Answers]:
        """Send a decision. The future has the answers, or raises the error of sending or BatchFailed."""
        loop = asyncio.get_running_loop()
        future = PendingAnswers(loop=loop)
        is_sent_now = self._last_came_alone and not self.decisions_sent
        if is_sent_now and not self.releases and decision.announcement is None:  # without a batch
            until = loop.time() + self._context.transport.seconds
            report = partial(self._on_reply, decision, future, until)
            request = Request(decision.packed_cache or decision.packed(), 1, until, report)
            if self._context.transport.post((request,), until):
                future.is_sent = True
                self.decisions_sent += 1
                return future
        self._decisions.append((decision, future))
        if is_sent_now:
            self._send()
        else:
            self.schedule()
        return future

    def release(self, calls: Sequence[ScriptCall]) -> asyncio.Future[list[object]]:
        """Send releases. The future has the replies, or raises the error of sending or BatchFailed."""
        future: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
        self.releases.append((calls, partial(answer, future)))
        self.schedule()
        return future

    def release_soon(self, calls: Sequence[ScriptCall], on_outcome: Callable[[Outcome], object]) -> None:
        """Send releases with the next decisions, if these come soon. That saves a write and a wake-up."""
        self.releases.append((calls, on_outcome))
        if not self.has_release_script:
            self.schedule()
        elif not self._has_release_timer:
            self._has_release_timer = True
            asyncio.get_running_loop().call_later(RELEASE_SECONDS, self.schedule)

    def schedule(self) -> None:
        """Send the queue at the end of this iteration."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def _on_reply(
        self, decision: PendingDecision, future: PendingAnswers, until: float, outcome: list[object] | Exception
    ) -> None:
        """Report to the caller of a decision that was sent alone. Leave unusual outcomes to a batch of one."""
        self.decisions_sent -= 1
        if isinstance(outcome, list) and type(outcome[0]) is bytes and not future.done():
            try:
                future.set_result(decision.read_reply(outcome[0]))
            except Exception as error:  # noqa: BLE001 - raised where the future is awaited
                future.set_exception(error)
        else:
            DecisionBatch(self._context, self, [(decision, future)], until).on_replies(outcome)

    def _send(self) -> None:
        self._is_scheduled = self._has_release_timer = False
        decisions = deque([waiting for waiting in self._decisions if not waiting[1].done()])  # cancelled ones are done
        self._decisions.clear()
        until = asyncio.get_running_loop().time() + self._context.transport.seconds
        batches: list[Batch] = []
        if self.releases and (decisions or not self.releases_sent):
            releases = _take(self.releases, MAX_BATCH_RELEASES, lambda release: len(release[0]))
            batches.append(ReleaseBatch(self._context, self, releases, until))
        if decisions:
            self._last_came_alone = len(decisions) == 1 and not self.decisions_sent
        while decisions:
            batch_decisions = _take(decisions, MAX_BATCH_CHARGES, lambda waiting: waiting[0].size)
            try:
                batches.append(DecisionBatch(self._context, self, batch_decisions, until))
            except Exception as error:  # noqa: BLE001 - raised where the future is awaited
                _fail(batch_decisions, error)
        if batches and not self._context.transport.post(batches, until):
            for batch in batches:
                spawn(batch.send())  # connects first


def _take(queue: deque[T], max_size: int, size: Callable[[T], int]) -> list[T]:
    """Pop entries from the left of a queue, up to a total size of ``max_size``, at least one."""
    taken = [queue.popleft()]
    total = size(taken[0])
    while queue and (total := total + size(queue[0])) <= max_size:
        taken.append(queue.popleft())
    return taken


class Batch(Request, ABC):
    """Script calls that are sent together."""

    __slots__ = ("_calls", "_queue", "_transport")

    def __init__(self, context: RedisContext, queue: LoopQueue, calls: Sequence[ScriptCall], until: float) -> None:
        self._transport, self._queue, self._calls = context.transport, queue, calls
        packed = calls[0].packed() if len(calls) == 1 else b"".join([call.packed() for call in calls])
        super().__init__(packed, len(calls), until, self.on_replies)

    @abstractmethod
    def on_outcome(self, outcome: Outcome) -> None:
        """Report to all callers. Do not raise."""

    async def send(self, replies: list[object] | None = None) -> None:
        """Send the calls. If there are ``replies``, only resend calls whose scripts the server has lost."""
        try:
            left = self.until - asyncio.get_running_loop().time()
            outcome = await self._transport.asend_all(self._calls, left, replies)
        except BaseException as error:
            self.on_outcome(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.on_outcome(outcome)

    def on_replies(self, outcome: list[object] | Exception) -> None:
        """Report to all callers, after resending calls whose scripts the server has lost."""
        if isinstance(outcome, list) and any(map(is_script_lost, outcome)):
            spawn(self.send(outcome))
        else:
            self.on_outcome(outcome)


class ReleaseBatch(Batch):
    """Releases that are sent together."""

    __slots__ = ("_releases",)

    def __init__(
        self, context: RedisContext, queue: LoopQueue, releases: Sequence[WaitingRelease], until: float
    ) -> None:
        self._releases = releases
        super().__init__(context, queue, [call for calls, _ in releases for call in calls], until)
        queue.releases_sent += 1

    def on_outcome(self, outcome: Outcome) -> None:
        """Report to all callers, an error also to the queue, as its releases would fail as slowly."""
        queue = self._queue
        queue.releases_sent -= 1
        if isinstance(outcome, BaseException):
            failed, queue.releases = [*self._releases, *queue.releases], deque()
            for index, (_, report) in enumerate(failed):
                report(BatchFailed(outcome) if index and isinstance(outcome, Exception) else outcome)
            return
        queue.has_release_script, replies = True, iter(outcome)
        for calls, report in self._releases:
            report([next(replies) for _ in calls])
        if queue.releases:
            queue.schedule()


class DecisionBatch(Batch):
    """Decisions that are sent together, after the announcements of their leases."""

    __slots__ = ("_announcements", "_groups", "_waiting")

    def __init__(self, context: RedisContext, queue: LoopQueue, waiting: list[WaitingDecision], until: float) -> None:
        self._waiting, self._groups = waiting, _by_call(waiting, context.transport.slot_of)
        self._announcements = _merged([decision.announcement for decision, _ in waiting if decision.announcement])
        calls: list[ScriptCall] = [group[0][0].join([decision for decision, _ in group]) for group in self._groups]
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
                decision.on_unknown_outcome()


def _by_call(waiting: list[WaitingDecision], slot_of: Callable[[str], int] | None) -> list[list[WaitingDecision]]:
    """Group decisions by call: all in one, or on a Cluster one for each slot."""
    return [waiting] if slot_of is None else grouped(waiting, lambda pair: slot_of(pair[0].keys[0]))


def _merged(announcements: list[Announcement]) -> dict[str, Announcement]:
    """Merge announcements by uid. There are two uids only if the process has just changed its uid."""
    merged: dict[str, Announcement] = {}
    for announcement in announcements:
        merged_before = merged.get(announcement.uid)
        indexes = announcement.indexes if merged_before is None else merged_before.indexes + announcement.indexes
        merged[announcement.uid] = announcement._replace(indexes=indexes)
    return merged


def _resolve(waiting: list[WaitingDecision], reply: bytes | Exception, announced: Mapping[str, object]) -> None:
    """Report the answers of a reply to the callers of its decisions."""
    try:
        if isinstance(reply, Exception):
            raise reply
        answers = waiting[0][0].read_joined([decision for decision, _ in waiting], reply)
    except Exception as error:  # noqa: BLE001 - raised where the future is awaited
        _fail(waiting, error)
    else:
        for (decision, future), result in zip(waiting, answers, strict=True):
            if future.done():
                continue
            if decision.announcement is not None:
                decision.announce_reply = announced[decision.announcement.uid]
            if isinstance(result, RepeatCommand):
                future.set_exception(result)
            else:
                future.set_result(result)


def _fail(waiting: Iterable[WaitingDecision], error: BaseException) -> None:
    """Fail all callers, the first with the error, the others with BatchFailed."""
    for index, future in enumerate([future for _, future in waiting if not future.done()]):
        if isinstance(error, Exception):
            future.set_exception(BatchFailed(error) if index else error)
        else:
            future.abandon()

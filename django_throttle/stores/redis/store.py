"""Redis store for rate limits: every decision is one script call in one round trip.

The aggregator of dampers is here, too. The node that owns an ident's slot adds up the reports of all processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from django_throttle.core.commands import (
    Answers,
    CallNext,
    ClaimRun,
    Correct,
    CountMembers,
    Decide,
    DecideLocally,
    Enlist,
    Evict,
    Pause,
    Release,
    Reset,
    SendControl,
    SetDedupKeys,
    StoreCommand,
)
from django_throttle.core.io import run
from django_throttle.local.damper_aggregate import Count, DamperReport, Reply
from django_throttle.stores.base import REPLY
from django_throttle.stores.fallback import BackfillCommand, Fallback, ProcessCount, RemainingBudgets
from django_throttle.stores.redis.batch import Batcher
from django_throttle.stores.redis.cluster import connect
from django_throttle.stores.redis.commands import (
    DecideCommand,
    LeaseCommand,
    LongCommand,
    MultiSlotCommand,
    Pipeline,
    RedisCommand,
    ReleaseCommand,
    call_next_command,
    claim_command,
    correct_command,
    count_command,
    enlist_command,
    pause_command,
    reset_command,
    set_dedup_keys_command,
)
from django_throttle.stores.redis.context import MAX_CALL_CHARGES, RedisContext
from django_throttle.stores.redis.control_messages import RedisControl, send_control_command
from django_throttle.stores.redis.evictions import EvictCommand, UncertainEvictions
from django_throttle.stores.redis.timeouts import call_began


class RedisAggregator:
    """Sends a script call for each report, all in one round trip. Raises StoreError if Redis does not answer."""

    def __init__(self, context: RedisContext) -> None:
        self.context = context

    def damp(self, reports: Sequence[DamperReport]) -> list[Reply | BaseException]:
        """Return the reply to each report, or the error in its place."""
        replies = self.context.pipeline([self._call(report) for report in reports])
        return [reply if isinstance(reply, BaseException) else _read(reply) for reply in replies]

    def _call(self, report: DamperReport) -> tuple[str, tuple[str], list[object]]:
        sent_at = "" if report.sent_at is None else report.sent_at
        args = [self.context.now_arg(), report.meter, report.since, sent_at]
        args += [number for count in report.counts for number in count]
        return "add_meter_report", (self.context.key(report.rule_id, report.ident),), args


def _read(reply: Sequence[int]) -> Reply:
    now, is_counted, reset_at, *sums = reply
    counts = tuple(Count(*sums[at : at + 3]) for at in range(0, len(sums), 3))
    return Reply(now, bool(is_counted), reset_at, counts)


MAX_CACHED_DECISIONS: Final = 1024
DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"


class RedisStore(RedisContext):
    """Store that counts exactly in one Redis, by its clock, for any number of processes.

    ``address`` is a redis://, redis+sentinel:// or redis+cluster:// URL, or a CACHES alias of django-redis or of
    Django's own Redis backend. ``prefix`` begins every key, and ``secret`` keys the hash of idents in them. ``clock``
    (seconds) replaces the server's clock in tests. ``deadline`` limits a decision in seconds, including connecting.
    ``lease_ttl`` is the lifetime in seconds of leases whose process has gone. ``processes`` is the minimum number of
    processes that share a limit while Redis is away.

    Raises InvalidSetting for an invalid address, and under eventlet. Commands raise StoreError, with a cause, if Redis
    does not answer.
    """

    is_remote: Literal[True] = True

    def __init__(
        self,
        address: str = DEFAULT_URL,
        *,
        prefix: str = "dt",
        clock: Callable[[], float] | None = None,
        secret: str = "",
        deadline: float = 0.1,
        max_connections: int = 20,
        lease_ttl: float = 600.0,
        processes: int = 0,
    ) -> None:
        transport = connect(address, deadline, max_connections)
        self.processes = ProcessCount(processes, lambda: self.open_breakers > 0)
        remaining = RemainingBudgets(self.processes)
        super().__init__(
            transport, prefix=prefix, clock=clock, secret=secret, lease_ttl=lease_ttl, answer_observer=remaining
        )
        self.fallback = Fallback(self, self.processes, remaining)
        self.control = RedisControl(self)
        self.evictions = UncertainEvictions(self, self.control)
        self.aggregator = RedisAggregator(self)  # what dampers report to
        self.batcher = Batcher(self)
        # Decisions of rates, by key of their charges. Equal calls share one.
        self._cached_decisions: dict[tuple[object, ...], DecideCommand] = {}

    def execute(self, command: StoreCommand[object]) -> Any:
        redis_command = self._redis_command(command)
        if type(redis_command) is DecideCommand:  # the usual case: one call, which is the command itself
            if not self.breaker.is_calm:
                redis_command.admit()
            try:
                answers = redis_command.read_reply(self.transport.send(redis_command))
            except BaseException as error:
                redis_command.fail(error)
                raise
            return answers if self.breaker.is_calm else redis_command.end(answers)
        if not redis_command.calls:  # nothing to send, so nothing to report to the breaker
            return redis_command.read(())
        if not self.breaker.is_calm:
            redis_command.admit()
        try:
            if isinstance(redis_command, LongCommand):
                return redis_command.end(run(redis_command.reply(self._send)))
            return redis_command.finish(self.transport.send_all(redis_command.calls, redis_command.seconds))
        except BaseException as error:
            redis_command.fail(error)
            raise

    async def aexecute(self, command: StoreCommand[Any]) -> Any:
        redis_command = self._redis_command(command)
        batched_decision: DecideCommand | None = None
        is_cluster = self.transport.slot_of is not None
        if isinstance(redis_command, DecideCommand) and not (is_cluster and redis_command.has_derived_keys):
            batched_decision = None if call_began.get() else redis_command  # a batch has a whole deadline
        calls = () if batched_decision else redis_command.calls
        if not (batched_decision or calls):
            return redis_command.read(())
        if not self.breaker.is_calm:
            redis_command.admit()
        try:
            if batched_decision:
                answers_future = self.batcher.queue().decide(batched_decision)
                try:
                    answers = await answers_future
                    is_usual = type(batched_decision) is DecideCommand and self.breaker.is_calm
                    return answers if is_usual else batched_decision.end(answers)
                except asyncio.CancelledError as error:
                    keep_reply(error, batched_decision, answers_future)
                    raise
            if isinstance(redis_command, ReleaseCommand):
                return redis_command.finish(await self.batcher.queue().release(calls))
            if isinstance(redis_command, LongCommand):
                return redis_command.end(await redis_command.reply(self._asend))
            return redis_command.finish(await self.transport.asend_all(calls, redis_command.seconds))
        except BaseException as error:
            if not hasattr(error, REPLY):
                redis_command.fail(error)
            raise

    def release_soon(self, command: Release) -> None:
        """Release on this event loop without waiting for the reply. The agent sends failed releases again."""
        redis_command = ReleaseCommand(self, command)
        if redis_command.calls and self.breaker.is_calm:
            self.batcher.queue().release_soon(redis_command.calls, redis_command.on_outcome)

    async def _send(self, pipeline: Pipeline) -> Sequence[object]:
        return self.transport.send_all(pipeline.calls, pipeline.seconds)

    async def _asend(self, pipeline: Pipeline) -> Sequence[object]:
        if not pipeline.decisions or call_began.get():
            return await self.transport.asend_all(pipeline.calls, pipeline.seconds)
        replies = await asyncio.gather(*map(self.batcher.queue().decide, pipeline.decisions), return_exceptions=True)
        pairs = zip(pipeline.decisions, replies, strict=True)
        return [reply if isinstance(reply, BaseException) else decision.pack_reply(reply) for decision, reply in pairs]

    def _redis_command(self, command: StoreCommand[object]) -> RedisCommand[Any]:
        """Return the Redis command, for decisions after the charges for their idents that are not reported yet."""
        if type(command) is not Decide:
            return self._other_command(command)
        redis_command: RedisCommand[Any]
        charges, commit, lease = command
        fallback = self.fallback
        has_unreported = fallback.admitted or fallback.unconfirmed
        is_usual = commit and lease is None and not has_unreported
        if is_usual and (cached := self._cached_decisions.get(charges.key)) is not None:
            return cached
        is_split = len(charges) > MAX_CALL_CHARGES or self.transport.slot_of is not None
        if is_split and len(slots := self.by_slot(charges)) > 1:
            redis_command = MultiSlotCommand(self, command, slots)
        else:
            redis_command = (DecideCommand if lease is None else LeaseCommand)(self, command)
            if is_usual and redis_command.packing.is_prepared and not redis_command.packing.has_lease:
                if len(self._cached_decisions) >= MAX_CACHED_DECISIONS:
                    self._cached_decisions.clear()
                self._cached_decisions[redis_command.charges.key] = redis_command
        if fallback.has_unreported(charges):
            return BackfillCommand(fallback, dict.fromkeys(charge.ident for charge in charges), redis_command)
        return redis_command

    def _other_command(self, command: StoreCommand[object]) -> RedisCommand[Any]:
        match command:
            case DecideLocally(decide=decide):
                return RedisCommand(self, read=lambda _: self.fallback.decide(decide))
            case Correct(locally=True):
                return RedisCommand(self, read=lambda _: self.fallback.correct(command))
            case Evict():
                return EvictCommand(self, command, self.evictions)
            case SendControl():
                return send_control_command(self, command, self.control)
        if type(command) not in _COMMANDS:
            raise TypeError(f"not a command: {command!r}")
        return _COMMANDS[type(command)](self, command)


def keep_reply(error: asyncio.CancelledError, command: DecideCommand, answers_future: asyncio.Future[Answers]) -> None:
    """Store the answers to a decision in the cancellation of its caller; see ``LastingIo``."""
    if answers_future.done() and answers_future.exception() is None:
        setattr(error, REPLY, command.end(answers_future.result()))


_COMMANDS: Final[dict[type, Callable[[RedisContext, Any], RedisCommand[Any]]]] = {
    CountMembers: count_command,
    Reset: reset_command,
    SetDedupKeys: set_dedup_keys_command,
    Pause: pause_command,
    Correct: correct_command,
    Release: ReleaseCommand,
    Enlist: enlist_command,
    CallNext: call_next_command,
    ClaimRun: claim_command,
}

"""The store in Redis: every decision is one script call in one round trip.

The aggregator of dampers is there too: the node that owns an ident's slot adds up what all processes report of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from django_throttle.core.commands import (
    Answers,
    CallNext,
    ClaimRun,
    Command,
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
)
from django_throttle.core.io import run
from django_throttle.local.damper_aggregate import Count, Reply, Report
from django_throttle.stores.base import REPLY
from django_throttle.stores.fallback import Fallback, LateCommand, ProcessCount, Remaining
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
    """One script call a report, all of them in one round trip; raises StoreError when Redis does not answer."""

    def __init__(self, context: RedisContext) -> None:
        self.context = context

    def damp(self, reports: Sequence[Report]) -> list[Reply | BaseException]:
        """The reply to each report, or the error in its place."""
        replies = self.context.pipeline([self._call(report) for report in reports])
        return [reply if isinstance(reply, BaseException) else _read(reply) for reply in replies]

    def _call(self, report: Report) -> tuple[str, tuple[str], list[Any]]:
        sent_at = "" if report.sent_at is None else report.sent_at
        args = [self.context.now_arg(), report.meter, report.since, sent_at]
        args += [number for own in report.counts for number in own]
        return "add_meter_report", (self.context.key(report.rule_id, report.ident),), args


def _read(reply: Sequence[int]) -> Reply:
    now, taken, reset_at, *sums = reply
    counts = tuple(Count(*sums[at : at + 3]) for at in range(0, len(sums), 3))
    return Reply(now, bool(taken), reset_at, counts)


MAX_KNOWN: Final = 1024  # callers whose commands are kept
DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"


class RedisStore(RedisContext):
    """Counts in one Redis, by its clock, exactly, for any number of processes.

    ``address`` is a redis:// URL, a redis+sentinel:// or redis+cluster:// one, or a CACHES alias that
    django-redis serves. ``clock`` (seconds) replaces the server's clock in tests. ``deadline`` bounds one decision
    in seconds, waiting for a connection and connecting included. ``processes`` is how many share each limit while
    Redis is away, at least. Raises StoreError, with a cause, when Redis does not answer; InvalidSetting for a bad
    address, and under eventlet.
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
        remaining = Remaining(self.processes)
        super().__init__(transport, prefix=prefix, clock=clock, secret=secret, lease_ttl=lease_ttl, answered=remaining)
        self.fallback = Fallback(self, self.processes, remaining)
        self.control = RedisControl(self)
        self.evictions = UncertainEvictions(self, self.control)
        self.aggregator = RedisAggregator(self)  # what dampers report to
        self.batcher = Batcher(self)
        # What callers with rates alone are charged by, by the key of the charges: the same for each of their calls.
        self._known: dict[tuple[Any, ...], DecideCommand] = {}

    def execute(self, command: Command[Any]) -> Any:
        made = self._redis_command(command)
        if type(made) is DecideCommand:  # as of most calls: one call, which is the command itself
            if not self.breaker.is_calm:
                made.admit()
            try:
                answers = made.read_reply(self.transport.send(made))
            except BaseException as error:
                made.fail(error)
                raise
            return made.end(answers)
        if not made.calls:  # nothing to send, which says nothing of Redis either
            return made.read(())
        if not self.breaker.is_calm:
            made.admit()
        try:
            if isinstance(made, LongCommand):
                return made.end(run(made.reply(self._send)))
            return made.finish(self.transport.send_all(made.calls, made.seconds))
        except BaseException as error:
            made.fail(error)
            raise

    async def aexecute(self, command: Command[Any]) -> Any:
        made = self._redis_command(command)
        batched: DecideCommand | None = None
        if isinstance(made, DecideCommand) and (self.transport.slot_of is None or not made.derives):
            batched = None if call_began.get() else made  # a batch has a whole one
        calls = () if batched else made.calls
        if not (batched or calls):
            return made.read(())
        if not self.breaker.is_calm:
            made.admit()
        try:
            if batched:
                sent = self.batcher.decide(batched)
                try:
                    answers = await sent
                    is_usual = type(batched) is DecideCommand and self.breaker.is_calm
                    return answers if is_usual else batched.end(answers)
                except asyncio.CancelledError as error:
                    keep_reply(error, batched, sent)
                    raise
            if isinstance(made, ReleaseCommand):
                return made.finish(await self.batcher.release(calls))
            if isinstance(made, LongCommand):
                return made.end(await made.reply(self._asend))
            return made.finish(await self.transport.asend_all(calls, made.seconds))
        except BaseException as error:
            if not hasattr(error, REPLY):
                made.fail(error)
            raise

    def release_soon(self, command: Release) -> None:
        """Release on this event loop without anybody waiting for it; what fails, the agent sends again."""
        made = ReleaseCommand(self, command)
        if made.calls and self.breaker.is_calm:
            self.batcher.release_soon(made.calls, made.hear)

    async def _send(self, trip: Pipeline) -> Sequence[Any]:
        return self.transport.send_all(trip.calls, trip.seconds)

    async def _asend(self, trip: Pipeline) -> Sequence[Any]:
        if not trip.decisions or call_began.get():
            return await self.transport.asend_all(trip.calls, trip.seconds)
        replies = await asyncio.gather(*map(self.batcher.decide, trip.decisions), return_exceptions=True)
        both = zip(trip.decisions, replies, strict=True)
        return [reply if isinstance(reply, BaseException) else decision.alone(reply) for decision, reply in both]

    def _redis_command(self, command: Command[Any]) -> RedisCommand[Any]:
        """The command as it is sent: a decision after what is owed for its idents."""
        if type(command) is not Decide:
            return self._other_command(command)
        made: RedisCommand[Any]
        charges, commit, lease = command
        fallback = self.fallback
        owes = fallback.admitted or fallback.unconfirmed
        is_usual = commit and lease is None and not owes
        if is_usual and (known := self._known.get(charges.key)) is not None:
            return known
        is_split = len(charges) > MAX_CALL_CHARGES or self.transport.slot_of is not None
        if is_split and len(slots := self.by_slot(charges)) > 1:
            made = MultiSlotCommand(self, command, slots)
        else:
            made = (DecideCommand if lease is None else LeaseCommand)(self, command)
            if is_usual and made.packing.is_prepared and not made.packing.has_lease:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[made.charges.key] = made
        if fallback.owes(charges):
            return LateCommand(fallback, dict.fromkeys(charge.ident for charge in charges), made)
        return made

    def _other_command(self, command: Command[Any]) -> RedisCommand[Any]:
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


def keep_reply(error: asyncio.CancelledError, command: DecideCommand, sent: asyncio.Future[Answers]) -> None:
    """Put the answers of a decision that was sent into the cancellation of its caller; see ``LoopIo``."""
    if sent.done() and sent.exception() is None:
        setattr(error, REPLY, command.end(sent.result()))


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

"""The store in Redis: every decision is one script call in one round trip.

The aggregator of dampers is there too: the node that owns an ident's slot adds up what all processes report of it.
Quotas that are charged in batches are charged there too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from redis.exceptions import InvalidResponse, ResponseError

from django_throttle.core.commands import (
    Answer,
    Charge,
    Command,
    CountMembers,
    Decide,
    DecideLocally,
    Evict,
    Refund,
    Release,
    Reset,
    SendControl,
    SetMarks,
)
from django_throttle.damper.aggregate import Count, Reply, Report
from django_throttle.exceptions import RepeatCommand, StoreError
from django_throttle.stores.base import adrive, drive
from django_throttle.stores.batch import Batcher, Releases
from django_throttle.stores.cluster import connect
from django_throttle.stores.commands import (
    DecideCommand,
    LeaseCommand,
    LongCommand,
    MultiSlotCommand,
    RedisCommand,
    ReleaseCommand,
    RoundTrip,
    announce_call,
    count_command,
    refund_command,
    reset_command,
    set_marks_command,
)
from django_throttle.stores.context import RedisContext
from django_throttle.stores.control_messages import RedisControl, send_control_command
from django_throttle.stores.evictions import EvictCommand, UncertainEvictions
from django_throttle.stores.failures import cause_of
from django_throttle.stores.fallback import Fallback, LateCommand


class RedisAggregator:
    """One script call a report, all of them in one round trip; raises StoreError when Redis does not answer."""

    def __init__(self, context: RedisContext) -> None:
        self.context = context

    def damp(self, reports: Sequence[Report]) -> list[Reply | BaseException]:
        """The reply to each report, or the error in its place."""
        replies = self.context.pipeline([self._call(report) for report in reports])
        return [reply if isinstance(reply, BaseException) else _read(reply) for reply in replies]

    def charge(self, charges: Sequence[Charge]) -> list[Answer | BaseException]:
        """The answer to each charge, or the error in its place."""
        answers = self._charge(charges)
        again = [at for at, answer in enumerate(answers) if isinstance(answer, RepeatCommand)]
        if again:  # of another hour or month, and not carried out
            for at, answer in zip(again, self._charge([charges[at] for at in again]), strict=True):
                answers[at] = answer
        return answers

    def _charge(self, charges: Sequence[Charge]) -> list[Answer | BaseException]:
        commands = [DecideCommand(self.context, Decide((charge,))) for charge in charges]
        replies = self.context.send([command.calls[0] for command in commands])
        return [_answer(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def _call(self, report: Report) -> tuple[str, tuple[str], list[Any]]:
        sent_at = "" if report.sent_at is None else report.sent_at
        args = [self.context.now_arg(), report.meter, report.since, sent_at]
        args += [number for own in report.counts for number in own]
        return "damp", (self.context.key(report.rule_id, report.ident),), args


def _answer(command: DecideCommand, reply: Any) -> Answer | BaseException:
    if isinstance(reply, ResponseError):
        return StoreError(cause_of(reply), str(reply))
    if isinstance(reply, BaseException):
        return reply
    try:
        return command.read([reply])[0]
    except (RepeatCommand, InvalidResponse) as error:
        return error


def _read(reply: Sequence[int]) -> Reply:
    now, taken, reset_at, *sums = reply
    counts = tuple(Count(*sums[at : at + 3]) for at in range(0, len(sums), 3))
    return Reply(now, bool(taken), reset_at, counts)


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
        super().__init__(transport, prefix=prefix, clock=clock, secret=secret, lease_ttl=lease_ttl, processes=processes)
        self.fallback = Fallback(self)
        self.control = RedisControl(self)
        self.evictions = UncertainEvictions(self, self.control)
        self.aggregator = RedisAggregator(self)  # what dampers and batched quotas report to
        self.batcher = Batcher(transport.asend_all, self.now_arg, partial(announce_call, self), transport.slot_of)
        self.releases = Releases(transport.asend_all)

    def execute(self, command: Command) -> Any:
        made = self._redis_command(command)
        if not made.calls:  # nothing to send, which says nothing of Redis either
            return made.read(())
        with made:
            if isinstance(made, LongCommand):
                return drive(made.steps(), self._send)
            return made.finish(self.transport.send_all(made.calls, made.seconds))

    async def aexecute(self, command: Command) -> Any:
        made = self._redis_command(command)
        if not made.calls:
            return made.read(())
        with made:
            if isinstance(made, DecideCommand) and not (made.ask.own and self.transport.slot_of):
                return made.finish(await self.batcher.ask(made.ask))
            if isinstance(made, ReleaseCommand):
                return made.finish(await self.releases.send(made.calls))
            if isinstance(made, LongCommand):
                return await adrive(made.steps(), self._asend)
            return made.finish(await self.transport.asend_all(made.calls, made.seconds))

    def _send(self, trip: RoundTrip) -> Sequence[Any]:
        return self.transport.send_all(trip.calls, trip.seconds)

    async def _asend(self, trip: RoundTrip) -> Sequence[Any]:
        if not trip.asks:
            return await self.transport.asend_all(trip.calls, trip.seconds)
        replies = await asyncio.gather(*map(self.batcher.ask, trip.asks), return_exceptions=True)
        return [reply if isinstance(reply, BaseException) else reply[-1] for reply in replies]

    def _redis_command(self, command: Command) -> RedisCommand:
        """The command as it is sent: a decision after what is owed for its idents."""
        if not isinstance(command, Decide):
            return self._other_command(command)
        made: RedisCommand
        if self.transport.slot_of and len(slots := self.by_slot(command.charges)) > 1:
            made = MultiSlotCommand(self, command, slots)
        else:
            made = (DecideCommand if command.lease is None else LeaseCommand)(self, command)
        if (self.fallback.admitted or self.fallback.unconfirmed) and self.fallback.owes(command.charges):
            return LateCommand(self.fallback, dict.fromkeys(charge.ident for charge in command.charges), made)
        return made

    def _other_command(self, command: Command) -> RedisCommand:
        match command:
            case DecideLocally(decide=decide):
                return RedisCommand(self, read=lambda _: self.fallback.decide(decide))
            case Refund(locally=True):
                return RedisCommand(self, read=lambda _: self.fallback.refund(command))
            case Evict():
                return EvictCommand(self, command, self.evictions)
            case SendControl():
                return send_control_command(self, command, self.control)
        if type(command) not in _COMMANDS:
            raise TypeError(f"not a command: {command!r}")
        return _COMMANDS[type(command)](self, command)


_COMMANDS: Final[dict[type, Callable[[RedisContext, Any], RedisCommand]]] = {
    CountMembers: count_command,
    Reset: reset_command,
    SetMarks: set_marks_command,
    Refund: refund_command,
    Release: ReleaseCommand,
}

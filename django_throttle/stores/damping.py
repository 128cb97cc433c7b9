"""The aggregator in Redis: the node that owns an ident's slot adds up what all processes report of it.

Quotas that are charged in batches are charged there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import InvalidResponse, ResponseError

from django_throttle.core.commands import Answer, Charge, Decide
from django_throttle.damper.aggregate import Count, Reply, Report
from django_throttle.exceptions import AskAgain, StoreError
from django_throttle.stores.commands import DecideCommand
from django_throttle.stores.context import RedisContext
from django_throttle.stores.failures import cause_of


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
        again = [at for at, answer in enumerate(answers) if isinstance(answer, AskAgain)]
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
    except (AskAgain, InvalidResponse) as error:
        return error


def _read(reply: Sequence[int]) -> Reply:
    now, taken, reset_at, *sums = reply
    counts = tuple(Count(*sums[at : at + 3]) for at in range(0, len(sums), 3))
    return Reply(now, bool(taken), reset_at, counts)

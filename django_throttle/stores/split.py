"""Decisions over several slots of a Cluster: no script can decide them as one."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, Final

from django_throttle.core.commands import Answer, Charge, Decide, PastCharge, passes
from django_throttle.stores.batch import Ask
from django_throttle.stores.commands import (
    ANSWER,
    HEAD,
    TOO_OLD,
    DecideCommand,
    LeaseCommand,
    LongCommand,
    RoundTrip,
    refund_call,
    release_call,
)
from django_throttle.stores.context import RedisContext
from django_throttle.stores.transport import Call

LEAST_SECONDS: Final = 0.02  # for undoing what only some slots have granted


class _Part:
    """What one slot is asked, and its replies."""

    def __init__(self, decide: DecideCommand, places: Sequence[int]) -> None:
        self.decide = decide
        self.places = places
        self.replies: list[Any] = []
        self.undone = 0  # calls that refund or release

    @property
    def charges(self) -> tuple[Charge, ...]:
        return self.decide.command.charges

    def answers(self) -> tuple[Answer, ...]:
        """Empty when the slot has not decided."""
        reply = self.replies[-1]
        if isinstance(reply, BaseException) or HEAD.unpack_from(reply)[0] == TOO_OLD:
            return ()
        return tuple(Answer(*map(int, numbers)) for numbers in ANSWER.iter_unpack(reply[HEAD.size :]))

    def is_granted(self) -> bool:
        answers = self.answers()
        return bool(answers) and all(map(passes, self.charges, answers))


class SplitCommand(LongCommand):
    """Asks every slot; where one refuses, undoes what the others granted, and asks those how things stand."""

    __slots__ = ("_undone", "command", "parts")

    def __init__(self, context: RedisContext, command: Decide, slots: Sequence[Sequence[int]]) -> None:
        super().__init__(context)
        self.command = command
        self.parts = [_Part(self._part(command, places), places) for places in slots]
        self.calls = [call for part in self.parts for call in part.decide.calls]
        self._undone: list[_Part] = []

    def steps(self) -> Generator[RoundTrip, Sequence[Any], tuple[Answer, ...]]:
        until = time.monotonic() + (self.seconds or self.context.transport.seconds)
        if undo := self.take((yield RoundTrip(self.calls, self.seconds, self.asks))):
            self.look((yield RoundTrip(undo, max(until - time.monotonic(), LEAST_SECONDS))))
        return self.conclude()

    @property
    def asks(self) -> list[Ask]:
        """What travels in an event loop's batch: nothing when a part takes leases, which has arguments of its own."""
        if any(part.decide.ask.own for part in self.parts):
            return []
        return [part.decide.ask for part in self.parts]

    def take(self, replies: Sequence[Any]) -> list[Call]:
        """Note the replies; returns the calls that undo what was granted, unless every slot has granted."""
        rest = iter(replies)
        for part in self.parts:
            part.replies = [next(rest) for _ in part.decide.calls]
        granted = [part for part in self.parts if part.is_granted()]
        if not self.command.commit or len(granted) == len(self.parts):
            return []
        self._undone = granted
        return [call for part in granted for call in self._undo(part)]

    def look(self, replies: Sequence[Any]) -> None:
        """Note how things stand after that; a lease that may not have been released is owed."""
        rest = iter(replies)
        for part in self._undone:
            *undone, stands = [next(rest) for _ in range(part.undone + 1)]
            if any(isinstance(reply, Exception) for reply in undone):
                part.decide.give_up()
            if isinstance(stands, bytes) and HEAD.unpack_from(stands)[0] != TOO_OLD:
                part.replies[-1] = stands

    def conclude(self) -> tuple[Answer, ...]:
        """The answers in the order of the charges; raises the first failure."""
        for part in self.parts:
            for reply in part.replies:
                if isinstance(reply, BaseException):
                    raise reply
        found: dict[int, Answer] = {}
        for part in self.parts:
            found.update(zip(part.places, DecideCommand.read(part.decide, part.replies), strict=True))
        for part in self.parts:
            if isinstance(part.decide, LeaseCommand):
                part.decide.confirm(part.replies)
                if self.command.commit and not self._undone and part.is_granted():
                    part.decide.hold()
        return tuple(found[place] for place in sorted(found))

    def give_up(self) -> None:
        for part in self.parts:
            part.decide.give_up()

    def _part(self, command: Decide, places: Sequence[int]) -> DecideCommand:
        charges = tuple(command.charges[place] for place in places)
        leases = command.lease is not None and any(charge.rule.is_concurrency for charge in charges)
        made = LeaseCommand if leases else DecideCommand
        return made(self.context, Decide(charges, command.commit, command.lease if leases else None))

    def _undo(self, part: _Part) -> list[Call]:
        paid = _paid(part)
        calls = [refund_call(self.context, paid)] if paid else []
        if isinstance(part.decide, LeaseCommand):
            lease = self.command.lease or ""
            calls += [release_call(self.context, part.decide.uid, *pair, lease) for pair in part.decide.pairs]
        part.undone = len(calls)
        stands = DecideCommand(self.context, Decide(part.charges, commit=False)).calls
        return calls + [call._replace(follows=True) for call in stands]


def _paid(part: _Part) -> list[PastCharge]:
    """What was charged because all charges of the slot passed."""
    (_, at) = HEAD.unpack_from(part.replies[-1])
    return [
        PastCharge(charge, int(at), answer.reset)
        for charge, answer in zip(part.charges, part.answers(), strict=True)
        if charge.cost and answer.retry == 0 and not charge.rule.count_denied and not charge.rule.is_concurrency
    ]

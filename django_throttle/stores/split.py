"""Decisions over several slots of a Cluster: no script can decide them as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.commands import Answer, Charge, Decide, Paid, passes
from django_throttle.stores.batch import Ask
from django_throttle.stores.commands import (
    HEAD,
    TOLD,
    TOO_OLD,
    DecideErrand,
    LeaseErrand,
    LongErrand,
    refund_call,
    release_call,
)
from django_throttle.stores.transport import Call

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore


LEAST_SECONDS: Final = 0.02  # to give back what only one slot has granted


class _Part:
    """What one slot is asked, and what it has told."""

    def __init__(self, errand: DecideErrand, places: Sequence[int]) -> None:
        self.errand = errand
        self.places = places
        self.told: list[Any] = []
        self.undone = 0  # calls that give back

    @property
    def charges(self) -> tuple[Charge, ...]:
        return self.errand.command.charges

    def answers(self) -> tuple[Answer, ...]:
        """Nothing when the slot has not decided."""
        reply = self.told[-1]
        if isinstance(reply, BaseException) or HEAD.unpack_from(reply)[0] == TOO_OLD:
            return ()
        return tuple(Answer(*map(int, told)) for told in TOLD.iter_unpack(reply[HEAD.size :]))

    def is_granted(self) -> bool:
        answers = self.answers()
        return bool(answers) and all(map(passes, self.charges, answers))


class SplitErrand(LongErrand):
    """``take`` the replies, send what that returns, ``look`` at its replies, and ``conclude``."""

    __slots__ = ("_undone", "command", "parts")

    def __init__(self, store: RedisStore, command: Decide, slots: Sequence[Sequence[int]]) -> None:
        super().__init__(store)
        self.command = command
        self.parts = [_Part(self._errand(command, places), places) for places in slots]
        self.calls = [call for part in self.parts for call in part.errand.calls]
        self._undone: list[_Part] = []

    def run(self) -> tuple[Answer, ...]:
        link = self.store.link
        until = time.monotonic() + (self.seconds or link.seconds)
        if undo := self.take(link.send_all(self.calls, self.seconds)):
            self.look(link.send_all(undo, max(until - time.monotonic(), LEAST_SECONDS)))
        return self.conclude()

    async def arun(self) -> tuple[Answer, ...]:
        link = self.store.link
        until = time.monotonic() + (self.seconds or link.seconds)
        if asks := self.asks:
            told = await asyncio.gather(*map(self.store.batcher.ask, asks), return_exceptions=True)
            replies = [one if isinstance(one, BaseException) else one[-1] for one in told]
        else:
            replies = await link.asend_all(self.calls, self.seconds)
        if undo := self.take(replies):
            self.look(await link.asend_all(undo, max(until - time.monotonic(), LEAST_SECONDS)))
        return self.conclude()

    @property
    def asks(self) -> list[Ask]:
        """The same as calls, one a part; nothing when any of them takes leases, and so arguments of its own."""
        if any(part.errand.ask.own for part in self.parts):
            return []
        return [part.errand.ask for part in self.parts]

    def take(self, replies: Sequence[Any]) -> list[Call]:
        """Calls that give back, and then look again, when not every slot has granted."""
        rest = iter(replies)
        for part in self.parts:
            part.told = [next(rest) for _ in part.errand.calls]
        granted = [part for part in self.parts if part.is_granted()]
        if not self.command.commit or len(granted) == len(self.parts):
            return []
        self._undone = granted
        return [call for part in granted for call in self._undo(part)]

    def look(self, replies: Sequence[Any]) -> None:
        """How things stand now that it was given back; a lease that was perhaps not is owed."""
        rest = iter(replies)
        for part in self._undone:
            *undone, stands = [next(rest) for _ in range(part.undone + 1)]
            if any(isinstance(reply, Exception) for reply in undone):
                part.errand.give_up()
            if isinstance(stands, bytes) and HEAD.unpack_from(stands)[0] != TOO_OLD:
                part.told[-1] = stands

    def conclude(self) -> tuple[Answer, ...]:
        """The answers in the order of the charges; raises the first failure."""
        for part in self.parts:
            for reply in part.told:
                if isinstance(reply, BaseException):
                    raise reply
        found: dict[int, Answer] = {}
        for part in self.parts:
            found.update(zip(part.places, DecideErrand.read(part.errand, part.told), strict=True))
        for part in self.parts:
            if isinstance(part.errand, LeaseErrand):
                part.errand.confirm(part.told)
                if self.command.commit and not self._undone and part.is_granted():
                    part.errand.hold()
        return tuple(found[place] for place in sorted(found))

    def give_up(self) -> None:
        for part in self.parts:
            part.errand.give_up()

    def _errand(self, command: Decide, places: Sequence[int]) -> DecideErrand:
        charges = tuple(command.charges[place] for place in places)
        leases = command.lease is not None and any(charge.rule.is_concurrency for charge in charges)
        made = LeaseErrand if leases else DecideErrand
        return made(self.store, Decide(charges, command.commit, command.lease if leases else None))

    def _undo(self, part: _Part) -> list[Call]:
        paid = _paid(part)
        calls = [refund_call(self.store, paid)] if paid else []
        if isinstance(part.errand, LeaseErrand):
            lease = self.command.lease or ""
            calls += [release_call(self.store, part.errand.uid, *pair, lease) for pair in part.errand.pairs]
        part.undone = len(calls)
        stands = DecideErrand(self.store, Decide(part.charges, commit=False)).calls
        return calls + [call._replace(follows=True) for call in stands]


def _paid(part: _Part) -> list[Paid]:
    """What was charged, and only because all of the slot's charges passed."""
    (_, at) = HEAD.unpack_from(part.told[-1])
    return [
        Paid(charge, int(at), answer.reset)
        for charge, answer in zip(part.charges, part.answers(), strict=True)
        if charge.cost and answer.retry == 0 and not charge.rule.count_denied and not charge.rule.is_concurrency
    ]

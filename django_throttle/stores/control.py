"""Control messages between processes, and evictions, which such messages carry out.

Each process has a list of messages in Redis, and reads it twice a second. In an eviction a socket makes room for
another: its lease goes at once, the socket when its process is told.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from threading import Lock
from typing import Any, Final, NamedTuple

from django_throttle.core.commands import (
    MAX_WAITING,
    Charge,
    ControlMessage,
    Evict,
    Given,
    SendControl,
    closing,
    evicted,
    with_tags,
)
from django_throttle.core.key import ident_tag
from django_throttle.exceptions import StoreError
from django_throttle.lifecycle import in_child
from django_throttle.stores.commands import LongCommand, RedisCommand, RoundTrip
from django_throttle.stores.context import RedisContext
from django_throttle.stores.failures import cause_of
from django_throttle.stores.transport import Call, script

logger = logging.getLogger("django_throttle")

TTL_MS: Final = 60_000  # a process that has not read its list for so long is dead, and swept
BATCH: Final = 500  # messages in one reply, commands in one pipeline
ASKED_MS: Final = 5_000  # whoever looks at what is open asks again before that
KEEP_SECONDS: Final = 30.0  # for how long a message that Redis does not take is sent again
_DEFAULTS: Final = ControlMessage._field_defaults


class RedisControl:
    """Control messages by way of Redis. ``fetch`` costs one command; the methods raise StoreError.

    A message stays in Redis until its process has confirmed it, and here until Redis has taken it: one failure loses
    none. Redis gets a keyed hash of an ident, not the ident.
    """

    def __init__(self, context: RedisContext) -> None:
        self.context = context
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._unsent: dict[ControlMessage, float] = {}  # until when each is sent again, on the monotonic clock
        self._read: tuple[str, tuple[str, ...]] = "", ()  # a uid, and the texts that Redis can take off its list

    def tag(self, ident: str) -> str:
        """How a message names an ident."""
        return ident_tag(ident, self.context.secret)

    def keep(self, messages: Iterable[ControlMessage]) -> tuple[ControlMessage, ...]:
        """Keep these until Redis has taken them; returns them as they are sent."""
        kept = with_tags(messages, self.tag)
        until = time.monotonic() + KEEP_SECONDS
        with self._lock:
            self._unsent.update(dict.fromkeys(kept, until))
        return kept

    def sent(self, messages: Iterable[ControlMessage], replies: Sequence[Any]) -> list[Exception]:
        """Redis has replied: forget the messages that it took. Returns the errors; the others are sent again."""
        with self._lock:
            for message, reply in zip(messages, replies, strict=True):
                if not isinstance(reply, Exception):
                    self._unsent.pop(message, None)
                if reply == 0 and message.uid:
                    logger.info(
                        "process %s does not read its control messages (queue full); message dropped", message.uid
                    )
        return [reply for reply in replies if isinstance(reply, Exception)]

    def calls(self, messages: Iterable[ControlMessage]) -> list[Call]:
        """One call for each."""
        return list(map(self._call, messages))

    def send(self, kept: Sequence[ControlMessage]) -> list[Exception]:
        """Send what was kept, in one round trip; returns the errors of nodes of a Cluster."""
        return self.sent(kept, self.context.send(self.calls(kept)))

    def give(self, messages: Iterable[ControlMessage]) -> None:
        """Send messages at once; what fails is sent again later, and raised all the same."""
        for error in self.send(self.keep(messages)):
            raise StoreError(cause_of(error), str(error)) from error

    def ask(self, message: ControlMessage, about: str, quiet_ms: int) -> float:
        """Send one to every process, unless somebody has done so under the name ``about`` in the last ``quiet_ms``.

        Returns for how many seconds it has been asked again and again.
        """
        keys = (self.context.process_key("live"), self.context.process_key(f"asked:{about}"))
        args = (TTL_MS, MAX_WAITING, quiet_ms, ASKED_MS, _written(message))
        _, since = self.context.call("order_all", keys, args)
        return int(since) / 1000

    def resend(self) -> None:
        """Send again what Redis has not taken yet, unless it is too old to be of use."""
        now = time.monotonic()
        with self._lock:
            self._unsent = {message: until for message, until in self._unsent.items() if until > now}
            again = tuple(self._unsent)[:BATCH]
        if again:
            self.send(again)

    def fetch(self) -> Given:
        """What waits for this process, under its uid and under the one before.

        What was fetched is not lost when fetching more of it fails.
        """
        found: Given = {}
        try:
            for uid in dict.fromkeys((self._read[0], self.context.leases.uid)):
                while uid and self._fetch(uid, found):
                    pass
        except StoreError:
            if not found:
                raise
        return found

    def _fetch(self, uid: str, found: Given) -> bool:
        """Add some of those that wait under a uid; True when there may be more."""
        key, confirmed = self.context.process_key(f"orders:{uid}"), self._read[1] if self._read[0] == uid else ()
        now, *texts = self.context.call("orders", (key,), (BATCH, *confirmed)) or (0,)
        heard, texts = time.monotonic(), [text.decode() if isinstance(text, bytes) else text for text in texts]
        self._read = uid, tuple(texts)
        for message, at in filter(None, map(_parsed, texts)):
            # A server that has taken over may have another clock: no message is older than it is kept.
            age = 0 if at is None else min(max(0, now - at), TTL_MS * 1000)
            found[message] = heard - age / 1_000_000
        return len(texts) == BATCH

    def _call(self, message: ControlMessage) -> Call:
        text = _written(message)
        if message.uid:
            key = self.context.process_key(f"orders:{message.uid}")
            return Call(script("order"), (key,), (TTL_MS, MAX_WAITING, text))
        keys = (self.context.process_key("live"), self.context.process_key("asked"))
        return Call(script("order_all"), keys, (TTL_MS, MAX_WAITING, 0, 0, text), derives=True)


class SendControlCommand(RedisCommand):
    """Sends the control messages of a flow."""

    __slots__ = ("control", "kept")

    def __init__(self, context: RedisContext, command: SendControl, control: RedisControl) -> None:
        super().__init__(context)
        self.seconds = context.transport.seconds / 2  # what it follows may have taken a whole deadline
        self.control, self.kept = control, control.keep(command.messages)
        self.calls += control.calls(self.kept)

    def read(self, replies: Sequence[Any]) -> None:
        self.control.sent(self.kept, replies)


def _written(message: ControlMessage) -> str:
    """As JSON, without defaults and without the receiver, which names the list."""
    fields = message._replace(uid="")._asdict().items()
    return json.dumps({name: value for name, value in fields if value != _DEFAULTS.get(name)}, separators=(",", ":"))


def _parsed(text: str) -> tuple[ControlMessage, int | None] | None:
    """A message, and when it was sent in microseconds of Redis' clock; None for one of another version."""
    try:
        fields = json.loads(text)
        at = fields.get("at")
        message = ControlMessage(**{name: value for name, value in fields.items() if name in ControlMessage._fields})
        return message, at if type(at) is int else None
    except (AttributeError, TypeError, ValueError):
        return None


LATE_MS: Final = 60_000  # by then a command that timed out has arrived, or never will


class Doubt(NamedTuple):
    """An eviction whose outcome is unknown; ``withdraws`` is the newcomer's lease where it gave up, else empty."""

    charge: Charge
    withdraws: str

    def closing(self, lost: Iterable[str | bytes]) -> tuple[ControlMessage, ...]:
        """The messages that close the sockets of these leases."""
        leases = [lease.decode() if isinstance(lease, bytes) else lease for lease in lost]
        return evicted(leases, self.charge.rule.name, self.charge.rule.plan.limit)


class Evictions:
    """Evictions of which the evicted may not have been told: the agent asks Redis who lost a slot, and tells them.

    Safe to use from any thread.
    """

    def __init__(self, context: RedisContext, control: RedisControl) -> None:
        self.context, self.control = context, control
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._doubts: dict[tuple[str, ...], Doubt] = {}

    def doubt(self, command: Evict, *, withdraws: bool) -> None:
        """The eviction may have been executed. ``withdraws`` when the newcomer was not told so, and gives up."""
        with self._lock:
            self._doubts[_name(command)] = Doubt(command.charge, command.lease if withdraws else "")

    def settle(self, command: Evict) -> None:
        """The evicted have been told."""
        with self._lock:
            self._doubts.pop(_name(command), None)

    def look(self) -> None:
        """Ask about each doubt, and tell the evicted; what fails is asked again. Raises StoreError."""
        with self._lock:
            doubts = dict(islice(self._doubts.items(), BATCH))
        if not doubts:
            return
        replies = self.context.pipeline([self._question(doubt) for doubt in doubts.values()])
        answered = [(doubt, lost) for doubt, lost in zip(doubts.values(), replies, strict=True) if type(lost) is list]
        closing = dict.fromkeys(message for doubt, lost in answered for message in doubt.closing(lost))
        settled = set() if self.control.send(self.control.keep(closing)) else {id(doubt) for doubt, _ in answered}
        with self._lock:
            for name, doubt in doubts.items():
                if self._doubts.get(name) is doubt:
                    del self._doubts[name]
                    if id(doubt) not in settled:  # last, so that a node that is away delays no other
                        self._doubts[name] = doubt

    def _question(self, doubt: Doubt) -> tuple[str, tuple[str], tuple[str, int]]:
        return "withdraw", (self.context.key(doubt.charge.rule.id, doubt.charge.ident),), (doubt.withdraws, LATE_MS)


def _name(command: Evict) -> tuple[str, ...]:
    return command.charge.rule.id, command.charge.ident, command.lease


class EvictCommand(LongCommand):
    """Takes the slot, then tells the evicted; where telling fails they are told later, and the newcomer stays."""

    __slots__ = ("command", "evicted", "evictions", "uid")

    def __init__(self, context: RedisContext, command: Evict, evictions: Evictions) -> None:
        super().__init__(context)
        self.command, self.evictions = command, evictions
        self.uid = context.leases.uid
        self.evicted: tuple[ControlMessage, ...] = ()
        rule, ident, _ = command.charge
        args = (context.now_arg(), self.uid, command.lease, context.lease_ttl_ms, rule.plan.limit)
        self.calls.append(Call(script("evict"), (context.key(rule.id, ident),), args, derives=True))

    def steps(self) -> Generator[RoundTrip, Sequence[Any], bool]:
        taken = bool(self.finish((yield RoundTrip(self.calls))))
        if self.evicted:
            with suppress(Exception):
                replies = yield RoundTrip(self._tell(), self.context.transport.seconds / 2)
                if not self.evictions.control.sent(self.evicted, replies):
                    self.evictions.settle(self.command)
        return taken

    def read(self, replies: Sequence[Any]) -> bool:
        taken, *found = replies[-1]
        names = [name.decode() if isinstance(name, bytes) else name for name in found]
        victims = zip(names[::2], names[1::2], strict=True)
        self.evicted = self.evictions.control.keep(closing(self.command.charge.rule, victims))
        if self.evicted:
            self.evictions.doubt(self.command, withdraws=False)
        if taken:
            rule, ident, _ = self.command.charge
            self.context.leases.hold(rule.id, ident, self.command.lease, self.uid)
        return bool(taken)

    def give_up(self) -> None:
        rule, ident, _ = self.command.charge
        self.context.leases.release_if_known(rule.id, ident, self.command.lease, self.uid)
        self.evictions.doubt(self.command, withdraws=True)

    def _tell(self) -> list[Call]:
        return self.evictions.control.calls(self.evicted)

"""Control messages between processes: each has a list of them in Redis, and reads it twice a second."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any, Final

from django_throttle.core.commands import SendControl
from django_throttle.core.control_messages import MAX_WAITING_MESSAGES, ControlMessage, Received, with_tags
from django_throttle.core.key import ident_hash
from django_throttle.exceptions import StoreError
from django_throttle.runtime import in_child
from django_throttle.stores.redis.commands import RedisCommand
from django_throttle.stores.redis.context import RedisContext
from django_throttle.stores.redis.failures import errors_of, raise_first
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.scripts import script
from django_throttle.stores.redis.transport import BATCH, RedisCall

logger = logging.getLogger("django_throttle")

TTL_MS: Final = 60_000  # a process that has not read its list for so long is dead, and swept
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
        return ident_hash(ident, self.context.secret)

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
                        "process %s reads no control messages: a close, block or reset does not reach it", message.uid
                    )
        return errors_of(replies)

    def calls(self, messages: Iterable[ControlMessage]) -> list[RedisCall]:
        return list(map(self._call, messages))

    def send(self, kept: Sequence[ControlMessage]) -> list[Exception]:
        """Send what was kept, in one round trip; returns the errors of nodes of a Cluster."""
        return self.sent(kept, self.context.send(self.calls(kept)))

    def give(self, messages: Iterable[ControlMessage]) -> None:
        """Send messages at once; what fails is sent again later, and raised all the same."""
        raise_first(self.send(self.keep(messages)))

    def ask(self, message: ControlMessage, about: str, quiet_ms: int) -> float:
        """Send one to every process, unless somebody has done so under the name ``about`` in the last ``quiet_ms``.

        Returns for how many seconds it has been asked again and again.
        """
        keys = (self.context.process_key("live"), self.context.process_key(f"asked:{about}"))
        args = (TTL_MS, MAX_WAITING_MESSAGES, quiet_ms, ASKED_MS, _written(message))
        _, since = self.context.call("send_to_all", keys, args)
        return int(since) / 1000

    def resend(self) -> None:
        """Send again what Redis has not taken yet, unless it is too old to be of use."""
        now = time.monotonic()
        with self._lock:
            self._unsent = {message: until for message, until in self._unsent.items() if until > now}
            again = tuple(self._unsent)[:BATCH]
        if again:
            self.send(again)

    def fetch(self) -> Received:
        """What waits for this process, under its uid and under the one before.

        What was fetched is not lost when fetching more of it fails.
        """
        found: Received = {}
        try:
            for uid in dict.fromkeys((self._read[0], self.context.leases.uid)):
                while uid and self._fetch(uid, found):
                    pass
        except StoreError:
            if not found:
                raise
        return found

    # The name of the list, orders:<uid>, stays: processes of older versions use it too.
    def _fetch(self, uid: str, found: Received) -> bool:
        """Add some of those that wait under a uid; True when there may be more."""
        key, confirmed = self.context.process_key(f"orders:{uid}"), self._read[1] if self._read[0] == uid else ()
        now, *texts = self.context.call("read_messages", (key,), (BATCH, *confirmed)) or (0,)
        heard, texts = time.monotonic(), list(map(text, texts))
        self._read = uid, tuple(texts)
        for message, at in filter(None, map(_parsed, texts)):
            # A server that has taken over may have another clock: no message is older than it is kept.
            age = 0 if at is None else min(max(0, now - at), TTL_MS * 1000)
            found[message] = heard - age / 1_000_000
        return len(texts) == BATCH

    def _call(self, message: ControlMessage) -> RedisCall:
        text = _written(message)
        if message.uid:
            key = self.context.process_key(f"orders:{message.uid}")
            return RedisCall(script("send_message"), (key,), (TTL_MS, MAX_WAITING_MESSAGES, text))
        keys = (self.context.process_key("live"), self.context.process_key("asked"))
        return RedisCall(script("send_to_all"), keys, (TTL_MS, MAX_WAITING_MESSAGES, 0, 0, text), derives=True)


def send_control_command(context: RedisContext, command: SendControl, control: RedisControl) -> RedisCommand[None]:
    """Sends control messages."""
    kept = control.keep(command.messages)

    def read(replies: Sequence[Any]) -> None:
        control.sent(kept, replies)

    # What it follows may have taken a whole deadline.
    return RedisCommand(context, control.calls(kept), read, context.transport.seconds / 2)


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

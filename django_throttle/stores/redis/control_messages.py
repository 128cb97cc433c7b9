"""Control messages between processes. Each process has a list of messages in Redis, and reads it twice a second."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Final

from django_throttle.core.commands import SendControl
from django_throttle.core.control_messages import MAX_WAITING_MESSAGES, ControlMessage, Received, with_hashes
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

TTL_MS: Final = 60_000  # of a list; a process that has not read its list for so long is dead
REQUEST_LOG_TTL_MS: Final = 5_000  # a page that shows open sockets repeats its request before that
RESEND_SECONDS: Final = 30.0  # in which a message that Redis has not accepted is sent again
_DEFAULTS: Final = ControlMessage._field_defaults


class RedisControl:
    """Control messages by Redis. ``fetch`` takes one command. The methods raise StoreError.

    A message stays in this process until Redis has accepted it, and in Redis until its receiver has confirmed it, so
    that a failure loses none. Redis receives a keyed hash of an ident, not the ident.
    """

    def __init__(self, context: RedisContext) -> None:
        self.context = context
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._unsent: dict[ControlMessage, float] = {}  # end of sending again, in monotonic seconds
        self._last_read: tuple[str, tuple[str, ...]] = "", ()  # a uid, and the messages to confirm

    def ident_hash(self, ident: str) -> str:
        """Return the keyed hash by which messages name an ident."""
        return ident_hash(ident, self.context.secret)

    def keep(self, messages: Iterable[ControlMessage]) -> tuple[ControlMessage, ...]:
        """Keep messages until Redis has accepted them. Return them with hashed idents."""
        kept = with_hashes(messages, self.ident_hash)
        until = time.monotonic() + RESEND_SECONDS
        with self._lock:
            self._unsent.update(dict.fromkeys(kept, until))
        return kept

    def sent(self, messages: Iterable[ControlMessage], replies: Sequence[object]) -> list[Exception]:
        """Forget the messages that Redis has accepted. Return the errors. Their messages are sent again."""
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
        """Send kept messages in one round trip. Return the errors of nodes of a Cluster."""
        return self.sent(kept, self.context.send(self.calls(kept)))

    def dispatch(self, messages: Iterable[ControlMessage]) -> None:
        """Send messages now. Raise the first error. Messages that failed are sent again later."""
        raise_first(self.send(self.keep(messages)))

    def request_from_all(self, message: ControlMessage, about: str, quiet_ms: int) -> float:
        """Send a message to every process, unless one ``about`` the same was sent in the last ``quiet_ms``.

        Return the seconds since the first of these repeated requests.
        """
        keys = (self.context.process_key("live"), self.context.process_key(f"asked:{about}"))
        args = (TTL_MS, MAX_WAITING_MESSAGES, quiet_ms, REQUEST_LOG_TTL_MS, _to_json(message))
        _, milliseconds = self.context.call("send_to_all", keys, args)
        return int(milliseconds) / 1000

    def resend(self) -> None:
        """Send messages again that Redis has not accepted, unless they are older than RESEND_SECONDS."""
        now = time.monotonic()
        with self._lock:
            self._unsent = {message: until for message, until in self._unsent.items() if until > now}
            unsent = tuple(self._unsent)[:BATCH]
        if unsent:
            self.send(unsent)

    def fetch(self) -> Received:
        """Fetch the messages for this process, under its current uid and the one before.

        If a later batch fails, return the batches before it.
        """
        received: Received = {}
        try:
            for uid in dict.fromkeys((self._last_read[0], self.context.leases.uid)):
                while uid and self._fetch(uid, received):
                    pass
        except StoreError:
            if not received:
                raise
        return received

    # The list is named orders:<uid> for processes of older versions.
    def _fetch(self, uid: str, received: Received) -> bool:
        """Add a batch of the messages for a uid. Return True if there may be more."""
        key = self.context.process_key(f"orders:{uid}")
        confirmed = self._last_read[1] if self._last_read[0] == uid else ()
        now, *texts = self.context.call("read_messages", (key,), (BATCH, *confirmed)) or (0,)
        read_at, texts = time.monotonic(), list(map(text, texts))
        self._last_read = uid, tuple(texts)
        for message, at in filter(None, map(_from_json, texts)):
            # After a failover the server's clock may differ. No message is older than its TTL.
            age = 0 if at is None else min(max(0, now - at), TTL_MS * 1000)
            received[message] = read_at - age / 1_000_000
        return len(texts) == BATCH

    def _call(self, message: ControlMessage) -> RedisCall:
        text = _to_json(message)
        if message.uid:
            key = self.context.process_key(f"orders:{message.uid}")
            return RedisCall(script("send_message"), (key,), (TTL_MS, MAX_WAITING_MESSAGES, text))
        keys = (self.context.process_key("live"), self.context.process_key("asked"))
        return RedisCall(script("send_to_all"), keys, (TTL_MS, MAX_WAITING_MESSAGES, 0, 0, text), has_derived_keys=True)


def send_control_command(context: RedisContext, command: SendControl, control: RedisControl) -> RedisCommand[None]:
    """Make the command that sends control messages."""
    kept = control.keep(command.messages)

    def read(replies: Sequence[object]) -> None:
        control.sent(kept, replies)

    # The command before it may have taken a whole deadline.
    return RedisCommand(context, control.calls(kept), read, context.transport.seconds / 2)


def _to_json(message: ControlMessage) -> str:
    """Return a message as JSON, without defaults and without the receiver, which the name of the list has."""
    fields = message._replace(uid="")._asdict().items()
    return json.dumps({name: value for name, value in fields if value != _DEFAULTS.get(name)}, separators=(",", ":"))


def _from_json(text: str) -> tuple[ControlMessage, int | None] | None:
    """Return a message, and the time in microseconds of Redis when it was queued. Return None if it is invalid."""
    try:
        fields = json.loads(text)
        at = fields.get("at")
        message = ControlMessage(**{name: value for name, value in fields.items() if name in ControlMessage._fields})
        return message, at if type(at) is int else None
    except (AttributeError, TypeError, ValueError):
        return None

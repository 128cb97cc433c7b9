"""Control messages on their way: each process has a list in Redis, and reads it twice a second."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.control import MAX_WAITING, Given, Order, Tell, tagged
from django_throttle.core.key import ident_tag
from django_throttle.exceptions import StoreError
from django_throttle.lifecycle import in_child
from django_throttle.stores.commands import Errand
from django_throttle.stores.failures import cause_of
from django_throttle.stores.transport import Call, script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore


logger = logging.getLogger("django_throttle")

TTL_MS: Final = 60_000  # a process that has not asked for so long is dead, and swept
BATCH: Final = 500  # in one reply
ASKED_MS: Final = 5_000  # who looks at what is open asks again before that
KEEP_SECONDS: Final = 30.0  # how long one is tried that Redis does not take
_FIELDS: Final = Order._field_defaults


class RedisOrders:
    """Those of a store in Redis. ``fetch`` costs one command; its methods raise StoreError.

    An order stays there until its process has said that it has it, and here until Redis has taken it: nothing that
    fails once loses one. Redis gets a keyed hash of an ident, not the ident.
    """

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._unsent: dict[Order, float] = {}  # until when it is tried, on the monotonic clock
        self._had: tuple[str, tuple[str, ...]] = "", ()  # a uid, and what Redis still has to take off its list

    def tag(self, ident: str) -> str:
        """How an order names an ident."""
        return ident_tag(ident, self.store.secret)

    def keep(self, orders: Iterable[Order]) -> tuple[Order, ...]:
        """Have these sent until Redis has taken them; returns them as they are sent."""
        found = tagged(orders, self.tag)
        until = time.monotonic() + KEEP_SECONDS
        with self._lock:
            self._unsent.update(dict.fromkeys(found, until))
        return found

    def sent(self, orders: Iterable[Order], replies: Sequence[Any]) -> None:
        """What Redis has replied; one that a process has no room for is dropped, as nobody there asks for it."""
        with self._lock:
            for order, reply in zip(orders, replies, strict=True):
                if not isinstance(reply, Exception):
                    self._unsent.pop(order, None)
                if reply == 0 and order.uid:
                    logger.info("a process asks for no orders: it has too many already")

    def calls(self, orders: Iterable[Order]) -> list[Call]:
        """One call for each."""
        return [self._call(order) for order in orders]

    def give(self, orders: Iterable[Order]) -> None:
        """Give orders at once, in one round trip; what fails is given again later, and raised all the same."""
        kept = self.keep(orders)
        replies = self.store.send(self.calls(kept))
        self.sent(kept, replies)
        for reply in replies:  # a node of a Cluster is away
            if isinstance(reply, Exception):
                raise StoreError(cause_of(reply), str(reply)) from reply

    def ask(self, order: Order, about: str, quiet_ms: int) -> float:
        """Give one to every process, unless somebody has done so, under this name, a moment ago.

        Returns for how many seconds it has been asked again and again.
        """
        keys = (self.store.process_key("live"), self.store.process_key(f"asked:{about}"))
        _, since = self.store.call("order_all", keys, (TTL_MS, MAX_WAITING, quiet_ms, ASKED_MS, _written(order)))
        return int(since) / 1000

    def resend(self) -> None:
        """Give again what Redis has not taken yet, for as long as it is of any use."""
        now = time.monotonic()
        with self._lock:
            self._unsent = {order: until for order, until in self._unsent.items() if until > now}
            again = tuple(self._unsent)[:BATCH]
        if again:
            self.sent(again, self.store.send(self.calls(again)))

    def fetch(self) -> Given:
        """What waits for this process: under the uid that it has now, and what came last under the one before.

        What has been found is not lost when asking for more of it fails.
        """
        found: Given = {}
        try:
            for uid in dict.fromkeys((self._had[0], self.store.leases.uid)):
                while uid and self._take(uid, found):
                    pass
        except StoreError:
            if not found:
                raise
        return found

    def _take(self, uid: str, found: Given) -> bool:
        """Add some of those that wait under a uid; True when there may be more."""
        key, had = self.store.process_key(f"orders:{uid}"), self._had[1] if self._had[0] == uid else ()
        reply = self.store.call("orders", (key,), (BATCH, *had))
        heard, texts = time.monotonic(), tuple(map(_text, reply[1:]))
        self._had = uid, texts
        for order, at in filter(None, map(_read, texts)):
            # A server that has taken over may have another clock: none is older than they are kept.
            age = 0 if at is None else min(max(0, reply[0] - at), TTL_MS * 1000)
            found[order] = heard - age / 1_000_000
        return len(texts) == BATCH

    def _call(self, order: Order) -> Call:
        text = _written(order)
        if order.uid:
            key = self.store.process_key(f"orders:{order.uid}")
            return Call(script("order"), (key,), (TTL_MS, MAX_WAITING, text))
        keys = (self.store.process_key("live"), self.store.process_key("asked"))
        return Call(script("order_all"), keys, (TTL_MS, MAX_WAITING, 0, 0, text), derives=True)


class TellErrand(Errand):
    """Orders that a flow gives."""

    __slots__ = ("kept",)

    def __init__(self, store: RedisStore, command: Tell) -> None:
        super().__init__(store)
        self.seconds = store.link.seconds / 2  # what it follows may have taken a whole deadline
        self.kept = store.orders.keep(command.orders)
        self.calls += store.orders.calls(self.kept)

    def read(self, replies: Sequence[Any]) -> None:
        self.store.orders.sent(self.kept, replies)


def _written(order: Order) -> str:
    """As JSON, without what is as usual; whom it is for says the list that it is in."""
    told = {name: value for name, value in order._replace(uid="")._asdict().items() if value != _FIELDS.get(name)}
    return json.dumps(told, separators=(",", ":"))


def _read(text: str) -> tuple[Order, int | None] | None:
    """An order, and when it was given in microseconds of Redis' clock; None for what is not one of this version."""
    try:
        told = json.loads(text)
        at = told.get("at")
        order = Order(**{name: value for name, value in told.items() if name in Order._fields})
        return order, at if type(at) is int else None
    except (AttributeError, TypeError, ValueError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

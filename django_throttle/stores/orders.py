"""Orders on their way: each process has a list of its own in Redis, and asks for it twice a second."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.key import ident_tag
from django_throttle.core.orders import Order, Tell
from django_throttle.forks import in_child
from django_throttle.stores.errands import Errand
from django_throttle.stores.link import Call
from django_throttle.stores.scripts import script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore

logger = logging.getLogger("django_throttle")

TTL_MS: Final = 60_000  # a process that has not asked for so long is dead, and swept
MOST: Final = 10_000  # that wait for one process
BATCH: Final = 500  # in one reply
KEEP_SECONDS: Final = 30.0  # how long one is tried that Redis does not take
_FIELDS: Final = Order._field_defaults


class LocalOrders:
    """Those of a store in memory: there is but one process."""

    def __init__(self) -> None:
        self._waiting: deque[Order] = deque(maxlen=MOST)
        in_child(self, lambda orders: orders._waiting.clear())

    def give(self, orders: Iterable[Order]) -> None:
        """They are for this process."""
        self._waiting.extend(tagged(orders, self.tag))

    def resend(self) -> None:
        """There is nowhere to send them to."""

    def fetch(self) -> list[Order]:
        """What has been given since the last time."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    @staticmethod
    def tag(ident: str) -> str:
        """How an order names an ident."""
        return ident_tag(ident, b"")


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
        self._had: tuple[str, ...] = ()  # what Redis still has to take off the list

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
        """Give orders at once, in one round trip."""
        kept = self.keep(orders)
        self.sent(kept, self.store.send(self.calls(kept)))

    def ask(self, order: Order, about: str, quiet_ms: int) -> None:
        """Give one to every process, unless somebody has done so, under this name, a moment ago."""
        keys = (self.store.process_key("live"), self.store.process_key(f"asked:{about}"))
        self.store.call("order_all", keys, (TTL_MS, MOST, quiet_ms, _written(order)))

    def resend(self) -> None:
        """Give again what Redis has not taken yet, for as long as it is of any use."""
        now = time.monotonic()
        with self._lock:
            self._unsent = {order: until for order, until in self._unsent.items() if until > now}
            again = tuple(self._unsent)[:BATCH]
        if again:
            self.sent(again, self.store.send(self.calls(again)))

    def fetch(self) -> list[Order]:
        """What waits for this process, under the uid that it has now."""
        found: list[Order] = []
        while True:
            key = self.store.process_key(f"orders:{self.store.leases.uid}")
            texts = tuple(map(_text, self.store.call("orders", (key,), (BATCH, *self._had))))
            self._had = texts
            found += filter(None, map(_read, texts))
            if len(texts) < BATCH:
                return found

    def _call(self, order: Order) -> Call:
        text = _written(order)
        if order.uid:
            key = self.store.process_key(f"orders:{order.uid}")
            return Call(script("order"), (key,), (TTL_MS, MOST, text))
        keys = (self.store.process_key("live"), self.store.process_key("asked"))
        return Call(script("order_all"), keys, (TTL_MS, MOST, 0, text), derives=True)


def tagged(orders: Iterable[Order], tag: Callable[[str], str]) -> tuple[Order, ...]:
    """The same, as they travel: idents are named by their tags."""
    return tuple([one._replace(ident="", tag=tag(one.ident)) if one.ident else one for one in orders])


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


def _read(text: str) -> Order | None:
    """The order; None for what is none, or is one of another version."""
    try:
        told = json.loads(text)
        return Order(**{name: value for name, value in told.items() if name in Order._fields})
    except (AttributeError, TypeError, ValueError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

"""What a process tells of the sockets that it has open, to an operator who looks at them."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django_throttle.core import Lease
from django_throttle.core.orders import Order
from django_throttle.sockets.live import Live, Socket
from django_throttle.stores.base import Store
from django_throttle.stores.redis import RedisStore

TTL_MS: Final = 15_000
MOST: Final = 500  # sockets that a process lists
MOST_IDENTS: Final = 100
MOST_SEARCHES: Final = 8
LOOK_SECONDS: Final = 4.0  # whoever looks asks again before that
LONGEST: Final = 120  # characters of an ident or a path
TELLTALE: Final = "session"  # an ident of this kind is as good as a password


class Wanted(NamedTuple):
    """How many sockets a list may have, and until when it is made; on the monotonic clock."""

    most: int
    until: float


class Reporter:
    """Lists the sockets of this process."""

    def __init__(self, store: Store, sockets: Live) -> None:
        self.store, self.sockets = store, sockets
        self._known: WeakKeyDictionary[Socket, tuple[tuple[Lease, ...], tuple[str, ...]]] = WeakKeyDictionary()
        self._wanted: dict[str, Wanted] = {}

    def want(self, order: Order) -> None:
        """Somebody looks, and will for a few seconds: lists are made until then."""
        self._wanted.pop(order.search, None)
        if len(self._wanted) >= MOST_SEARCHES:
            del self._wanted[next(iter(self._wanted))]
        self._wanted[order.search] = Wanted(order.most or MOST, time.monotonic() + LOOK_SECONDS)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody looks, as far as is known here."""
        return bool(self._wanted)

    def keep_up(self) -> None:
        """Put the lists that are wanted where whoever looks finds them. Raises StoreError."""
        now = time.monotonic()
        self._wanted = {search: wanted for search, wanted in self._wanted.items() if wanted.until > now}
        if not isinstance(self.store, RedisStore):  # in memory there is nobody else to read them
            return
        for search, wanted in self._wanted.items():
            text = json.dumps(self.listed(search, wanted.most), separators=(",", ":"))
            key = report_key(self.store.leases.uid, search)
            self.store.call("report", (self.store.process_key(key),), (TTL_MS, text))

    def listed(self, search: str, most: int) -> dict[str, Any]:
        """How many sockets are open, under how many idents, and some of them: first those of whoever has most."""
        everyone = [(socket, self.idents(socket)) for socket in self.sockets.everyone()]
        found = [one for one in everyone if self._is_about(search, *one)]
        counts = Counter(ident for _, idents in found for ident in idents)
        found.sort(key=lambda one: (-max((counts[ident] for ident in one[1]), default=0), one[1], one[0].opened))
        tag, first = self.store.orders.tag, found[: min(most, MOST)]
        return {
            "open": len(found),
            "idents": [[shown(ident, tag(ident)), tag(ident), n] for ident, n in counts.most_common(MOST_IDENTS)],
            "sockets": [_row(socket, [shown(ident, tag(ident)) for ident in idents]) for socket, idents in first],
        }

    def idents(self, socket: Socket) -> tuple[str, ...]:
        """Whom the socket counts for; asked once, as thousands are."""
        known = self._known.get(socket)
        if known is None or known[0] is not socket.leases:
            known = self._known[socket] = socket.leases, _idents(socket)
        return known[1]

    def _is_about(self, search: str, socket: Socket, idents: tuple[str, ...]) -> bool:
        """Part of an ident, an address, a scope or a path; within quotes, all of it."""
        if not search:
            return True
        texts = [shown(ident, self.store.orders.tag(ident)) for ident in idents]
        texts += [socket.address, socket.scope, socket.path]
        if search[0] == search[-1] == '"':
            return search[1:-1] in (*texts, *idents)
        wanted = search.casefold()
        return search in idents or any(wanted in text.casefold() for text in texts)


def report_key(uid: str, search: str) -> str:
    """Where a process puts its list of what a search is about."""
    return f"sockets:{uid}:{about(search)}"


def about(search: str) -> str:
    """A search in a few characters; empty for none."""
    return hashlib.blake2b(search.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest() if search else ""


def shown(ident: str, tag: str) -> str:
    """The ident as an operator sees it: what is a secret has a name that does not tell it."""
    return f"{ident.partition(':')[0]}:#{tag[:8]}" if _is_secret(ident) else ident[:LONGEST]


def _is_secret(ident: str) -> bool:
    return TELLTALE in ident.partition(":")[0].split("+")


def _idents(socket: Socket) -> tuple[str, ...]:
    """The address last, as it tells least."""
    try:
        found = socket.idents
    except Exception:  # noqa: BLE001 - the site's own functions, or a user who is not read yet; leases are certain
        found = frozenset(ident for lease in socket.leases for _, ident in lease.holds)
    return tuple(sorted(found, key=lambda ident: (ident.startswith("ip:"), ident)))


def _row(socket: Socket, idents: list[str]) -> dict[str, Any]:
    now = time.monotonic()
    return {
        "id": socket.id,
        "idents": idents,
        "address": socket.address,
        "scope": socket.scope,
        "path": socket.path[:LONGEST],
        "age": round(now - socket.opened, 1),
        "silent": round(now - socket.heard, 1),
        "received": socket.received,
        "refused": socket.refused,
        "sent": socket.sent,
        "lost": socket.lost,
    }

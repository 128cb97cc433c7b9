"""What a process tells of the sockets that it has open, to an operator who looks at them."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable
from heapq import nsmallest
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django_throttle.connections.ledger import check
from django_throttle.core import Lease
from django_throttle.core.orders import Order
from django_throttle.sockets.live import Live, Socket
from django_throttle.stores.base import Store
from django_throttle.stores.redis import RedisStore

TTL_MS: Final = 15_000
MOST: Final = 500  # sockets that a process lists
MOST_IDENTS: Final = 100
IDENTS_A_SOCKET: Final = 5  # among very many processes each lists few sockets, and so many idents for each
MOST_ASKED: Final = 2 * MOST_IDENTS  # idents that others list, and want counted
MOST_SEARCHES: Final = 8
LOOK_SECONDS: Final = 4.0  # whoever looks asks again before that
RESTS: Final = 4  # times as long as it took
LONGEST: Final = 120  # characters of an ident or a path
TELLTALE: Final = "session"  # an ident of this kind is as good as a password


class Wanted(NamedTuple):
    """How many sockets a list may have, whom it counts in any case, until when (on the monotonic clock) it is made."""

    most: int
    tags: tuple[str, ...]
    until: float


class Known(NamedTuple):
    """Whom a socket counts for while it has these leases, and how orders name them."""

    leases: tuple[Lease, ...]
    idents: tuple[str, ...]
    tags: tuple[str, ...]


class Face(NamedTuple):
    """What an operator sees of a socket, and what a search looks through."""

    known: Known
    shown: tuple[str, ...]
    texts: tuple[str, ...]
    folded: str

    def is_about(self, search: str) -> bool:
        """Part of an ident, an address, a scope or a path; within quotes, all of it."""
        if not search:
            return True
        if search[0] == search[-1] == '"':
            return search[1:-1] in self.texts or search[1:-1] in self.known.idents
        return search in self.known.idents or search.casefold() in self.folded


Faces = list[tuple[Socket, Face]]


class Reporter:
    """Lists the sockets of this process."""

    def __init__(self, store: Store, sockets: Live) -> None:
        self.store, self.sockets = store, sockets
        self._known: WeakKeyDictionary[Socket, Known] = WeakKeyDictionary()
        self._faces: WeakKeyDictionary[Socket, Face] = WeakKeyDictionary()  # while somebody looks
        self._wanted: dict[str, Wanted] = {}
        self._rests_until = 0.0

    def want(self, order: Order) -> None:
        """Somebody looks, and will for a few seconds: lists are made until then."""
        before = self._wanted.pop(order.search, None)
        if len(self._wanted) >= MOST_SEARCHES:
            del self._wanted[next(iter(self._wanted))]
        tags = dict.fromkeys((*order.tag.split(), *(before.tags if before else ())))
        most = order.most or MOST
        self._wanted[order.search] = Wanted(most, tuple(tags)[:MOST_ASKED], time.monotonic() + LOOK_SECONDS)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody looks, as far as is known here."""
        return bool(self._wanted)

    def keep_up(self) -> None:
        """Put the lists that are wanted where whoever looks finds them. Raises StoreError.

        One pass over the sockets for all of them, and then a pause four times as long: beats and orders come between.
        """
        now = time.monotonic()
        self._wanted = {search: wanted for search, wanted in self._wanted.items() if wanted.until > now}
        if not self._wanted:
            self._faces.clear()
        if not isinstance(self.store, RedisStore) or not self._wanted or now < self._rests_until:
            return  # in memory there is nobody else to read them
        uid, everyone, calls = self.store.leases.uid, self._everyone(), []
        for search, wanted in self._wanted.items():
            text = json.dumps(_listed(everyone, search, wanted.most, wanted.tags), separators=(",", ":"))
            calls.append(("report", (self.store.process_key(report_key(uid, search)),), (TTL_MS, text)))
        check(self.store.pipeline(calls))
        self._rests_until = time.monotonic() + RESTS * (time.monotonic() - now)

    def listed(self, search: str, most: int) -> dict[str, Any]:
        """How many sockets are open, under how many idents, and some of them: first those of whoever has most."""
        return _listed(self._everyone(), search, most)

    def known(self, socket: Socket) -> Known:
        """Whom the socket counts for; asked once, as thousands are."""
        known = self._known.get(socket)
        if known is None or known.leases is not socket.leases:
            leases, idents = socket.leases, _idents(socket)
            known = self._known[socket] = Known(leases, idents, tuple(map(self.store.orders.tag, idents)))
        return known

    def _everyone(self) -> Faces:
        return [(socket, self._face(socket)) for socket in self.sockets.everyone()]

    def _face(self, socket: Socket) -> Face:
        face, known = self._faces.get(socket), self.known(socket)
        if face is None or face.known is not known:
            named = tuple(map(shown, known.idents, known.tags))
            texts = (*named, socket.address, socket.scope, socket.path)
            face = self._faces[socket] = Face(known, named, texts, "\n".join(texts).casefold())
        return face


def _listed(everyone: Faces, search: str, most: int, tags: Iterable[str] = ()) -> dict[str, Any]:
    """As ``Reporter.listed`` says; ``tags`` are counted whether they are among the first idents or not."""
    found = [one for one in everyone if one[1].is_about(search)]
    counts = Counter(tag for _, face in found for tag in face.known.tags)
    names = {tag: name for _, face in found for tag, name in zip(face.known.tags, face.shown, strict=True)}
    first = dict(counts.most_common(min(MOST_IDENTS, IDENTS_A_SOCKET * most)))
    first.update((tag, counts[tag]) for tag in tags)

    def order(one: tuple[Socket, Face]) -> tuple[Any, ...]:
        known = one[1].known
        return -max([counts[tag] for tag in known.tags], default=0), known.idents, one[0].opened

    return {
        "open": len(found),
        "of": len(counts),
        "idents": [[names.get(tag, ""), tag, number] for tag, number in first.items()],
        "sockets": [_row(socket, face.shown) for socket, face in nsmallest(min(most, MOST), found, key=order)],
    }


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


def _row(socket: Socket, idents: tuple[str, ...]) -> dict[str, Any]:
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

"""Does what control messages ask of this process: closes sockets, resets them, reports them."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django_throttle import rulebook
from django_throttle.connections.leases import Pair
from django_throttle.connections.open_sockets import OpenSocket, OpenSockets, open_sockets
from django_throttle.connections.processes import batches, check, errors_of
from django_throttle.core import Lease
from django_throttle.core.commands import CLOSE, CLOSED, EVICTED, REPORT, RESET, ControlMessage, evicted
from django_throttle.sockets.frames import notice
from django_throttle.stores import AnyStore, RedisStore

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
    """Whom a socket counts for while it has these leases, and how control messages name them."""

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


Faces = list[tuple[OpenSocket, Face]]


class Reporter:
    """Lists the sockets of this process."""

    def __init__(self, store: AnyStore, sockets: OpenSockets) -> None:
        self.store, self.sockets = store, sockets
        self._known: WeakKeyDictionary[OpenSocket, Known] = WeakKeyDictionary()
        self._faces: WeakKeyDictionary[OpenSocket, Face] = WeakKeyDictionary()  # while somebody looks
        self._wanted: dict[str, Wanted] = {}
        self._rests_until = 0.0

    def want(self, message: ControlMessage) -> None:
        """Somebody looks, and will for a few seconds: lists are made until then."""
        before = self._wanted.pop(message.search, None)
        if len(self._wanted) >= MOST_SEARCHES:
            del self._wanted[next(iter(self._wanted))]
        tags = dict.fromkeys((*message.tag.split(), *(before.tags if before else ())))
        most = message.most or MOST
        self._wanted[message.search] = Wanted(most, tuple(tags)[:MOST_ASKED], time.monotonic() + LOOK_SECONDS)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody looks, as far as is known here."""
        return bool(self._wanted)

    def keep_up(self) -> None:
        """Put the lists that are wanted where whoever looks finds them. Raises StoreError.

        One pass over the sockets for all of them, and then a pause four times as long: beats and messages come between.
        """
        now = time.monotonic()
        self._wanted = {search: wanted for search, wanted in self._wanted.items() if wanted.until > now}
        if not self._wanted:
            self._faces.clear()
        if not self.store.is_remote or not self._wanted or now < self._rests_until:
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

    def known(self, socket: OpenSocket) -> Known:
        """Whom the socket counts for; asked once, as thousands are."""
        known = self._known.get(socket)
        if known is None or known.leases is not socket.leases:
            leases, idents = socket.leases, _idents(socket)
            known = self._known[socket] = Known(leases, idents, tuple(map(self.store.control.tag, idents)))
        return known

    def _everyone(self) -> Faces:
        return [(socket, self._face(socket)) for socket in self.sockets.everyone()]

    def _face(self, socket: OpenSocket) -> Face:
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

    def order(one: tuple[OpenSocket, Face]) -> tuple[Any, ...]:
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


def _idents(socket: OpenSocket) -> tuple[str, ...]:
    """The address last, as it tells least."""
    try:
        found = socket.idents
    except Exception:  # noqa: BLE001 - the site's own functions, or a user who is not read yet; leases are certain
        found = frozenset(ident for lease in socket.leases for _, ident in lease.holds)
    return tuple(sorted(found, key=lambda ident: (ident.startswith("ip:"), ident)))


def _row(socket: OpenSocket, idents: tuple[str, ...]) -> dict[str, Any]:
    now = time.monotonic()
    return {
        "id": socket.id,
        "idents": idents,
        "address": socket.address,
        "scope": socket.scope,
        "path": socket.path[:LONGEST],
        "age": round(now - socket.opened, 1),
        "silent": round(now - socket.last_received, 1),
        "received": socket.received,
        "refused": socket.refused,
        "sent": socket.sent,
        "lost": socket.lost,
    }


HEARD_SECONDS: Final = 10.0  # between two times: so exactly is it known who is silent for longest
IDLE: Final = "evict_idle"

Heard = dict[str, float]  # lease: when its socket was heard of, on the monotonic clock


class Activity:
    """Tells it of those that were heard of since the last time; used by one thread.

    One command, in batches, for each ident with such a socket. None where no rule asks for it.
    """

    def __init__(self, store: AnyStore, sockets: OpenSockets = open_sockets) -> None:
        self.store, self.sockets = store, sockets
        self._rules: frozenset[str] = frozenset()
        self._told = 0.0  # what was heard before that is known, under these rules

    def __call__(self) -> None:
        """Tell it. Raises StoreError."""
        rules = frozenset(rule.id for rule in rulebook.current().rules if rule.at_limit == IDLE and rule.enabled)
        if rules != self._rules:
            self._rules, self._told = rules, 0.0
        now = time.monotonic()
        if rules:
            # Each batch is told, also when one node of a Cluster is away.
            check([error for some in batches(self._heard().items()) for error in self._tell(some, now)])
        self._told = now

    def _heard(self) -> dict[Pair, Heard]:
        found: dict[Pair, Heard] = defaultdict(dict)
        for socket in self.sockets.everyone():
            if socket.last_received >= self._told:
                for lease in socket.leases:
                    for pair in lease.holds:
                        if pair[0] in self._rules:
                            found[pair][lease.id] = socket.last_received
        return found

    def _tell(self, some: list[tuple[Pair, Heard]], now: float) -> list[Exception]:
        for pair, heard in some:
            for lease, since in heard.items():
                self.store.leases.touch(*pair, lease, since)
        if not self.store.is_remote:  # in memory, that was all
            return []
        return errors_of(self.store.pipeline([_call(self.store, pair, heard, now) for pair, heard in some]))


def _call(store: RedisStore, pair: Pair, heard: Heard, now: float) -> tuple[str, tuple[str], list[Any]]:
    args: list[Any] = [store.now_arg(), store.leases.uid]
    for lease, since in heard.items():
        args += (lease, round((now - since) * 1_000_000))
    return "touch", (store.key(*pair),), args


# The store knows of a lease before this process does: so long a control message waits for it.
PATIENCE: Final = 10.0
_SAID: Final = {
    EVICTED: "Another connection has taken the place of this one.",
    CLOSED: "This connection was closed by an operator.",
}


class Duties:
    """The control messages of one store, executed by one thread: the agent's."""

    def __init__(self, store: AnyStore, sockets: OpenSockets = open_sockets) -> None:
        self.store, self.sockets = store, sockets
        self._reporter = Reporter(store, sockets)
        self._early: dict[
            ControlMessage, float
        ] = {}  # about a lease whose socket is not there yet, or no more; until when

    def __call__(self) -> None:
        """Fetch control messages and execute them: one command, or none where no socket is open. Raises StoreError."""
        self.store.control.resend()
        if not (len(self.sockets) or len(self.store.leases) or self._early or self._reporter.is_wanted):
            return
        self.carry_out(self.store.control.fetch())
        self._reporter.keep_up()

    def carry_out(self, given: Mapping[ControlMessage, float]) -> None:
        """Do what is ordered; one that makes no sense here is passed over. Raises StoreError."""
        self._close_leases(message for message in given if message.kind == CLOSE and message.lease)
        about = {message: at for message, at in given.items() if message.kind in (CLOSE, RESET) and message.tag}
        if about:
            self._about_idents(about)
        wanted = {message.socket: message for message in given if message.kind == CLOSE and message.socket}
        if wanted:
            for socket in self.sockets.everyone():
                if message := wanted.get(socket.id):
                    _close(socket, message)
        for message in given:
            if message.kind == REPORT:
                self._reporter.want(message)

    def gone(self, leases: Iterable[str]) -> None:
        """These leases were taken away, and the message to close their sockets has not been heard."""
        self._close_leases(evicted(leases))

    def _close_leases(self, messages: Iterable[ControlMessage]) -> None:
        now = time.monotonic()
        waiting = {**dict.fromkeys(messages, now + PATIENCE), **self._early}
        self._early = {}
        if not waiting:
            return
        holders = {lease.id: socket for socket in self.sockets.everyone() for lease in socket.leases}
        is_late = any(until <= now for until in waiting.values())
        taken = self.store.leases.unreleased() if is_late else ()  # a handshake may wait for its turn
        for message, until in waiting.items():
            if socket := holders.get(message.lease):
                _close(socket, message)
            elif until > now or message.lease in taken:
                self._early[message] = until

    def _about_idents(self, given: Mapping[ControlMessage, float]) -> None:
        by_tag = {message.tag: message for message in sorted(given, key=lambda message: message.kind == CLOSE)}
        if any(message.kind == RESET for message in by_tag.values()):
            self.store.denials.clear()  # or a socket would be refused by what the process remembers
        for socket in self.sockets.everyone():
            for tag in self._reporter.known(socket).tags:
                message = by_tag.get(tag)
                if message and socket.opened <= given[message]:  # who has come since is not meant
                    socket.reset() if message.kind == RESET else _close(socket, message)


def _close(socket: OpenSocket, message: ControlMessage) -> None:
    why = message.why if message.why in _SAID else CLOSED
    payload: dict[str, Any] = notice(why, _SAID[why])
    payload.update(rule=message.rule or None, limit=message.limit or None)
    socket.close(socket.close_code(why), why, payload)

"""Carries out control messages in this process: closes sockets, resets them, lists them."""

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
from django_throttle.connections.process import OpenSocket, OpenSockets, open_sockets
from django_throttle.connections.processes import batches, check, errors_of
from django_throttle.core import Lease
from django_throttle.core.commands import CLOSE, CLOSED, EVICTED, REPORT, RESET, ControlMessage, evicted
from django_throttle.sockets.error_frames import notice_payload
from django_throttle.stores import AnyStore, RedisStore

TTL_MS: Final = 15_000
MOST: Final = 500  # sockets that a process lists
MOST_IDENTS: Final = 100
IDENTS_A_SOCKET: Final = 5  # idents listed for each socket listed, where very many processes list few sockets each
MOST_ASKED: Final = 2 * MOST_IDENTS  # idents that other processes list, and that are counted here too
MOST_SEARCHES: Final = 8
LOOK_SECONDS: Final = 4.0  # a page or command that shows lists asks again before that
PAUSE: Final = 4  # times as long as the lists took
LONGEST: Final = 120  # characters of an ident or a path
HIDDEN_KIND: Final = "session"  # an ident of this kind is as good as a password


class Search(NamedTuple):
    """How many sockets a list may have, tags that it counts in any case, and until when it is made (monotonic)."""

    most: int
    tags: tuple[str, ...]
    until: float


class Idents(NamedTuple):
    """The idents of a socket while it has these leases, and their tags, by which messages name them."""

    leases: tuple[Lease, ...]
    idents: tuple[str, ...]
    tags: tuple[str, ...]


class Entry(NamedTuple):
    """How a socket is listed, and the texts that a search looks through."""

    known: Idents
    shown: tuple[str, ...]
    texts: tuple[str, ...]
    folded: str

    def is_about(self, search: str) -> bool:
        """Whether the search is part of an ident, address, scope or path; within quotes, all of it."""
        if not search:
            return True
        if search[0] == search[-1] == '"':
            return search[1:-1] in self.texts or search[1:-1] in self.known.idents
        return search in self.known.idents or search.casefold() in self.folded


Entries = list[tuple[OpenSocket, Entry]]


class Reporter:
    """Lists the sockets of this process."""

    def __init__(self, store: AnyStore, sockets: OpenSockets) -> None:
        self.store, self.sockets = store, sockets
        self._idents: WeakKeyDictionary[OpenSocket, Idents] = WeakKeyDictionary()
        self._entries: WeakKeyDictionary[OpenSocket, Entry] = WeakKeyDictionary()  # while somebody looks
        self._wanted: dict[str, Search] = {}
        self.pauses_until = 0.0

    def want(self, message: ControlMessage) -> None:
        """Make this list for a few seconds."""
        before = self._wanted.pop(message.search, None)
        if len(self._wanted) >= MOST_SEARCHES:
            del self._wanted[next(iter(self._wanted))]
        tags = dict.fromkeys((*message.tag.split(), *(before.tags if before else ())))
        most = message.most or MOST
        self._wanted[message.search] = Search(most, tuple(tags)[:MOST_ASKED], time.monotonic() + LOOK_SECONDS)

    @property
    def is_wanted(self) -> bool:
        """Whether lists are made."""
        return bool(self._wanted)

    def keep_up(self) -> None:
        """Write the wanted lists to Redis. Raises StoreError.

        One pass over the sockets for all of them, and then a pause four times as long, for beats and messages.
        """
        now = time.monotonic()
        self._wanted = {search: wanted for search, wanted in self._wanted.items() if wanted.until > now}
        if not self._wanted:
            self._entries.clear()
        if not self.store.is_remote or not self._wanted or now < self.pauses_until:
            return  # in memory, no other process reads them
        uid, everyone, calls = self.store.leases.uid, self._everyone(), []
        for search, wanted in self._wanted.items():
            text = json.dumps(_listed(everyone, search, wanted.most, wanted.tags), separators=(",", ":"))
            calls.append(("report", (self.store.process_key(report_key(uid, search)),), (TTL_MS, text)))
        check(self.store.pipeline(calls))
        self.pauses_until = time.monotonic() + PAUSE * (time.monotonic() - now)

    def listed(self, search: str, most: int) -> dict[str, Any]:
        """How many sockets are open, under how many idents, and some of them: first those of whoever has most."""
        return _listed(self._everyone(), search, most)

    def idents(self, socket: OpenSocket) -> Idents:
        """The idents of the socket; found once, as there are thousands of sockets."""
        known = self._idents.get(socket)
        if known is None or known.leases is not socket.leases:
            leases, idents = socket.leases, _idents(socket)
            known = self._idents[socket] = Idents(leases, idents, tuple(map(self.store.control.tag, idents)))
        return known

    def _everyone(self) -> Entries:
        return [(socket, self._entry(socket)) for socket in self.sockets.everyone()]

    def _entry(self, socket: OpenSocket) -> Entry:
        entry, known = self._entries.get(socket), self.idents(socket)
        if entry is None or entry.known is not known:
            named = tuple(map(shown, known.idents, known.tags))
            texts = (*named, socket.address, socket.scope, socket.path)
            entry = self._entries[socket] = Entry(known, named, texts, "\n".join(texts).casefold())
        return entry


def _listed(everyone: Entries, search: str, most: int, tags: Iterable[str] = ()) -> dict[str, Any]:
    """See ``Reporter.listed``; ``tags`` are counted whether they are among the first idents or not."""
    found = [one for one in everyone if one[1].is_about(search)]
    counts = Counter(tag for _, entry in found for tag in entry.known.tags)
    names = {tag: name for _, entry in found for tag, name in zip(entry.known.tags, entry.shown, strict=True)}
    first = dict(counts.most_common(min(MOST_IDENTS, IDENTS_A_SOCKET * most)))
    first.update((tag, counts[tag]) for tag in tags)

    def order(one: tuple[OpenSocket, Entry]) -> tuple[Any, ...]:
        known = one[1].known
        return -max([counts[tag] for tag in known.tags], default=0), known.idents, one[0].opened

    return {
        "open": len(found),
        "of": len(counts),
        "idents": [[names.get(tag, ""), tag, number] for tag, number in first.items()],
        "sockets": [_row(socket, entry.shown) for socket, entry in nsmallest(min(most, MOST), found, key=order)],
    }


def report_key(uid: str, search: str) -> str:
    """The name of the key of a process' list for a search."""
    return f"sockets:{uid}:{about(search)}"


def about(search: str) -> str:
    """A short hash of a search; empty for none."""
    return hashlib.blake2b(search.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest() if search else ""


def shown(ident: str, tag: str) -> str:
    """The ident as an operator sees it: a secret one by its kind and the beginning of its tag."""
    return f"{ident.partition(':')[0]}:#{tag[:8]}" if _is_secret(ident) else ident[:LONGEST]


def _is_secret(ident: str) -> bool:
    return HIDDEN_KIND in ident.partition(":")[0].split("+")


def _idents(socket: OpenSocket) -> tuple[str, ...]:
    """The idents of a socket, sorted, its address last."""
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


HEARD_SECONDS: Final = 10.0  # between two reports of active sockets: the precision of ``evict_idle``
IDLE: Final = "evict_idle"

Heard = dict[str, float]  # lease: when its socket last received a frame, on the monotonic clock


class Activity:
    """Reports to the store which sockets have received a frame since the last report; used by one thread.

    One command, in batches, for each ident with such a socket; none where no rule evicts idle sockets.
    """

    def __init__(self, store: AnyStore, sockets: OpenSockets = open_sockets) -> None:
        self.store, self.sockets = store, sockets
        self._rules: frozenset[str] = frozenset()
        self._reported = 0.0  # up to when the store knows, under these rules

    def __call__(self) -> None:
        """Report. Raises StoreError."""
        rules = frozenset(rule.id for rule in rulebook.current().rules if rule.at_limit == IDLE and rule.enabled)
        if rules != self._rules:
            self._rules, self._reported = rules, 0.0
        now = time.monotonic()
        if rules:
            # Each batch is sent, also when one node of a Cluster does not answer.
            check([error for some in batches(self._heard().items()) for error in self._report(some, now)])
        self._reported = now

    def _heard(self) -> dict[Pair, Heard]:
        found: dict[Pair, Heard] = defaultdict(dict)
        for socket in self.sockets.everyone():
            if socket.last_received >= self._reported:
                for lease in socket.leases:
                    for pair in lease.holds:
                        if pair[0] in self._rules:
                            found[pair][lease.id] = socket.last_received
        return found

    def _report(self, some: list[tuple[Pair, Heard]], now: float) -> list[Exception]:
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


# The store knows of a lease before this process does: seconds that a message waits for its socket.
SOCKET_TIMEOUT: Final = 10.0
_DETAILS: Final = {
    EVICTED: "Another connection has taken the place of this one.",
    CLOSED: "This connection was closed by an operator.",
}


class SocketControl:
    """The control messages of one store, carried out by one thread: the agent's."""

    def __init__(self, store: AnyStore, sockets: OpenSockets = open_sockets) -> None:
        self.store, self.sockets = store, sockets
        self.reporter = Reporter(store, sockets)
        # For the socket of a lease, which may not be there yet; until when.
        self._waiting: dict[ControlMessage, float] = {}

    def __call__(self) -> None:
        """Fetch messages and carry them out: one command, or none where no socket is open. Raises StoreError."""
        self.store.control.resend()
        if not (len(self.sockets) or len(self.store.leases) or self._waiting or self.reporter.is_wanted):
            return
        self.carry_out(self.store.control.fetch())
        self.reporter.keep_up()

    def carry_out(self, given: Mapping[ControlMessage, float]) -> None:
        """Carry out these messages; one that makes no sense here is ignored. Raises StoreError."""
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
                self.reporter.want(message)

    def evict(self, leases: Iterable[str]) -> None:
        """These leases were taken away, and the message to close their sockets has not arrived."""
        self._close_leases(evicted(leases))

    def _close_leases(self, messages: Iterable[ControlMessage]) -> None:
        now = time.monotonic()
        waiting = {**dict.fromkeys(messages, now + SOCKET_TIMEOUT), **self._waiting}
        self._waiting = {}
        if not waiting:
            return
        holders = {lease.id: socket for socket in self.sockets.everyone() for lease in socket.leases}
        is_late = any(until <= now for until in waiting.values())
        unreleased = self.store.leases.unreleased() if is_late else ()  # a handshake may be slow
        for message, until in waiting.items():
            if socket := holders.get(message.lease):
                _close(socket, message)
            elif until > now or message.lease in unreleased:
                self._waiting[message] = until

    def _about_idents(self, given: Mapping[ControlMessage, float]) -> None:
        by_tag = {message.tag: message for message in sorted(given, key=lambda message: message.kind == CLOSE)}
        if any(message.kind == RESET for message in by_tag.values()):
            self.store.denials.clear()  # or a remembered refusal would refuse a socket
        for socket in self.sockets.everyone():
            for tag in self.reporter.idents(socket).tags:
                message = by_tag.get(tag)
                if message and socket.opened <= given[message]:  # a socket that was opened since is not meant
                    socket.reset() if message.kind == RESET else _close(socket, message)


def _close(socket: OpenSocket, message: ControlMessage) -> None:
    why = message.why if message.why in _DETAILS else CLOSED
    payload: dict[str, Any] = notice_payload(why, _DETAILS[why])
    payload.update(rule=message.rule or None, limit=message.limit or None)
    socket.close(socket.close_code(why), why, payload)

"""The open sockets of all processes: each writes a list of its own when it is asked, and the lists are merged."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django_throttle.conf import conf
from django_throttle.connections.processes import ProcessRecords
from django_throttle.core import Lease
from django_throttle.core.control_messages import REPORT, ControlMessage
from django_throttle.local import process_identity
from django_throttle.local.open_sockets import OpenSocket, OpenSockets, open_sockets
from django_throttle.local.process_identity import number
from django_throttle.stores import AnyStore, MemoryStore, RedisStore
from django_throttle.stores.redis.failures import raise_first
from django_throttle.stores.redis.transport import batches

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


class SocketIdents(NamedTuple):
    """The idents of a socket while it has these leases, and their tags, by which messages name them."""

    leases: tuple[Lease, ...]
    idents: tuple[str, ...]
    tags: tuple[str, ...]


class Entry(NamedTuple):
    """How a socket is listed, and the texts that a search looks through."""

    known: SocketIdents
    shown: tuple[str, ...]
    texts: tuple[str, ...]
    folded: str

    def matches(self, search: str) -> bool:
        """Whether the search is part of an ident, address, scope or path; within quotes, all of it."""
        if not search:
            return True
        if search[0] == search[-1] == '"':
            return search[1:-1] in self.texts or search[1:-1] in self.known.idents
        return search in self.known.idents or search.casefold() in self.folded


Entries = list[tuple[OpenSocket, Entry]]


class SocketReporter:
    """Lists the sockets of this process."""

    def __init__(self, store: AnyStore, sockets: OpenSockets) -> None:
        self.store, self.sockets = store, sockets
        self._idents: WeakKeyDictionary[OpenSocket, SocketIdents] = WeakKeyDictionary()
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
        return bool(self._wanted)

    def write(self) -> None:
        """Write the wanted lists to Redis. Raises StoreError.

        One pass over the sockets for all of them, and then a pause four times as long, for beats and messages.
        """
        now = time.monotonic()
        self._wanted = {search: wanted for search, wanted in self._wanted.items() if wanted.until > now}
        if not self._wanted:
            self._entries.clear()
            return
        if not self.store.is_remote or now < self.pauses_until:
            return  # in memory, no other process reads them
        uid, everyone, calls = self.store.leases.uid, self._everyone(), []
        for search, wanted in self._wanted.items():
            text = json.dumps(_listed(everyone, search, wanted.most, wanted.tags), separators=(",", ":"))
            calls.append(("store_sockets", (self.store.process_key(report_key(uid, search)),), (TTL_MS, text)))
        raise_first(self.store.pipeline(calls))
        self.pauses_until = time.monotonic() + PAUSE * (time.monotonic() - now)

    def listed(self, search: str, most: int) -> dict[str, object]:
        """How many sockets are open, under how many idents, and some of them: first those of whoever has most."""
        return _listed(self._everyone(), search, most)

    def idents(self, socket: OpenSocket) -> SocketIdents:
        """The idents of the socket; found once, as there are thousands of sockets."""
        known = self._idents.get(socket)
        if known is None or known.leases is not socket.leases:
            leases, idents = socket.leases, _idents_of(socket)
            known = self._idents[socket] = SocketIdents(
                leases, idents, tuple(map(self.store.control.ident_hash, idents))
            )
        return known

    def _everyone(self) -> Entries:
        return [(socket, self._entry(socket)) for socket in self.sockets.all()]

    def _entry(self, socket: OpenSocket) -> Entry:
        entry, known = self._entries.get(socket), self.idents(socket)
        if entry is None or entry.known is not known:
            named = tuple(map(displayed, known.idents, known.tags))
            texts = (*named, socket.address, socket.scope, socket.path)
            entry = self._entries[socket] = Entry(known, named, texts, "\n".join(texts).casefold())
        return entry


def _listed(everyone: Entries, search: str, most: int, tags: Iterable[str] = ()) -> dict[str, object]:
    """See ``SocketReporter.listed``; ``tags`` are counted whether they are among the first idents or not."""
    found = [one for one in everyone if one[1].matches(search)]
    counts = Counter(tag for _, entry in found for tag in entry.known.tags)
    names = {tag: name for _, entry in found for tag, name in zip(entry.known.tags, entry.shown, strict=True)}
    first = dict(counts.most_common(min(MOST_IDENTS, IDENTS_A_SOCKET * most)))
    first.update((tag, counts[tag]) for tag in tags)

    def order(one: tuple[OpenSocket, Entry]) -> tuple[int, tuple[str, ...], float]:
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
    return f"sockets:{uid}:{search_digest(search)}"


def search_digest(search: str) -> str:
    """A short hash of a search; empty for none."""
    return hashlib.blake2b(search.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest() if search else ""


def displayed(ident: str, tag: str) -> str:
    """The ident as an operator sees it: a secret one by its kind and the beginning of its tag."""
    kind = ident.partition(":")[0]
    return f"{kind}:#{tag[:8]}" if HIDDEN_KIND in kind.split("+") else ident[:LONGEST]


def _idents_of(socket: OpenSocket) -> tuple[str, ...]:
    """The idents of a socket, sorted, its address last."""
    try:
        found = socket.idents
    except Exception:  # noqa: BLE001 - the site's own functions, or a user who is not read yet; leases are certain
        found = frozenset(ident for lease in socket.leases for _, ident in lease.lease_keys)
    return tuple(sorted(found, key=lambda ident: (ident.startswith("ip:"), ident)))


def _row(socket: OpenSocket, idents: tuple[str, ...]) -> dict[str, object]:
    now = time.monotonic()
    copied = ("id", "address", "scope", "received", "refused", "sent", "lost")
    return {
        **{name: getattr(socket, name) for name in copied},
        "idents": idents,
        "path": socket.path[:LONGEST],
        "age": round(now - socket.opened, 1),
        "silent": round(now - socket.last_received, 1),
    }


FRESH_SECONDS: Final = 1.0  # for which a complete overview is cached
QUIET_MS: Final = 1000  # for which processes are not asked the same again
ANSWERS: Final = 3  # × RULES_POLL is when each process has read its control messages and answered
HASTE_SECONDS: Final = 0.3  # for which an incomplete overview is cached
MOST_PROCESSES: Final = 1000
MOST_SOCKETS: Final = 2000  # that all processes together list
MOST_CACHED: Final = 8  # overviews


class Process(NamedTuple):
    """A live process; ``open`` is how many sockets of the search it has, None until it has answered."""

    uid: str
    host: str
    pid: int
    leases: int
    open: int | None


class Ident(NamedTuple):
    """An ident with open sockets: as shown, as control messages name it, and in how many processes."""

    shown: str
    tag: str
    open: int
    processes: int

    @property
    def quoted(self) -> str:
        """The search that finds exactly this ident."""
        return f'"{self.shown}"'


class Connection(NamedTuple):
    """One open socket; times are seconds, numbers are frames."""

    uid: str
    pid: int
    id: str
    idents: tuple[str, ...]
    address: str
    scope: str
    path: str
    age: float
    silent: float
    received: int
    refused: int
    sent: int
    lost: int


class Overview(NamedTuple):
    """The answers of all processes; ``open`` is how many sockets there are, ``connections`` lists some of them."""

    processes: tuple[Process, ...]
    idents: tuple[Ident, ...]
    connections: tuple[Connection, ...]
    open: int
    alone: bool = False  # the store is in memory, so other processes are unknown
    waited: bool = True  # long enough for answers: a silent process without leases has no socket
    doubtful: tuple[str, ...] = ()  # tags of idents that a process may have left out of its list
    unseen: int = 0  # processes beyond MOST_PROCESSES, which were not asked

    @property
    def is_whole(self) -> bool:
        """Whether every process that may have sockets has answered, about every ident shown."""
        silent = [process for process in self.processes if process.open is None]
        has_answers = all(self.waited and not process.leases for process in silent)
        return has_answers and not self.doubtful and not self.unseen


_cache: dict[tuple[int, str], tuple[float, Overview]] = {}


def look(store: MemoryStore | RedisStore, search: str = "") -> Overview:
    """The open connections by the answers so far; asks processes for new ones. Raises StoreError.

    It takes a few commands in Redis, cached for a moment, and never scans its keys.
    """
    key, now = (id(store), search), time.monotonic()
    cached = _cache.get(key)
    if cached and now - cached[0] < (FRESH_SECONDS if cached[1].is_whole else HASTE_SECONDS):
        return cached[1]
    overview = _asked(store, search) if store.is_remote else _alone(store, search)
    if len(_cache) >= MOST_CACHED:
        _cache.clear()
    _cache[key] = now, overview
    return overview


def looks(store: MemoryStore | RedisStore, search: str, seconds: float) -> Iterator[Overview]:
    """Look until every process has answered, or for so many seconds."""
    until = time.monotonic() + seconds
    yield (overview := look(store, search))
    while not overview.is_whole and time.monotonic() < until:
        time.sleep(0.1)
        yield (overview := look(store, search))


def look_again() -> None:
    """Clear the cache, as a socket was closed."""
    _cache.clear()


def _alone(store: MemoryStore, search: str) -> Overview:
    uid = store.leases.uid
    listed = SocketReporter(store, open_sockets).listed(search, MOST)
    return _merged({uid: json.loads(store.leases.report())}, {uid: listed})._replace(alone=True)


def _asked(store: RedisStore, search: str) -> Overview:
    census = ProcessRecords(store).census()
    seen = dict(islice(census.items(), MOST_PROCESSES))
    message = ControlMessage(REPORT, search=search, most=max(2, min(MOST, MOST_SOCKETS // max(1, len(seen)))))
    waited = store.control.request_from_all(message, search_digest(search), QUIET_MS) >= ANSWERS * conf().RULES_POLL
    calls = [("read_sockets", (store.process_key(report_key(uid, search)),), ()) for uid in seen]
    replies = [reply for some in batches(calls) for reply in store.pipeline(some)]
    reports = {uid: process_identity.read(reply) for uid, reply in zip(seen, replies, strict=True)}
    overview = _merged(seen, reports)._replace(waited=waited, unseen=len(census) - len(seen))
    if overview.doubtful:
        tags = " ".join(overview.doubtful)
        store.control.request_from_all(
            message._replace(tag=tags), f"{search_digest(search)}:{search_digest(tags)}", QUIET_MS
        )
    return overview


def _merged(census: Mapping[str, Mapping[str, Any]], reports: Mapping[str, dict[str, Any]]) -> Overview:
    processes = tuple([_process(uid, meta, reports[uid]) for uid, meta in census.items()])
    rows = [_connection(process, row) for process in processes for row in reports[process.uid].get("sockets", ())]
    idents = _idents(report.get("idents", ()) for report in reports.values())
    return Overview(
        processes,
        idents,
        tuple(sorted(rows, key=lambda row: (row.idents, -row.age))),
        sum(process.open or 0 for process in processes),
        doubtful=_doubtful(idents, reports.values()),
    )


def _idents(reports: Iterable[Iterable[tuple[str, str, int]]]) -> tuple[Ident, ...]:
    by_tag: dict[str, Ident] = {}
    for report in reports:
        for shown, tag, count in report:
            before = by_tag.get(tag, Ident("", tag, 0, 0))
            by_tag[tag] = Ident(shown or before.shown, tag, before.open + count, before.processes + (count > 0))
    present = (ident for ident in by_tag.values() if ident.open)
    return tuple(sorted(present, key=lambda one: (-one.open, one.shown))[:MOST_IDENTS])


def _doubtful(idents: Iterable[Ident], reports: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Tags of idents that may have more sockets: some process has more idents than it lists, and does not list them."""
    lists = [(report.get("of", 0), report.get("idents", ())) for report in reports]
    cut = [{row[1] for row in rows} for count, rows in lists if count > sum(row[2] > 0 for row in rows)]
    return tuple(sorted(ident.tag for ident in idents if not all(ident.tag in listed for listed in cut)))


def _process(uid: str, meta: Mapping[str, Any], report: Mapping[str, Any]) -> Process:
    name = str(meta.get("host") or "?").partition("/")[0]
    return Process(uid, name, number(meta, "pid"), number(meta, "held"), report.get("open"))


def _connection(process: Process, row: Mapping[str, Any]) -> Connection:
    known = {name: value for name, value in row.items() if name in Connection._fields}
    return Connection(uid=process.uid, pid=process.pid, **{**known, "idents": tuple(row["idents"])})

"""Overview of the open sockets of all processes. On request, each process writes a list of its own to Redis."""

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

from django_throttle.connections.processes import ProcessRecords
from django_throttle.core import Lease
from django_throttle.core.control_messages import REPORT, ControlMessage
from django_throttle.local import process_identity
from django_throttle.local.open_sockets import OpenSocket, OpenSockets, open_sockets
from django_throttle.local.process_identity import number
from django_throttle.stores import AnyStore, MemoryStore, RedisStore
from django_throttle.stores.redis.failures import raise_first
from django_throttle.stores.redis.transport import batches

LIST_TTL_MS: Final = 15_000
MAX_LISTED_SOCKETS: Final = 500  # of a process
MAX_LISTED_IDENTS: Final = 100
IDENTS_PER_SOCKET: Final = 5  # idents listed for each listed socket, if many processes list few sockets each
MAX_COUNTED_IDENTS: Final = 2 * MAX_LISTED_IDENTS  # idents that other processes list, and this one counts, too
MAX_SEARCHES: Final = 8
SEARCH_SECONDS: Final = 4.0  # pages and commands repeat their request before that
PAUSE_FACTOR: Final = 4  # of the time that writing the lists took
MAX_TEXT_LENGTH: Final = 120  # characters of an ident or a path
HIDDEN_KIND: Final = "session"  # an ident of this kind is as secret as a password


class Search(NamedTuple):
    """Request for a list of sockets."""

    max_sockets: int
    hashes: tuple[str, ...]  #: hashes of idents to count in any case
    until: float  #: end of the request in monotonic seconds


class SocketIdents(NamedTuple):
    """Idents of a socket while it has these leases, and their keyed hashes, which messages use."""

    leases: tuple[Lease, ...]
    idents: tuple[str, ...]
    hashes: tuple[str, ...]


class SocketEntry(NamedTuple):
    """Entry of a socket in lists: the labels of its idents, and the texts to search."""

    socket_idents: SocketIdents
    labels: tuple[str, ...]
    texts: tuple[str, ...]
    folded: str

    def matches(self, search: str) -> bool:
        """Return True if the search is part of an ident, address, scope or path, or in quotes equals one of them."""
        if not search:
            return True
        if search[0] == search[-1] == '"':
            return search[1:-1] in self.texts or search[1:-1] in self.socket_idents.idents
        return search in self.socket_idents.idents or search.casefold() in self.folded


SocketEntries = list[tuple[OpenSocket, SocketEntry]]


class SocketReporter:
    """Lists the sockets of this process."""

    def __init__(self, store: AnyStore, sockets: OpenSockets) -> None:
        self.store, self.sockets = store, sockets
        self._idents: WeakKeyDictionary[OpenSocket, SocketIdents] = WeakKeyDictionary()
        self._entries: WeakKeyDictionary[OpenSocket, SocketEntry] = (
            WeakKeyDictionary()
        )  # only while lists are requested
        self._searches: dict[str, Search] = {}
        self.pauses_until = 0.0

    def want(self, message: ControlMessage) -> None:
        """Write the requested list for the next seconds."""
        earlier = self._searches.pop(message.search, None)
        if len(self._searches) >= MAX_SEARCHES:
            del self._searches[next(iter(self._searches))]
        hashes = dict.fromkeys((*message.ident_hash.split(), *(earlier.hashes if earlier else ())))
        max_sockets = message.max_sockets or MAX_LISTED_SOCKETS
        until = time.monotonic() + SEARCH_SECONDS
        self._searches[message.search] = Search(max_sockets, tuple(hashes)[:MAX_COUNTED_IDENTS], until)

    @property
    def is_wanted(self) -> bool:
        return bool(self._searches)

    def write(self) -> None:
        """Write the requested lists to Redis, in one pass over the sockets. Raise StoreError.

        Pause afterwards for four times as long, to leave time for beats and messages.
        """
        now = time.monotonic()
        self._searches = {text: search for text, search in self._searches.items() if search.until > now}
        if not self._searches:
            self._entries.clear()
            return
        if not self.store.is_remote or now < self.pauses_until:
            return  # no other process reads lists of a memory store
        uid, entries, calls = self.store.leases.uid, self._entries_of_sockets(), []
        for text, search in self._searches.items():
            listed = json.dumps(_listed(entries, text, search.max_sockets, search.hashes), separators=(",", ":"))
            calls.append(("store_sockets", (self.store.process_key(report_key(uid, text)),), (LIST_TTL_MS, listed)))
        raise_first(self.store.pipeline(calls))
        self.pauses_until = time.monotonic() + PAUSE_FACTOR * (time.monotonic() - now)

    def listed(self, search: str, max_sockets: int) -> dict[str, object]:
        """Return the numbers of sockets and idents, and some sockets, those of the idents with most sockets first."""
        return _listed(self._entries_of_sockets(), search, max_sockets)

    def idents(self, socket: OpenSocket) -> SocketIdents:
        """Return the idents of a socket. They are cached, as there are thousands of sockets."""
        socket_idents = self._idents.get(socket)
        if socket_idents is None or socket_idents.leases is not socket.leases:
            leases, idents = socket.leases, _idents_of(socket)
            socket_idents = self._idents[socket] = SocketIdents(
                leases, idents, tuple(map(self.store.control.ident_hash, idents))
            )
        return socket_idents

    def _entries_of_sockets(self) -> SocketEntries:
        return [(socket, self._entry(socket)) for socket in self.sockets.all()]

    def _entry(self, socket: OpenSocket) -> SocketEntry:
        entry, socket_idents = self._entries.get(socket), self.idents(socket)
        if entry is None or entry.socket_idents is not socket_idents:
            named = tuple(map(displayed, socket_idents.idents, socket_idents.hashes))
            texts = (*named, socket.address, socket.scope, socket.path)
            entry = self._entries[socket] = SocketEntry(socket_idents, named, texts, "\n".join(texts).casefold())
        return entry


def _listed(entries: SocketEntries, search: str, max_sockets: int, hashes: Iterable[str] = ()) -> dict[str, object]:
    """See ``SocketReporter.listed``. ``hashes`` are counted even if they are not among the first idents."""
    matches = [pair for pair in entries if pair[1].matches(search)]
    counts = Counter(ident_hash for _, entry in matches for ident_hash in entry.socket_idents.hashes)
    names = {
        ident_hash: name
        for _, entry in matches
        for ident_hash, name in zip(entry.socket_idents.hashes, entry.labels, strict=True)
    }
    hash_counts = dict(counts.most_common(min(MAX_LISTED_IDENTS, IDENTS_PER_SOCKET * max_sockets)))
    hash_counts.update((ident_hash, counts[ident_hash]) for ident_hash in hashes)

    def order(pair: tuple[OpenSocket, SocketEntry]) -> tuple[int, tuple[str, ...], float]:
        socket, (socket_idents, *_) = pair
        return -max(map(counts.__getitem__, socket_idents.hashes), default=0), socket_idents.idents, socket.opened

    return {
        "open": len(matches),
        "of": len(counts),
        "idents": [[names.get(ident_hash, ""), ident_hash, number] for ident_hash, number in hash_counts.items()],
        "sockets": [
            _row(socket, entry.labels)
            for socket, entry in nsmallest(min(max_sockets, MAX_LISTED_SOCKETS), matches, key=order)
        ],
    }


def report_key(uid: str, search: str) -> str:
    """Return the name of the key of a process' list for a search."""
    return f"sockets:{uid}:{search_digest(search)}"


def search_digest(search: str) -> str:
    """Return a short hash of a search, or an empty text without a search."""
    return hashlib.blake2b(search.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest() if search else ""


def displayed(ident: str, ident_hash: str) -> str:
    """Return the ident for operators: a secret ident as its kind and the beginning of its hash."""
    kind = ident.partition(":")[0]
    return f"{kind}:#{ident_hash[:8]}" if HIDDEN_KIND in kind.split("+") else ident[:MAX_TEXT_LENGTH]


def _idents_of(socket: OpenSocket) -> tuple[str, ...]:
    """Return the sorted idents of a socket, its address last."""
    try:
        idents = socket.idents
    except Exception:  # noqa: BLE001 - functions of the site, or a user not loaded yet; leases are always there
        idents = frozenset(ident for lease in socket.leases for _, ident in lease.lease_keys)
    return tuple(sorted(idents, key=lambda ident: (ident.startswith("ip:"), ident)))


def _row(socket: OpenSocket, idents: tuple[str, ...]) -> dict[str, object]:
    now = time.monotonic()
    attributes = ("id", "address", "scope", "received", "refused", "sent", "lost")
    return {
        **{name: getattr(socket, name) for name in attributes},
        "idents": idents,
        "path": socket.path[:MAX_TEXT_LENGTH],
        "age": round(now - socket.opened, 1),
        "silent": round(now - socket.last_received, 1),
    }


COMPLETE_CACHE_SECONDS: Final = 1.0  # lifetime of a complete overview in the cache
QUIET_MS: Final = 1000  # in which an equal request is not sent again
CONTROL_SECONDS: Final = 0.5  # between two readings of control messages by a process
ANSWER_POLLS: Final = 3  # times CONTROL_SECONDS, after which each process has answered
INCOMPLETE_CACHE_SECONDS: Final = 0.3  # lifetime of an incomplete one
MAX_PROCESSES: Final = 1000
MAX_TOTAL_SOCKETS: Final = 2000  # in the lists of all processes
MAX_CACHED_OVERVIEWS: Final = 8


class Process(NamedTuple):
    """A live process. ``open`` is its number of sockets that match the search, None until it has answered."""

    uid: str
    host: str
    pid: int
    leases: int
    open: int | None


class Ident(NamedTuple):
    """Ident with open sockets."""

    shown: str  #: text for operators
    ident_hash: str
    open: int  #: number of sockets
    processes: int  #: number of processes with such sockets

    @property
    def quoted(self) -> str:
        """Search for exactly this ident."""
        return f'"{self.shown}"'


class ListedSocket(NamedTuple):
    """An open socket. Times are in seconds, numbers are frames."""

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


class SocketOverview(NamedTuple):
    """Merged answers of all processes. ``open`` is the number of sockets. ``connections`` has some of them."""

    processes: tuple[Process, ...]
    idents: tuple[Ident, ...]
    connections: tuple[ListedSocket, ...]
    open: int
    alone: bool = False  #: True for a memory store, which knows of no other processes
    waited: bool = True  #: True if processes had time to answer. One that did not, and has no leases, has no sockets.
    doubtful: tuple[str, ...] = ()  #: hashes of idents that a process may have left out of its list
    unseen: int = 0  #: number of processes beyond MAX_PROCESSES, which were not asked

    @property
    def is_whole(self) -> bool:
        """True if every process that may have sockets has answered for every shown ident."""
        silent = [process for process in self.processes if process.open is None]
        has_answers = all(self.waited and not process.leases for process in silent)
        return has_answers and not self.doubtful and not self.unseen


_cache: dict[tuple[int, str], tuple[float, SocketOverview]] = {}


def get_overview(store: MemoryStore | RedisStore, search: str = "") -> SocketOverview:
    """Return the overview by the answers so far, and request new ones. Raise StoreError.

    It takes a few commands, is cached for a moment, and never scans keys of Redis.
    """
    key, now = (id(store), search), time.monotonic()
    cached = _cache.get(key)
    if cached and now - cached[0] < (COMPLETE_CACHE_SECONDS if cached[1].is_whole else INCOMPLETE_CACHE_SECONDS):
        return cached[1]
    overview = _remote_overview(store, search) if store.is_remote else _local_overview(store, search)
    if len(_cache) >= MAX_CACHED_OVERVIEWS:
        _cache.clear()
    _cache[key] = now, overview
    return overview


def poll_overview(store: MemoryStore | RedisStore, search: str, seconds: float) -> Iterator[SocketOverview]:
    """Yield overviews until every process has answered, or for so many seconds."""
    until = time.monotonic() + seconds
    yield (overview := get_overview(store, search))
    while not overview.is_whole and time.monotonic() < until:
        time.sleep(0.1)
        yield (overview := get_overview(store, search))


def clear_overviews() -> None:
    """Clear the cache of overviews, because a socket was closed."""
    _cache.clear()


def _local_overview(store: MemoryStore, search: str) -> SocketOverview:
    uid = store.leases.uid
    listed = SocketReporter(store, open_sockets).listed(search, MAX_LISTED_SOCKETS)
    return _merged({uid: json.loads(store.leases.report())}, {uid: listed})._replace(alone=True)


def _remote_overview(store: RedisStore, search: str) -> SocketOverview:
    introductions = ProcessRecords(store).read_processes()
    requested = dict(islice(introductions.items(), MAX_PROCESSES))
    max_sockets = max(2, min(MAX_LISTED_SOCKETS, MAX_TOTAL_SOCKETS // max(1, len(requested))))
    message = ControlMessage(REPORT, search=search, max_sockets=max_sockets)
    waited = store.control.request_from_all(message, search_digest(search), QUIET_MS) >= ANSWER_POLLS * CONTROL_SECONDS
    calls = [("read_sockets", (store.process_key(report_key(uid, search)),), ()) for uid in requested]
    replies = [reply for batch in batches(calls) for reply in store.pipeline(batch)]
    reports = {uid: process_identity.read(reply) for uid, reply in zip(requested, replies, strict=True)}
    overview = _merged(requested, reports)._replace(waited=waited, unseen=len(introductions) - len(requested))
    if overview.doubtful:
        hashes = " ".join(overview.doubtful)
        store.control.request_from_all(
            message._replace(ident_hash=hashes), f"{search_digest(search)}:{search_digest(hashes)}", QUIET_MS
        )
    return overview


def _merged(introductions: Mapping[str, Mapping[str, Any]], reports: Mapping[str, dict[str, Any]]) -> SocketOverview:
    processes = tuple([_process(uid, meta, reports[uid]) for uid, meta in introductions.items()])
    rows = [_connection(process, row) for process in processes for row in reports[process.uid].get("sockets", ())]
    idents = _idents(report.get("idents", ()) for report in reports.values())
    return SocketOverview(
        processes,
        idents,
        tuple(sorted(rows, key=lambda row: (row.idents, -row.age))),
        sum(process.open or 0 for process in processes),
        doubtful=_doubtful(idents, reports.values()),
    )


def _idents(reports: Iterable[Iterable[tuple[str, str, int]]]) -> tuple[Ident, ...]:
    by_hash: dict[str, Ident] = {}
    for report in reports:
        for shown, ident_hash, count in report:
            earlier = by_hash.get(ident_hash, Ident("", ident_hash, 0, 0))
            by_hash[ident_hash] = Ident(
                shown or earlier.shown, ident_hash, earlier.open + count, earlier.processes + (count > 0)
            )
    open_idents = (ident for ident in by_hash.values() if ident.open)
    return tuple(sorted(open_idents, key=lambda ident: (-ident.open, ident.shown))[:MAX_LISTED_IDENTS])


def _doubtful(idents: Iterable[Ident], reports: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the hashes of idents that a process may have left out, because its list was too long."""
    lists = [(report.get("of", 0), report.get("idents", ())) for report in reports]
    shortened = [{row[1] for row in rows} for count, rows in lists if count > sum(row[2] > 0 for row in rows)]
    return tuple(
        sorted(ident.ident_hash for ident in idents if not all(ident.ident_hash in listed for listed in shortened))
    )


def _process(uid: str, meta: Mapping[str, Any], report: Mapping[str, Any]) -> Process:
    name = str(meta.get("host") or "?").partition("/")[0]
    return Process(uid, name, number(meta, "pid"), number(meta, "held"), report.get("open"))


def _connection(process: Process, row: Mapping[str, Any]) -> ListedSocket:
    fields = {name: value for name, value in row.items() if name in ListedSocket._fields}
    return ListedSocket(uid=process.uid, pid=process.pid, **{**fields, "idents": tuple(row["idents"])})

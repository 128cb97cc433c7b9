"""Processes and their leases as Redis has them: a method for each script, and the sweep."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from django_throttle.conf import conf
from django_throttle.core.control_messages import evicted
from django_throttle.exceptions import StoreError
from django_throttle.local import process_identity
from django_throttle.local.store_time import micros
from django_throttle.stores.redis.failures import raise_first
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.transport import BATCH

if TYPE_CHECKING:
    from django_throttle.stores.redis.store import RedisStore


T = TypeVar("T")
SCANNED: Final = 1000  # keys of one SCAN
MAX_CLAIMS: Final = 10  # dead processes that one beat claims, to sweep them
# A sweeper that dies leaves its work to others after this long; each batch renews the claim.
CLAIM_SECONDS: Final = 3.0
# A lease that Redis has and its process has not may be on its way to the process; after so long nobody holds it.
GRACE_SECONDS: Final = 10.0
BEATS: Final = 1.2  # within the time of so many beats each process that lives has sent one


class BeatReply(NamedTuple):
    """The reply to a beat: whether Redis knows the caller, processes alive, dead ones not swept yet, those now ours.

    ``silent`` ones are counted as alive, as they may be. ``own`` are those alive that the caller beat for; ``now`` is
    the server's time in microseconds.
    """

    known: bool
    alive: int
    dead: int
    claimed: list[str]
    silent: int
    own: int
    now: int


class LastBeat(NamedTuple):
    """When it was sent by our own clock, the server's time, and that again if the server has written it."""

    sent: float
    now: int
    wrote: int | str


class ServerState(NamedTuple):
    """What a server says: the number written there last (-1: none), its run id, how many keys it has evicted.

    Run id and ``evicted`` are empty where INFO is forbidden. It ``is_tight`` when it will evict some soon.
    """

    number: int
    run_id: str
    evicted: str
    is_tight: bool


class IndexLeases(NamedTuple):
    """The leases of a process under one index: how many, and which are to be checked when that is too many."""

    leases: int
    doubtful: list[str]


class ProcessRecords:
    """Reads and writes which processes live and what each holds; raises StoreError."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self._clock = store.clock or time.monotonic  # our own, by which a step of the server's is seen
        self._streak_began: float | None = None
        self._last_beat = 0.0
        self._last: LastBeat | None = None

    def beat(
        self,
        living: Sequence[str],
        dead: Sequence[str] = (),
        *,
        report: str = "",
        expires: bool | None = None,
        most: int = MAX_CLAIMS,
    ) -> BeatReply:
        """Report processes as living or dead; with a ``report`` the first living uid is the caller's own.

        ``expires``: silent processes are dead. By default only for a caller that has itself beaten without
        interruption for a while, since Redis may have been unreachable for all.
        """
        silence, sent, last = micros(conf().PROCESS_TTL), self._clock(), self._last
        may_expire = self._is_steady() if expires is None else expires
        args = [self.store.now_arg(), silence, micros(CLAIM_SECONDS), int(may_expire), most, self.store.lease_ttl_ms]
        args += [report, last.now + micros(sent - last.sent) if last else "", last.wrote if last else ""]
        reply = self._ask("beat", self._keys("live", "dead", "meta"), [*args, len(living), *living, *dead])
        self._last_beat = time.monotonic()
        known, alive, unswept, claimed, silent, now, written = reply
        self._last = LastBeat(sent, int(now), int(now) if written else "")
        return BeatReply(bool(known), alive, unswept, list(map(text, claimed)), silent, written, int(now))

    def announce(self, uid: str, introduction: str, indexes: Iterable[str]) -> bool:
        """Report that this process may hold leases under these index keys; False when Redis does not know the uid."""
        args = (self.store.now_arg(), uid, introduction, self.store.lease_ttl_ms, *indexes)
        return bool(self.store.call("announce", self._keys("live", "meta", f"held:{uid}"), args))

    def retire(self, uid: str, indexes: Iterable[str]) -> None:
        """Report that it holds nothing under these index keys any more."""
        self.store.call("retire", self._keys(f"held:{uid}"), tuple(indexes))

    def census(self) -> dict[str, dict[str, Any]]:
        reply = list(map(text, self._ask("read_processes", self._keys("live", "meta"), ())))
        return {uid: process_identity.read(meta) for uid, meta in zip(reply[::2], reply[1::2], strict=True)}

    def sweep(self, uid: str) -> Iterator[int]:
        """Take a dead process out of every index that it announced, in batches; yields the leases freed by each.

        A batch renews the claim. What is left when nobody goes on is found by a later beat; so is what is on a node of
        a Cluster that is away.
        """
        keys, claim = self._keys("dead", "meta", f"held:{uid}"), micros(CLAIM_SECONDS)
        reaped: list[str] = []
        while found := self.store.call("sweep", keys, (self.store.now_arg(), uid, claim, BATCH, *reaped)):
            indexes = list(map(text, found))
            groups = [indexes] if self.store.transport.slot_of is None else [[index] for index in indexes]
            replies = self.store.pipeline([("reap", group, (uid,)) for group in groups])
            done = [(group, reply) for group, reply in zip(groups, replies, strict=True) if isinstance(reply, list)]
            reaped = [index for group, _ in done for index in group]
            raise_first(() if reaped else replies)
            if lost := [text(lease) for _, reply in done for lease in reply[1:]]:
                self.store.control.dispatch(evicted(lost))
            yield sum(reply[0] for _, reply in done)

    def walk(self, uid: str) -> Iterator[list[str]]:
        """The index keys that a process has announced, in batches; one may come twice."""
        cursor = "0"
        while True:
            following, indexes = self.store.call("scan_indexes", self._keys(f"held:{uid}"), (cursor, BATCH))
            yield list(map(text, indexes))
            cursor = text(following)
            if cursor == "0":
                return

    def extend(self, uid: str, expected: Mapping[str, int]) -> list[IndexLeases | Exception]:
        """Make the TTL of each index key whole again; ``expected`` says how many leases the process has there.

        An error stands in the place of what it is about.
        """
        common, grace = (self.store.now_arg(), uid, self.store.lease_ttl_ms), micros(GRACE_SECONDS)
        calls = [("extend", (index,), (*common, leases, grace)) for index, leases in expected.items()]
        return [
            reply if isinstance(reply, Exception) else IndexLeases(reply[0], list(map(text, reply[1:])))
            for reply in self.store.pipeline(calls)
        ]

    def swap_numbers(self, names: Iterable[str], number: int) -> list[ServerState | None]:
        """Write the number under each of these keys; returns the states before, None where no server answered."""
        return self._each([("swap_number", (name,), (self.store.lease_ttl_ms, number)) for name in names], _state)

    def count_keys(self, groups: Sequence[Sequence[str]]) -> list[int | None]:
        """How many keys of each group exist, which makes them used ones; None where the server did not answer."""
        return self._each([("count_keys", keys, ()) for keys in groups], int)

    def reap_unlisted(self, name: str) -> Iterator[int]:
        """Take uids that are no more out of every index of one server, in batches; yields the leases freed by each.

        The server is that of the key ``name``. Its keys are gone through, as nothing else names what came back there.
        """
        cursor, pattern = "0", re.sub(r"[*?\[\]^\\]", r"\\\g<0>", self.store.prefix) + ":{*}:*:*"
        while True:
            cursor, *found = map(text, self.store.call("scan_leases", (name,), (cursor, SCANNED, pattern)))
            living = self.census() if found else {}  # read last, as who has leases was announced before it took them
            indexes = zip(found[::2], found[1::2], strict=True)
            replies = self.store.pipeline([("reap", (index,), (uid,)) for index, uid in indexes if uid not in living])
            raise_first(replies)
            yield sum(reply[0] for reply in replies)
            if cursor == "0":
                return

    def are_held(self, uid: str, leases: Iterable[tuple[str, str]]) -> list[bool | None]:
        """Whether each of these (index key, lease) is there; None where the server did not answer."""
        return self._each([("has_lease", (index,), (uid, lease)) for index, lease in leases], bool)

    def _each(
        self, calls: Sequence[tuple[str, Sequence[str], Sequence[object]]], read: Callable[[Any], T]
    ) -> list[T | None]:
        replies = self.store.pipeline(calls)
        return [None if isinstance(reply, Exception) else read(reply) for reply in replies]

    def _ask(self, name: str, keys: Sequence[str], args: Sequence[object]) -> Any:
        """A caller that failed does not know which processes were silent meanwhile."""
        try:
            return self.store.call(name, keys, args)
        except StoreError:
            self._streak_began = None
            raise

    def _keys(self, *names: str) -> tuple[str, ...]:
        return tuple(map(self.store.process_key, names))

    def _is_steady(self) -> bool:
        now = time.monotonic()
        if self._streak_began is None or now - self._last_beat > conf().PROCESS_TTL:
            self._streak_began = now
        return now - self._streak_began > BEATS * conf().BEAT_INTERVAL


def _state(reply: Sequence[Any]) -> ServerState:
    number, run_id, evicted = map(text, reply[:3])
    return ServerState(int(number) if number.isdecimal() else -1, run_id, evicted, bool(reply[3]))


# Of a turn of work that may be long: beats and other jobs come between, and the next turn before a claim ends.
SHARE_SECONDS: Final = 0.3


class Sweeper:
    """Releases what dead processes held, a share in each turn; used by one thread."""

    def __init__(self, records: ProcessRecords) -> None:
        self.records = records
        self._waiting: dict[str, Iterator[int]] = {}

    def take_on(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._waiting.setdefault(uid, self.records.sweep(uid))

    def add(self, name: str, batches: Iterator[int]) -> None:
        """Sweep something else; each batch is the number of leases that it has freed."""
        self._waiting.setdefault(name, batches)

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def go_on(self, seconds: float = SHARE_SECONDS) -> int:
        """Sweep for so long, and a batch more; returns the number of leases freed. Raises StoreError.

        A batch of each in turn, so that no claim ends while another one is swept. After an error whoever claims it
        next begins anew: that does nothing twice.
        """
        freed, until = 0, time.monotonic() + seconds
        while self._waiting:
            uid = next(iter(self._waiting))
            batches = self._waiting.pop(uid)
            some = next(batches, None)
            if some is not None:
                freed += some
                self._waiting[uid] = batches
            if time.monotonic() > until:
                break
        return freed

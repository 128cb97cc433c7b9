"""Processes and their leases in Redis: a method for each script, and the sweep of dead processes."""

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
SCAN_COUNT: Final = 1000  # approximate number of keys of a SCAN
MAX_CLAIMS: Final = 10  # dead processes that a beat claims for the sweep
# After this time another sweeper may take over. Each batch renews the claim.
CLAIM_SECONDS: Final = 3.0
# After this time a lease that Redis has, and its process has not, is no longer on its way to the process.
GRACE_SECONDS: Final = 10.0
BEATS_PER_TTL: Final = 4  # in PROCESS_TTL, so that a process may miss some
STEADY_BEATS: Final = 1.2  # beat intervals, in which each live process has sent a beat
EXTEND_SECONDS: Final = 180.0  # interval at which leases are extended; they live 600 seconds


def beat_seconds() -> float:
    """Return the interval of the beats of each process."""
    return conf().PROCESS_TTL / BEATS_PER_TTL


class BeatReply(NamedTuple):
    """Reply to a beat."""

    is_known: bool  #: True if Redis knows the caller as a live process
    alive: int  #: number of live processes
    dead: int  #: number of dead processes that are not swept yet
    claimed: list[str]  #: uids of dead processes that the caller has to sweep
    silent: int  #: number of live processes that are silent, which may be dead
    own: int  #: number of live processes that the caller has beaten for
    now: int  #: time of the server in microseconds


class LastBeat(NamedTuple):
    """Last beat: time of sending by the own clock, the server's time, and that time again if it was written."""

    sent_at: float
    now: int
    written_time: int | str


class ServerState(NamedTuple):
    """State of a server."""

    number: int  #: number that was written there last, -1 for none
    run_id: str  #: empty if INFO is forbidden
    evicted: str  #: number of evicted keys, empty if INFO is forbidden
    near_maxmemory: bool  #: True if the server is going to evict keys


class IndexLeases(NamedTuple):
    """Leases of a process under an index: their number and, if there are too many, leases to check."""

    leases: int
    doubtful: list[str]


class ProcessRecords:
    """Processes and their leases in Redis. The methods raise StoreError."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self._clock = store.clock or time.monotonic  # shows steps of the server's clock
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
        max_claims: int = MAX_CLAIMS,
    ) -> BeatReply:
        """Report processes as living or dead. With a ``report`` the first living uid is the caller's own.

        ``expires`` declares silent processes dead. By default it is True after a while of uninterrupted beats, because
        Redis may have been unreachable for all processes.
        """
        silence, sent_at, last_beat = micros(conf().PROCESS_TTL), self._clock(), self._last
        may_expire = self._update_streak() if expires is None else expires
        args = [self.store.now_arg(), silence, micros(CLAIM_SECONDS), int(may_expire)]
        args += [max_claims, self.store.lease_ttl_ms]
        expected_now = last_beat.now + micros(sent_at - last_beat.sent_at) if last_beat else ""
        args += [report, expected_now, last_beat.written_time if last_beat else ""]
        reply = self._call("beat", self._keys("live", "dead", "meta"), [*args, len(living), *living, *dead])
        self._last_beat = time.monotonic()
        is_known, alive, unswept, claimed, silent, now, written = reply
        self._last = LastBeat(sent_at, int(now), int(now) if written else "")
        return BeatReply(bool(is_known), alive, unswept, list(map(text, claimed)), silent, written, int(now))

    def announce(self, uid: str, introduction: str, indexes: Iterable[str]) -> bool:
        """Announce index keys under which this process may hold leases. Return False if Redis does not know the uid."""
        args = (self.store.now_arg(), uid, introduction, self.store.lease_ttl_ms, *indexes)
        return bool(self.store.call("announce", self._keys("live", "meta", f"held:{uid}"), args))

    def retire(self, uid: str, indexes: Iterable[str]) -> None:
        """Remove index keys under which a process holds no leases from its announcement."""
        self.store.call("retire", self._keys(f"held:{uid}"), tuple(indexes))

    def read_processes(self) -> dict[str, dict[str, object]]:
        """Return the introductions of the live processes by uid."""
        reply = list(map(text, self._call("read_processes", self._keys("live", "meta"), ())))
        return {uid: process_identity.read(meta) for uid, meta in zip(reply[::2], reply[1::2], strict=True)}

    def sweep(self, uid: str) -> Iterator[int]:
        """Remove a dead process from every index that it announced, in batches. Yield the leases freed by each.

        Each batch renews the claim. A later beat claims the rest if the sweep stops, or if a node of a Cluster is away.
        """
        keys, claim = self._keys("dead", "meta", f"held:{uid}"), micros(CLAIM_SECONDS)
        reaped: list[str] = []
        while reply := self.store.call("sweep", keys, (self.store.now_arg(), uid, claim, BATCH, *reaped)):
            indexes = list(map(text, reply))
            groups = [indexes] if self.store.transport.slot_of is None else [[index] for index in indexes]
            replies = self.store.pipeline([("reap", group, (uid,)) for group in groups])
            done = [(group, reply) for group, reply in zip(groups, replies, strict=True) if isinstance(reply, list)]
            reaped = [index for group, _ in done for index in group]
            raise_first(() if reaped else replies)
            if evicted_leases := [text(lease) for _, reply in done for lease in reply[1:]]:
                self.store.control.dispatch(evicted(evicted_leases))
            yield sum(reply[0] for _, reply in done)

    def scan_indexes(self, uid: str) -> Iterator[list[str]]:
        """Yield the index keys that a process has announced, in batches, some of them perhaps twice."""
        cursor = "0"
        while True:
            next_cursor, indexes = self.store.call("scan_indexes", self._keys(f"held:{uid}"), (cursor, BATCH))
            yield list(map(text, indexes))
            cursor = text(next_cursor)
            if cursor == "0":
                return

    def extend(self, uid: str, expected: Mapping[str, int]) -> list[IndexLeases | Exception]:
        """Extend the TTL of leases by index key. ``expected`` has the numbers of leases of the process.

        Return the leases in Redis, with errors in their places.
        """
        shared_args, grace = (self.store.now_arg(), uid, self.store.lease_ttl_ms), micros(GRACE_SECONDS)
        calls = [("extend", (index,), (*shared_args, leases, grace)) for index, leases in expected.items()]
        return [
            reply if isinstance(reply, Exception) else IndexLeases(reply[0], list(map(text, reply[1:])))
            for reply in self.store.pipeline(calls)
        ]

    def swap_numbers(self, names: Iterable[str], number: int) -> list[ServerState | None]:
        """Write a number under each of these keys. Return the states before, None without an answer."""
        return self._read_each(
            [("swap_number", (name,), (self.store.lease_ttl_ms, number)) for name in names], _server_state
        )

    def count_keys(self, groups: Sequence[Sequence[str]]) -> list[int | None]:
        """Return how many keys of each group exist, None without an answer. This marks the keys as recently used."""
        return self._read_each([("count_keys", keys, ()) for keys in groups], int)

    def reap_unlisted(self, name: str) -> Iterator[int]:
        """Remove uids that are not live from every index of a server, in batches. Yield the leases freed by each.

        The server is the one with the key ``name``. Its keys are scanned, as no announcement has the leases that came
        back there.
        """
        cursor, pattern = "0", re.sub(r"[*?\[\]^\\]", r"\\\g<0>", self.store.prefix) + ":{*}:*:*"
        while True:
            cursor, *reply = map(text, self.store.call("scan_leases", (name,), (cursor, SCAN_COUNT, pattern)))
            # Read after the scan, as processes are announced before they take leases.
            living = self.read_processes() if reply else {}
            indexes = zip(reply[::2], reply[1::2], strict=True)
            replies = self.store.pipeline([("reap", (index,), (uid,)) for index, uid in indexes if uid not in living])
            raise_first(replies)
            yield sum(reply[0] for reply in replies)
            if cursor == "0":
                return

    def are_held(self, uid: str, leases: Iterable[tuple[str, str]]) -> list[bool | None]:
        """Return for each (index key, lease) if it exists in Redis, None without an answer."""
        return self._read_each([("has_lease", (index,), (uid, lease)) for index, lease in leases], bool)

    def _read_each(
        self, calls: Sequence[tuple[str, Sequence[str], Sequence[object]]], read: Callable[[Any], T]
    ) -> list[T | None]:
        replies = self.store.pipeline(calls)
        return [None if isinstance(reply, Exception) else read(reply) for reply in replies]

    def _call(self, name: str, keys: Sequence[str], args: Sequence[object]) -> Any:
        """Run a script. A failure ends the streak of beats, as processes may have been silent meanwhile."""
        try:
            return self.store.call(name, keys, args)
        except StoreError:
            self._streak_began = None
            raise

    def _keys(self, *names: str) -> tuple[str, ...]:
        return tuple(map(self.store.process_key, names))

    def _update_streak(self) -> bool:
        """Return True if beats were uninterrupted for STEADY_BEATS."""
        now = time.monotonic()
        if self._streak_began is None or now - self._last_beat > conf().PROCESS_TTL:
            self._streak_began = now
        return now - self._streak_began > STEADY_BEATS * beat_seconds()


def _server_state(reply: Sequence[Any]) -> ServerState:
    number, run_id, evicted = map(text, reply[:3])
    return ServerState(int(number) if number.isdecimal() else -1, run_id, evicted, bool(reply[3]))


# Limit of a turn, so that beats and other jobs are not late, and the next turn begins before a claim ends.
TURN_SECONDS: Final = 0.3


class Sweeper:
    """Releases the leases of dead processes, in turns. Used by one thread."""

    def __init__(self, records: ProcessRecords) -> None:
        self.records = records
        self._waiting: dict[str, Iterator[int]] = {}

    def add_processes(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._waiting.setdefault(uid, self.records.sweep(uid))

    def add(self, name: str, batches: Iterator[int]) -> None:
        """Add another sweep. ``batches`` yields the number of leases freed by each batch."""
        self._waiting.setdefault(name, batches)

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def run_turn(self, seconds: float = TURN_SECONDS) -> int:
        """Sweep for so many seconds, at least one batch. Return the number of freed leases. Raise StoreError.

        The sweeps take turns by batch, so that no claim ends meanwhile. After an error, the process with the next claim
        starts again, which is safe to repeat.
        """
        freed, until = 0, time.monotonic() + seconds
        while self._waiting:
            uid = next(iter(self._waiting))
            batches = self._waiting.pop(uid)
            freed_by_batch = next(batches, None)
            if freed_by_batch is not None:
                freed += freed_by_batch
                self._waiting[uid] = batches
            if time.monotonic() > until:
                break
        return freed

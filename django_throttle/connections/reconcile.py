"""Keeps the leases in Redis equal to those of this process: sends beats, detects losses, registers, extends, sweeps."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from django_throttle.connections.processes import GRACE_SECONDS, TURN_SECONDS, ProcessRecords, ServerState, Sweeper
from django_throttle.exceptions import StoreError
from django_throttle.local.leases import MAX_RELEASED, LeaseKey, PendingRelease
from django_throttle.local.process_identity import processes_of_host
from django_throttle.stores.redis.failures import errors_of, raise_first
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.transport import BATCH, batches

if TYPE_CHECKING:
    from django_throttle.stores.redis.store import RedisStore


MARKER_KEYS: Final = 64  # so many that every node of a Cluster has one of them


class Loss(NamedTuple):
    """A detected loss of data."""

    writes: bool  #: True if writes were lost
    evicted: bool  #: True if keys were evicted, or are going to be
    older: tuple[str, ...]  #: servers that have gone back in time, each by the name of one of its keys


class LossDetector:
    """Detects once a beat that Redis has lost writes, with a constant number of commands. Used by one thread.

    Each beat writes its number on each server. A server with a lower number, or none, has gone back in time. A server
    with another run id was restarted, and may lack the last writes. If INFO is forbidden, writes are lost if the last
    registered lease is missing, or if the last released lease is there.
    """

    def __init__(self, store: RedisStore, records: ProcessRecords) -> None:
        self.store, self.records = store, records
        detector_id = secrets.token_urlsafe(9)
        self._names = [f"{store.prefix}:{{m{place}}}:mark:{detector_id}" for place in range(MARKER_KEYS)]
        self._last: dict[str, ServerState] = {}  # by name of a key on the server
        self._number = 0

    def detect(self) -> Loss:
        """Return the losses since the last call, none in the first call. Raise StoreError."""
        self._number += 1
        names = list({self.store.transport.node_of(name): name for name in reversed(self._names)}.values())
        writes = evicted = False
        older = []
        for name, state in zip(names, self.records.swap_numbers(names, self._number), strict=True):
            if state is None:
                continue
            last = self._last.get(name)
            self._last[name] = state._replace(number=self._number)
            if last is not None:
                has_evicted = not state.evicted or state.evicted != last.evicted
                number_is_evicted = has_evicted and state.number < 0 and state.run_id == last.run_id
                older += [name] * (state.number < last.number and not number_is_evicted)
                writes |= state.run_id != last.run_id
                evicted |= state.near_maxmemory or has_evicted
        writes = writes or bool(older) or (not evicted and self._has_lost_the_last())
        return Loss(writes, evicted, tuple(older))

    def remove_numbers(self) -> None:
        """Remove the numbers, as this process ends. Raise StoreError."""
        self.store.pipeline([("forget", (name,), ("", "")) for name in self._last])

    def _has_lost_the_last(self) -> bool:
        """Return True if a last registered lease is missing, or a last released one is there, on any node."""
        leases, key, samples = self.store.leases, self.store.key, dict[tuple[object, bool], tuple[LeaseKey, str]]()
        for is_held, last_leases in ((True, leases.newest(MAX_RELEASED)), (False, leases.last_released())):
            for pair, lease in last_leases:
                samples.setdefault((self.store.transport.node_of(key(*pair)), is_held), (pair, lease))
        places = [(key(*pair), lease) for pair, lease in samples.values()]
        exists_in_redis = self.records.are_held(leases.uid, places) if samples else []
        # A lease may have been taken or released meanwhile.
        return any(
            exists is not None and exists != is_held and leases.is_held(*pair, lease) == is_held
            for ((_, is_held), (pair, lease)), exists in zip(samples.items(), exists_in_redis, strict=True)
        )


SHUTDOWN_SECONDS: Final = 1.0  # for the sweep of this process' leases
BUSY_SECONDS: Final = 0.02  # until the next turn if work is left
CLUSTER_PAIRS: Final = 5000  # lease keys to check in one beat, on a Cluster that evicts keys


class Reconciler:
    """Periodic work for the leases of a process in one store. Used by one thread. The methods raise StoreError.

    ``on_evicted`` is called with evicted leases whose sockets are still open.
    """

    def __init__(self, store: RedisStore, on_evicted: Callable[[list[str]], object] = list) -> None:
        self.store, self.on_evicted = store, on_evicted
        self.leases = store.leases
        self.records = ProcessRecords(store)
        self.sweeper = Sweeper(self.records)
        self.losses = LossDetector(store, self.records)
        self._has_judged_neighbours = False
        self._replaced: set[str] = set()  # former uids, which live until their leases are registered again
        self._older: set[str] = set()  # servers that have gone back in time, each by the name of a key
        self._unchecked: Iterator[list[LeaseKey]] = iter(())  # to check for eviction
        self._checked = 0  # start of the next check on a Cluster
        self._failovers = store.transport.failovers

    def beat(self) -> None:
        """Report that this process is alive. The number of commands does not depend on the number of leases.

        If Redis has forgotten the process, or lost data, take a new uid and register all leases again.
        """
        leases = self.leases
        self.store.transport.check_primary()
        if not leases.is_introduced:
            self._announce(())
        living = [leases.uid, *self._replaced]
        reply = self.records.beat(living, self._dead_neighbours(), report=leases.report())
        loss = self.losses.detect()
        self._older.update(loss.older)
        has_lost_data = not reply.is_known or loss.writes or self.store.transport.failovers != self._failovers
        self.store.processes.note(reply.alive - reply.own + 1, lost=has_lost_data)
        if not has_lost_data:
            leases.note_intact()
        else:
            self._restart()
        if loss.evicted:
            self.check_all()
        self._retire()
        self.sweeper.add_processes(reply.claimed)
        self.sweeper.run_turn()

    def resend(self) -> float | None:
        """Send leases and releases that Redis has not confirmed. Return the seconds until the next turn, if it is soon.

        A server that has taken over may lack the last writes, so it is sent everything. If a node of a Cluster is away,
        the others are sent theirs, then the first error is raised.
        """
        if self.leases.is_lost or self.store.transport.failovers != self._failovers:
            self.beat()
        for lease in self.leases.take_to_release():
            for pair in lease.lease_keys:
                self.leases.release(*pair, lease.id)
        self.store.evictions.resolve()
        errors = self._register_some()
        releases = self.leases.unconfirmed()
        errors += self._release_some(releases)
        if unverified := self.leases.pop_unverified(GRACE_SECONDS, BATCH):
            errors += self._compare(unverified)
        self._check_some()
        if self._replaced and not self.leases.has_unsent:
            self._expire_replaced()
        self.sweeper.run_turn()
        self.store.fallback.flush()
        raise_first(errors)
        is_busy = self.leases.has_unsent or self.sweeper.is_busy or len(releases) > BATCH
        return BUSY_SECONDS if is_busy else None

    def extend(self) -> None:
        """Extend the TTL of all leases, and correct differences between Redis and this process."""
        raise_first([error for pairs in batches(self.leases.holdings()) for error in self._compare(pairs)])

    def release_all(self) -> None:
        """Release all leases, because the process ends. After SHUTDOWN_SECONDS, leave the rest to other processes."""
        uids = [*self._replaced, *([self.leases.renew()] if self.leases.is_introduced else [])]
        if uids:
            self.records.beat((), uids, expires=False, max_claims=0)
            own_sweeper = Sweeper(self.records)
            own_sweeper.add_processes(uids)
            own_sweeper.run_turn(SHUTDOWN_SECONDS)
        self.losses.remove_numbers()

    def _dead_neighbours(self) -> list[str]:
        """Return the dead processes of this host, once, so that a restarted worker frees a crashed one's leases."""
        if self._has_judged_neighbours:
            return []
        dead = processes_of_host(self.records.read_processes()).dead
        self._has_judged_neighbours = True
        return dead

    def _restart(self) -> None:
        """Take a new uid, and register all leases under it. Wrong leases in Redis stay with the old uid."""
        self._failovers = self.store.transport.failovers
        self._replaced.add(self.leases.renew())
        self._has_judged_neighbours = False
        self._announce(())
        self.resend()

    def _expire_replaced(self) -> None:
        """Expire the former uids with their leases in Redis, as all leases are registered under the current uid."""
        uids = dict.fromkeys((*self._replaced, *self.leases.former))
        self.records.beat([self.leases.uid], [*uids], expires=False, max_claims=0)
        self.sweeper.add_processes(uids)
        self.sweeper.add(f"unnamed by {self.leases.uid}", self._clear(self.leases.unnamed()))
        if self.store.transport.slot_of is not None:  # keys that came back on one node may not be announced on another
            for name in self._older:
                self.sweeper.add(name, self.records.reap_unlisted(name))
        self._replaced.clear()
        self._older.clear()

    def _clear(self, pairs: Iterable[LeaseKey]) -> Iterator[int]:
        """Remove leases of former uids under these keys in batches, by registering no leases."""
        for batch in batches(pairs):
            raise_first(
                errors_of(self.store.pipeline([self._register_call(self.leases.uid, pair, {}) for pair in batch]))
            )
            yield 0

    def check_all(self) -> None:
        """Queue a check of all registered leases, on a Cluster of a part of them. Raise StoreError."""
        held_key = self.store.process_key(f"held:{self.leases.uid}")
        if self.leases.has_announced and self.records.count_keys([[held_key]]) == [0]:
            self.leases.announce_again()
        pairs = self.leases.sent_pairs()
        if self.store.transport.slot_of is not None and len(pairs) > CLUSTER_PAIRS:  # each takes a command
            start = self._checked % len(pairs)
            pairs = (pairs + pairs)[start : start + CLUSTER_PAIRS]
            self._checked = start + CLUSTER_PAIRS
        self._unchecked = batches(pairs)

    def _check_some(self) -> None:
        """Register leases again that Redis has evicted."""
        until = time.monotonic() + TURN_SECONDS
        for pairs in self._unchecked:
            # A single server counts all keys in one command.
            try:
                missing = self._missing([pairs]) if self.store.transport.slot_of is None else pairs
                self.leases.send_again(self._missing([[pair] for pair in missing]))
            except StoreError:
                self.leases.send_again(pairs)
                raise
            if time.monotonic() > until:
                return

    def _missing(self, groups: list[list[LeaseKey]]) -> list[LeaseKey]:
        """Return the lease keys of groups that lack a key in Redis."""
        uid = self.leases.uid
        names = [[name for key in self._indexes(group) for name in (key, f"{key}:{uid}")] for group in groups]
        counts = self.records.count_keys(names)
        are_missing = (count is not None and count < len(keys) for count, keys in zip(counts, names, strict=True))
        return [pair for pairs, is_missing in zip(groups, are_missing, strict=True) if is_missing for pair in pairs]

    def _announce(self, pairs: Iterable[LeaseKey]) -> bool:
        uid, pairs = self.leases.uid, tuple(pairs)
        is_known = self.records.announce(uid, self.leases.introduction_under(uid), self._indexes(pairs))
        self.leases.confirm(uid, is_known, *pairs)
        return is_known

    def _register_some(self) -> list[Exception]:
        """Register leases, after announcing their indexes, so that a sweeper finds all leases of a process."""
        errors: list[Exception] = []
        failing: set[LeaseKey] = set()
        until = time.monotonic() + TURN_SECONDS
        try:
            while time.monotonic() < until and (pairs := self.leases.take_unsent(BATCH)):
                failing.update(pairs)
                if not self._announce(pairs):
                    break
                failed = self._register(pairs)
                errors += failed.values()
                failing.difference_update(set(pairs).difference(failed))
        finally:
            self.leases.send_again(failing)
        return errors

    def _register(self, pairs: Iterable[LeaseKey]) -> dict[LeaseKey, Exception]:
        uid, held, failed = self.leases.uid, self.leases.to_register(pairs), dict[LeaseKey, Exception]()
        parts = [(pair, dict(batch)) for pair, leases in held.items() for batch in batches(leases.items())]
        replies = self.store.pipeline([self._register_call(uid, *part) for part in parts])
        for (pair, leases), reply in zip(parts, replies, strict=True):
            if isinstance(reply, Exception):
                failed[pair] = reply
            else:
                self.leases.registered(uid, pair, leases)
                self.on_evicted(list(map(text, reply[1:])))
        return failed

    def _register_call(
        self, uid: str, pair: LeaseKey, leases: Mapping[str, float]
    ) -> tuple[str, tuple[str], list[object]]:
        args: list[object] = [self.store.now_arg(), uid, self.store.lease_ttl_ms]
        args += [len(self.leases.former), *self.leases.former]
        for lease, age in leases.items():
            args += (lease, round(age * 1_000_000))
        return "register", (self.store.key(*pair),), args

    def _compare(self, pairs: list[LeaseKey]) -> list[Exception]:
        uid, leases = self.leases.uid, self.leases
        expected = {self.store.key(*pair): leases.count(*pair) for pair in pairs}
        try:
            replies = self.records.extend(uid, expected)
        except StoreError:
            leases.mark_unverified(pairs)
            raise
        for pair, reply in zip(pairs, replies, strict=True):
            if isinstance(reply, Exception):
                leases.mark_unverified([pair])
                continue
            if reply.leases < leases.count(*pair):
                leases.send_again([pair])
            unknown_leases = [lease for lease in reply.doubtful if not leases.is_held(*pair, lease)]
            for lease in unknown_leases:
                leases.release_uncertain(*pair, lease, uid)
            if reply.leases - len(unknown_leases) > leases.count(*pair):  # the others are within the grace
                leases.mark_unverified([pair])
        return errors_of(replies)

    def _release_some(self, releases: Iterable[PendingRelease]) -> list[Exception]:
        errors, until = [], time.monotonic() + TURN_SECONDS
        for batch in batches(releases):
            calls = [
                ("release", (self.store.key(release.rule_id, release.ident),), (release.uid, release.lease))
                for release in batch
            ]
            replies = self.store.pipeline(calls)
            pairs = zip(batch, replies, strict=True)
            self.leases.confirm_released(*(release for release, reply in pairs if not isinstance(reply, Exception)))
            errors += errors_of(replies)
            if time.monotonic() > until:
                break
        return errors

    def _retire(self) -> None:
        while pairs := self.leases.retire(BATCH):
            self.records.retire(self.leases.uid, self._indexes(pairs))
            self.leases.retired(pairs)
            if len(pairs) < BATCH:
                return

    def _indexes(self, pairs: Iterable[LeaseKey]) -> list[str]:
        return [self.store.key(*pair) for pair in pairs]

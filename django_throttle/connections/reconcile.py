"""Keeps the leases in Redis equal to those of this process: beats, detects losses, sends again, extends, sweeps."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from django_throttle.connections.processes import GRACE_SECONDS, SHARE_SECONDS, ProcessRecords, ServerState, Sweeper
from django_throttle.exceptions import StoreError
from django_throttle.local.leases import MAX_RELEASED, LeaseKey, Release
from django_throttle.local.process_identity import processes_of_host
from django_throttle.stores.redis.failures import errors_of, raise_first
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.transport import BATCH, batches

if TYPE_CHECKING:
    from django_throttle.stores.redis.store import RedisStore


SPREAD: Final = 64  # keys for numbers, of which every node of a Cluster has one


class Loss(NamedTuple):
    """What was detected: lost writes; keys evicted, or soon to be; servers that went back in time, each by a key."""

    writes: bool
    evicted: bool
    older: tuple[str, ...]


class LossDetector:
    """Detects writes that Redis has lost, once a beat, with few commands however much is held; used by one thread.

    Each beat writes its number on each server. Where a lower one is found, or none, the server has gone back in time.
    One with another run id was restarted and may lack the last writes. So may one that lacks the last lease that it was
    sent, or has the one that it released last: the last resort where INFO is forbidden.
    """

    def __init__(self, store: RedisStore, records: ProcessRecords) -> None:
        self.store, self.records = store, records
        own = secrets.token_urlsafe(9)
        self._names = [f"{store.prefix}:{{m{place}}}:mark:{own}" for place in range(SPREAD)]
        self._last: dict[str, ServerState] = {}  # of each server, with the number that it has now
        self._number = 0

    def detect(self) -> Loss:
        """What was lost since the last time; nothing at the first time. Raises StoreError."""
        self._number += 1
        names = list({self.store.transport.node_of(name): name for name in reversed(self._names)}.values())
        writes = evicted = False
        older = []
        for name, found in zip(names, self.records.swap_numbers(names, self._number), strict=True):
            if found is None:
                continue
            last = self._last.get(name)
            self._last[name] = found._replace(number=self._number)
            if last is not None:
                has_evicted = not found.evicted or found.evicted != last.evicted
                is_evicted = has_evicted and found.number < 0 and found.run_id == last.run_id  # the number itself
                older += [name] * (found.number < last.number and not is_evicted)
                writes |= found.run_id != last.run_id
                evicted |= found.is_tight or has_evicted
        writes = writes or bool(older) or (not evicted and self._has_lost_the_last())
        return Loss(writes, evicted, tuple(older))

    def remove_numbers(self) -> None:
        """This process ends. Raises StoreError."""
        self.store.pipeline([("forget", (name,), ("", "")) for name in self._last])

    def _has_lost_the_last(self) -> bool:
        """One of each node of a Cluster, as far as one of the last hundred is there, and not released meanwhile."""
        leases, key, asked = self.store.leases, self.store.key, dict[tuple[object, bool], tuple[LeaseKey, str]]()
        for is_held, last in ((True, leases.newest(MAX_RELEASED)), (False, leases.last_released())):
            for pair, lease in last:
                asked.setdefault((self.store.transport.node_of(key(*pair)), is_held), (pair, lease))
        places = [(key(*pair), lease) for pair, lease in asked.values()]
        found = self.records.are_held(leases.uid, places) if asked else []
        return any(
            there is not None and there != is_held and leases.is_held(*pair, lease) == is_held
            for ((_, is_held), (pair, lease)), there in zip(asked.items(), found, strict=True)
        )


SHUTDOWN_SECONDS: Final = 1.0  # for the sweep of what this process holds
BUSY_SECONDS: Final = 0.02  # until the next turn while work is left
CLUSTER_PAIRS: Final = 5000  # that are checked in one beat of a Cluster which evicts keys


class Reconciler:
    """The periodic work for one store and one process; used by one thread. Its methods raise StoreError.

    ``on_evicted`` is called with leases that were taken away from sockets which are still open.
    """

    def __init__(self, store: RedisStore, on_evicted: Callable[[list[str]], object] = list) -> None:
        self.store, self.on_evicted = store, on_evicted
        self.leases = store.leases
        self.records = ProcessRecords(store)
        self.sweeper = Sweeper(self.records)
        self.losses = LossDetector(store, self.records)
        self._has_judged_neighbours = False
        self._replaced: set[str] = set()  # former uids that live until all they held is registered again
        self._older: set[str] = set()  # servers that went back in time, each by the name of one of its keys
        self._unchecked: Iterator[list[LeaseKey]] = iter(())  # of which Redis may have evicted some
        self._checked = 0  # where the next check begins in a Cluster
        self._failovers = store.transport.failovers

    def beat(self) -> None:
        """Say that this process lives; the number of commands does not depend on how much it holds.

        A process that Redis does not know any more becomes a new one and registers again what it holds.
        """
        leases = self.leases
        self.store.transport.check_primary()
        if not leases.is_introduced:
            self._announce(())
        living = [leases.uid, *self._replaced]
        seen = self.records.beat(living, self._dead_neighbours(), report=leases.report())
        loss = self.losses.detect()
        self._older.update(loss.older)
        lost = not seen.known or loss.writes or self.store.transport.failovers != self._failovers
        self.store.processes.note(seen.alive - seen.own + 1, lost=lost)
        if not lost:
            leases.note_intact()
        else:
            self._restart()
        if loss.evicted:
            self.check_all()
        self._retire()
        self.sweeper.take_on(seen.claimed)
        self.sweeper.go_on()

    def resend(self) -> float | None:
        """Send what Redis does not know: leases taken while it was away, and releases not confirmed.

        A server that has taken over may lack what came last: it is sent everything. While one node of a Cluster is away
        the others are sent what is theirs; then the first error is raised. Returns when to go on, if soon.
        """
        if self.leases.is_lost or self.store.transport.failovers != self._failovers:
            self.beat()
        for lease in self.leases.take_to_release():
            for pair in lease.lease_keys:
                self.leases.release(*pair, lease.id)
        self.store.evictions.resolve()
        failed = self._register_some()
        releases = self.leases.unconfirmed()
        failed += self._release_some(releases)
        if unverified := self.leases.pop_unverified(GRACE_SECONDS, BATCH):
            failed += self._compare(unverified)
        self._check_some()
        if self._replaced and not self.leases.has_unsent:
            self._expire_replaced()
        self.sweeper.go_on()
        self.store.fallback.flush()
        raise_first(failed)
        is_busy = self.leases.has_unsent or self.sweeper.is_busy or len(releases) > BATCH
        return BUSY_SECONDS if is_busy else None

    def extend(self) -> None:
        """Renew the TTL of everything held, and make Redis agree with this process."""
        raise_first([error for pairs in batches(self.leases.holdings()) for error in self._compare(pairs)])

    def release_all(self) -> None:
        """Release all that is held, because the process ends; what takes too long is left to other processes."""
        uids = [*self._replaced, *([self.leases.renew()] if self.leases.is_introduced else [])]
        if uids:
            self.records.beat((), uids, expires=False, most=0)
            own = Sweeper(self.records)
            own.take_on(uids)
            own.go_on(SHUTDOWN_SECONDS)
        self.losses.remove_numbers()

    def _dead_neighbours(self) -> list[str]:
        """Once, at the start: the successor of a crashed worker frees its leases without waiting for its silence."""
        if self._has_judged_neighbours:
            return []
        dead = processes_of_host(self.records.census()).dead
        self._has_judged_neighbours = True
        return dead

    def _restart(self) -> None:
        """Take a new uid, under which Redis has nothing wrong: leases that nobody holds stay with the old one."""
        self._failovers = self.store.transport.failovers
        self._replaced.add(self.leases.renew())
        self._has_judged_neighbours = False
        self._announce(())
        self.resend()

    def _expire_replaced(self) -> None:
        """All that is held is registered under the present uid: expire the former ones with all they have left."""
        uids = dict.fromkeys((*self._replaced, *self.leases.former))
        self.records.beat([self.leases.uid], [*uids], expires=False, most=0)
        self.sweeper.take_on(uids)
        self.sweeper.add(f"unnamed by {self.leases.uid}", self._clear(self.leases.unnamed()))
        if self.store.transport.slot_of is not None:  # what came back on one node need not be named on another
            for name in self._older:
                self.sweeper.add(name, self.records.reap_unlisted(name))
        self._replaced.clear()
        self._older.clear()

    def _clear(self, pairs: Iterable[LeaseKey]) -> Iterator[int]:
        """Remove what former uids have there, in batches; a registration of nothing does that."""
        for some in batches(pairs):
            raise_first(errors_of(self.store.pipeline([self._as_call(self.leases.uid, pair, {}) for pair in some])))
            yield 0

    def check_all(self) -> None:
        """Queue a check of everything that this process registered; of a part of it in a Cluster. Raises StoreError."""
        held = self.store.process_key(f"held:{self.leases.uid}")
        if self.leases.has_announced and self.records.count_keys([[held]]) == [0]:
            self.leases.announce_again()
        pairs = self.leases.sent_pairs()
        if self.store.transport.slot_of is not None and len(pairs) > CLUSTER_PAIRS:  # a command for each
            first = self._checked % len(pairs)
            pairs = (pairs + pairs)[first : first + CLUSTER_PAIRS]
            self._checked = first + CLUSTER_PAIRS
        self._unchecked = batches(pairs)

    def _check_some(self) -> None:
        """Send again what Redis has evicted."""
        until = time.monotonic() + SHARE_SECONDS
        for pairs in self._unchecked:
            # One command for all of them, where one server has all.
            try:
                missing = self._missing([pairs]) if self.store.transport.slot_of is None else pairs
                self.leases.send_again(self._missing([[pair] for pair in missing]))
            except StoreError:
                self.leases.send_again(pairs)
                raise
            if time.monotonic() > until:
                return

    def _missing(self, groups: list[list[LeaseKey]]) -> list[LeaseKey]:
        """The pairs of those groups of which a key has gone."""
        uid = self.leases.uid
        names = [[name for key in self._indexes(group) for name in (key, f"{key}:{uid}")] for group in groups]
        found = self.records.count_keys(names)
        gone = (there is not None and there < len(keys) for there, keys in zip(found, names, strict=True))
        return [pair for pairs, is_gone in zip(groups, gone, strict=True) if is_gone for pair in pairs]

    def _announce(self, pairs: Iterable[LeaseKey]) -> bool:
        uid, pairs = self.leases.uid, tuple(pairs)
        known = self.records.announce(uid, self.leases.introduction_under(uid), self._indexes(pairs))
        self.leases.confirm(uid, known, *pairs)
        return known

    def _register_some(self) -> list[Exception]:
        """Announced before registered: what a process holds is always named where a sweeper looks."""
        errors: list[Exception] = []
        failing: set[LeaseKey] = set()
        until = time.monotonic() + SHARE_SECONDS
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
        sent = [(pair, dict(some)) for pair, leases in held.items() for some in batches(leases.items())]
        replies = self.store.pipeline([self._as_call(uid, *one) for one in sent])
        for (pair, leases), reply in zip(sent, replies, strict=True):
            if isinstance(reply, Exception):
                failed[pair] = reply
            else:
                self.leases.registered(uid, pair, leases)
                self.on_evicted(list(map(text, reply[1:])))
        return failed

    def _as_call(self, uid: str, pair: LeaseKey, leases: Mapping[str, float]) -> tuple[str, tuple[str], list[object]]:
        args: list[object] = [self.store.now_arg(), uid, self.store.lease_ttl_ms]
        args += [len(self.leases.former), *self.leases.former]
        for lease, age in leases.items():
            args += (lease, round(age * 1_000_000))
        return "register", (self.store.key(*pair),), args

    def _compare(self, pairs: list[LeaseKey]) -> list[Exception]:
        uid, leases = self.leases.uid, self.leases
        expected = {self.store.key(*pair): leases.count(*pair) for pair in pairs}
        try:
            found = self.records.extend(uid, expected)
        except StoreError:
            leases.mark_unverified(pairs)
            raise
        for pair, there in zip(pairs, found, strict=True):
            if isinstance(there, Exception):
                leases.mark_unverified([pair])
                continue
            if there.leases < leases.count(*pair):
                leases.send_again([pair])
            strange = [lease for lease in there.doubtful if not leases.is_held(*pair, lease)]
            for lease in strange:
                leases.release_uncertain(*pair, lease, uid)
            if there.leases - len(strange) > leases.count(*pair):  # one that came too late is too young to be named
                leases.mark_unverified([pair])
        return errors_of(found)

    def _release_some(self, releases: Iterable[Release]) -> list[Exception]:
        failed, until = [], time.monotonic() + SHARE_SECONDS
        for some in batches(releases):
            calls = [("release", (self.store.key(one.rule_id, one.ident),), (one.uid, one.lease)) for one in some]
            replies = self.store.pipeline(calls)
            done = [one for one, reply in zip(some, replies, strict=True) if not isinstance(reply, Exception)]
            self.leases.confirm_released(*done)
            failed += errors_of(replies)
            if time.monotonic() > until:
                break
        return failed

    def _retire(self) -> None:
        while pairs := self.leases.retire(BATCH):
            self.records.retire(self.leases.uid, self._indexes(pairs))
            self.leases.retired(pairs)
            if len(pairs) < BATCH:
                return

    def _indexes(self, pairs: Iterable[LeaseKey]) -> list[str]:
        return [self.store.key(*pair) for pair in pairs]

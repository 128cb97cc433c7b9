"""Looks after the processes of this host from outside: those it can see alive, and those it can see dead."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_throttle.conf import conf
from django_throttle.connections import process
from django_throttle.connections.ledger import PATIENCE, Found, Ledger, Seen, Sweeper
from django_throttle.core.rate import MAX_LIMIT

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore

SWEEP_SECONDS: Final = 5.0  # of a pass: a process that it beats for waits no longer
WHOLE_SECONDS: Final = 60.0  # of the only pass


class Judgement(NamedTuple):
    """Uids of this host's processes; those of other hosts are in neither list."""

    living: list[str]
    dead: list[str]


class Status(NamedTuple):
    """What one pass saw and did: processes alive and found dead, connections held and freed, keys extended."""

    alive: int
    dead: int
    held: int
    freed: int
    extended: int


class HostRefresher:
    """Beats for this host's processes that run, buries those that do not, sweeps what any dead one left.

    It extends what those hold that do not beat for themselves. It is no process that holds connections: it never
    counts as alive. Running twice, late or not at all changes nothing for processes that beat for themselves.
    Raises StoreError.
    """

    def __init__(self, store: RedisStore) -> None:
        self.ledger = Ledger(store)
        self.sweeper = Sweeper(self.ledger)
        self._extended: dict[str, float] = {}  # uid: when, on the monotonic clock

    def refresh(self) -> Status:
        """One of many passes."""
        return self._pass(SWEEP_SECONDS)[0]

    def once(self) -> Status:
        """The only pass. Who is silent gets a beat's time: Redis may have been away, and nobody could be heard."""
        first, seen = self._pass(WHOLE_SECONDS)
        if not seen.silent:
            return first
        time.sleep(PATIENCE * conf().BEAT_INTERVAL)
        second, _ = self._pass(WHOLE_SECONDS)
        return second._replace(
            dead=max(first.dead, second.dead),
            freed=first.freed + second.freed,
            extended=first.extended + second.extended,
        )

    def _pass(self, seconds: float) -> tuple[Status, Seen]:
        self.ledger.store.transport.look()
        census = self.ledger.census()
        living, dead = judge(census)
        seen = self.ledger.beat(living, dead)
        self.sweeper.take_on(seen.claimed)
        freed = self.sweeper.go_on(seconds)
        idle = [uid for uid in living if not _beats_itself(census[uid], seen.now)]
        extended = sum(self._extend(uid) for uid in self._due(idle))
        gone = {*dead, *seen.claimed}
        held = sum(held_by(meta) for uid, meta in census.items() if uid not in gone)
        return Status(seen.alive, seen.dead, held, freed, extended), seen

    def _due(self, living: list[str]) -> list[str]:
        now = time.monotonic()
        # One that has gone needs no memory.
        self._extended = {uid: self._extended[uid] for uid in living if uid in self._extended}
        due = [uid for uid in living if now >= self._extended.get(uid, now) + conf().EXTEND_INTERVAL]
        new = [uid for uid in living if uid not in self._extended]
        self._extended.update(dict.fromkeys((*due, *new), now))
        return due + new

    def _extend(self, uid: str) -> int:
        extended = 0
        for indexes in self.ledger.walk(uid):
            # Only the process itself knows what it should hold.
            found = self.ledger.extend(uid, dict.fromkeys(indexes, MAX_LIMIT))
            # What is on a node of a Cluster that is away has two more turns before it expires.
            extended += sum(1 for there in found if isinstance(there, Found) and there.leases)
        return extended


def judge(census: Mapping[str, Mapping[str, Any]]) -> Judgement:
    """Which of these processes this host sees running, and which it knows to have ended.

    Nobody vouches for a former uid of a process that runs: the process itself sweeps it, or its silence tells.
    """
    verdicts = {uid: process.is_alive(meta) for uid, meta in census.items()}
    present: dict[tuple[Any, ...], int] = {}
    for meta in census.values():
        present[_who(meta)] = max(_turn(meta), present.get(_who(meta), 0))
    return Judgement(
        living=[uid for uid, alive in verdicts.items() if alive and _turn(census[uid]) == present[_who(census[uid])]],
        dead=[uid for uid, alive in verdicts.items() if alive is False],
    )


def _who(meta: Mapping[str, Any]) -> tuple[Any, ...]:
    return meta.get("host"), meta.get("pid"), meta.get("started")


def _turn(meta: Mapping[str, Any]) -> int:
    turn = meta.get("turn")
    return turn if type(turn) is int else 0


def _beats_itself(meta: Mapping[str, Any], now: int) -> bool:
    """Whether the process has given a sign of life of its own lately, by the server's clock."""
    at = meta.get("at")
    return type(at) is int and abs(now - at) < conf().PROCESS_TTL * 1_000_000


def held_by(meta: Mapping[str, Any]) -> int:
    """How many leases a process says that it holds."""
    held = meta.get("held")
    return held if type(held) is int else 0

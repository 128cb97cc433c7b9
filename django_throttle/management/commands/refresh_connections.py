"""Keeps connection counts true from outside the processes that hold them."""

from __future__ import annotations

import signal
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from django.core.management.base import CommandError

from django_throttle.conf import conf
from django_throttle.connections.processes import (
    EXTEND_SECONDS,
    STEADY_BEATS,
    BeatReply,
    IndexLeases,
    ProcessRecords,
    Sweeper,
    beat_seconds,
)
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.core.texts import translatable
from django_throttle.exceptions import StoreError
from django_throttle.local.process_identity import number, processes_of_host
from django_throttle.management import ShellCommand, remote_store
from django_throttle.stores.redis.store import RedisStore

LEAST, MOST = 0.05, 3600
SWEEP_SECONDS: Final = 5.0  # of one of many passes, as processes wait for its next beat
ONLY_SECONDS: Final = 60.0  # of the only pass


class PassResult(NamedTuple):
    """What one pass saw and did: processes alive and found dead, connections held and freed, keys extended."""

    alive: int
    dead: int
    held: int
    freed: int
    extended: int


class HostRefresher:
    """Beats for this host's processes that run, expires those that do not, sweeps what any dead one left.

    It extends what those hold that do not beat for themselves. It is no process that holds connections: it never
    counts as alive. Running twice, late or not at all changes nothing for processes that beat for themselves.
    Raises StoreError.
    """

    def __init__(self, store: RedisStore) -> None:
        self.records = ProcessRecords(store)
        self.sweeper = Sweeper(self.records)
        self._extended: dict[str, float] = {}  # uid: when, on the monotonic clock

    def refresh(self) -> PassResult:
        """One of many passes."""
        return self._pass(SWEEP_SECONDS)[0]

    def once(self) -> PassResult:
        """The only pass. Silent processes get a beat's time, as Redis may have been unreachable for all."""
        first, seen = self._pass(ONLY_SECONDS)
        if not seen.silent:
            return first
        time.sleep(STEADY_BEATS * beat_seconds())
        second, _ = self._pass(ONLY_SECONDS)
        freed, extended = first.freed + second.freed, first.extended + second.extended
        return second._replace(dead=max(first.dead, second.dead), freed=freed, extended=extended)

    def _pass(self, seconds: float) -> tuple[PassResult, BeatReply]:
        self.records.store.transport.check_primary()
        census = self.records.read_processes()
        living, dead = processes_of_host(census)
        seen = self.records.beat(living, dead)
        self.sweeper.add_processes(seen.claimed)
        freed = self.sweeper.run_turn(seconds)
        idle = [uid for uid in living if not _beats_itself(census[uid], seen.now)]
        extended = sum(self._extend(uid) for uid in self._due(idle))
        gone = {*dead, *seen.claimed}
        held = sum(number(meta, "held") for uid, meta in census.items() if uid not in gone)
        return PassResult(seen.alive, seen.dead, held, freed, extended), seen

    def _due(self, living: list[str]) -> list[str]:
        """Those to extend now: new ones, and those whose time has come."""
        now, past = time.monotonic(), self._extended
        due = [uid for uid in living if uid not in past or now >= past[uid] + EXTEND_SECONDS]
        self._extended = {uid: past[uid] for uid in living if uid in past} | dict.fromkeys(due, now)
        return due

    def _extend(self, uid: str) -> int:
        # Only the process itself knows what it should hold. What is on a node of a Cluster that is away has two more
        # turns before it expires.
        replies = (
            self.records.extend(uid, dict.fromkeys(indexes, MAX_LIMIT)) for indexes in self.records.scan_indexes(uid)
        )
        return sum(isinstance(reply, IndexLeases) and reply.leases > 0 for batch in replies for reply in batch)


def _beats_itself(meta: Mapping[str, object], now: int) -> bool:
    """Whether the process has sent a beat of its own lately, by the server's clock."""
    at = meta.get("at")
    return type(at) is int and abs(now - at) < conf().PROCESS_TTL * 1_000_000


class Command(ShellCommand):
    """One pass a second, until SIGTERM or Ctrl-C; one status line for each."""

    help = (
        "Free the open connections that count for killed processes of this host, and for hosts that are silent, until "
        "it is stopped. Run one on each host, or none: processes do so too, within half a minute."
    )
    requires_system_checks: list[str] = []

    stopped: threading.Event | None = None

    def run_from_argv(self, argv: list[str]) -> None:
        """From the command line: whoever stops it while it starts ends it as cleanly as later on."""
        if "--once" not in argv:
            self.stopped = _stopped_by_signals()
        super().run_from_argv(argv)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="make one pass; fails when Redis does not answer")
        parser.add_argument("--interval", type=_seconds, default=1.0, help="seconds between two passes (default 1.0)")

    def handle(self, *, once: bool, interval: float, **options: object) -> None:
        refresher = HostRefresher(remote_store(translatable("connections live in one process and need no refreshing.")))
        if not once:
            self._repeat(refresher, interval)
            return
        try:
            self._say(_line(refresher.once()))
        except StoreError as error:
            raise CommandError(f"Redis does not answer: {error}") from error

    def _repeat(self, refresher: HostRefresher, interval: float) -> None:
        stopped, reachable = self.stopped or _stopped_by_signals(), True
        while not stopped.is_set():
            try:
                line = _line(refresher.refresh())
                if not reachable:
                    self._say("Redis answers again.")
                reachable = True
                self._say(line)
            except StoreError as error:
                if reachable:
                    self._say(f"Redis does not answer ({error}); trying again every {interval:g} s.")
                reachable = False
            stopped.wait(interval)

    def _say(self, text: str) -> None:
        self.stdout.write(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {text}")
        self.stdout.flush()


def _line(status: PassResult) -> str:
    return (
        f"processes {status.alive} alive, {status.dead} dead; connections {status.held} held, {status.freed} freed; "
        f"keys {status.extended} extended"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not LEAST <= seconds <= MOST:  # also refuses NaN
        raise ArgumentTypeError(f"it must be a number of seconds from {LEAST} to {MOST}, not {text!r}")
    return seconds


def _stopped_by_signals() -> threading.Event:
    """Set by the first SIGTERM or SIGINT; the pass under way is finished."""
    stopped = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
    return stopped

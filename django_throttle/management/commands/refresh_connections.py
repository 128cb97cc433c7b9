"""manage.py refresh_connections: free the leases of killed processes soon, from outside of them."""

from __future__ import annotations

import signal
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

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

MIN_INTERVAL, MAX_INTERVAL = 0.05, 3600
SWEEP_SECONDS: Final = 5.0  # of a repeated pass, because processes wait for the beat of the next pass
SINGLE_SWEEP_SECONDS: Final = 60.0  # of the pass of --once


class PassResult(NamedTuple):
    """Numbers of a pass."""

    alive: int  #: processes
    dead: int  #: processes
    held: int  #: connections
    freed: int  #: connections
    extended: int  #: keys


class HostRefresher:
    """Reports the processes of this host as alive or dead, and frees the leases of dead processes.

    It also extends the leases of live processes that do not beat themselves. It does not count as a process. Processes
    that beat themselves do not depend on it, so it may run twice, late or not at all. Its methods raise StoreError.
    """

    def __init__(self, store: RedisStore) -> None:
        self.records = ProcessRecords(store)
        self.sweeper = Sweeper(self.records)
        self._extended_at: dict[str, float] = {}  # by uid, on the monotonic clock

    def refresh(self) -> PassResult:
        """Make one of many passes."""
        return self._pass(SWEEP_SECONDS)[0]

    def once(self) -> PassResult:
        """Make the only pass. Wait for silent processes to beat, because Redis may have been unreachable for all."""
        first, reply = self._pass(SINGLE_SWEEP_SECONDS)
        if not reply.silent:
            return first
        time.sleep(STEADY_BEATS * beat_seconds())
        second, _ = self._pass(SINGLE_SWEEP_SECONDS)
        freed, extended = first.freed + second.freed, first.extended + second.extended
        return second._replace(dead=max(first.dead, second.dead), freed=freed, extended=extended)

    def _pass(self, sweep_seconds: float) -> tuple[PassResult, BeatReply]:
        self.records.store.transport.check_primary()
        processes = self.records.read_processes()
        living, dead = processes_of_host(processes)
        reply = self.records.beat(living, dead)
        self.sweeper.add_processes(reply.claimed)
        freed = self.sweeper.run_turn(sweep_seconds)
        idle = [uid for uid in living if not _beats_itself(processes[uid], reply.now)]
        extended = sum(self._extend(uid) for uid in self._take_due(idle))
        gone = {*dead, *reply.claimed}
        held = sum(number(meta, "held") for uid, meta in processes.items() if uid not in gone)
        return PassResult(reply.alive, reply.dead, held, freed, extended), reply

    def _take_due(self, living: list[str]) -> list[str]:
        """Return the processes to extend now, and note the time. Forget processes that are not living."""
        now, extended_at = time.monotonic(), self._extended_at
        due = [uid for uid in living if uid not in extended_at or now >= extended_at[uid] + EXTEND_SECONDS]
        self._extended_at = {uid: extended_at[uid] for uid in living if uid in extended_at} | dict.fromkeys(due, now)
        return due

    def _extend(self, uid: str) -> int:
        # All leases of the index are extended, because only the process itself knows which it holds. Leases on an
        # unreachable node of a Cluster are extended two more times before they expire.
        replies = (
            self.records.extend(uid, dict.fromkeys(indexes, MAX_LIMIT)) for indexes in self.records.scan_indexes(uid)
        )
        return sum(isinstance(reply, IndexLeases) and reply.leases > 0 for batch in replies for reply in batch)


def _beats_itself(meta: Mapping[str, object], now: int) -> bool:
    """Return True if the process itself has beaten lately, by the server's clock."""
    at = meta.get("at")
    return type(at) is int and abs(now - at) < conf().PROCESS_TTL * 1_000_000


class Command(ShellCommand):
    """Command that makes a pass each second until SIGTERM or Ctrl-C, and prints a line for each pass."""

    help = (
        "Free the open connections that count for killed processes of this host, and for hosts that are silent, until "
        "it is stopped. Run one on each host, or none: processes do so too, within half a minute."
    )

    stopped: threading.Event | None = None

    def run_from_argv(self, argv: list[str]) -> None:
        """Run from the command line. Handle signals from the start, so that the command always ends without error."""
        if "--once" not in argv:
            self.stopped = _stopped_by_signals()
        super().run_from_argv(argv)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="make one pass; fails when Redis does not answer")
        parser.add_argument("--interval", type=_seconds, default=1.0, help="seconds between two passes (default 1.0)")

    def handle(self, *, once: bool, interval: float, **options: object) -> None:
        refresher = HostRefresher(remote_store(translatable("connections live in one process and need no refreshing.")))
        if once:
            self._print(_line(refresher.once()))
        else:
            self._repeat(refresher, interval)

    def _repeat(self, refresher: HostRefresher, interval: float) -> None:
        stopped, is_reachable = self.stopped or _stopped_by_signals(), True
        while not stopped.is_set():
            try:
                line = _line(refresher.refresh())
                if not is_reachable:
                    self._print("Redis answers again.")
                is_reachable = True
                self._print(line)
            except StoreError as error:
                if is_reachable:
                    self._print(f"Redis does not answer ({error}); trying again every {interval:g} s.")
                is_reachable = False
            stopped.wait(interval)

    def _print(self, text: str) -> None:
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
    if not MIN_INTERVAL <= seconds <= MAX_INTERVAL:  # False for NaN, too
        limits = f"from {MIN_INTERVAL} to {MAX_INTERVAL}"
        raise ArgumentTypeError(f"it must be a number of seconds {limits}, not {text!r}")
    return seconds


def _stopped_by_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set. A pass that has begun is finished."""
    stopped = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
    return stopped

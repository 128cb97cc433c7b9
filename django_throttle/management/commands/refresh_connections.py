"""Keeps connection counts true from outside the processes that hold them."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_throttle.connections.processes import HostRefresher, PassResult
from django_throttle.exceptions import StoreError
from django_throttle.management import remote_store

LEAST, MOST = 0.05, 3600


class Command(BaseCommand):
    """One pass a second, until SIGTERM or Ctrl-C; one status line for each."""

    help = (
        "Beat for the processes of this host that run, free the connections of those that do not at once, "
        "and sweep what silent hosts left. Run one on each host, or none: processes beat for themselves."
    )
    requires_system_checks: list[str] = []

    stopped: threading.Event | None = None

    def run_from_argv(self, argv: list[str]) -> None:
        """From the command line: whoever stops it while it starts ends it as cleanly as later on."""
        if "--once" not in argv:
            self.stopped = _stopped_by_signals()
        super().run_from_argv(argv)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="Make one pass; fails when Redis does not answer.")
        parser.add_argument("--interval", type=_seconds, default=1.0, help="Seconds between two passes (default 1.0).")

    def handle(self, *, once: bool, interval: float, **options: Any) -> None:
        refresher = HostRefresher(remote_store("connections live in one process and need no refreshing."))
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

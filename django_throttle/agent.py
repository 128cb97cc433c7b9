"""The one background thread of a process: it does everything periodic, so that the hot path does none of it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from django_throttle import rulebook
from django_throttle.conf import conf
from django_throttle.connections.refresher import Refresher
from django_throttle.stores.base import Store
from django_throttle.stores.redis import RedisStore

logger = logging.getLogger("django_throttle")

RESEND_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 60.0  # one log line for each failing job in this time
LONGEST_WAIT: Final = 1.0


@dataclass(slots=True)
class Job:
    """Something done every ``seconds``; times are on the monotonic clock."""

    name: str
    seconds: float
    work: Callable[[], object]
    due: float
    logged: float = field(default=-QUIET_SECONDS)

    def run(self) -> None:
        """Do it; a failure is logged and tried again soon, never raised."""
        wait = self.seconds
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs go on
            wait = min(wait, RETRY_SECONDS)
            now = time.monotonic()
            if now - self.logged >= QUIET_SECONDS:
                self.logged = now
                logger.warning("%s failed, trying again: %s: %s", self.name, type(error).__name__, error)
        self.due = time.monotonic() + wait


class Agent:
    """A daemon thread and its jobs; a job that fails or blocks delays the others, and ends nothing."""

    def __init__(self) -> None:
        self._jobs: tuple[Job, ...] = ()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def every(self, seconds: float, work: Callable[[], object], name: str, *, wait: float = 0.0) -> None:
        """Do ``work`` in ``wait`` seconds and every ``seconds`` from then on."""
        with self._lock:
            self._jobs = (*self._jobs, Job(name, seconds, work, time.monotonic() + wait))

    def start(self) -> None:
        """Start the thread unless it runs. Raises RuntimeError when the system gives none."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="django_throttle agent", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self, seconds: float = 1.0) -> None:
        """End the thread; a job that is under way gets ``seconds`` to end."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped.wait(self._wait()):
            for job in self._jobs:
                if job.due <= time.monotonic() and not self._stopped.is_set():
                    job.run()

    def _wait(self) -> float:
        due = min((job.due for job in self._jobs), default=float("inf"))
        return min(LONGEST_WAIT, max(0.0, due - time.monotonic()))


@dataclass(slots=True)
class _Service:
    """The agent of this process and the store that it serves."""

    store: Store | None = None
    agent: Agent | None = None
    refresher: Refresher | None = None
    not_before: float = 0.0  # on the monotonic clock; later than now after a failed start


_service = _Service()
_lock = threading.Lock()


def ensure(store: Store) -> None:
    """See to it that an agent serves this store; every decision calls it, and only the first does anything."""
    if store is not _service.store:
        with _lock:
            if store is not _service.store and time.monotonic() >= _service.not_before:
                _serve(store)


def stop() -> None:
    """End the agent, and give back what this process holds; bounded to about a second a step."""
    with _lock:
        agent, refresher = _service.agent, _service.refresher
        _service.store = _service.agent = _service.refresher = None
    if agent is not None:
        agent.stop()
    if refresher is not None:
        try:
            refresher.leave()
        except Exception as error:  # noqa: BLE001 - at exit nobody can act on it, and others sweep us
            logger.info("left without saying goodbye: %s", error)


def _serve(store: Store) -> None:
    if _service.agent is not None:
        _service.agent.stop(0.0)
    _service.agent = _service.refresher = None
    settings = conf()
    if settings.AGENT:
        agent = _service.agent = Agent()
        agent.every(settings.RULES_POLL, partial(rulebook.poll, store), "asking for rules", wait=settings.RULES_POLL)
        if isinstance(store, RedisStore):
            refresher = _service.refresher = Refresher(store)
            agent.every(settings.BEAT_INTERVAL, refresher.beat, "the beat")
            agent.every(RESEND_SECONDS, refresher.resend, "sending leases again")
            agent.every(settings.EXTEND_INTERVAL, refresher.extend, "extending leases", wait=settings.EXTEND_INTERVAL)
        try:
            agent.start()
        except RuntimeError as error:  # no thread to be had, or the interpreter ends; the decision goes on
            logger.warning("no background thread, trying again: %s", error)
            _service.not_before = time.monotonic() + QUIET_SECONDS / 10
            _service.agent = _service.refresher = None
            return
    _service.store = store


def _forked() -> None:
    global _service, _lock
    _service, _lock = _Service(), threading.Lock()


os.register_at_fork(after_in_child=_forked)
atexit.register(stop)

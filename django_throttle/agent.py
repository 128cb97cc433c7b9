"""The background thread of a process: it does everything periodic for a store, so that the hot path does none of it."""

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

from django.core.signals import setting_changed
from django.dispatch import receiver

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
    """What is kept up for one store. ``rules`` is True for the store of the settings, whose rules are watched."""

    store: Store
    rules: bool
    agent: Agent | None = None
    refresher: Refresher | None = None

    def begin(self) -> None:
        settings = conf()
        if not (settings.AGENT and (self.rules or isinstance(self.store, RedisStore))):
            return
        agent = Agent()
        if self.rules:
            poll = partial(rulebook.poll, self.store)
            agent.every(settings.RULES_POLL, poll, "asking for rules", wait=settings.RULES_POLL)
        if isinstance(self.store, RedisStore):
            refresher = self.refresher = Refresher(self.store)
            agent.every(settings.BEAT_INTERVAL, refresher.beat, "the beat")
            agent.every(RESEND_SECONDS, refresher.resend, "sending leases again")
            agent.every(settings.EXTEND_INTERVAL, refresher.extend, "extending leases", wait=settings.EXTEND_INTERVAL)
        agent.start()
        self.agent = agent

    def end(self) -> None:
        """Stop, and give back what this process holds; bounded to about a second a step."""
        if self.agent is not None:
            self.agent.stop()
        if self.refresher is not None:
            try:
                self.refresher.leave()
            except Exception as error:  # noqa: BLE001 - at exit nobody can act on it, and others sweep us
                logger.info("left without saying goodbye: %s", error)


_services: dict[int, _Service] = {}  # by the identity of their store
_not_before = 0.0  # on the monotonic clock: when to try again after a failed start
_lock = threading.Lock()


def ensure(store: Store, *, rules: bool = False) -> None:
    """See to it that an agent serves this store; every decision may call it, and only the first does anything."""
    if id(store) not in _services:
        with _lock:
            if id(store) not in _services and time.monotonic() >= _not_before:
                _serve(store, rules)


def stop() -> None:
    """End the agents of all stores, and give back what this process holds."""
    with _lock:
        services = list(_services.values())
        _services.clear()
    for service in services:
        service.end()


def _serve(store: Store, rules: bool) -> None:
    global _not_before
    service = _Service(store, rules)
    try:
        service.begin()
    except RuntimeError as error:  # no thread to be had, or the interpreter ends; the decision goes on
        logger.warning("no background thread, trying again: %s", error)
        _not_before = time.monotonic() + QUIET_SECONDS / 10
        return
    _services[id(store)] = service


@receiver(setting_changed, dispatch_uid="django_throttle.agent")
def _settings_changed(*, setting: str, **_: object) -> None:
    """The settings name another store now; what is held in the old one belongs to this process still."""
    if setting not in ("DJANGO_THROTTLE", "CACHES", "SECRET_KEY"):
        return
    with _lock:
        replaced = [service for service in _services.values() if service.rules]
        for service in replaced:
            del _services[id(service.store)]
    for service in replaced:
        if service.agent is not None:
            service.agent.stop(0.0)


def _forked() -> None:
    global _lock, _not_before
    _lock, _not_before = threading.Lock(), 0.0
    _services.clear()


os.register_at_fork(after_in_child=_forked)
atexit.register(stop)

"""Agent of each store: beats, leases, control messages and reports of dampers and groups in the background."""

from __future__ import annotations

import asyncio
import atexit
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.util import Finalize
from typing import Final, NamedTuple, cast

from django.core.signals import setting_changed
from django.dispatch import receiver

from django_throttle import detect_test_run, observe, rulebook
from django_throttle.agent.thread import AgentThread
from django_throttle.conf import conf
from django_throttle.connections.overview import CONTROL_SECONDS
from django_throttle.connections.processes import EXTEND_SECONDS, beat_seconds
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import ACTIVITY_SECONDS, Activity, SocketControl
from django_throttle.core.decide import correct
from django_throttle.core.io import run
from django_throttle.local.limits import Flusher
from django_throttle.local.open_sockets import open_sockets
from django_throttle.local.prepaid import SWEEP_SECONDS
from django_throttle.rulebook.current_rules import POLL_SECONDS
from django_throttle.runtime import in_child, shutdown
from django_throttle.stores import AnyStore, RedisStore, get_store
from django_throttle.stores.base import BlockingIo, Store

logger = logging.getLogger("django_throttle")

RESEND_SECONDS: Final = 0.5
PERIODIC_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 6.0  # after a failed start


class StoreJob(NamedTuple):
    """A periodic job of the background thread for one Redis."""

    name: str  #: noun phrase for the log, such as "sending records"
    seconds: float  #: interval
    work: Callable[[], object]  #: does the work
    finish: Callable[[], object]  #: called when the process ends


_job_makers: Final[list[Callable[[RedisStore], StoreJob]]] = []


def add_store_job(make: Callable[[RedisStore], StoreJob]) -> None:
    """Add a background job for each Redis that entry points use.

    ``make`` is called with the Redis and returns the job. Call this function in ``ready`` of an app config. If a job
    raises, the error is logged and the job runs again soon. Jobs share a thread, so each has to be quick.
    """
    if make not in _job_makers:  # tests of a site may run ``ready`` again
        _job_makers.append(make)


@dataclass(slots=True)
class _StoreService:
    """The background work for one store."""

    store: AnyStore
    watches_rules: bool = False  #: True if rules are polled too, as entry points use the store
    is_disabled: bool = False  #: True if the store has no background work
    thread: AgentThread | None = None
    cleanups: list[Callable[[], object]] = field(default_factory=list)  #: called in reverse order when the service ends

    @property
    def is_complete(self) -> bool:
        """True if entry points need no more background work."""
        return self.watches_rules or self.is_disabled

    def begin(self, *, rules: bool) -> None:
        """Start the work that does not run yet, with the polling of rules if ``rules``.

        No thread polls rules for the memory store in a test run, as it would need the test's database.
        """
        remote = self.store.is_remote
        if remote or (rules and not detect_test_run.counts_in_memory()):
            thread = self.thread or AgentThread()
            if self.thread is None:
                self._add_duties(thread)
            if rules and not self.watches_rules:
                self._serve_entry_points(thread)
            thread.start()
            self.thread = thread
        self.watches_rules = self.watches_rules or rules

    def _add_duties(self, thread: AgentThread) -> None:
        settings, store = conf(), self.store
        control = SocketControl(store)
        thread.every(CONTROL_SECONDS, control, "executing control messages", wait=CONTROL_SECONDS)
        if not store.is_remote:
            return
        reconciler = Reconciler(store, control.evict)
        consequence = (
            f"after PROCESS_TTL ({settings.PROCESS_TTL:g} s) without a beat, other processes release the leases of "
            "this process, which registers them again later: check that Redis answers"
        )
        thread.every(beat_seconds(), reconciler.beat, "sending the beat", meaning=consequence)
        thread.every(RESEND_SECONDS, reconciler.resend, "sending leases again")
        thread.every(EXTEND_SECONDS, reconciler.extend, "extending leases", wait=EXTEND_SECONDS)
        flusher = Flusher(store.local_limits, store.aggregator, lambda: store.processes.live_count)
        thread.every(store.local_limits.interval, flusher, "sending damper counts", wait=flusher.first)
        thread.every(SWEEP_SECONDS, partial(refund_prepaid, store), "refunding prepaid units", wait=SWEEP_SECONDS)
        self.cleanups = [reconciler.release_all, flusher, partial(refund_prepaid, store, everything=True)]

    def _serve_entry_points(self, thread: AgentThread) -> None:
        """Add the jobs of entry points. They need Django's settings, which the engine does not."""
        store = self.store
        thread.every(ACTIVITY_SECONDS, Activity(store), "reporting active sockets", wait=ACTIVITY_SECONDS)
        thread.every(POLL_SECONDS, partial(rulebook.poll, store), "polling the rules", wait=POLL_SECONDS)
        periodic = observe.run_periodic_work
        thread.every(PERIODIC_SECONDS, periodic, "writing due log lines and metrics", wait=PERIODIC_SECONDS)
        if store.is_remote:
            for make in _job_makers:
                job = make(store)
                thread.every(job.seconds, job.work, job.name, wait=job.seconds)
                self.cleanups.append(job.finish)

    def end(self) -> None:
        """Stop the thread, send pending counts and release the leases. Each step takes about a second at most."""
        if self.thread is not None:
            self.thread.stop()
        for cleanup in reversed(self.cleanups):
            try:
                cleanup()
            except Exception as error:  # noqa: BLE001 - other processes sweep later
                logger.info("shutdown cleanup failed; leases of this process count until they expire: %s", error)


class Agents:
    """The agents of this process, one for each store. A forked child starts without agents."""

    def __init__(self) -> None:
        self.services: dict[int, _StoreService] = {}  #: service of each store, by the ``id`` of the store
        #: The ``id`` of each store whose rules are watched: calls need not start anything for it.
        self.watched: set[int] = set()
        self._renew()
        in_child(self, Agents._renew)
        shutdown.register(self._end_when_idle, self.stop)
        atexit.register(self.stop)

    def _renew(self) -> None:
        self._not_before = 0.0  #: time on the monotonic clock before which no agent is started, after a failed start
        self._lock = threading.Lock()
        self._stopping = threading.RLock()  #: held by ``stop``: a second call waits for the first
        self._finalizer: Finalize | None = None
        self.services.clear()
        self.watched.clear()

    def ensure(self, store: Store, *, rules: bool = False) -> None:
        """Start the agent of this store unless it runs. With ``rules``, it polls the rules too."""
        service = self.services.get(id(store))
        if service is None or (rules and not service.is_complete):
            with self._lock:
                if time.monotonic() >= self._not_before and not shutdown.has_begun:
                    self._begin(cast(AnyStore, store), rules)

    def disable_for(self, store: AnyStore) -> bool:
        """Start no agent for this store, as for the store of a test. Return False if an agent runs already."""
        return self.services.setdefault(id(store), service := _StoreService(store, is_disabled=True)) is service

    def stop_for(self, store: AnyStore) -> None:
        """End the agent of one store, and release the leases of this process there."""
        self.watched.discard(id(store))
        if service := self.services.pop(id(store), None):
            service.end()

    def stop(self) -> None:
        """Send pending counts, release the leases of this process, and end its background threads.

        Call it in worker processes that end without Python's exit handlers, such as RQ's. The next decision
        starts the agents again.
        """
        with self._stopping:
            with self._lock:
                services = list(self.services.values())
                self.services.clear()
                self.watched.clear()
            for service in services:
                service.end()

    def socket_started(self) -> None:
        """Close evicted sockets of a store in memory without a thread, as in a test."""
        store = get_store()
        if not store.is_remote and (service := self.services.get(id(store))) is not None and service.thread is None:
            SocketControl(store)()

    async def socket_ended(self) -> None:
        """Stop the agents if the process ends and has no open socket any more."""
        if shutdown.has_begun and not len(open_sockets):
            await asyncio.to_thread(self.stop)

    def drop_for_new_settings(self) -> None:
        """Drop the agents of entry points, as changed settings may name another store.

        Leases in the former store are not released, as this process still holds them.
        """
        with self._lock:
            replaced = [service for service in self.services.values() if service.watches_rules]
            for service in replaced:
                del self.services[id(service.store)]
                self.watched.discard(id(service.store))
        for service in replaced:
            if service.thread is not None:
                service.thread.stop(0.0)

    def _begin(self, store: AnyStore, rules: bool) -> None:
        service = self.services.get(id(store)) or _StoreService(store)
        try:
            if not service.is_disabled:
                service.begin(rules=rules)
        except RuntimeError as error:  # the system starts no thread, or the interpreter ends
            logger.warning(
                "the background thread did not start, so beats and edited rules are missed; trying again: %s", error
            )
            self._not_before = time.monotonic() + RESTART_SECONDS
            return
        self.services[id(store)] = service
        if service.is_complete:
            self.watched.add(id(store))
        shutdown.watch()
        if (celery := sys.modules.get("celery.signals")) is not None:  # Celery's children end by os._exit
            celery.worker_process_shutdown.connect(self._stop_child, weak=False, dispatch_uid="django_throttle.agent")
        if self._finalizer is None:
            # Forked children of multiprocessing, such as granian's workers, end without the functions of atexit.
            self._finalizer = Finalize(None, self.stop, exitpriority=0)

    def _stop_child(self, **_: object) -> None:
        """Stop when a child of Celery ends, or is replaced by --max-tasks-per-child."""
        self.stop()

    def _end_when_idle(self) -> None:
        """Wake the agents, from a signal handler. A process without sockets may end within a tenth of a second."""
        for service in tuple(self.services.values()):
            if service.thread is not None:
                service.thread.wake(self._stop_when_idle)

    def _stop_when_idle(self) -> None:
        services = tuple(self.services.values())
        is_idle = not len(open_sockets) and not any(len(service.store.leases) for service in services)
        if is_idle and self._stopping.acquire(blocking=False):  # a call of stop() may be waiting for this thread
            try:
                self.stop()
            finally:
                self._stopping.release()


agents: Final = Agents()
services, watched = agents.services, agents.watched
ensure, disable_for, stop_for = agents.ensure, agents.disable_for, agents.stop_for
stop, socket_started, socket_ended = agents.stop, agents.socket_started, agents.socket_ended


def refund_prepaid(store: AnyStore, *, everything: bool = False) -> None:
    """Refund expired prepaid units, or all. Units that cannot be refunded count until they age out."""
    run(correct(BlockingIo(store), store.local_limits.prepaid.sweep(everything=everything)))


@receiver(setting_changed, dispatch_uid="django_throttle.agent")
def _settings_changed(*, setting: str, **_: object) -> None:
    if setting in ("DJANGO_THROTTLE", "CACHES", "SECRET_KEY"):
        agents.drop_for_new_settings()

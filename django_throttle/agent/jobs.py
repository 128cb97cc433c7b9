"""The agent of each store: beats, leases, control messages, dampers' reports and group sizes, in the background."""

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
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import ACTIVITY_SECONDS, Activity, SocketControl
from django_throttle.core.decide import correct
from django_throttle.core.io import run
from django_throttle.local.limits import Flusher
from django_throttle.local.open_sockets import open_sockets
from django_throttle.local.prepaid import SWEEP_SECONDS
from django_throttle.runtime import in_child, shutdown
from django_throttle.stores import AnyStore, RedisStore
from django_throttle.stores.base import BlockingIo, Store

logger = logging.getLogger("django_throttle")

RESEND_SECONDS: Final = 0.5
PERIODIC_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 6.0  # after a failed start


class StoreJob(NamedTuple):
    """Work that the background thread repeats every ``seconds`` for one Redis.

    ``name`` says what it does, for the log: "sending records". ``finish`` is called when the process ends.
    """

    name: str
    seconds: float
    work: Callable[[], object]
    finish: Callable[[], object]


_job_makers: Final[list[Callable[[RedisStore], StoreJob]]] = []


def add_store_job(make: Callable[[RedisStore], StoreJob]) -> None:
    """Have ``make`` called with each Redis that entry points use, and its job done in the background thread.

    Call it in the method ``ready`` of an app config. A job that raises is logged and tried again soon. It holds up the
    others of its thread, so it has to be quick.
    """
    if make not in _job_makers:  # tests of a site may run ``ready`` again
        _job_makers.append(make)


@dataclass(slots=True)
class _StoreService:
    """What runs in the background for one store; nothing does where ``is_disabled``.

    ``rules`` is True once entry points decide by the store: then the rules are watched, too.
    """

    store: AnyStore
    rules: bool = False
    is_disabled: bool = False
    thread: AgentThread | None = None
    cleanups: list[Callable[[], object]] = field(default_factory=list)  # in the reverse order

    @property
    def watches(self) -> bool:
        """True when nothing is left to begin for entry points."""
        return self.rules or self.is_disabled

    def begin(self, *, rules: bool) -> None:
        """Begin what has not begun yet; where rules are read in a test, the thread would need the tests' database."""
        remote = self.store.is_remote
        if conf().AGENT and (remote or (rules and not detect_test_run.counts_in_memory())):
            thread = self.thread or AgentThread()
            if self.thread is None:
                self._add_duties(thread)
            if rules and not self.rules:
                self._serve_entry_points(thread)
            thread.start()
            self.thread = thread
        self.rules = self.rules or rules

    def _add_duties(self, thread: AgentThread) -> None:
        settings, store = conf(), self.store
        control = SocketControl(store)
        thread.every(settings.RULES_POLL, control, "executing control messages", wait=settings.RULES_POLL)
        if not store.is_remote:
            return
        reconciler = Reconciler(store, control.evict)
        lost = (
            f"when no beat has arrived for PROCESS_TTL ({settings.PROCESS_TTL:g} s), others give back the slots of "
            "this process, which takes them again later: see that Redis answers"
        )
        thread.every(settings.BEAT_INTERVAL, reconciler.beat, "sending the beat", meaning=lost)
        thread.every(RESEND_SECONDS, reconciler.resend, "sending leases again")
        thread.every(settings.EXTEND_INTERVAL, reconciler.extend, "extending leases", wait=settings.EXTEND_INTERVAL)
        store.local_limits.interval = settings.DAMPER_INTERVAL
        flusher = Flusher(store.local_limits, store.aggregator, lambda: store.processes.seen)
        thread.every(store.local_limits.interval, flusher, "sending damper counts", wait=flusher.first)
        prepaid = partial(give_back, store)
        thread.every(SWEEP_SECONDS, prepaid, "giving back what was bought ahead", wait=SWEEP_SECONDS)
        self.cleanups = [reconciler.release_all, flusher, partial(give_back, store, everything=True)]

    def _serve_entry_points(self, thread: AgentThread) -> None:
        """Watch the rules, and send what entry points count. Both need Django's settings, which the engine does not."""
        poll_seconds, store = conf().RULES_POLL, self.store
        thread.every(ACTIVITY_SECONDS, Activity(store), "reporting active sockets", wait=ACTIVITY_SECONDS)
        thread.every(poll_seconds, partial(rulebook.poll, store), "polling the rules", wait=poll_seconds)
        periodic = observe.run_periodic_work
        thread.every(PERIODIC_SECONDS, periodic, "writing due log lines and metrics", wait=PERIODIC_SECONDS)
        if store.is_remote:
            for make in _job_makers:
                job = make(store)
                thread.every(job.seconds, job.work, job.name, wait=job.seconds)
                self.cleanups.append(job.finish)

    def end(self) -> None:
        """Stop, report what was counted, and release what this process holds; about a second a step at most."""
        if self.thread is not None:
            self.thread.stop()
        for cleanup in reversed(self.cleanups):
            try:
                cleanup()
            except Exception as error:  # noqa: BLE001 - at exit nobody can act on it, and others sweep us
                logger.info("shutdown cleanup failed; what this process holds counts until others expire it: %s", error)


class Agents:
    """The agents of this process, one for each store; a forked child starts anew.

    ``services`` has the service of each store by the store's ``id``. ``watched`` has the ids of stores whose rules are
    watched too, so that a call need not start anything.
    """

    def __init__(self) -> None:
        self.services: dict[int, _StoreService] = {}
        self.watched: set[int] = set()
        self._renew()
        in_child(self, Agents._renew)
        shutdown.register(self._end_soon, self.stop)
        atexit.register(self.stop)

    def _renew(self) -> None:
        self._not_before = 0.0  # on the monotonic clock: when to try again after a failed start
        self._lock = threading.Lock()
        self._stopping = threading.RLock()  # so that a second call waits for the first
        self._finalizer: Finalize | None = None
        self.services.clear()
        self.watched.clear()

    def ensure(self, store: Store, *, rules: bool = False) -> None:
        """Start the agent of this store, and have it watch the ``rules``; only the first call does anything."""
        service = self.services.get(id(store))
        if service is None or (rules and not service.watches):
            with self._lock:
                if time.monotonic() >= self._not_before and not shutdown.has_begun:
                    self._begin(cast(AnyStore, store), rules)

    def disable_for(self, store: AnyStore) -> bool:
        """Serve this store by no agent, as it lives no longer than a test; False when one serves it already."""
        return self.services.setdefault(id(store), service := _StoreService(store, is_disabled=True)) is service

    def stop_for(self, store: AnyStore) -> None:
        """End the agent of one store, and release what this process holds there."""
        self.watched.discard(id(store))
        if service := self.services.pop(id(store), None):
            service.end()

    def stop(self) -> None:
        """Send what this process has counted, give back what it holds, and end its background threads.

        For worker processes that end without Python's own exit, as those of RQ do. A later call starts all of it again.
        """
        with self._stopping:
            with self._lock:
                ended = list(self.services.values())
                self.services.clear()
                self.watched.clear()
            for service in ended:
                service.end()

    async def socket_ended(self) -> None:
        """Stop, if that was the last socket of this process and the process ends."""
        if shutdown.has_begun and not len(open_sockets):
            await asyncio.to_thread(self.stop)

    def replace(self) -> None:
        """Let go of the agents that serve entry points: the settings name another store now.

        What is held in the old one belongs to this process still.
        """
        with self._lock:
            replaced = [service for service in self.services.values() if service.rules]
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
        except RuntimeError as error:  # no thread to be had, or the interpreter ends; the decision goes on
            logger.warning("no background thread, so no beat and no rereading of rules; trying again: %s", error)
            self._not_before = time.monotonic() + RESTART_SECONDS
            return
        self.services[id(store)] = service
        if service.watches:
            self.watched.add(id(store))
        shutdown.watch()
        if (celery := sys.modules.get("celery.signals")) is not None:  # whose children end by os._exit
            celery.worker_process_shutdown.connect(self._stop_child, weak=False, dispatch_uid="django_throttle.agent")
        if self._finalizer is None:
            # Forked children of multiprocessing, as granian's workers are, end without what atexit has.
            self._finalizer = Finalize(None, self.stop, exitpriority=0)

    def _stop_child(self, **_: object) -> None:
        """A child of Celery ends, or is replaced as --max-tasks-per-child says."""
        self.stop()

    def _end_soon(self) -> None:
        """Wake the agents, from a signal handler: a process without sockets may end in a tenth of a second."""
        for service in tuple(self.services.values()):
            if service.thread is not None:
                service.thread.wake(self._stop_when_idle)

    def _stop_when_idle(self) -> None:
        services = tuple(self.services.values())
        is_idle = not len(open_sockets) and not any(len(service.store.leases) for service in services)
        if is_idle and self._stopping.acquire(blocking=False):  # else a call of stop() waits for this thread
            try:
                self.stop()
            finally:
                self._stopping.release()


agents: Final = Agents()
services, watched = agents.services, agents.watched
ensure, disable_for, stop_for = agents.ensure, agents.disable_for, agents.stop_for
stop, socket_ended = agents.stop, agents.socket_ended


def give_back(store: AnyStore, *, everything: bool = False) -> None:
    """Refund what may be spent no longer, or all that is held. What cannot be refunded counts until it ages out."""
    run(correct(BlockingIo(store), store.local_limits.prepaid.sweep(everything=everything)))


@receiver(setting_changed, dispatch_uid="django_throttle.agent")
def _settings_changed(*, setting: str, **_: object) -> None:
    if setting in ("DJANGO_THROTTLE", "CACHES", "SECRET_KEY"):
        agents.replace()

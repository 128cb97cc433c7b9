"""The agent of each store: beats, leases, control messages, dampers' reports and group sizes, in the background."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from typing import Final

from django.core.signals import setting_changed
from django.dispatch import receiver

from django_throttle import observe, rulebook, testrun
from django_throttle.agent_thread import QUIET_SECONDS, AgentThread, watched
from django_throttle.conf import conf
from django_throttle.connections.control import HEARD_SECONDS, Activity, SocketControl
from django_throttle.connections.process import open_sockets
from django_throttle.connections.reconcile import Refresher
from django_throttle.damper.meters import Flusher
from django_throttle.lifecycle import shutdown
from django_throttle.publishing.groups import TELL_SECONDS as GROUPS_SECONDS
from django_throttle.publishing.groups import GroupSizeReporter
from django_throttle.stores import AnyStore, RedisStore

logger = logging.getLogger("django_throttle")

RESEND_SECONDS: Final = 0.5
TELL_SECONDS: Final = 1.0


@dataclass(slots=True)
class _StoreService:
    """What is kept up for one store. ``rules`` is True once doors decide by it: then the rules are watched.

    Where ``is_disabled`` there is no thread.
    """

    store: AnyStore
    rules: bool
    is_disabled: bool = False
    agent: AgentThread | None = None
    refresher: Refresher | None = None
    flusher: Flusher | None = None
    group_sizes: GroupSizeReporter | None = None

    @property
    def watches(self) -> bool:
        """True when nothing is left to begin for doors."""
        return self.rules or self.is_disabled

    def begin(self) -> None:
        settings = conf()
        if not (settings.AGENT and (self.rules or self.store.is_remote)):
            return
        if testrun.is_on() and not self.store.is_remote:
            return  # a thread that reads the rules would have a connection to the database of the tests
        agent = AgentThread()
        duties = SocketControl(self.store)
        agent.every(settings.RULES_POLL, duties, "executing control messages", wait=settings.RULES_POLL)
        agent.every(HEARD_SECONDS, Activity(self.store), "reporting active sockets", wait=HEARD_SECONDS)
        if self.store.is_remote:
            refresher = self.refresher = Refresher(self.store, duties.evict)
            agent.every(settings.BEAT_INTERVAL, refresher.beat, "the beat")
            agent.every(RESEND_SECONDS, refresher.resend, "sending leases again")
            agent.every(settings.EXTEND_INTERVAL, refresher.extend, "extending leases", wait=settings.EXTEND_INTERVAL)
            self._report_to(agent, self.store)
        if self.rules:
            self._watch_rules(agent)
        agent.start()
        self.agent = agent

    def watch_rules(self) -> None:
        """Doors decide by this store too: what was begun for its leases or dampers alone is completed."""
        self.rules = True
        try:
            if self.agent is None:
                self.begin()
            else:
                self._watch_rules(self.agent)
        except RuntimeError:
            self.rules = False
            raise

    def _watch_rules(self, agent: AgentThread) -> None:
        poll_seconds = conf().RULES_POLL
        agent.every(poll_seconds, partial(rulebook.poll, self.store), "polling the rules", wait=poll_seconds)
        agent.every(TELL_SECONDS, observe.run_periodic_work, "writing due log lines and metrics", wait=TELL_SECONDS)
        if self.store.is_remote:
            self.group_sizes = GroupSizeReporter(self.store)
            agent.every(GROUPS_SECONDS, self.group_sizes, "reporting the sizes of groups", wait=GROUPS_SECONDS)

    def _report_to(self, agent: AgentThread, store: RedisStore) -> None:
        store.meters.interval = conf().DAMPER_INTERVAL
        flusher = self.flusher = Flusher(store.meters, store.aggregates, lambda: store.processes.seen)
        agent.every(store.meters.interval, flusher, "reporting counts of dampers", wait=flusher.first)

    def end(self) -> None:
        """Stop, report what was counted, and release what this process holds; about a second a step at most."""
        if self.agent is not None:
            self.agent.stop()
        groups = self.group_sizes.leave if self.group_sizes else None
        for last in (self.flusher, groups, self.refresher.leave if self.refresher else None):
            try:
                if last is not None:
                    last()
            except Exception as error:  # noqa: BLE001 - at exit nobody can act on it, and others sweep us
                logger.info("shutdown cleanup failed; what this process holds counts until others expire it: %s", error)


_services: dict[int, _StoreService] = {}  # by the identity of their store
_not_before = 0.0  # on the monotonic clock: when to try again after a failed start
_lock = threading.Lock()
_stopping = threading.RLock()  # whoever stops waits for another one who does
_finalizer: Finalize | None = None


def ensure(store: AnyStore, *, rules: bool = False) -> None:
    """Start the agent of this store, and have it watch the ``rules``; only the first call does anything."""
    service = _services.get(id(store))
    if service is None or (rules and not service.watches):
        with _lock:
            if time.monotonic() >= _not_before and not shutdown.has_begun:
                _serve(store, rules)


def disable_for(store: AnyStore) -> bool:
    """Serve this store by no agent, as it lives no longer than a test; False when one serves it already."""
    return _services.setdefault(id(store), service := _StoreService(store, rules=False, is_disabled=True)) is service


def stop_for(store: AnyStore) -> None:
    """End the agent of one store, and release what this process holds there."""
    watched.discard(id(store))
    if service := _services.pop(id(store), None):
        service.end()


def stop() -> None:
    """End the agents of all stores, and release what this process holds."""
    with _stopping:
        with _lock:
            services = list(_services.values())
            _services.clear()
            watched.clear()
        for service in services:
            service.end()


async def socket_ended() -> None:
    """A socket of this process has ended; when it was the last and the process ends, stop."""
    if shutdown.has_begun and not len(open_sockets):
        await asyncio.to_thread(stop)


def _end_soon() -> None:
    """Wake the agents, from a signal handler: a process without sockets may end in a tenth of a second."""
    for service in tuple(_services.values()):
        if service.agent is not None:
            service.agent.wake(_stop_when_idle)


def _stop_when_idle() -> None:
    is_idle = not len(open_sockets) and not any(len(service.store.leases) for service in tuple(_services.values()))
    if is_idle and _stopping.acquire(blocking=False):  # else somebody does it, who waits for this thread
        try:
            stop()
        finally:
            _stopping.release()


shutdown.register(_end_soon, stop)


def _serve(store: AnyStore, rules: bool) -> None:
    global _not_before
    service = _services.get(id(store))
    try:
        if service is None:
            service = _StoreService(store, rules)
            service.begin()
        elif rules and not service.watches:
            service.watch_rules()
    except RuntimeError as error:  # no thread to be had, or the interpreter ends; the decision goes on
        logger.warning("the background thread was not started, and its work waits; trying again soon: %s", error)
        _not_before = time.monotonic() + QUIET_SECONDS / 10
        return
    _services[id(store)] = service
    if service.watches:
        watched.add(id(store))
    _stop_at_exit()


def _stop_at_exit() -> None:
    """Have what this process holds released when it ends, once."""
    global _finalizer
    shutdown.watch()
    if _finalizer is None:
        # Forked children of multiprocessing, as granian's workers are, end without what atexit has.
        _finalizer = Finalize(None, stop, exitpriority=0)


@receiver(setting_changed, dispatch_uid="django_throttle.agent")
def _settings_changed(*, setting: str, **_: object) -> None:
    """The settings name another store now; what is held in the old one belongs to this process still."""
    if setting not in ("DJANGO_THROTTLE", "CACHES", "SECRET_KEY"):
        return
    with _lock:
        replaced = [service for service in _services.values() if service.rules]
        for service in replaced:
            del _services[id(service.store)]
            watched.discard(id(service.store))
    for service in replaced:
        if service.agent is not None:
            service.agent.stop(0.0)


def _forked() -> None:
    global _finalizer, _lock, _not_before, _stopping
    _finalizer, _lock, _not_before, _stopping = None, threading.Lock(), 0.0, threading.RLock()
    _services.clear()
    watched.clear()


os.register_at_fork(after_in_child=_forked)
atexit.register(stop)

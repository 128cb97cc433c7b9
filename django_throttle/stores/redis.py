"""The store in Redis: every decision is one script call in one round trip."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from django_throttle.connections.leases import Registry
from django_throttle.core.commands import (
    Charge,
    Command,
    CountMembers,
    Decide,
    DecideLocally,
    Forget,
    Once,
    Refund,
    Release,
)
from django_throttle.core.control import Evict, Tell
from django_throttle.core.key import ident_tag, secret_bytes, store_key
from django_throttle.damper.meters import Meters
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.log_throttling import Complaints
from django_throttle.store_time import Calendar
from django_throttle.stores.addresses import find_address
from django_throttle.stores.batch import Batcher, Releases
from django_throttle.stores.cluster import ClusterLink
from django_throttle.stores.commands import (
    CountErrand,
    DecideErrand,
    Errand,
    ForgetErrand,
    LeaseErrand,
    LongErrand,
    OnceErrand,
    RefundErrand,
    ReleaseErrand,
    announce_call,
)
from django_throttle.stores.control import RedisOrders, TellErrand
from django_throttle.stores.damping import RedisAggregator
from django_throttle.stores.denials import Denials
from django_throttle.stores.eviction import EvictErrand, Evictions
from django_throttle.stores.failures import advice, cause_of
from django_throttle.stores.fallback import Fallback, LateErrand
from django_throttle.stores.split import SplitErrand
from django_throttle.stores.timeouts import EVENTLET, is_patched_by_eventlet
from django_throttle.stores.transport import Call, Link, script

logger = logging.getLogger("django_throttle")

DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"
MAINTENANCE_SECONDS: Final = 1.0


class RedisStore:
    """Counts in one Redis, by its clock, exactly, for any number of processes.

    ``address`` is a redis:// URL, a redis+sentinel:// or redis+cluster:// one, or a CACHES alias that
    django-redis serves. ``clock`` (seconds) replaces the server's clock in tests. ``deadline`` bounds one decision
    in seconds, waiting for a connection and connecting included. ``processes`` is how many share each limit while
    Redis is away, at least. Raises StoreError, with a cause, when Redis does not answer; InvalidSetting for a bad
    address, and under eventlet.
    """

    is_remote = True

    def __init__(
        self,
        address: str = DEFAULT_URL,
        *,
        prefix: str = "dt",
        clock: Callable[[], float] | None = None,
        secret: str = "",
        deadline: float = 0.1,
        max_connections: int = 20,
        lease_ttl: float = 600.0,
        processes: int = 0,
    ) -> None:
        if is_patched_by_eventlet():
            raise InvalidSetting(EVENTLET)
        self.prefix = prefix
        self.clock = clock
        found = find_address(address)
        for reason in found.wrong:
            logger.error("REDIS: %s; it is left out", reason)
        self.link = (ClusterLink if found.is_cluster else Link)(found, deadline, max_connections)
        self.breaker = self.link.breaker
        self.calendar = Calendar()
        self.complaints = Complaints()
        self.leases = Registry()
        self.fallback = Fallback(self, processes)
        self.lease_ttl_ms = round(lease_ttl * 1000)
        self.denials = Denials() if clock is None else None  # a clock that is set leaves ours behind
        self.meters = Meters(clock or time.monotonic)
        self.batcher = Batcher(self.link.asend_all, self.now_arg, partial(announce_call, self), self.link.slot_of)
        self.releases = Releases(self.link.asend_all)
        self.secret = secret_bytes(secret)
        self.orders = RedisOrders(self)
        self.evictions = Evictions(self)

    def execute(self, command: Command) -> Any:
        if isinstance(command, DecideLocally):
            return self.fallback.decide(command.decide)
        errand = self._errand(command)
        if not errand.calls:  # nothing to say, which says nothing of the store either
            return errand.read(())
        with errand:
            if isinstance(errand, LongErrand):
                return errand.run()
            return errand.finish(self.link.send_all(errand.calls, errand.seconds))

    async def aexecute(self, command: Command) -> Any:
        if isinstance(command, DecideLocally):
            return self.fallback.decide(command.decide)
        errand = self._errand(command)
        if not errand.calls:
            return errand.read(())
        with errand:
            if isinstance(errand, DecideErrand) and not (errand.ask.own and self.link.slot_of):
                return errand.finish(await self.batcher.ask(errand.ask))
            if isinstance(errand, ReleaseErrand):
                return errand.finish(await self.releases.send(errand.calls))
            if isinstance(errand, LongErrand):
                return await errand.arun()
            return errand.finish(await self.link.asend_all(errand.calls, errand.seconds))

    def call(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run one script for the agent or a command: a longer deadline, past the breaker. Raises StoreError."""
        (reply,) = self.pipeline([(name, keys, args)])
        if isinstance(reply, Exception):
            raise StoreError(cause_of(reply), str(reply) + advice(reply)) from reply
        return reply

    def pipeline(self, calls: Sequence[tuple[str, Sequence[str], Sequence[Any]]]) -> list[Any]:
        """Run many scripts in one round trip; a failed one leaves its exception in place of a reply."""
        return self.send([Call(script(name), keys, args, derives=True) for name, keys, args in calls])

    def send(self, calls: Sequence[Call]) -> list[Any]:
        """The same of calls that are made already."""
        try:
            return self.link.send_all(calls, MAINTENANCE_SECONDS)
        except Exception as error:
            raise StoreError(cause_of(error), str(error)) from error

    @property
    def aggregates(self) -> RedisAggregator:
        """What dampers report to."""
        return RedisAggregator(self)

    def now_arg(self) -> str:
        """The first argument of every script: the test clock in microseconds, or "" for the server's."""
        return "" if self.clock is None else str(round(self.clock() * 1_000_000))

    def key(self, rule_id: str, ident: str) -> str:
        """The store key of a rule's counter or lease index for an ident."""
        return store_key(self.prefix, ident_tag(ident, self.secret), rule_id)

    def process_key(self, name: str) -> str:
        """A key of the bookkeeping of processes; all of it is in one slot."""
        return f"{self.prefix}:{{p}}:{name}"

    def by_slot(self, charges: Sequence[Charge]) -> list[list[int]]:
        """The places of those charges that one call may carry; without a Cluster those are all of them."""
        if self.link.slot_of is None:
            return [list(range(len(charges)))]
        parts: dict[int, list[int]] = {}
        for place, charge in enumerate(charges):
            parts.setdefault(self.link.slot_of(self.key(charge.rule.id, charge.ident)), []).append(place)
        return list(parts.values())

    def _errand(self, command: Command) -> Errand:
        errand = self._plain_errand(command)
        if isinstance(command, Decide) and self.fallback.owes(command.charges):
            return LateErrand(self, dict.fromkeys(charge.ident for charge in command.charges), errand)
        return errand

    def _plain_errand(self, command: Command) -> Errand:
        match command:
            case Decide(charges=charges) if self.link.slot_of and len(slots := self.by_slot(charges)) > 1:
                return SplitErrand(self, command, slots)
            case Decide(lease=None):
                return DecideErrand(self, command)
            case Decide():
                return LeaseErrand(self, command)
        if type(command) not in _ERRANDS:
            raise TypeError(f"not a command: {command!r}")
        return _ERRANDS[type(command)](self, command)


_ERRANDS: Final[dict[type, Callable[[RedisStore, Any], Errand]]] = {
    CountMembers: CountErrand,
    Evict: EvictErrand,
    Forget: ForgetErrand,
    Once: OnceErrand,
    Refund: RefundErrand,
    Release: ReleaseErrand,
    Tell: TellErrand,
}

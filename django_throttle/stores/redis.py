"""The store in Redis: every decision is one script call in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from django_throttle.connections.registry import Registry
from django_throttle.core.command import Charge, Command, Decide, DecideLocally, Forget, Release
from django_throttle.core.key import ident_tag, secret_bytes, store_key
from django_throttle.core.rule import Rule
from django_throttle.exceptions import StoreError
from django_throttle.stores.batch import Batcher
from django_throttle.stores.breaker import Breaker
from django_throttle.stores.calendar import Calendar
from django_throttle.stores.complaints import Complaints
from django_throttle.stores.denials import Denials
from django_throttle.stores.errands import DecideErrand, Errand, ForgetErrand, LeaseErrand, ReleaseErrand
from django_throttle.stores.failures import cause_of
from django_throttle.stores.link import Call, Link
from django_throttle.stores.memory import MemoryStore
from django_throttle.stores.scripts import script

DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"
MAINTENANCE_SECONDS: Final = 1.0


class RedisStore:
    """Counts in one Redis, by its clock, exactly, for any number of processes.

    ``address`` is a redis:// URL or a CACHES alias that django-redis serves. ``clock`` (seconds) replaces
    the server's clock in tests. ``deadline`` bounds one decision in seconds, waiting for a connection and
    connecting included. Raises StoreError, with a cause, when Redis does not answer; InvalidSetting for a
    bad address.
    """

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
    ) -> None:
        self.prefix = prefix
        self.clock = clock
        self.link = Link(address, deadline, max_connections)
        self.breaker = Breaker()
        self.calendar = Calendar()
        self.complaints = Complaints()
        self.leases = Registry()
        self.local = MemoryStore(leases=self.leases)
        self.processes = 1  # live ones, as the last beat saw them
        self.lease_ttl_ms = round(lease_ttl * 1000)
        self.denials = Denials() if clock is None else None  # a clock that is set leaves ours behind
        self._batcher = Batcher(self.link.asend_all, self.now_arg)
        self._secret = secret_bytes(secret)

    def execute(self, command: Command) -> Any:
        if isinstance(command, DecideLocally):
            return self._decide_locally(command.decide)
        errand = self._errand(command)
        with errand:
            return errand.finish(self.link.send_all(errand.calls))

    async def aexecute(self, command: Command) -> Any:
        if isinstance(command, DecideLocally):
            return self._decide_locally(command.decide)
        errand = self._errand(command)
        with errand:
            if isinstance(errand, DecideErrand) and not errand.travels_alone:
                return errand.finish([await self._batcher.ask(errand.ask)])
            return errand.finish(await self.link.asend_all(errand.calls))

    def call(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run one script for the agent or a command: a longer deadline, past the breaker. Raises StoreError."""
        (reply,) = self.pipeline([(name, keys, args)])
        if isinstance(reply, Exception):
            raise StoreError(cause_of(reply), str(reply)) from reply
        return reply

    def pipeline(self, calls: Sequence[tuple[str, Sequence[str], Sequence[Any]]]) -> list[Any]:
        """Run many scripts in one round trip; a failed one leaves its exception in place of a reply."""
        scripts = [Call(script(name), keys, args) for name, keys, args in calls]
        try:
            return self.link.send_all(scripts, MAINTENANCE_SECONDS)
        except Exception as error:
            raise StoreError(cause_of(error), str(error)) from error

    def now_arg(self) -> str:
        """The first argument of every script: the test clock in microseconds, or "" for the server's."""
        return "" if self.clock is None else str(round(self.clock() * 1_000_000))

    def key(self, rule_id: str, ident: str) -> str:
        """The store key of a rule's counter or lease index for an ident."""
        return store_key(self.prefix, ident_tag(ident, self._secret), rule_id)

    def process_key(self, name: str) -> str:
        """A key of the bookkeeping of processes; all of it is in one slot."""
        return f"{self.prefix}:{{p}}:{name}"

    def _errand(self, command: Command) -> Errand:
        match command:
            case Decide(lease=None):
                return DecideErrand(self, command)
            case Decide():
                return LeaseErrand(self, command)
            case Forget():
                return ForgetErrand(self, command)
            case Release():
                return ReleaseErrand(self, command)
        raise TypeError(f"not a command: {command!r}")

    def _decide_locally(self, command: Decide) -> Any:
        shares = tuple(Charge(_share(rule, self.processes), ident, cost) for rule, ident, cost in command.charges)
        return self.local.execute(Decide(shares, command.commit, command.lease))


@lru_cache(maxsize=1024)
def _share(rule: Rule, processes: int) -> Rule:
    return rule.share(processes)

"""What commands to one Redis share: its keys, its clock, the transport, the breaker, and what this process holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from django_throttle.core.commands import Answers, Charge, Charges
from django_throttle.core.key import key_root, secret_bytes
from django_throttle.core.rule import Rule
from django_throttle.exceptions import Cause, StoreError
from django_throttle.local.leases import Leases
from django_throttle.local.limits import LocalLimits
from django_throttle.local.store_time import Calendar
from django_throttle.runtime import LogThrottle
from django_throttle.stores.redis.cluster import ClusterTransport
from django_throttle.stores.redis.failures import COUNTED, LoopEnded, advice, cause_of, text_of, waited
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.scripts import OWN_KEY, script
from django_throttle.stores.redis.transport import RedisCall, Transport, grouped
from django_throttle.stores.refusal_cache import NoRefusalCache, RefusalCache

logger = logging.getLogger("django_throttle")

MAINTENANCE_SECONDS: Final = 1.0
MAX_CALL_CHARGES: Final = 1000  # a function of Lua returns 8,000 values, of which a charge is seven
RULES_TTL_MS: Final = 30 * 24 * 3600 * 1000
_REFUSED: Final = "Redis refuses a script; failure policies decide: check the user's rights, server version and REDIS"
_ADVICE: Final = {
    Cause.POOL: "All connections to Redis are in use, failure policies decide meanwhile; raise MAX_CONNECTIONS",
    Cause.BLOCKED: "Code of the site blocks the event loop for longer than DEADLINE; failure policies decide meanwhile",
}


class Answered(Protocol):
    """Remembers what Redis has answered to a call, or to several."""

    def note(self, charges: Charges, answers: Answers) -> None: ...

    def note_all(self, calls: Sequence[tuple[Charges, Answers]]) -> None: ...


class RedisContext:
    """One Redis, as commands see it. ``clock`` (seconds) replaces the server's in tests; None asks the server.

    ``answered`` is told what Redis has answered.
    """

    def __init__(
        self,
        transport: Transport | ClusterTransport,
        *,
        prefix: str,
        clock: Callable[[], float] | None,
        secret: str,
        lease_ttl: float,
        answered: Answered,
    ) -> None:
        self.transport = transport
        self.breaker = transport.breaker
        self.prefix = prefix
        self.clock = clock
        self.secret = secret_bytes(secret)
        self.lease_ttl_ms = round(lease_ttl * 1000)
        self.calendar = Calendar()
        self.log_throttle = LogThrottle()
        self.leases = Leases()
        # A clock that is set leaves ours behind: nothing is remembered by it, nor prepaid.
        self.is_costly = clock is None
        self.refusal_cache: RefusalCache = RefusalCache() if self.is_costly else NoRefusalCache()
        self.local_limits = LocalLimits(clock or time.monotonic)
        self.local_limits.prepaid.patience = transport.seconds
        self.answered = answered

    def call(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run one script for the agent or a command: within a second, past the breaker. Raises StoreError."""
        (reply,) = self.pipeline([(name, keys, args)])
        if isinstance(reply, Exception):
            raise StoreError(cause_of(reply), str(reply) + advice(reply)) from reply
        return reply

    def pipeline(self, calls: Sequence[tuple[str, Sequence[str], Sequence[Any]]]) -> list[Any]:
        """Run many scripts in one round trip; an error stands in place of its reply."""
        return self.send([RedisCall(script(name), keys, args, derives=True) for name, keys, args in calls])

    def send(self, calls: Sequence[RedisCall]) -> list[Any]:
        """The same for calls that are made already."""
        try:
            return self.transport.send_all(calls, MAINTENANCE_SECONDS)
        except Exception as error:
            raise StoreError(cause_of(error), str(error)) from error

    def rules_version(self, given: str, *, publish: bool) -> tuple[str, float]:
        """Return the version of the rules, and the time of Redis in epoch seconds. Raise StoreError.

        The version is ``given`` where it is to ``publish``, or where there is none.
        """
        name = "publish_rules" if publish else "rules_version"
        version, seconds, micros = self.call(name, [self.process_key("rules")], [given, RULES_TTL_MS])
        return text(version), seconds + micros / 1_000_000

    @property
    def open_breakers(self) -> int:
        """How many circuit breakers are open: one, or one for each node of a Cluster."""
        return sum(breaker.is_open for breaker in self.transport.breakers)

    def now_arg(self) -> str:
        """The first argument of every script: the test clock in microseconds, or "" for the server's."""
        return "" if self.clock is None else str(round(self.clock() * 1_000_000))

    def clock_args(self) -> tuple[str, ...]:
        """First argument of decisions: the test clock's time, nothing for the server's."""
        return () if self.clock is None else (self.now_arg(),)

    def key(self, rule_id: str, ident: str) -> str:
        """The store key of a rule's log, lease index or other record of its own for an ident."""
        return key_root(self.prefix, ident, self.secret) + rule_id

    def counter_key(self, rule: Rule, ident: str) -> str:
        """The store key of an ident's value, which has a rule's record; of an algorithm with a key of its own, that."""
        return self.key("" if rule.params.wire_id < OWN_KEY else rule.id, ident)

    def process_key(self, name: str) -> str:
        """A key of the records of processes; all of them are in one slot."""
        return f"{self.prefix}:{{p}}:{name}"

    def by_slot(self, charges: Sequence[Charge]) -> list[list[int]]:
        """Group the indexes of charges by call: up to MAX_CALL_CHARGES each, and on a Cluster those of one slot."""
        slot_of, places = self.transport.slot_of, range(len(charges))
        slots = [list(places)]
        if slot_of is not None:
            slots = grouped(places, lambda place: slot_of(self.key("", charges[place].ident)))
        most = MAX_CALL_CHARGES
        return [some[at : at + most] for some in slots for at in range(0, len(some), most)]

    def note_failure(self, error: Exception) -> StoreError:
        """Tell the breaker of a failure; returns it with its cause.

        The log has one line when the breaker opens, and for causes that do not open it one a minute.
        """
        cause, text = cause_of(error), text_of(error)
        if cause in COUNTED:
            if self.breaker.failed(waited(error, self.transport.seconds)):
                logger.warning("Redis does not answer (%s: %s); failure policies decide until it does", cause, text)
        else:
            self.breaker.inconclusive()
            if not isinstance(error, LoopEnded) and self.log_throttle.due(cause):
                logger.error("%s (%s: %s)%s", _ADVICE.get(cause, _REFUSED), cause, text, advice(error))
        return StoreError(cause, text + advice(error))

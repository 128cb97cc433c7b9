"""State that commands to one Redis share: key names, clock, transport, circuit breaker, leases and local limits.

``RedisStore`` is the context of its own commands.
"""

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
from django_throttle.stores.redis.failures import COUNTED_CAUSES, LoopEnded, advice, cause_of, text_of, waited
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.scripts import OWN_KEY, script
from django_throttle.stores.redis.transport import RedisCall, Transport, grouped
from django_throttle.stores.refusal_cache import NoRefusalCache, RefusalCache

logger = logging.getLogger("django_throttle")

MAINTENANCE_SECONDS: Final = 1.0
MAX_CALL_CHARGES: Final = 1000  # a Lua function returns at most 8,000 values, and a charge has seven
RULES_TTL_MS: Final = 30 * 24 * 3600 * 1000
_SCRIPT_REFUSED: Final = (
    "Redis refuses a script, so failure policies decide; check the user's rights, the server's version and REDIS"
)
_ADVICE: Final = {
    Cause.POOL: "All connections to Redis are in use, as calls take long; failure policies decide meanwhile",
    Cause.BLOCKED: "Code of the site blocks the event loop for longer than DEADLINE; failure policies decide meanwhile",
}


class AnswerObserver(Protocol):
    """Notes the answers of Redis to one call, or to several."""

    def note(self, charges: Charges, answers: Answers) -> None: ...

    def note_all(self, calls: Sequence[tuple[Charges, Answers]]) -> None: ...


class RedisContext:
    """State that commands to one Redis share.

    ``clock`` (seconds) replaces the server's clock in tests. ``answer_observer`` is notified of the answers of Redis.
    """

    def __init__(
        self,
        transport: Transport | ClusterTransport,
        *,
        prefix: str,
        clock: Callable[[], float] | None,
        secret: str,
        lease_ttl: float,
        answer_observer: AnswerObserver,
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
        # A test clock differs from this process' clock, so nothing is cached or prepaid under it.
        self.is_costly = clock is None
        self.refusal_cache: RefusalCache = RefusalCache() if self.is_costly else NoRefusalCache()
        self.local_limits = LocalLimits(clock or time.monotonic)
        self.local_limits.prepaid.patience = transport.seconds
        self.answer_observer = answer_observer

    def call(self, name: str, keys: Sequence[str], args: Sequence[object]) -> Any:
        """Run a script for the agent or a management command, past the breaker. Raise StoreError."""
        (reply,) = self.pipeline([(name, keys, args)])
        if isinstance(reply, Exception):
            raise StoreError(cause_of(reply), str(reply) + advice(reply)) from reply
        return reply

    def pipeline(self, calls: Sequence[tuple[str, Sequence[str], Sequence[object]]]) -> list[Any]:
        """Run several scripts in one round trip. Errors stand in place of replies. Raise StoreError."""
        return self.send([RedisCall(script(name), keys, args, has_derived_keys=True) for name, keys, args in calls])

    def send(self, calls: Sequence[RedisCall]) -> list[object]:
        """Send calls in one round trip. Errors stand in place of replies. Raise StoreError."""
        try:
            return self.transport.send_all(calls, MAINTENANCE_SECONDS)
        except Exception as error:
            raise StoreError(cause_of(error), str(error)) from error

    def rules_version(self, new_version: str, *, publish: bool) -> tuple[str, float]:
        """Return the version of the rules, and the time of Redis in epoch seconds. Raise StoreError.

        Set the version to ``new_version`` if it is to ``publish``, or if there is none.
        """
        name = "publish_rules" if publish else "rules_version"
        version, seconds, micros = self.call(name, [self.process_key("rules")], [new_version, RULES_TTL_MS])
        return text(version), seconds + micros / 1_000_000

    @property
    def open_breakers(self) -> int:
        """Number of open circuit breakers. There is one breaker, or one for each node of a Cluster."""
        return sum(breaker.is_open for breaker in self.transport.breakers)

    def now_arg(self) -> str:
        """Return the first argument of most scripts: the test clock's time in microseconds, or ""."""
        return "" if self.clock is None else str(round(self.clock() * 1_000_000))

    def clock_args(self) -> tuple[str, ...]:
        """Return the first argument of decisions: the test clock's time, or no argument."""
        return () if self.clock is None else (self.now_arg(),)

    def key(self, rule_id: str, ident: str) -> str:
        """Return the key of a rule's log, lease index or other data of its own for an ident."""
        return key_root(self.prefix, ident, self.secret) + rule_id

    def counter_key(self, rule: Rule, ident: str) -> str:
        """Return the key that counts for a rule: the ident's value, or the own key of its algorithm."""
        return self.key("" if rule.params.wire_id < OWN_KEY else rule.id, ident)

    def process_key(self, name: str) -> str:
        """Return a key of data about processes. All of these keys share a slot."""
        return f"{self.prefix}:{{p}}:{name}"

    def by_slot(self, charges: Sequence[Charge]) -> list[list[int]]:
        """Group the indexes of charges by script call: at most MAX_CALL_CHARGES, and on a Cluster of one slot."""
        slot_of, places = self.transport.slot_of, range(len(charges))
        slots = [list(places)]
        if slot_of is not None:
            slots = grouped(places, lambda place: slot_of(self.key("", charges[place].ident)))
        max_charges = MAX_CALL_CHARGES
        return [part[start : start + max_charges] for part in slots for start in range(0, len(part), max_charges)]

    def note_failure(self, error: Exception) -> StoreError:
        """Report a failure to the breaker. Return the failure as a StoreError.

        Log when the breaker opens. Log other causes at most once a minute.
        """
        cause, text = cause_of(error), text_of(error)
        if cause in COUNTED_CAUSES:
            if self.breaker.failed(waited(error, self.transport.seconds)):
                logger.warning("Redis does not answer (%s: %s); failure policies decide until it does", cause, text)
        else:
            self.breaker.inconclusive()
            if not isinstance(error, LoopEnded) and self.log_throttle.try_acquire(cause):
                logger.error("%s (%s: %s)%s", _ADVICE.get(cause, _SCRIPT_REFUSED), cause, text, advice(error))
        return StoreError(cause, text + advice(error))
